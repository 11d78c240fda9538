"""All explained faces as one page that opens from disk: `index.html` contains its data, style and script.

`page.js` builds the gallery and the large faces from JSON. The browser loads pictures only when they come into view, so
that a page of thousands of faces opens quickly. File names and labels are escaped, and a content security policy allows
only the pictures beside the page and its own script.
"""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from PIL import Image as Pil, ImageColor

from fer_vit.errors import printable
from fer_vit.files import json_text
from fer_vit.geometry import Array, invert
from fer_vit.report.draw import (
    AGAINST,
    FOR,
    Attention,
    FaceView,
    expression_colour,
    percent,
    ranked,
    zoom,
)
from fer_vit.report.table import Interval

PHOTO = 480  # longer side of the pictures of a face, in pixels
WHOLE = 1200  # longer side of photos with several faces, in pixels
HEAT = 96  # side of a heat map for the page, in pixels
GENERATOR = "fer-vit visualize"


class Evidence(NamedTuple):
    """Explanation of a face: shares of regions (R,) and a heat map (rows, columns) for each label."""

    order: Sequence[int]  # indices of the labels, the most probable first
    labels: Mapping[int, tuple[Array, Array]]  # shares and heat of each label that is explained
    contrast: tuple[Array, Array]  # for the most probable label rather than the second
    attention: Attention


class FaceRecord(NamedTuple):
    """What the page needs of a face."""

    label: str
    data: str  # JSON, from which `page.js` draws the face
    attention: str  # see `pack_attention`


def save_face(
    folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]
) -> FaceRecord:
    """Writes the pictures of face `number` into a report's folder `photos` and returns what the page needs.

    `regions` are the model's, in its order. With its second face, a photo is written as a whole under the number of
    its first face.
    """
    close = zoom(view, PHOTO)
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    name = f"{number:06d}.jpg"
    Pil.fromarray(close.photo).save(photos / name, quality=82)
    heat_maps(evidence).save((photos / name).with_suffix(".png"))
    if view.face == 1 and view.box is not None and view.track is None:
        whole = Pil.fromarray(view.photo)
        whole.thumbnail((WHOLE, WHOLE))
        whole.save(photos / f"{number - 1:06d}-whole.jpg", quality=82)
    size = np.tile(view.photo.shape[1::-1], 2)
    data = face_data(close, evidence, regions) | {
        "image": f"photos/{name}",
        "box": None
        if view.track is not None
        else _rounded(None if view.box is None else view.box / size, 4),
    }
    text = htmlsafe_json_dumps(data, dumps=json_text, separators=(",", ":"))
    return FaceRecord(ranked(view.probabilities)[0][0], text, pack_attention(evidence.attention))


def face_data(close: FaceView, evidence: Evidence, regions: Sequence[str]) -> dict[str, Any]:
    """Returns what `page.js` draws a face from, but not its picture and attention; by index of labels, regions."""
    labels = [evidence.labels.get(label) for label in range(len(close.probabilities))]
    return {
        "name": printable(close.name),
        "where": close.where,
        "index": close.face,
        "track": close.track,
        "seconds": close.seconds,
        "smoothed": None
        if close.smoothed is None
        else [*close.probabilities].index(close.smoothed),
        "size": close.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": _rounded(np.array(list(close.probabilities.values())), 4),
        "matrix": _rounded(
            invert(close.to_crop).T.ravel(), 4
        ),  # from the crop to the picture, as SVG has it
        "crop": close.crop_size,
        "boxes": [_rounded(close.regions.get(name), 2) for name in regions],
        "shares": [label and _rounded(label[0]) for label in labels],
        "contrast": _rounded(evidence.contrast[0]),
    }


def average_data(
    faces: int,
    view: FaceView,
    evidence: Evidence,
    regions: Sequence[str],
    found: Sequence[Interval],
) -> dict[str, Any]:
    """Returns what `page.js` draws the mean of some faces from, with the intervals of `Average.intervals`."""
    return face_data(view, evidence, regions) | {
        "label": printable(ranked(view.probabilities)[0][0]),
        "faces": faces,
        "image": _data_uri(Pil.fromarray(view.photo)),
        "heat": _data_uri(heat_maps(evidence).crop((0, 0, HEAT, HEAT)), "PNG"),
        "attention": pack_attention(evidence.attention),
        "intervals": [
            None if one["low"] is None else _rounded(np.array([one["low"], one["high"]]))
            for one in found
        ],
    }


def _rounded(values: Array | None, digits: int = 3) -> list[Any] | None:
    return None if values is None else np.round(values, digits).tolist()


def pack_attention(attention: Attention) -> str:
    """Returns attention as base64: a byte per value, 255 times its square root, view after view."""
    views = len(attention.output)
    parts = [values.reshape(views, -1) for values in attention[:3]]
    return base64.b64encode(
        (255 * np.sqrt(np.hstack(parts))).round().astype(np.uint8).tobytes()
    ).decode()


def heat_maps(evidence: Evidence) -> Pil.Image:
    """Returns the heat of each label, then of the contrast, as one picture, each scaled to its maximum; clear at 0."""
    found = {**evidence.labels, len(evidence.order): evidence.contrast}
    maps = np.zeros((len(evidence.order) + 1, HEAT, HEAT))
    for index, (_, heat) in found.items():
        large = Pil.fromarray(heat.astype(np.float32)).resize((HEAT, HEAT), Pil.Resampling.BICUBIC)
        maps[index] = np.asarray(large)
    maps /= np.abs(maps).max((1, 2), keepdims=True).clip(1e-12)
    picture = Pil.fromarray((128 + 127 * maps.reshape(-1, HEAT)).round().astype(np.uint8))
    value = (
        np.arange(256)[:, None] - 128
    ) / 127  # from strongly against, over clear, to strongly for
    colours = np.where(
        value < 0, *(np.array(ImageColor.getrgb(colour)) for colour in (AGAINST, FOR))
    )
    palette = np.hstack([colours, 220 * np.abs(value).clip(0, 1) ** 0.7]).astype(np.uint8)
    picture.putpalette(palette.tobytes(), "RGBA")
    return picture


def is_report(page: Path) -> bool:
    """Returns whether a file is the page of a report."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)


def _data_uri(image: Pil.Image, kind: str = "JPEG") -> str:
    buffer = io.BytesIO()
    (image.convert("RGB") if kind == "JPEG" else image).save(
        buffer, kind, quality=80, optimize=True
    )
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


_LOADER = PackageLoader("fer_vit", "report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=lambda value: (
        printable(value) if type(value) is str else value
    ),  # others are numbers or marked safe
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.policies["json.dumps_function"] = json_text  # of the filter `tojson`
_ENVIRONMENT.filters |= {"data_uri": _data_uri, "printable": printable}
_ENVIRONMENT.filters |= {"percent": percent, "colour": expression_colour}


def render(path: Path, name: str, **values: object) -> None:
    """Renders values with the template `NAME.html` and the script `NAME.js`; replaces an existing page."""
    style, script = (
        _LOADER.get_source(_ENVIRONMENT, file)[0] for file in ("page.css", f"{name}.js")
    )
    digest = script_digest(name)
    page = _ENVIRONMENT.get_template(f"{name}.html").render(
        style=style, script=script, digest=digest, **values
    )
    path.write_text(page, encoding="utf-8")


def script_digest(name: str) -> str:
    """Returns the SHA-256 of the script `NAME.js` as content security policies name it."""
    script = _LOADER.get_source(_ENVIRONMENT, f"{name}.js")[0]
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
