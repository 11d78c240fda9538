"""Measures how well the terms of regions, which a report shows, predict the effect of hiding a
region.

python -m benchmarks.terms faces.parquet ferplus-fairface

For each movement and face, regions are ranked by their terms, and by how much the raw output falls
when the region's token is left out, or its pixels are blurred. The table has Spearman's correlation
of the two ranks, and how often the largest term (by size) is of the region with the largest effect,
beside the same for terms in random order.
"""

from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import machine, run_main
from fer_vit.data.dataset import FaceDataset, face_batches
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.explain.terms import agreement, region_effects
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import load
from fer_vit.report.table import markdown

BATCH = 32


def measure(faces: Manifest, model: str, head: str, count: int) -> str:
    """Returns the table of a head's outputs for the first faces in
    which all regions are visible.
    """
    recognizer = load(model, "cpu")
    net = recognizer.net
    data = FaceDataset(faces, recognizer.crop_spec, partial=True)
    parts: list[list[Array]] = []
    done = 0
    for batch in face_batches(data, range(len(data)), BATCH, torch.device("cpu")):
        whole = batch.valid.all(1)
        done += int(whole.sum())
        if whole.any():
            given = batch.image[whole], batch.boxes[whole], batch.valid[whole]
            effects = region_effects(net, head, *given)
            parts.append([values.double().numpy() for values in effects])
        if done >= count:
            break
    terms, masked, blurred = (np.concatenate(column) for column in zip(*parts, strict=True))
    shuffled = np.random.default_rng(0).permuted(terms, axis=1)

    columns = []
    for effect in (masked, blurred):
        for guess in (terms, shuffled):
            found = agreement(guess, effect)
            columns += [found.rank, found.first]
    names = [*net.settings.outputs[head], "mean"]
    table = np.column_stack([np.append(column, column.mean()) for column in columns])
    heading = [head]
    for hidden in ("token left out", "pixels blurred"):
        for order in ("terms", "random"):
            heading += [f"{hidden}, {order}: rank r", "first"]
    rows = [
        [name, *(f"{value:.2f}" for value in row)] for name, row in zip(names, table, strict=True)
    ]
    return f"{len(terms):,} faces, {machine()}\n\n{markdown([heading, *rows])}"


def main(
    manifest: Path, model: str, head: str = "movements", split: Split = "val", count: int = 1000
) -> None:
    """Prints how well the terms of regions predict the effect of hiding a region.

    Args:
        manifest: The faces.
        model: A model with this head.
        head: The head.
        split: The split of the manifest.
        count: About the most faces to use.
    """
    print(measure(Manifest.read(manifest, [split]).split(split), model, head, count))


if __name__ == "__main__":
    run_main(main)
