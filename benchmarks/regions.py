"""Patches, facial regions, or both: the same budget, three seeds each; writes OUTPUT/table.md and OUTPUT/regions.png.

python -m benchmarks.regions data/ferplus.parquet runs/regions

Every row trains the model of configs/ablation.yaml with one choice of tokens and is judged after its last epoch on the
validation images: as they are, with eyes or mouth covered, and where heads are turned most. A row that is finished is
not trained again, one that was interrupted resumes from its last epoch.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.ablation import arguments, figures, newest, slug, step_seconds, train_all
from fer_vit.data.manifest import Manifest
from fer_vit.evaluate.faces import manifest_truth
from fer_vit.evaluate.hard import AS_THEY_ARE, MOST_TURNED, hard_faces
from fer_vit.model.cost import multiply_adds
from fer_vit.predict.recognizer import load
from fer_vit.store.folder import load_network

BUDGET = ["--trainer.max_epochs=6", "--data.batch_size=64", "--model.lr=6e-4", "--model.network.head=avg"]
STEM = ["model.network.tokens=region", "model.network.region_source=stem"]
TOKENS = {
    "patches": ["model.network.tokens=patch"],
    "patches and regions of the stem": ["model.network.region_source=stem", "model.network.embed_dim=92"],
    "regions of the stem": [*STEM, "model.network.embed_dim=140"],
    "few patches": ["model.network.tokens=patch", "model.network.patch_size=16", "model.network.embed_dim=176"],
    "patches, one block": ["model.network.tokens=patch", "model.network.depth=1", "model.network.embed_dim=120"],
    "patches, not aligned": ["model.network.tokens=patch", "model.align=crop"],
    "regions of the stem, not aligned": [*STEM, "model.network.embed_dim=140", "model.align=crop"],
    "patches, narrow": ["model.network.tokens=patch", "model.network.embed_dim=64"],
    "regions of the stem, narrow": STEM,
    "regions of the image, 8 px": ["model.network.tokens=region"],
    "regions of the image, 16 px": ["model.network.tokens=region", "model.network.region_grid=2"],
    "patches and regions of the image": [],
    "patches, the later ones halved, and regions of the stem": [STEM[1], "model.network.keep_rate=[1,0.5,0.5,0.5]"],
}
"""What each row changes. The first seven have about the same multiply-adds, and so have the two that are narrow."""
SEEDS = (0, 1, 2)
ALL = AS_THEY_ARE
HARD = ("eyes covered", "mouth covered", MOST_TURNED)


def rows(changes: dict[str, list[str]]) -> dict[str, list[str]]:
    """The options of every run by its name, given what each row changes."""
    return {
        run(name, seed): [*BUDGET, f"--seed_everything={seed}", *(f"--{word}" for word in words)]
        for name, words in changes.items()
        for seed in SEEDS
    }


def run(name: str, seed: int) -> str:
    """The name of a run."""
    return f"{name}, seed {seed}"


def judge(folder: Path, manifest: Path, hard: Sequence[str]) -> dict[str, float]:
    """Accuracy of a run on all images and on hard ones; kept in its folder."""
    kept = folder / "hard.json"
    if not kept.is_file():
        rows, model = Manifest.read(manifest, ["val"]).split("val"), load(newest(folder))
        _, shares, _ = manifest_truth(rows, model.labels, "val")
        assert shares is not None
        hits = hard_faces(model, rows, shares.argmax(1), only=(ALL, *hard))
        kept.write_text(json.dumps({name: float(np.nanmean(each)) for name, each in hits.items()}))
    found: dict[str, float] = json.loads(kept.read_text())
    return found


def spread(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def table(names: Iterable[str], hard: Sequence[str], manifest: Path, output: Path, rounds: int) -> str:
    """The rows whose seeds are all finished, as Markdown; draws the picture as well."""
    finished = [
        name for name in names if all(any((output / slug(run(name, seed))).rglob("val.json")) for seed in SEEDS)
    ]
    nets = {name: load_network(newest(output / slug(run(name, SEEDS[0])))) for name in finished}
    seconds = step_seconds(nets, rounds)
    lines = ["| tokens | number | parameters | multiply-adds | step | accuracy | UAR | " + " | ".join(hard) + " |"]
    lines.append("| --- |" + " ---: |" * (6 + len(hard)))
    points: dict[str, tuple[float, list[float]]] = {}
    for name, net in tqdm(nets.items(), desc="judging", disable=None):
        folders = [output / slug(run(name, seed)) for seed in SEEDS]
        judged = [judge(folder, manifest, hard) | {"UAR": figures(folder)["uar"]} for folder in folders]
        cost = sum(multiply_adds(net).values()) / 1e6
        cells = [spread([one[what] for one in judged]) for what in (ALL, "UAR", *hard)]
        parameters = sum(parameter.numel() for parameter in net.parameters()) / 1e6
        lines.append(
            f"| {name} | {net.layout.num_patches + net.layout.num_regions * net.layout.tokens_per_region} "
            f"| {parameters:.2f} M | {cost:.1f} M | {median(seconds[name]):.3f} s | {' | '.join(cells)} |"
        )
        points[name] = (cost, [one[ALL] for one in judged])
    draw(points, output / "regions.png")
    return "\n".join(lines) + "\n"


def draw(points: dict[str, tuple[float, list[float]]], path: Path) -> None:
    """Draws accuracy against multiply-adds: a dot for each seed, a line at their mean."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for place, (name, (cost, accuracies)) in enumerate(points.items()):
        colour = f"C{place}"
        axes.scatter([cost] * len(accuracies), [100 * value for value in accuracies], color=colour, s=18)
        axes.hlines(100 * mean(accuracies), cost - 1, cost + 1, color=colour, linewidth=3, label=name)
    axes.set(xlabel="multiply-adds of a face, millions", ylabel="validation accuracy, %", xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def finish(args: Namespace, names: dict[str, list[str]], hard: Sequence[str]) -> None:
    """Trains the rows that are not there yet and prints their table; ends the program with 1 if one has failed."""
    done = train_all(rows(names), args.manifest, args.output, args.jobs)
    (args.output / "table.md").write_text(table(names, hard, args.manifest, args.output, args.rounds))
    print((args.output / "table.md").read_text())
    sys.exit(not done)


if __name__ == "__main__":
    finish(arguments(__doc__).parse_args(), TOKENS, HARD)
