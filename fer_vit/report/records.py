"""Writes the faces of a report's page as pictures and JSON.

Shapes: R regions, V views of attention.
"""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from PIL import Image as Pil, ImageColor

from fer_vit.errors import printable
from fer_vit.geometry import Array, invert
from fer_vit.report.draw import AGAINST_COLOUR, FOR_COLOUR, ranked, zoom
from fer_vit.report.explained_face import Attention, Evidence, FaceView
from fer_vit.stats.estimate import Estimate
from fer_vit.texts import json_text

FACE_SIDE = 480  # the longer side of a picture of a face, in pixels
WHOLE_SIDE = 1200  # the longer side of a photo with several faces, in pixels
HEAT_SIDE = 96  # the side of a heat map for the page, in pixels
JPEG_QUALITY = 82
# The opacity of the strongest colour in a heat map. 255 would hide the face.
MAX_OPACITY = 220


class FaceRecord(NamedTuple):
    """A face as text for the page, from a `FaceView` and its `Evidence`."""

    label: str
    data: str  # the JSON from which `page.js` draws the face
    attention: str  # the attention, see `pack_attention`
    pictures: str  # the photo and the heat maps in base64; empty: the page loads the files instead


def save_face(
    folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]
) -> FaceRecord:
    """Writes the pictures of a face to the folder `photos` of a report.

    A photo with several faces is also written as a whole, together with its second face. The number
    in the name of that file is the number of the photo's first face.

    Args:
        folder: The folder of the report.
        number: The number of the face in the report, from 0.
        view: The face.
        evidence: The explanation of the face.
        regions: The names of the model's regions.

    Returns:
        The face as text for the page.
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
    """Returns the JSON values from which `page.js` draws a face, without picture and attention.

    Values for labels are in the order of `Face.probabilities`; values for regions are in the order
    of `regions`.
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
        # the matrix from the crop to the picture, column by column as in SVG
        "matrix": round_values(invert(close_up.to_crop).T.ravel(), 4),
        "crop": face.crop_size,
        "boxes": boxes,
        "targets": targets,
        "interactions": interacting_pairs(evidence.interactions),
        "charts": dict(evidence.charts),
    }


def interacting_pairs(interactions: Array | None) -> list[list[float]]:
    """Returns the pairs of regions that interact, in descending order of the absolute value.

    A pair has two indices of regions and a value in logits. `interactions` (R, R) are symmetric, in
    logits; None: they are unknown.
    """
    pairs: list[list[float]] = []
    if interactions is None:
        return pairs
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
    """Returns the JSON values from which `page.js` draws a mean face.

    Args:
        faces: The number of faces in the mean.
        view: The mean face.
        evidence: The mean explanation.
        regions: The names of the model's regions.
        intervals: The means with their intervals, as `Average.intervals` returns them.
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
    """Returns rounded numbers as nested lists."""
    rounded: list[Any] = np.round(values, digits).tolist()
    return rounded


def pack_attention(attention: Attention | None) -> str:
    """Returns attention in base64, one byte for each value; an empty text if it is unknown.

    The byte is 255 times the square root of the value. The views follow each other, each with
    relations, output and patches.
    """
    if attention is None:
        return ""
    views = len(attention.output)
    relations = attention.relations.reshape(views, -1)
    output = attention.output.reshape(views, -1)
    patches = attention.patches.reshape(views, -1)
    values = np.hstack([relations, output, patches])  # (views, R * R + R + patches), in [0, 1]
    packed = (255 * np.sqrt(values)).round().astype(np.uint8)
    return _base64(packed.tobytes())


def heat_maps(evidence: Evidence) -> Pil.Image:
    """Returns the heat maps of all targets, one below the other, in one picture.

    Each map is divided by its largest absolute value. Values of 0 are transparent.
    """
    maps = np.stack([_enlarged(target.heat) for target in evidence.targets])
    maps /= np.abs(maps).max((1, 2), keepdims=True).clip(1e-12)
    picture = Pil.fromarray((128 + 127 * maps.reshape(-1, HEAT_SIDE)).round().astype(np.uint8))
    picture.putpalette(heat_palette().tobytes(), "RGBA")
    return picture


def heat_palette() -> Array:
    """Returns an RGBA palette (256, 4), uint8.

    0 is strongly against the score, 128 is transparent, and 255 is strongly for the score.
    """
    value = (np.arange(256)[:, None] - 128) / 127  # (256, 1)
    against_colour = np.array(ImageColor.getrgb(AGAINST_COLOUR))
    for_colour = np.array(ImageColor.getrgb(FOR_COLOUR))
    colours = np.where(value < 0, against_colour, for_colour)  # (256, 3)
    opacity = MAX_OPACITY * np.abs(value).clip(0, 1)
    return np.hstack([colours, opacity]).astype(np.uint8)


def _enlarged(heat: Array) -> Array:
    """Scales a heat map (rows, columns) to `HEAT_SIDE` rows and columns."""
    picture = Pil.fromarray(heat.astype(np.float32))
    return np.asarray(picture.resize((HEAT_SIDE, HEAT_SIDE), Pil.Resampling.BICUBIC))


def data_uri(image: Pil.Image, file_format: str = "JPEG") -> str:
    """Returns an image as a data URI."""
    if file_format == "JPEG":
        image = image.convert("RGB")
    content = encode(image, file_format, quality=80, optimize=True)
    return f"data:image/{file_format.lower()};base64,{_base64(content)}"


def encode(image: Pil.Image, file_format: str, **options: Any) -> bytes:
    """Returns an image as the content of a file; `options` are Pillow's options of the format."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
