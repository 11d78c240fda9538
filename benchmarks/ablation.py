"""Trains variants of one small model on the same data and compares them in OUTPUT/table.md.

python -m benchmarks.ablation data/ferplus.parquet runs/ablation
python -m benchmarks.ablation data/ferplus.parquet runs/regions --rows regions

With `--rows regions`, the variants are patches, facial regions and both at equal cost, three seeds
each; they are also scored with eyes or mouth covered, and on the most turned heads. Finished rows
are not trained again; interrupted rows resume from their last epoch. Training steps are timed
without data loading: run nothing else meanwhile.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

import numpy as np
import torch

from benchmarks import machine
from fer_vit.data.manifest import Manifest
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, read_altered
from fer_vit.model.attention import has_bf16, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import load
from fer_vit.store.model_folder import load_network
from fer_vit.train.run import multiply_adds

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "ablation.yaml"
FER_VIT = [sys.executable, str(ROOT / "cli.py")]
MECHANISMS = {
    "base, seed 0": [],
    "base, seed 1": ["seed_everything=1"],
    "base, seed 2": ["seed_everything=2"],
    "tokens: patch": ["model.network.tokens=patch"],
    "tokens: region": ["model.network.tokens=region"],
    "attention: additive": ["model.network.attention=additive"],
    "attention: gaussian": ["model.network.attention=gaussian"],
    "pool: avg": ["model.network.pool=avg"],
    "pool: additive": ["model.network.pool=additive"],
    "pool: query": ["model.network.pool=query"],
    "keep rate: 0.7": ["model.network.keep_rate=[1,0.7,0.7,0.7]"],
    "keep rate: 0.5": ["model.network.keep_rate=[1,0.5,0.5,0.5]"],
    "position: none": ["model.network.pos_embed=none"],
    "position: learned": ["model.network.pos_embed=learn"],
    "position: sinusoidal 1-D": ["model.network.pos_embed=sincos_1d"],
}
"""What each row changes. The base: both kinds of tokens, dot-product attention,
class token, 2-D positions.
"""
STEM = ["model.network.region_source=stem"]
TOKENS = {
    "patches": ["model.network.tokens=patch"],
    "patches and regions of the stem": [*STEM, "model.network.embed_dim=92"],
    "regions of the stem": [*STEM, "model.network.tokens=region", "model.network.embed_dim=140"],
    "few patches": [
        "model.network.tokens=patch",
        "model.network.patch_size=16",
        "model.network.embed_dim=176",
    ],
    "patches, one block": [
        "model.network.tokens=patch",
        "model.network.depth=1",
        "model.network.embed_dim=120",
    ],
    "regions of the image, 16 px": ["model.network.tokens=region", "model.network.region_grid=2"],
}
BUDGET = ["trainer.max_epochs=6", "data.batch_size=64", "model.lr=6e-4", "model.network.pool=avg"]
REGIONS = {
    f"{name}, seed {seed}": [*BUDGET, *words, f"seed_everything={seed}"]
    for name, words in TOKENS.items()
    for seed in range(3)
}
HARD = ("eyes covered", "mouth covered", MOST_TURNED)


def train(name: str, words: list[str], manifest: Path, output: Path, jobs: int) -> bool:
    """Trains a row and evaluates its last epoch. Returns False if the row failed."""
    folder = output / slug(name)
    if results_file(folder).exists():
        return True
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    common = [
        f"--data.manifest={manifest}",
        "--data.num_workers=0",
        "--trainer.enable_progress_bar=false",
    ]
    common += [
        f"--trainer.logger.init_args.save_dir={output}",
        f"--trainer.logger.init_args.name={slug(name)}",
    ]
    row = [f"--config={CONFIG}", *common, *(f"--{word}" for word in words)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        run = partial(subprocess.run, env=env, stdout=log, stderr=subprocess.STDOUT, check=True)
        last = newest(folder)
        more = [f"--ckpt_path={last}"] if last else []
        try:
            run([*FER_VIT, "fit", *row, *more])
            run(evaluation(manifest, folder))
        except subprocess.CalledProcessError:
            print(f"{name}: failed, see {log.name}", flush=True)
            return False
    print(f"{name}: {figures(folder)['accuracy']:.1%}", flush=True)
    return True


def newest(folder: Path) -> Path | None:
    """Returns the newest checkpoint of a last epoch in a folder."""
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime, default=None)


def evaluation(manifest: Path, folder: Path) -> list[str]:
    """Returns the command that evaluates the last epoch in a folder on the validation images."""
    where = ["--checkpoint", str(newest(folder)), "--output", str(results_file(folder).parent)]
    return [*FER_VIT, "evaluate", str(manifest), *where]


def results_file(folder: Path) -> Path:
    """Returns where `evaluation` writes its results."""
    return folder / "evaluation" / "results.json"


def figures(folder: Path) -> dict[str, float]:
    """Returns accuracy and UAR of the last epoch in a folder."""
    scores = json.loads(results_file(folder).read_text())["all"]
    return {name: scores[name]["mean"] for name in ("accuracy", "UAR")}


def slug(name: str) -> str:
    """Returns the name of a row's folder."""
    return name.replace(": ", "-").replace(", ", "-").replace(" ", "_")


