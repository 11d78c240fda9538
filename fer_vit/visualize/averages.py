"""Averages over the faces predicted as an expression: attribution, attention and the picture of the mean face."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fer_vit.evaluate.scores import mean_intervals
from fer_vit.face.crop import warp
from fer_vit.geometry import Array
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import Evidence
from fer_vit.report.table import Interval, TableWriter

FACES = 30
"""Faces below which the page has no average."""
SIDE = 144
"""Side of the mean face in pixels."""
MEANS = {"region": str, "faces": int, "mean": float, "low": float, "high": float}
OUTPUT = "output"
"""Name in tables of the pooled tokens, which attend to the regions."""


class Mean:
    """The mean of arrays of one shape; NaN does not count."""

    def __init__(self) -> None:
        self.total, self.count = np.zeros(()), np.zeros((), int)

    def add(self, values: Array) -> None:
        """Adds an array."""
        self.total = self.total + np.nan_to_num(values)
        self.count = self.count + ~np.isnan(values)

    @property
    def value(self) -> Array:
        """The mean; NaN where there is no number."""
        mean: Array = np.divide(self.total, self.count, out=np.full(self.total.shape, np.nan), where=self.count > 0)
        return mean


class Average:
    """Means over faces of a model with R regions.

    Attributes:
        rows: For each face the attribution to each region, what each gives to the output, and what each (row) takes
            from each: 2 R + R^2 values, NaN where a region is missing.
        means: By name of a part of a face.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = regions
        self.rows: list[NDArray[np.float32]] = []
        self.means: defaultdict[str, Mean] = defaultdict(Mean)

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Adds a face."""
        present = np.array([name in view.regions for name in self.regions], bool)
        shares, heat = evidence.labels[evidence.order[0]]
        attention = evidence.attention
        relations = np.where(np.outer(present, present), attention.relations, np.nan)
        output = np.where(present, attention.output, np.nan)
        shares = np.where(present, shares, np.nan)
        parts = attention._replace(relations=relations, output=output)._asdict() | {
            "shares": shares,
            "heat": heat / max(np.abs(heat).sum(), 1e-12),
            "boxes": np.array([view.regions.get(name, np.full(4, np.nan)) for name in self.regions]).reshape(-1, 4),
            "photo": warp(view.photo, view.to_crop * SIDE / view.crop_size, SIDE).astype(float),
        }
        for name, values in parts.items():
            self.means[name].add(values)
        self.rows.append(np.concatenate([shares, output[0], relations[0].ravel()]).astype(np.float32))

    def intervals(self) -> list[Interval]:
        """Returns the mean of each value of `rows` with its interval."""
        return mean_intervals(np.stack(self.rows).astype(float))

    def face(self, label: str, crop_size: int) -> tuple[FaceView, Evidence]:
        """Returns the mean face, predicted as a label, and its explanation."""
        mean = {name: mean.value for name, mean in self.means.items()}
        boxes = zip(self.regions, mean["boxes"], strict=True)
        view = FaceView(
            mean["photo"].round().astype(np.uint8),
            np.eye(2, 3) * crop_size / SIDE,
            crop_size,
            {name: box for name, box in boxes if np.isfinite(box).all()},
            probabilities={label: 1.0},
        )
        own = (np.nan_to_num(mean["shares"]), mean["heat"])
        attention = Attention(*(np.nan_to_num(mean[name]) for name in Attention._fields))
        return view, Evidence([0], {0: own}, own, attention)


def write_tables(folder: Path, averages: Mapping[str, Average], regions: Sequence[str]) -> None:
    """Writes `shares.csv` and `relations.csv`: means by predicted expression with their intervals."""
    pairs = [(region, other) for region in (OUTPUT, *regions) for other in regions]
    with (
        TableWriter(folder / "shares.csv", {"predicted": str} | MEANS) as shares,
        TableWriter(
            folder / "relations.csv", {"predicted": str, "region": str, "takes_from": str} | MEANS
        ) as relations,
    ):
        for label, average in averages.items():
            found = average.intervals()
            own = zip(regions, found, strict=False)
            shares.write([{"predicted": label, "region": name, **one} for name, one in own if one["faces"]])
            between = zip(pairs, found[len(regions) :], strict=True)
            relations.write(
                [{"predicted": label, "region": a, "takes_from": b, **one} for (a, b), one in between if one["faces"]]
            )


def write_heads(folder: Path, every: Average, blocks: int) -> None:
    """Writes `heads.csv` and `heads_relations.csv`: means of each attention head over all faces."""
    mean = Attention(*(every.means[name].value for name in Attention._fields))
    columns = {"block": int, "head": int, "distance_px": float, "patches": float, **dict.fromkeys(every.regions, float)}
    pairs = {"block": int, "head": int, "region": str, "takes_from": str, "mean": float}
    with (
        TableWriter(folder / "heads.csv", columns) as heads,
        TableWriter(folder / "heads_relations.csv", pairs) as relations,
    ):
        for view, block, head in head_views(mean.distance, blocks):
            which: dict[str, Any] = {"block": block, "head": head}
            row = {"distance_px": float(mean.distance[view]), "patches": float(mean.patches[view].sum())}
            heads.write([which | row | dict(zip(every.regions, _cells(mean.output[view]), strict=True))])
            for region, values in zip(every.regions, mean.relations[view], strict=True):
                named = zip(every.regions, _cells(values), strict=True)
                relations.write([which | {"region": region, "takes_from": name, "mean": one} for name, one in named])


def head_views(distance: Array, blocks: int) -> Iterator[tuple[int, int, int]]:
    """Yields index, block and head, counted from 1, of the views of attention that are heads."""
    views = np.flatnonzero(np.isfinite(distance))
    for number, view in enumerate(views.tolist()):
        block, head = divmod(number, len(views) // blocks)
        yield view, block + 1, head + 1


def _cells(values: Array) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
