"""Learning curves: fine-tuning a trained model on a few photos per class, against the same network from scratch.

python -m benchmarks.finetune runs/finetune/drawn
python -m benchmarks.finetune runs/finetune/ferplus --ferplus data/ferplus.parquet --start fold0.ckpt --fold 0/3

The photos are drawn faces in five new classes, or FERPlus faces of the fold that the start was not trained on. Classes
get new names, so that no row of the head is kept. A tenth of the photos chooses the epoch. Test faces are 500 other
drawn faces, or the FERPlus validation split without near-duplicates. Finished runs are not repeated. OUTPUT/table.md
has mean and range over runs with different photos and seeds. Seed 0 is not used: the start was trained with it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import numpy as np
import yaml

from benchmarks.ablation import ROOT, slug
from benchmarks.machine import arguments, machine
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import Reading, Row, Split
from fer_vit.data.writing import write_manifest
from fer_vit.evaluate.faces import evaluate_logits
from fer_vit.face.image import encode_png
from fer_vit.files import atomic_write
from fer_vit.predict.recognizer import load
from fer_vit.sources.drawing import draw_face
from fer_vit.store.folder import read_model
from fer_vit.store.hub import DEFAULT

DRAWN = {
    "still": ("neutral",),
    "up": ("happiness", "contempt"),
    "down": ("sadness", "disgust"),
    "wide": ("surprise", "fear"),
    "tight": ("anger",),
}
"""New classes of drawn faces, and the expressions in each."""
HELD_OUT = 100
"""Drawn test faces of each class."""
SCRATCH = ["freeze=none", "lr=6e-4", "layer_decay=1"]
ROWS = {
    "start": [],
    "scratch": [f"--model.{word}" for word in SCRATCH],
    "start, lr 6e-4": ["--model.lr=6e-4"],
    "start, no layer decay": ["--model.layer_decay=1"],
    "start, nothing frozen": ["--model.freeze=none"],
    "start, encoder frozen": ["--model.freeze=encoder", "--model.lr=2e-3"],
}
"""Options of each row over configs/finetune.yaml; `scratch` also has a config for the network."""


def drawn(count: int, seed: int) -> Reading:
    """Draws `count` training faces of each class, and test faces that are the same for every seed."""
    rows = []
    for label, expressions in DRAWN.items():
        for number in range(count + HELD_OUT):
            is_test = number >= count
            face = 10_000_000 + number - count if is_test else 10_000 * seed + number
            image, landmarks = draw_face(expressions[number % len(expressions)], face)
            split: Split = "test" if is_test else kept_back(number)
            rows.append(Row(encode_png(image[..., 0]), f"{label}-{face}", split, label, landmarks=landmarks))
    return Reading(tuple(DRAWN), rows)


def ferplus(faces: Manifest, tests: Manifest, count: int, seed: int) -> Reading:
    """Draws at most `count` training faces of each class from a fold; all `tests` are test faces."""
    labels = np.array(faces.column("label"))
    rows = list(as_rows(tests, range(len(tests)), ["test"] * len(tests)))
    for label in faces.names:
        mine = np.random.default_rng(seed).permutation(np.flatnonzero(labels == label))[:count].tolist()
        rows += as_rows(faces, mine, [kept_back(number) for number in range(len(mine))])
    return Reading(tuple(f"my {name}" for name in faces.names), rows)


def as_rows(faces: Manifest, which: list[int] | range, splits: list[Split]) -> Iterator[Row]:
    """Yields rows of a manifest in new splits and with new class names."""
    labels, landmarks = faces.column("label"), faces.landmarks()
    for row, split in zip(which, splits, strict=True):
        points = None if np.isnan(landmarks[row]).any() else landmarks[row]
        yield Row(faces.image_bytes(row), faces.name(row), split, f"my {labels[row]}", landmarks=points)


def kept_back(number: int) -> Split:
    """Returns the split of a photo: every tenth is for validation."""
    return "val" if number % 10 == 9 else "train"


def run(folder: Path, reading: Reading, words: list[str]) -> dict[str, float]:
    """Trains one row in a folder, after removing the remains of an interrupted attempt."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = folder / "faces.parquet"
    write_manifest(manifest, reading, "benchmark", "always")
    where = [f"--data.manifest={manifest}", f"--trainer.logger.init_args.save_dir={folder}", "--data.num_workers=0"]
    start = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(ROOT / "cli.py"), "fit", *words, *where, "--trainer.enable_progress_bar=false"]
        subprocess.run(command, stdout=log, stderr=log, check=True)
    seconds = time.monotonic() - start
    (best,) = folder.rglob("best.ckpt")
    logits, target = evaluate_logits(load(best, "cpu"), manifest, "test")
    truth, hit = target.argmax(1), logits.argmax(1) == target.argmax(1)
    recall = [float(hit[truth == label].float().mean()) for label in truth.unique()]
    shutil.rmtree(best.parent)
    manifest.unlink()
    return {"accuracy": float(hit.float().mean()), "uar": mean(recall), "seconds": seconds}


