"""The evidence for a face: its photo, its regions and what speaks for its expression."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fer_vit.data.sample import Batch
from fer_vit.explain.heads import HeadRoles, head_roles, relations
from fer_vit.explain.methods import CLASS_SPECIFIC, Method, explain_each
from fer_vit.explain.trace import Trace, trace
from fer_vit.face.detect import Face
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import FoundPhoto
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence

GRID = 24
"""Rows and columns of a heat map: each cell is a mean, since single pixels are hard to see."""


class FoundFace(NamedTuple):
    """A face, its index in a photo or frame, and the picture; None: it is read from the photo's path."""

    photo: FoundPhoto
    number: int
    face: Face | None
    image: Image | None = None


class ExplainedFace(NamedTuple):
    """A face with what speaks for its most probable expression (in `view`) and for every one (in `evidence`)."""

    view: FaceView
    evidence: Evidence
    crop: Tensor  # what the model saw (3, S, S), in [0, 1]
    roles: HeadRoles | None


def explained(
    model: Recognizer, faces: Iterable[FoundFace], chunks: Iterable[Batch], method: Method, heads: bool
) -> Iterator[ExplainedFace]:
    """Explains faces; `chunks` are the same ones, ready for the model."""
    faces = iter(faces)
    # Photos are read again: workers return only crops, since photos can be large.
    read = lru_cache(maxsize=1)(_read_again)
    for chunk in chunks:
        seen = trace(model.net, chunk.image, chunk.boxes, chunk.valid)
        probabilities = model.net.probabilities(seen.logits).tolist()
        roles = _per_face(head_roles(seen)) if heads else repeat(None)
        for row, (evidence, role) in enumerate(zip(evidence_of(model.net, seen, method), roles, strict=False)):
            photo, index, face, image = next(faces)
            result = model.result(photo, Path(photo.path), index, face, row, chunk, probabilities[row])
            regions = model.region_boxes(chunk, row)
            shares, heat = evidence.labels[evidence.order[0]]
            by_name = dict(zip(model.crop_spec.regions, shares.tolist(), strict=True))
            shown = {name: by_name[name] for name in regions}
            picture = read(photo.path) if image is None else image
            if picture is None:  # it is gone: the face as the model saw it
                result, picture = replace(result, box=None, to_crop=np.eye(2, 3)), as_image(chunk.image[row])
            view = replace(result.view(picture), regions=regions, heat=heat, shares=shown)
            yield ExplainedFace(view, evidence, chunk.image[row], role)


def evidence_of(net: RegionViT, seen: Trace, method: Method) -> Iterator[Evidence]:
    """Yields what speaks for each label in each face; only the predicted one if the method is not class-specific."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    first, second = order[:, 0], order[:, :2][:, -1]
    classes = torch.eye(seen.logits.shape[1], device=first.device)
    directions = classes[first][None]
    if method in CLASS_SPECIFIC:  # every label, and the first rather than the second
        directions = torch.cat([classes[:, None].expand(-1, len(first), -1), directions - classes[second]])
    explanations, flow = explain_each(net, seen, method, directions), relations(seen)
    for row, ranking in enumerate(order.tolist()):
        each = [
            (_array(one.shares[row]), _array(adaptive_avg_pool2d(one.heat[row, None], GRID)[0])) for one in explanations
        ]
        labels = dict(enumerate(each[:-1])) if method in CLASS_SPECIFIC else {ranking[0]: each[0]}
        yield Evidence(ranking, labels, each[-1] if method in CLASS_SPECIFIC else None, _array(flow[row]))


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
