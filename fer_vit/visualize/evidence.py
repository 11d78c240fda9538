"""Explains faces, and averages explanations over the faces predicted as an expression."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fer_vit.data.sample import Batch
from fer_vit.evaluate.scores import mean_intervals
from fer_vit.explain.methods import explain_each
from fer_vit.explain.trace import Trace, attention_views, trace
from fer_vit.face.crop import warp
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Float32Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer, visible_regions
from fer_vit.predict.results import FaceResult
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import Evidence
from fer_vit.report.table import Interval, TableWriter

LabelChoice = Literal["predicted", "all"]
Shown: TypeAlias = tuple[FaceResult, Image | None]
"""A face, and its photo or frame (H, W, 3); None: it is read from the photo's path."""
GRID = 24
"""Rows and columns of a heat map: each cell is a mean, since single pixels are hard to see."""


def explain_faces(
    model: Recognizer, faces: Iterable[Shown], chunks: Iterable[Batch], method: str, labels: LabelChoice = "predicted"
) -> Iterator[tuple[FaceResult, FaceView, Evidence]]:
    """Yields each face with its explanation; `chunks` are the crops, ready for the model. The last may have more faces.

    A face whose photo was removed is shown as the crop, without a box.
    """
    faces = iter(faces)
    # Photos are read again: workers return only crops, since photos can be large.
    read = lru_cache(maxsize=1)(_read_again)
    for chunk in chunks:
        seen = trace(model.net, chunk.image, chunk.boxes, chunk.valid)
        # `zip` stops at the end of the chunk before it takes the next face.
        explanations = zip(explain_labels(model.net, seen, method, labels), faces, strict=False)
        for row, (evidence, (face, image)) in enumerate(explanations):
            picture = read(face.path) if image is None else image
            view = face.view(as_image(chunk.image[row]) if picture is None else picture)
            if picture is None:
                view = replace(view, box=None, to_crop=np.eye(2, 3))
            yield face, replace(view, regions=visible_regions(model.crop_spec, chunk, row)), evidence


def explain_labels(net: RegionViT, seen: Trace, method: str, labels: LabelChoice = "predicted") -> Iterator[Evidence]:
    """Yields the attribution for the predicted label of each face, or for all, and for it rather than the second."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    number = order.shape[1] if labels == "all" else 1
    ranked = torch.eye(order.shape[1], device=order.device)[order].unbind(1)  # (B, C) each, the most probable first
    directions = torch.stack([*ranked[:number], ranked[0] - ranked[min(1, len(ranked) - 1)]])
    explanations = explain_each(net, seen, method, directions)
    attention = [_array(values) for values in attention_views(net, seen)]
    for row, ranking in enumerate(order.tolist()):
        *each, contrast = [
            (_array(one.shares[row]), _array(adaptive_avg_pool2d(one.heat[row, None], GRID)[0])) for one in explanations
        ]
        yield Evidence(
            ranking, dict(zip(ranking, each, strict=False)), contrast, Attention(*(values[row] for values in attention))
        )


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def as_image(crop: Tensor) -> Image:
    """Returns what the model saw of a face (3, S, S) as an image (S, S, 3)."""
    return (255 * crop).round().byte().permute(1, 2, 0).cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo, or None if it can no longer be read."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None


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

    `rows` are for each face the attribution to each region, what each gives to the output, and what each (row) takes
    from each: 2 R + R^2 values, NaN where a region is missing.
    """

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = regions
        self.rows: list[Float32Array] = []
        self.means: defaultdict[str, Mean] = defaultdict(Mean)  # by name of a part of a face

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
