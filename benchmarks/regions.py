"""Compares patches, facial regions and both at equal cost, three seeds each: OUTPUT/table.md, OUTPUT/regions.png.

python -m benchmarks.regions data/ferplus.parquet runs/regions

Each row trains the model of configs/ablation.yaml with one choice of tokens. The last epoch is scored on the validation
images: unaltered, with eyes or mouth covered, and on the most turned heads. Finished rows are not trained again;
interrupted rows resume from their last epoch.
"""

import json
import sys
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.ablation import arguments, figures, newest, results_file, slug, step_seconds, train_all
from fer_vit.data.manifest import Manifest
from fer_vit.evaluate.robustness import MOST_TURNED, UNALTERED, measure_robustness
from fer_vit.predict.recognizer import load
from fer_vit.store.folder import load_network
from fer_vit.train.cost import multiply_adds

BUDGET = ["--trainer.max_epochs=6", "--data.batch_size=64", "--model.lr=6e-4", "--model.network.pool=avg"]
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
"""Options of each row. The first seven have about equal multiply-adds, and so do the two narrow ones."""
SEEDS = (0, 1, 2)
ALL = UNALTERED
HARD = ("eyes covered", "mouth covered", MOST_TURNED)


def rows(changes: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the options of every run by name."""
    return {
        run(name, seed): [*BUDGET, f"--seed_everything={seed}", *(f"--{word}" for word in words)]
        for name, words in changes.items()
        for seed in SEEDS
    }


def run(name: str, seed: int) -> str:
    """Returns the name of a run."""
    return f"{name}, seed {seed}"


def score_run(folder: Path, manifest: Path) -> dict[str, float]:
    """Returns the accuracy of a run on all images and on altered ones; caches it in the folder of the run."""
    kept = folder / "hard.json"
    if not kept.is_file():
        rows, model = Manifest.read(manifest, ["val"]).split("val"), load(newest(folder))
        shares = rows.model_targets(model.labels)
        assert shares is not None
        hits = measure_robustness(model, rows, shares.argmax(1), only=(ALL, *HARD))
        kept.write_text(json.dumps({name: float(np.nanmean(each)) for name, each in hits.items()}))
    found: dict[str, float] = json.loads(kept.read_text())
    return found


def spread(values: list[float]) -> str:
    """Formats mean and standard deviation in per cent."""
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def table(manifest: Path, output: Path, rounds: int) -> str:
    """Returns the rows with all seeds finished as Markdown, and draws the figure."""
    finished = [name for name in TOKENS if all(results_file(output / slug(run(name, seed))).exists() for seed in SEEDS)]
    nets = {name: load_network(newest(output / slug(run(name, SEEDS[0])))) for name in finished}
    seconds = step_seconds(nets, rounds)
    lines = ["| tokens | number | parameters | multiply-adds | step | accuracy | UAR | " + " | ".join(HARD) + " |"]
    lines.append("| --- |" + " ---: |" * (6 + len(HARD)))
    points: dict[str, tuple[float, list[float]]] = {}
    for name, net in tqdm(nets.items(), desc="scoring", disable=None):
        folders = [output / slug(run(name, seed)) for seed in SEEDS]
        scores = [score_run(folder, manifest) | {"UAR": figures(folder)["UAR"]} for folder in folders]
        cost = sum(multiply_adds(net).values()) / 1e6
        cells = [spread([one[what] for one in scores]) for what in (ALL, "UAR", *HARD)]
        parameters = sum(parameter.numel() for parameter in net.parameters()) / 1e6
        lines.append(
            f"| {name} | {net.layout.num_patches + net.layout.num_regions * net.layout.tokens_per_region} "
            f"| {parameters:.2f} M | {cost:.1f} M | {median(seconds[name]):.3f} s | {' | '.join(cells)} |"
        )
        points[name] = (cost, [one[ALL] for one in scores])
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


def main() -> None:
    """Trains the missing rows and prints the table; exits with 1 if a row failed."""
    args = arguments(__doc__).parse_args()
    done = train_all(rows(TOKENS), args.manifest, args.output, args.jobs)
    (args.output / "table.md").write_text(table(args.manifest, args.output, args.rounds))
    print((args.output / "table.md").read_text())
    sys.exit(not done)


if __name__ == "__main__":
    main()
