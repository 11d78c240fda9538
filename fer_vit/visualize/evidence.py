"""Explains faces: the attribution for the predicted expression, or for every one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fer_vit.data.sample import Batch
from fer_vit.explain.heads import attention_views
from fer_vit.explain.methods import explain_each
from fer_vit.explain.trace import Trace, trace
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import FaceResult
from fer_vit.predict.stages import visible_regions
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import Evidence

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
    attention = [_array(values) for values in attention_views(seen)]
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