def score_hard(folder: Path, manifest: Path) -> dict[str, float]:
    """Returns the accuracy of a run on altered images; caches it in the folder of the run."""
    kept = folder / "hard.json"
    if not kept.is_file():
        rows = Manifest.read(manifest).split("val")
        model = load(newest(folder))
        altered = read_altered(model, rows, only=(UNALTERED, *HARD))
        truth = rows.model_targets(model.labels).argmax(1)
        hits = altered.hits(truth, np.ones(len(rows), bool))
        kept.write_text(json.dumps({name: float(np.nanmean(each)) for name, each in hits.items()}))
    return json.loads(kept.read_text())


def table(rows: dict[str, list[str]], manifest: Path, output: Path, rounds: int) -> str:
    """Returns the finished rows as Markdown; seeds of a row are averaged."""
    seeds: dict[str, list[Path]] = {}
    for name in rows:
        if results_file(folder := output / slug(name)).exists():
            seeds.setdefault(name.partition(", seed")[0], []).append(folder)
    nets = {name: load_network(newest(folders[0])) for name, folders in seeds.items()}
    times = step_seconds(nets, rounds)
    hard = HARD if rows is REGIONS else ()
    lines = [
        f"| row | parameters | multiply-adds | step | {' | '.join(('accuracy', 'UAR', *hard))} |"
    ]
    lines.append("| --- |" + " ---: |" * (5 + len(hard)))
    for name, net in nets.items():
        scores = [
            figures(folder) | (score_hard(folder, manifest) if hard else {})
            for folder in seeds[name]
        ]
        cells = [[100 * score[what] for score in scores] for what in ("accuracy", "UAR", *hard)]
        parameters = sum(parameter.numel() for parameter in net.parameters())
        lines.append(
            f"| {name} | {parameters / 1e6:.2f} M | {multiply_adds(net) / 1e6:.1f} M "
            f"| {machine.spread(times[name], 3)} s | {' | '.join(map(mean_and_deviation, cells))} |"
        )
    return "\n".join(lines) + "\n"


def mean_and_deviation(values: list[float]) -> str:
    """Formats a mean, and the standard deviation of several values."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def step_seconds(nets: dict[str, RegionViT], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds per training step of 128 faces by model and round."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = {name: training_step(net.to(device).train(), 128, device) for name, net in nets.items()}
    return machine.in_turns(steps, rounds)


def training_step(net: RegionViT, batch: int, device: torch.device) -> Callable[[], None]:
    """Returns a training step as in `fit`: bfloat16 if supported, AdamW, clipped gradients."""
    use_fused_attention(net, fused=device.type != "cpu")
    size = net.config.img_size
    image = torch.rand(batch, 3, size, size, device=device)
    corner = torch.rand(batch, len(net.config.regions), 2, device=device) * size / 2
    boxes = torch.cat([corner, corner + size / 3], dim=-1)
    optimiser = torch.optim.AdamW(net.parameters())

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bf16("auto")):
            loss = net.logits(image, boxes).float().logsumexp(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()

    return step


def main(
    manifest: Path,
    output: Path,
    rows: Literal["mechanisms", "regions"] = "mechanisms",
    jobs: int = 1,
    rounds: int = 5,
) -> None:
    """Trains the missing rows, `jobs` at a time, and prints the table;
    exits with 1 if a row failed.
    """
    chosen = REGIONS if rows == "regions" else MECHANISMS
    with ThreadPoolExecutor(jobs) as pool:
        done = list(
            pool.map(
                partial(train, manifest=manifest, output=output, jobs=jobs), chosen, chosen.values()
            )
        )
    (output / "table.md").write_text(text := table(chosen, manifest, output, rounds))
    print(text)
    sys.exit(not all(done))


if __name__ == "__main__":
    machine.run_main(main)
