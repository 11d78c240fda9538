"""Computes means over the faces of a report, and writes them as tables.

Shapes: R regions, C labels, V views of attention, L attention heads (see `Attention`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fer_vit.face.crop import warp
from fer_vit.faces import Face, PhotoInfo, Scheme, found_faces
from fer_vit.fields import Cell
from fer_vit.geometry import Array, Float32Array
from fer_vit.report.explained_face import Attention, Attributed, Evidence, FaceView
from fer_vit.report.table import TableWriter, share_formats
from fer_vit.stats.bootstrap import mean_intervals
from fer_vit.stats.estimate import Estimate

PHOTO_SIDE = 144  # the side of the mean face in pixels
POOLED_OUTPUT = "output"  # the name of the pooled tokens in tables; they attend to the regions
INTERVAL_COLUMNS = {"faces": int, "mean": float, "low": float, "high": float}


class Mean:
    """The elementwise mean of arrays of one shape; NaN is a missing value."""

    def __init__(self) -> None:
        self._total: Array | float = 0.0
        self._count: NDArray[np.int64] | int = 0

    def add(self, values: Array) -> None:
        """Adds an array."""
        self._total = self._total + np.nan_to_num(values)
        self._count = self._count + ~np.isnan(values)

    def value(self) -> Array:
        """Returns the mean; NaN for elements without a value."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self._total / self._count)


class Average:
    """Means over faces of a model with R regions."""

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = regions
        self.shares = Mean()  # (R,)
        self.heat = Mean()  # (rows, columns)
        self.boxes = Mean()  # (R, 4)
        self.photo = Mean()  # (PHOTO_SIDE, PHOTO_SIDE, 3)
        self.relations = Mean()  # (V, R, R)
        self.interactions = Mean()  # (R, R)
        self.output = Mean()  # (V, R)
        self.patches = Mean()  # (V, rows, columns)
        self.distance = Mean()  # (L,)
        self._attention: Attention | None = None  # of the last face
        # The values (R + R + R^2,) of each face, NaN where a region is missing: the share of each
        # region, the attention of the output to each region, and the attention of each region (row)
        # to each region (column). Without attention, the shares alone (R,).
        self.rows: list[Float32Array] = []
        self.names: list[str] = []  # the name of each face's photo or video

    def add(self, view: FaceView, evidence: Evidence) -> None:
        """Adds a face."""
        present = np.array([name in view.regions for name in self.regions], bool)  # (R,)
        pairs = np.outer(present, present)  # (R, R)
        target = evidence.targets[0]

        # Values of a missing region are NaN.
        shares = np.where(present, target.shares, np.nan)
        boxes = np.full((len(self.regions), 4), np.nan)
        for index, name in enumerate(self.regions):
            if name in view.regions:
                boxes[index] = view.regions[name]

        photo = warp(view.photo, view.to_crop * PHOTO_SIDE / view.face.crop_size, PHOTO_SIDE)
        self.shares.add(shares)
        self.heat.add(target.heat / max(np.abs(target.heat).sum(), 1e-12))
        self.boxes.add(boxes)
        self.photo.add(photo.astype(float))
        row = [shares]
        attention = evidence.attention
        if attention is not None:
            output = np.where(present, attention.output, np.nan)
            relations = np.where(pairs, attention.relations, np.nan)
            self.relations.add(relations)
            self.output.add(output)
            self.patches.add(attention.patches)
            self.distance.add(attention.distance)
            row += [output[0], relations[0].ravel()]  # the first view is the whole encoder
            self._attention = attention
        if evidence.interactions is not None:
            self.interactions.add(np.where(pairs, evidence.interactions, np.nan))
        self.rows.append(np.concatenate(row).astype(np.float32))
        self.names.append(view.name)

    def attention(self) -> Attention | None:
        """Returns the mean attention, NaN for regions that no face has; None without attention."""
        if self._attention is None:
            return None
        return self._attention._replace(
            relations=self.relations.value(),
            output=self.output.value(),
            patches=self.patches.value(),
            distance=self.distance.value(),
        )

    def intervals(self) -> list[Estimate]:
        """Returns the mean and the interval of each value in `rows`.

        The faces of a photo or video are similar, so they are resampled together. With fewer than
        `MIN_UNITS` photos and videos, there are no intervals.
        """
        _, units = np.unique(self.names, return_inverse=True)
        return mean_intervals(np.stack(self.rows).astype(float), units)

    def face(self, label: str, crop_size: int) -> tuple[FaceView, Evidence]:
        """Returns the mean face with `label` as its prediction, and the mean explanation."""
        regions = {}
        for name, box in zip(self.regions, self.boxes.value(), strict=True):
            if np.isfinite(box).all():
                regions[name] = box
        face = mean_face(label, crop_size)
        view = FaceView(
            face=face,
            photo=self.photo.value().round().astype(np.uint8),
            to_crop=face.to_crop,
            regions=regions,
        )

        target = Attributed(label, np.nan_to_num(self.shares.value()), self.heat.value())
        evidence = Evidence(order=[0], targets=[target])
        mean = self.attention()
        if mean is not None:
            attention = mean._replace(
                relations=np.nan_to_num(mean.relations),
                output=np.nan_to_num(mean.output),
                patches=np.nan_to_num(mean.patches),
                distance=np.nan_to_num(mean.distance),
            )
            interactions = np.nan_to_num(self.interactions.value())
            evidence = evidence._replace(attention=attention, interactions=interactions)
        return view, evidence


