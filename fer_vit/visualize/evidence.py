"""Explains faces: the attribution for the predicted expression, or for every one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fer_vit.data.sample import Batch
from fer_vit.explain.heads import HeadRoles, head_roles, relations
from fer_vit.explain.methods import explain_each
from fer_vit.explain.trace import Trace, trace
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import FaceResult
from fer_vit.predict.stages import visible_regions
from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence

LabelChoice = Literal["predicted", "all"]
Shown: TypeAlias = tuple[FaceResult, Image | None]
"""A face, and its photo or frame (H, W, 3); None: it is read from the photo's path."""
GRID = 24
"""Rows and columns of a heat map: each cell is a mean, since single pixels are hard to see."""


class ExplainedFace(NamedTuple):
    """A face with the attribution for its predicted expression (in `view`) and for all explained ones (`evidence`)."""

    face: FaceResult
    view: FaceView
    evidence: Evidence
    crop: Tensor  # what the model saw (3, S, S), in [0, 1]
    roles: HeadRoles | None


def explain_faces(
    model: Recognizer,
    faces: Iterable[Shown],
    chunks: Iterable[Batch],
    method: str,
    heads: bool = False,
    labels: LabelChoice = "predicted",
) -> Iterator[ExplainedFace]:
    """Explains faces; `chunks` are their crops, ready for the model. The last chunk may have more faces."""
    faces = iter(faces)
    # Photos are read again: workers return only crops, since photos can be large.
    read = lru_cache(maxsize=1)(_read_again)
    for chunk in chunks:
        seen = trace(model.net, chunk.image, chunk.boxes, chunk.valid)
        roles = _per_face(head_roles(seen)) if heads else repeat(None)
        # `zip` stops at the end of the chunk before it takes the next face.
        explanations = zip(explain_labels(model.net, seen, method, labels), roles, faces, strict=False)
        for row, (evidence, role, (face, image)) in enumerate(explanations):
            regions = visible_regions(model.crop_spec, chunk, row)
            shares, heat = evidence.labels[evidence.order[0]]
            by_name = dict(zip(model.crop_spec.regions, shares.tolist(), strict=True))
            shown = {name: by_name[name] for name in regions}
            picture = read(face.path) if image is None else image
            view = face.view(as_image(chunk.image[row]) if picture is None else picture)
            if picture is None:  # the photo was removed: the crop is shown
                view = replace(view, box=None, to_crop=np.eye(2, 3))
            view = replace(view, regions=regions, heat=heat, shares=shown)
            yield ExplainedFace(face, view, evidence, chunk.image[row], role)


def explain_labels(net: RegionViT, seen: Trace, method: str, labels: LabelChoice = "predicted") -> Iterator[Evidence]:
    """Yields the attribution for the predicted label of each face, or for all, and for it rather than the second."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    number = order.shape[1] if labels == "all" else 1
    ranked = torch.eye(order.shape[1], device=order.device)[order].unbind(1)  # (B, C) each, the most probable first
    directions = torch.stack([*ranked[:number], ranked[0] - ranked[min(1, len(ranked) - 1)]])
    explanations, flow = explain_each(net, seen, method, directions), relations(seen)
    for row, ranking in enumerate(order.tolist()):
        *each, contrast = [
            (_array(one.shares[row]), _array(adaptive_avg_pool2d(one.heat[row, None], GRID)[0])) for one in explanations
        ]
        yield Evidence(ranking, dict(zip(ranking, each, strict=False)), contrast, _array(flow[row]))


def _per_face(roles: HeadRoles) -> Iterator[HeadRoles]:
    for values in zip(*roles, strict=True):
        yield HeadRoles(*(value.double().cpu() for value in values))


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def as_image(crop: Tensor) -> Image:
    """Returns what the model saw of a face (3, S, S) as an image (S, S, 3)."""
    return (255 * crop).round().byte().permute(1, 2, 0).cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo, or None if it cannot be read any more."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
