"""What a page shows of a face: its crop, regions and what speaks for its expression."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.explain.methods import CLASS_SPECIFIC, Method, explain_each
from fer_vit.explain.relations import relations
from fer_vit.explain.trace import Trace, trace
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import Photo
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence


def explained(
    photos: Sequence[Photo], parts: Sequence[Batch], model: Recognizer, method: Method
) -> Iterator[tuple[Batch, Trace, list[tuple[FaceView, Evidence]]]]:
    """Yields what the model did with the faces of some photos, part by part, and what the report shows of each."""
    faces = ((photo, number, face) for photo in photos for number, face in enumerate(photo.faces))
    names = model.crop_spec.regions
    path, pixels = "", None
    for part in parts:
        seen = trace(model.net, part.image, part.boxes, part.valid)
        probabilities = model.net.probabilities(seen.logits).tolist()
        found = []
        for row, evidence in enumerate(evidence_of(model.net, seen, method)):
            photo, number, face = next(faces)
            if photo.path != path:
                # Read again rather than carried along: the workers hand over crops, and photos can be large.
                path, pixels = photo.path, _read_again(photo.path)
            present = part.valid[row].nonzero().flatten().tolist()
            shares, heat = evidence.labels[evidence.order[0]]
            view = FaceView(
                name=path,
                face=number,
                photo=_crop(part.image[row]) if pixels is None else pixels,
                box=None if face is None or pixels is None else face.box,
                to_crop=np.eye(2, 3) if pixels is None else part.to_crop[row].double().numpy(),
                crop_size=model.crop_spec.size,
                heat=heat,
                regions={names[i]: part.boxes[row, i].double().cpu().numpy() for i in present},
                shares={names[i]: float(shares[i]) for i in present},
                probabilities=dict(zip(model.labels, probabilities[row], strict=True)),
            )
            found.append((view, evidence))
        yield part, seen, found


def evidence_of(net: RegionViT, seen: Trace, method: Method) -> Iterator[Evidence]:
    """Yields what speaks for each label in each face, or by methods that do not know labels for the predicted one."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    first, second = order[:, 0], order[:, :2][:, -1]
    classes = torch.eye(seen.logits.shape[1], device=first.device)
    directions = classes[first][None]
    if method in CLASS_SPECIFIC:  # every label, and the first rather than the second
        directions = torch.cat([classes[:, None].expand(-1, len(first), -1), directions - classes[second]])
    found, flow = explain_each(net, seen, method, directions), relations(seen)
    for row, ranking in enumerate(order.tolist()):
        each = [(_array(one.shares[row]), _array(one.heat[row])) for one in found]
        labels = dict(enumerate(each[:-1])) if method in CLASS_SPECIFIC else {ranking[0]: each[0]}
        yield Evidence(ranking, labels, each[-1] if method in CLASS_SPECIFIC else None, _array(flow[row]))


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _crop(image: Tensor) -> Image:
    """Returns what the model saw of a face (3, S, S) as an image (S, S, 3)."""
    return (255 * image).round().byte().permute(1, 2, 0).cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo, or None where it is gone or changed: its faces are then shown as the model saw them."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
