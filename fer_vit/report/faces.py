"""Writes a face for the page of a report, as pictures and JSON.

The value `Faces` is in `fer_vit/faces.py`. R regions, V views of attention.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from PIL import Image as Pil, ImageColor

from fer_vit.errors import printable
from fer_vit.geometry import Array, invert
from fer_vit.report.draw import (
    AGAINST_COLOUR,
    FOR_COLOUR,
    Attention,
    FaceView,
    ranked,
    zoom,
)
from fer_vit.report.estimate import Estimate
from fer_vit.texts import json_text

FACE_SIDE = 480  # longer side of the pictures of a face, in pixels
WHOLE_SIDE = 1200  # longer side of photos with several faces, in pixels
HEAT_SIDE = 96  # side of a heat map for the page, in pixels
JPEG_QUALITY = 82  # of JPEG files
MAX_OPACITY = 220  # of 255: the strongest colour of a heat map, through which the face is seen


class Attributed(NamedTuple):
    """The attribution of one score, of a face or of a mean of faces, which is not in it."""

    name: str  # of the score: an expression, one rather than another, or an output of a head
    shares: Array  # of regions (R,)
    heat: Array  # a map of the face (rows, columns)
    probability: float | None = None  # of an expression


class Evidence(NamedTuple):
    """The explanation of a face, or of a mean of faces; the face is beside it, as a `FaceView`."""

    order: Sequence[int]  # indices of the labels, the most probable first
    targets: Sequence[Attributed]  # the scores that are explained, first the predicted expression's
    attention: Attention
    interactions: Array  # of regions, in logits of the predicted expression (R, R), symmetric
    charts: Mapping[str, Any]  # JSON values of further charts by their name


class FaceRecord(NamedTuple):
    """A face as the page stores it: text, made of a `FaceView` and its `Evidence`."""

    label: str
    data: str  # JSON, from which `page.js` draws the face
    attention: str  # see `pack_attention`
    pictures: str  # the photo and the heat maps as base64; empty: the page loads them from files


def save_face(
    folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]
) -> FaceRecord:
    """Writes the pictures of a face into a report's folder `photos`.

    `number` is the number of the face in the report; `regions` are the regions of the model, in its
    order. With its second face, a photo is written as a whole under the number of its first face.

    Returns:
        What the page needs of the face.
    """
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    name = f"{number:06d}.jpg"

    close_up = zoom(view, FACE_SIDE)
    photo = encode(Pil.fromarray(close_up.photo), "JPEG", quality=JPEG_QUALITY)
    maps = encode(heat_maps(evidence), "PNG", optimize=True)
    (photos / name).write_bytes(photo)
    (photos / name).with_suffix(".png").write_bytes(maps)

    if view.face.face == 1 and view.box is not None and view.face.track is None:
        whole_photo = Pil.fromarray(view.photo)
        whole_photo.thumbnail((WHOLE_SIDE, WHOLE_SIDE))
        whole_photo.save(photos / f"{number - 1:06d}-whole.jpg", quality=JPEG_QUALITY)

    data = face_data(close_up, evidence, regions)
    data["image"] = f"photos/{name}"
    data["box"] = None
    if view.box is not None and view.face.track is None:
        height, width = view.photo.shape[:2]
        data["box"] = round_values(view.box / np.array([width, height, width, height]), 4)
    label, _ = ranked(view.face.probabilities)[0]
    return FaceRecord(
        label=label,
        data=htmlsafe_json_dumps(data, dumps=json_text, separators=(",", ":")),
        attention=pack_attention(evidence.attention),
        pictures=f"{_base64(photo)} {_base64(maps)}",
    )


def face_data(close_up: FaceView, evidence: Evidence, regions: Sequence[str]) -> dict[str, Any]:
    """Returns what `page.js` draws a face from, but not its picture and attention.

    Values of labels and of regions are in the order of their indices.
    """
    face = close_up.face
    smoothed = None
    if face.label_smoothed is not None:
        smoothed = list(face.probabilities).index(face.label_smoothed)
    targets = []
    for target in evidence.targets:
        targets.append({"name": printable(target.name), "shares": round_values(target.shares)})
    boxes = []
    for name in regions:
        box = close_up.regions.get(name)
        boxes.append(None if box is None else round_values(box, 2))
    return {
        "name": printable(close_up.name),
        "where": close_up.where,
        "index": face.face,
        "track": face.track,
        "seconds": face.seconds or 0.0,
        "smoothed": smoothed,
        "warnings": face.warnings,
        "size": close_up.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": round_values(np.array(list(face.probabilities.values())), 4),
        # From the crop to the picture, column by column, as SVG has it.
        "matrix": round_values(invert(close_up.to_crop).T.ravel(), 4),
        "crop": face.crop_size,
        "boxes": boxes,
        "targets": targets,
        "interactions": interacting_pairs(evidence.interactions),
        "charts": dict(evidence.charts),
    }


def interacting_pairs(interactions: Array) -> list[list[float]]:
    """Returns pairs of regions that interact: two indices and logits, the largest first.

    `interactions` (R, R) are symmetric, in logits.
    """
    pairs: list[list[float]] = []
    for first, second in np.argwhere(np.triu(interactions, 1)).tolist():
        logits = round(float(interactions[first, second]), 3)
        pairs.append([first, second, logits])
    return sorted(pairs, key=lambda pair: -abs(pair[2]))


def average_data(
    faces: int,
    view: FaceView,
    evidence: Evidence,
    regions: Sequence[str],
    intervals: Sequence[Estimate],
) -> dict[str, Any]:
    """Returns what `page.js` draws the mean of `faces` faces from.

    `intervals` are what `Average.intervals` returns.
    """
    bounds: list[list[Any] | None] = []
    for interval in intervals:
        if interval.low is None:
            bounds.append(None)
        else:
            bounds.append(round_values(np.array([interval.low, interval.high])))
    label, _ = ranked(view.face.probabilities)[0]
    return face_data(view, evidence, regions) | {
        "label": printable(label),
        "faces": faces,
        "image": data_uri(Pil.fromarray(view.photo)),
        "heat": data_uri(heat_maps(evidence), "PNG"),
        "attention": pack_attention(evidence.attention),
        "intervals": bounds,
    }


def round_values(values: Array, digits: int = 3) -> list[Any]:
    """Returns rounded numbers as lists."""
    rounded: list[Any] = np.round(values, digits).tolist()
    return rounded


def pack_attention(attention: Attention) -> str:
    """Returns attention as base64: a byte per value, 255 times its square root, view after view."""
    views = len(attention.output)
    relations = attention.relations.reshape(views, -1)
    output = attention.output.reshape(views, -1)
    patches = attention.patches.reshape(views, -1)
    values = np.hstack([relations, output, patches])  # (views, R * R + R + patches), in [0, 1]
    packed = (255 * np.sqrt(values)).round().astype(np.uint8)
    return _base64(packed.tobytes())


def heat_maps(evidence: Evidence) -> Pil.Image:
    """Returns the heat of each target, one below the other in a picture.

    Each map is scaled to its maximum, and clear at 0.
    """
    maps = np.stack([_enlarged(target.heat) for target in evidence.targets])
    maps /= np.abs(maps).max((1, 2), keepdims=True).clip(1e-12)
    picture = Pil.fromarray((128 + 127 * maps.reshape(-1, HEAT_SIDE)).round().astype(np.uint8))
    picture.putpalette(heat_palette().tobytes(), "RGBA")
    return picture


def heat_palette() -> Array:
    """Returns colours (256, 4) from strongly against, over clear, to strongly for."""
    value = (np.arange(256)[:, None] - 128) / 127  # (256, 1)
    against_colour = np.array(ImageColor.getrgb(AGAINST_COLOUR))
    for_colour = np.array(ImageColor.getrgb(FOR_COLOUR))
    colours = np.where(value < 0, against_colour, for_colour)  # (256, 3)
    opacity = MAX_OPACITY * np.abs(value).clip(0, 1)
    return np.hstack([colours, opacity]).astype(np.uint8)


def _enlarged(heat: Array) -> Array:
    """Returns a heat map (rows, columns) with `HEAT_SIDE` rows and columns."""
    picture = Pil.fromarray(heat.astype(np.float32))
    return np.asarray(picture.resize((HEAT_SIDE, HEAT_SIDE), Pil.Resampling.BICUBIC))


def data_uri(image: Pil.Image, file_format: str = "JPEG") -> str:
    """Returns an image as an address that contains it."""
    if file_format == "JPEG":
        image = image.convert("RGB")
    content = encode(image, file_format, quality=80, optimize=True)
    return f"data:image/{file_format.lower()};base64,{_base64(content)}"


def encode(image: Pil.Image, file_format: str, **options: Any) -> bytes:
    """Returns an image as the content of a file; options are of Pillow's format."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