def table(output: Path, photos: list[int], runs: int) -> str:
    """Returns the finished rows as Markdown."""
    lines = ["| row | photos a class | accuracy, % | UAR, % | seconds |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in ROWS:
        for count in photos:
            files = [output / f"{slug(name)}-{count}-{seed}" / "result.json" for seed in range(1, runs + 1)]
            if found := [json.loads(file.read_text()) for file in files if file.is_file()]:
                cells = [spread([100 * one[what] for one in found], 1) for what in ("accuracy", "uar")]
                seconds = spread([one["seconds"] for one in found], 0)
                lines.append(f"| {name} | {count} | {cells[0]} | {cells[1]} | {seconds} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float], digits: int) -> str:
    """Formats mean, minimum and maximum."""
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Trains the missing runs and prints the table."""
    parser = arguments(__doc__)
    parser.add_argument("output", type=Path, help="folder of the runs")
    parser.add_argument("--ferplus", type=Path, help="a manifest of FERPlus (default: drawn faces)")
    parser.add_argument("--start", default=DEFAULT, help="the model to start from")
    parser.add_argument("--fold", default="0/3", help="the held-out fold of the start")
    parser.add_argument("--photos", type=int, nargs="+", default=[20, 100, 500], help="photos a class")
    parser.add_argument("--rows", nargs="+", default=list(ROWS)[:2], choices=list(ROWS))
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    network = asdict(read_model(args.start)[0]["config"])
    scratch = args.output / "scratch.yaml"
    model = {"init": None, "network": json.loads(json.dumps(network))}
    average = [{"class_path": "fer_vit.train.ema.EMA", "init_args": {"decay": 0.99}}]
    scratch.write_text(yaml.safe_dump({"model": model, "trainer": {"callbacks": average}}))  # stops at the end only
    if args.ferplus:
        rows = Manifest.read(args.ferplus, ["train", "val"])
        fold, tests = rows.select(in_fold(rows, args.fold)), rows.split("val").select(~rows.near_duplicates("val"))
    config = f"--config={ROOT / 'configs' / 'finetune.yaml'}"
    for count in args.photos:
        for seed in range(1, args.runs + 1):
            reading = ferplus(fold, tests, count, seed) if args.ferplus else drawn(count, seed)
            for name in args.rows:
                folder = args.output / f"{slug(name)}-{count}-{seed}"
                if (folder / "result.json").is_file():
                    continue
                first = [f"--model.init={args.start}"]
                if name == "scratch":  # needs more steps, with as many validations
                    epochs = max(40, 6000 // count)
                    words = (f"max_epochs={epochs}", f"check_val_every_n_epoch={epochs // 40}")
                    first = [f"--config={scratch}", *(f"--trainer.{word}" for word in words)]
                found = run(folder, reading, [config, *first, *ROWS[name], f"--seed_everything={seed}"])
                with atomic_write(folder / "result.json") as file:
                    file.write_text(json.dumps(found))
                print(f"{name}, {count} photos, run {seed}: {found}", flush=True)
    (args.output / "table.md").write_text(table(args.output, args.photos, args.runs))
    print((args.output / "table.md").read_text())


if __name__ == "__main__":
    main()