def mean_face(label: str, crop_size: int) -> Face:
    """Returns the face in a mean photo of `PHOTO_SIDE` pixels, with `label` as its prediction."""
    scheme = Scheme(labels=(label,), crop_size=crop_size)
    faces = found_faces([PhotoInfo("")], np.zeros(1, np.int64), scheme=scheme)
    to_crop = np.eye(2, 3) * crop_size / PHOTO_SIDE
    return replace(faces, probabilities=np.ones((1, 1)), to_crop=to_crop[None])[0]


def write_averages(folder: Path, averages: Mapping[str, Average], regions: Sequence[str]) -> None:
    """Writes `shares.csv`, and `relations.csv` if there is attention, by predicted expression.

    They have means and intervals. Values that no face has are left out.
    """
    pairs = list(product([POOLED_OUTPUT, *regions], regions))  # each taker with each giver
    shares = []
    relations = []
    for label, average in averages.items():
        # R shares come first, then the attention of each taker (the output, R regions) to R givers.
        intervals = average.intervals()
        share_intervals = intervals[: len(regions)]
        relation_intervals = intervals[len(regions) :]
        for region, interval in zip(regions, share_intervals, strict=True):
            if interval.n:
                shares.append({"predicted": label, "region": region} | interval.numbers)
        # Without attention, there are no further values.
        for (taker, giver), interval in zip(pairs, relation_intervals, strict=False):
            if interval.n:
                names = {"predicted": label, "region": taker, "takes_from": giver}
                relations.append(names | interval.numbers)

    share_columns = {"predicted": str, "region": str} | INTERVAL_COLUMNS
    relation_columns = {"predicted": str, "region": str, "takes_from": str} | INTERVAL_COLUMNS
    _write_table(folder / "shares.csv", share_columns, shares)
    if relations:
        _write_table(folder / "relations.csv", relation_columns, relations)


def _write_table(path: Path, columns: dict[str, type], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a table; its numbers have the digits of a share."""
    with TableWriter(path, columns, formats=share_formats(columns)) as table:
        table.write(rows)


class AttentionHead(NamedTuple):
    """An attention head of the encoder: its indices in arrays, and its name."""

    position: int  # the index among L attention heads
    view: int  # the index among V views of attention
    block: int  # the number of the block, from 1
    number: int  # the number of the attention head in its block, from 1


def list_attention_heads(heads: int, blocks: int) -> list[AttentionHead]:
    """Returns the attention heads in the order of the views; the first view is no head."""
    listed = []
    for position in range(heads):
        block, number = divmod(position, heads // blocks)
        head = AttentionHead(position, view=position + 1, block=block + 1, number=number + 1)
        listed.append(head)
    return listed


def write_heads(folder: Path, mean: Attention, regions: Sequence[str]) -> None:
    """Writes `heads.csv` and `heads_relations.csv`: the mean attention of each attention head."""
    heads: list[dict[str, Cell]] = []
    relations: list[dict[str, Cell]] = []
    for head in list_attention_heads(len(mean.distance), mean.blocks):
        names: dict[str, Cell] = {"block": head.block, "head": head.number}
        row = names | {
            "distance_px": float(mean.distance[head.position]),
            "patches": float(mean.patches[head.view].sum()),
        }
        for region, value in zip(regions, mean.output[head.view], strict=True):
            row[region] = _number_cell(value)
        heads.append(row)

        for taker, values in zip(regions, mean.relations[head.view], strict=True):
            for giver, value in zip(regions, values, strict=True):
                pair = {"region": taker, "takes_from": giver, "mean": _number_cell(value)}
                relations.append(names | pair)

    head_columns = {"block": int, "head": int, "distance_px": float, "patches": float}
    head_columns |= dict.fromkeys(regions, float)
    relation_columns = {"block": int, "head": int, "region": str, "takes_from": str, "mean": float}
    _write_table(folder / "heads.csv", head_columns, heads)
    _write_table(folder / "heads_relations.csv", relation_columns, relations)


def _number_cell(value: float) -> float | None:
    """Returns a number as a cell of a table; None (an empty cell) for NaN."""
    return None if np.isnan(value) else float(value)
