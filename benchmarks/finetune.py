"""Learning curves: fine-tuning a trained model on a few photos per class, against the same network
from scratch.

python -m benchmarks.finetune runs/finetune --ferplus ferplus.parquet --start fold0.ckpt --fold 0/3

The photos are FERPlus faces of the fold that the start was not trained on. Classes get new names,
so that no row of the head is kept. A tenth of the photos chooses the epoch. Test faces are the
validation split without near-duplicates. Finished runs are not repeated. OUTPUT/table.md has mean
and range over runs with different photos and seeds. Seed 0 is not used: the start was trained with
it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import yaml

from benchmarks.ablation import ROOT, slug
from benchmarks.machine import machine, run_main, spread
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import Reading, Row, Split, write_manifest
from fer_vit.exporting.calibration import labelled_batches, predict_logits
from fer_vit.files import atomic_write
from fer_vit.predict.recognizer import load
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.store.model_folder import read_model

SCRATCH = ["--model.freeze=none", "--model.lr=6e-4", "--model.layer_decay=1"]


def draw_photos(faces: Manifest, tests: Manifest, count: int, seed: int) -> Reading:
    """Draws at most `count` training faces of each class from a fold;
    all `tests` are test faces.
    """
    labels = np.array(faces.column("label"))
    rows = list(as_rows(tests, range(len(tests)), ["test"] * len(tests)))
    for label in faces.labels:
        mine = (
            np.random.default_rng(seed)
            .permutation(np.flatnonzero(labels == label))[:count]
            .tolist()
        )
        splits = ["train"] * len(mine)
        splits[9::10] = ["val"] * len(splits[9::10])
        rows += as_rows(faces, mine, splits)
    return Reading(tuple(f"my {name}" for name in faces.labels), rows)


def as_rows(faces: Manifest, which: list[int] | range, splits: list[Split]) -> Iterator[Row]:
    """Yields rows of a manifest in new splits and with new class names."""
    labels = faces.column("label")
    landmarks = faces.landmarks()
    for row, split in zip(which, splits, strict=True):
        points = None if np.isnan(landmarks[row]).any() else landmarks[row]
        yield Row(
            faces.image_bytes(row), faces.name(row), split, f"my {labels[row]}", landmarks=points
        )


def run(folder: Path, reading: Reading, words: list[str]) -> dict[str, float]:
    """Trains one row in a folder, after removing the remains of an interrupted attempt."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = folder / "faces.parquet"
    write_manifest(manifest, reading, "benchmark", "always")
    where = [
        f"--data.manifest={manifest}",
        f"--trainer.logger.init_args.save_dir={folder}",
        "--data.num_workers=0",
    ]
    start = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        command = [
            sys.executable,
            str(ROOT / "cli.py"),
            "fit",
            *words,
            *where,
            "--trainer.enable_progress_bar=false",
        ]
        subprocess.run(command, stdout=log, stderr=log, check=True)
    seconds = time.monotonic() - start
    (best,) = folder.rglob("best.ckpt")
    model = load(best, "cpu")
    _, batches, target = labelled_batches(model, Manifest.read(manifest), "test")
    logits = predict_logits(model, batches)
    truth = target.argmax(1)
    hit = logits.argmax(1) == target.argmax(1)
    recall = [float(hit[truth == label].float().mean()) for label in truth.unique()]
    shutil.rmtree(best.parent)
    manifest.unlink()
    return {"accuracy": float(hit.float().mean()), "uar": mean(recall), "seconds": seconds}


def table(output: Path, photos: tuple[int, ...], runs: int) -> str:
    """Returns the finished rows as Markdown."""
    lines = [
        "| row | photos a class | accuracy, % | UAR, % | seconds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ("start", "scratch"):
        for count in photos:
            files = [
                output / f"{slug(name)}-{count}-{seed}" / "result.json"
                for seed in range(1, runs + 1)
            ]
            results = [json.loads(file.read_text()) for file in files if file.is_file()]
            if not results:
                continue
            accuracy = spread([100 * result["accuracy"] for result in results], 1, mean)
            uar = spread([100 * result["uar"] for result in results], 1, mean)
            seconds = spread([result["seconds"] for result in results], 0, mean)
            lines.append(f"| {name} | {count} | {accuracy} | {uar} | {seconds} |")
    return "\n".join(lines) + "\n"


def main(
    output: Path,
    *,
    ferplus: Path,
    start: str = DEFAULT_MODEL,
    fold: str = "0/3",
    photos: tuple[int, ...] = (20, 100, 500),
    runs: int = 3,
) -> None:
    """Trains the missing runs and prints the table."""
    output.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    scratch = output / "scratch.yaml"
    model = {
        "init": None,
        "network": json.loads(json.dumps(asdict(read_model(start).config))),
    }
    average = [{"class_path": "fer_vit.callbacks.EMA", "init_args": {"decay": 0.99}}]
    # The average is the only callback: training stops at its end.
    scratch.write_text(yaml.safe_dump({"model": model, "trainer": {"callbacks": average}}))
    rows = Manifest.read(ferplus)
    faces = rows.select(in_fold(rows, fold))
    tests = rows.split("val").select(~rows.near_duplicates("val"))
    for count, seed in product(photos, range(1, runs + 1)):
        reading = draw_photos(faces, tests, count, seed)
        epochs = max(40, 6000 // count)  # from scratch, more steps with as many validations
        steps = [
            f"--trainer.max_epochs={epochs}",
            f"--trainer.check_val_every_n_epoch={epochs // 40}",
        ]
        options = {
            "start": [f"--model.init={start}"],
            "scratch": [f"--config={scratch}", *SCRATCH, *steps],
        }
        for name, words in options.items():
            folder = output / f"{slug(name)}-{count}-{seed}"
            if not (folder / "result.json").is_file():
                first = f"--config={ROOT / 'configs' / 'finetune.yaml'}"
                result = run(folder, reading, [first, *words, f"--seed_everything={seed}"])
                with atomic_write(folder / "result.json") as file:
                    file.write_text(json.dumps(result))
                print(f"{name}, {count} photos, run {seed}: {result}", flush=True)
    text = table(output, photos, runs)
    (output / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    run_main(main)
