"""How cost grows: with tokens, regions, image size, batch, images and processes. Writes a picture, one plot each.

python -m benchmarks.growth data/ferplus.parquet docs/growth.png

The model has the width and depth of configs/ablation.yaml; images and processes are of `fer-vit predict --face crop`
with the model that is shipped. The exponent is the slope of a line through the last three points in the logarithms.
"""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.machine import PROGRAM, arguments, in_turns, machine
from benchmarks.photos import face_images
from benchmarks.training import DEVICE, faces, whole_step
from fer_vit.face.regions import REGIONS
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT

BASE = RegionViTConfig(
    "vit_tiny_patch16_224",
    img_size=48,
    patch_size=8,
    embed_dim=96,
    depth=4,
    num_heads=4,
    regions=tuple(REGIONS),
    region_grid=1,
)
BATCH = 32
Points = dict[float, list[float]]


def step_seconds(configs: dict[float, tuple[RegionViTConfig, int]], rounds: int) -> Points:
    """Seconds of forward and backward, for each configuration and batch size."""
    works = {
        x: whole_step(RegionViT(config, EXPRESSIONS).to(DEVICE), faces(config, number))
        for x, (config, number) in configs.items()
    }
    return in_turns(works, rounds, 0.2)


def predict_seconds(images: Path, processes: int = 1) -> float:
    """Seconds of `fer-vit predict` in some processes that share a folder."""
    with TemporaryDirectory() as folder:
        words = [PROGRAM, "predict", images, "--output", Path(folder, "faces")]
        words += ["--face", "crop", "--part_size", "250", "--workers", "1"]
        start = time.perf_counter()
        started = [
            subprocess.Popen(
                words,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(processes)
        ]
        if any(process.wait() for process in started):
            raise SystemExit("predict failed")
        return time.perf_counter() - start


def draw(axes: Axes, title: str, unit: str, points: Points) -> str:
    """Draws one curve with its spread; returns a line with its exponent."""
    x, y = np.array(list(points)), np.array([median(values) for values in points.values()])
    slope = np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0]
    spread = [[m - min(v), max(v) - m] for m, v in zip(y, points.values(), strict=True)]
    axes.errorbar(x, y, yerr=np.array(spread).T, marker="o", markersize=4, capsize=2, color="#30638e")
    axes.set(xscale="log", yscale="log", title=f"{title}: exponent {slope:.2f}", xlabel=title, ylabel=unit)
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.set_yticks(y, [f"{value:.2g}" for value in y])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    listed = ", ".join(f"{value:g}: {seconds:.3g}" for value, seconds in zip(x, y, strict=True))
    return f"| {title} | {unit} | {listed} | {slope:.2f} |"


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(machine())
    patches = replace(BASE, tokens="patch", img_size=96)
    regions = replace(BASE, tokens="region")
    sizes = {
        "patches of 96 px": {(96 // p) ** 2: (replace(patches, patch_size=p), BATCH) for p in (24, 16, 12, 8, 6, 4)},
        "regions, no patches": {r: (replace(regions, regions=BASE.regions[:r]), BATCH) for r in (1, 2, 4, 8, 11)},
        "side in pixels, patch 8": {s: (replace(BASE, img_size=s), BATCH) for s in (32, 48, 64, 96, 128, 192)},
        "batch": {b: (BASE, b) for b in (1, 4, 16, 64, 256)},
    }
    curves = [(title, "seconds a training step", step_seconds(each, args.rounds)) for title, each in sizes.items()]
    with TemporaryDirectory() as folder:
        one, *sets = (face_images(args.manifest, Path(folder, str(n)), n) for n in (1, 500, 1000, 2000, 4000))
        start = [predict_seconds(one) for _ in range(2)][1]
        print(f"start of predict, taken off below: {start:.1f} s")
        curves.append(("images", "seconds of predict", {int(s.name): [predict_seconds(s) - start] for s in sets}))
        shared = {float(n): [predict_seconds(sets[-1], n) - start for _ in range(2)] for n in (1, 2, 4)}
        curves.append(("processes on this machine", "seconds of predict, 4,000 images", shared))
    figure = Figure(figsize=(12, 7), layout="constrained")
    print("\n| with | | median | exponent |\n| --- | --- | --- | ---: |")
    for axes, curve in zip(figure.subplots(2, 3).flat, curves, strict=True):
        print(draw(axes, *curve))
    figure.savefig(args.picture, dpi=80)


if __name__ == "__main__":
    main()
