"""All explained faces as one page that opens from disk.

`index.html` contains its data, style and script.

`page.js` builds the gallery and the large faces from JSON. The browser loads pictures only when
they come into view, so that a page of thousands of faces opens quickly. File names and labels are
escaped, and a content security policy allows only the pictures beside the page and its script.
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
    AGAINST_COLOUR,
    FOR_COLOUR,
    Attention,
    FaceView,
    expression_colour,
    percent,
    ranked,
    zoom,
)
from fer_vit.report.table import Interval

FACE_SIDE = 480  # longer side of the pictures of a face, in pixels
WHOLE_SIDE = 1200  # longer side of photos with several faces, in pixels
HEAT_SIDE = 96  # side of a heat map for the page, in pixels
GENERATOR = "fer-vit visualize"


class Attributed(NamedTuple):
    """The attribution of a score to a face."""

    shares: Array  # of regions (R,)
    heat: Array  # a map of the face (rows, columns)


class Evidence(NamedTuple):
    """Explanation of a face."""

    order: Sequence[int]  # indices of the labels, the most probable first
    labels: Mapping[int, Attributed]  # for each label that is explained, by index
    contrast: Attributed  # for the most probable label rather than the second
    attention: Attention


class FaceRecord(NamedTuple):
    """What the page needs of a face."""

    label: str
    data: str  # JSON, from which `page.js` draws the face
    attention: str  # see `pack_attention`


def save_face(
    folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]
) -> FaceRecord:
    """Writes the pictures of a face into a report's folder `photos`.

    `number` is the face's in the report, `regions` are the model's, in its order. With its second
    face, a photo is written as a whole under the number of its first face.

    Returns:
        What the page needs of the face.
    """
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    name = f"{number:06d}.jpg"

    close = zoom(view, FACE_SIDE)
    Pil.fromarray(close.photo).save(photos / name, quality=82)
    heat_maps(evidence).save((photos / name).with_suffix(".png"))

    if view.face == 1 and view.box is not None and view.track is None:
        whole = Pil.fromarray(view.photo)
        whole.thumbnail((WHOLE_SIDE, WHOLE_SIDE))
        whole.save(photos / f"{number - 1:06d}-whole.jpg", quality=82)

    data = face_data(close, evidence, regions)
    data["image"] = f"photos/{name}"
    data["box"] = None
    if view.box is not None and view.track is None:
        height, width = view.photo.shape[:2]
        data["box"] = _rounded(view.box / np.array([width, height, width, height]), 4)
    text = htmlsafe_json_dumps(data, dumps=json_text, separators=(",", ":"))
    label, _ = ranked(view.probabilities)[0]
    return FaceRecord(label, text, pack_attention(evidence.attention))


def face_data(close: FaceView, evidence: Evidence, regions: Sequence[str]) -> dict[str, Any]:
    """Returns what `page.js` draws a face from, but not its picture and attention.

    Values of labels and of regions are in the order of their indices.
    """
    smoothed = None
    if close.smoothed is not None:
        smoothed = list(close.probabilities).index(close.smoothed)
    shares = []
    for label in range(len(close.probabilities)):
        attributed = evidence.labels.get(label)
        shares.append(None if attributed is None else _rounded(attributed.shares))
    boxes = []
    for name in regions:
        box = close.regions.get(name)
        boxes.append(None if box is None else _rounded(box, 2))
    return {
        "name": printable(close.name),
        "where": close.where,
        "index": close.face,
        "track": close.track,
        "seconds": close.seconds,
        "smoothed": smoothed,
        "size": close.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": _rounded(np.array(list(close.probabilities.values())), 4),
        # From the crop to the picture, column by column, as SVG has it.
        "matrix": _rounded(invert(close.to_crop).T.ravel(), 4),
        "crop": close.crop_size,
        "boxes": boxes,
        "shares": shares,
        "contrast": _rounded(evidence.contrast.shares),
    }


def average_data(
    faces: int,
    view: FaceView,
    evidence: Evidence,
    regions: Sequence[str],
    intervals: Sequence[Interval],
) -> dict[str, Any]:
    """Returns what `page.js` draws the mean of `faces` faces from.

    `intervals` are what `Average.intervals` returns.
    """
    bounds: list[list[Any] | None] = []
    for interval in intervals:
        if interval["low"] is None:
            bounds.append(None)
        else:
            bounds.append(_rounded(np.array([interval["low"], interval["high"]])))
    label, _ = ranked(view.probabilities)[0]
    first_map = heat_maps(evidence).crop((0, 0, HEAT_SIDE, HEAT_SIDE))
    return face_data(view, evidence, regions) | {
        "label": printable(label),
        "faces": faces,
        "image": _data_uri(Pil.fromarray(view.photo)),
        "heat": _data_uri(first_map, "PNG"),
        "attention": pack_attention(evidence.attention),
        "intervals": bounds,
    }


def _rounded(values: Array, digits: int = 3) -> list[Any]:
    """Returns rounded numbers as lists."""
    rounded: list[Any] = np.round(values, digits).tolist()
    return rounded


def pack_attention(attention: Attention) -> str:
    """Returns attention as base64: a byte per value, 255 times its square root, view after view."""
    views = len(attention.output)
    relations = attention.relations.reshape(views, -1)
    output = attention.output.reshape(views, -1)
    patches = attention.patches.reshape(views, -1)
    values = np.hstack([relations, output, patches])
    packed = (255 * np.sqrt(values)).round().astype(np.uint8)
    return base64.b64encode(packed.tobytes()).decode()


def heat_maps(evidence: Evidence) -> Pil.Image:
    """Returns the heat of each label, then of the contrast, one below the other in a picture.

    Each map is scaled to its maximum, and clear at 0.
    """
    classes = len(evidence.order)
    maps = np.zeros((classes + 1, HEAT_SIDE, HEAT_SIDE))
    for label, attributed in evidence.labels.items():
        maps[label] = _enlarged(attributed.heat)
    maps[classes] = _enlarged(evidence.contrast.heat)
    maps /= np.abs(maps).max((1, 2), keepdims=True).clip(1e-12)
    picture = Pil.fromarray((128 + 127 * maps.reshape(-1, HEAT_SIDE)).round().astype(np.uint8))

    # Colours of the values: from strongly against, over clear, to strongly for.
    value = (np.arange(256)[:, None] - 128) / 127  # (256, 1)
    against_colour = np.array(ImageColor.getrgb(AGAINST_COLOUR))
    for_colour = np.array(ImageColor.getrgb(FOR_COLOUR))
    colours = np.where(value < 0, against_colour, for_colour)  # (256, 3)
    opacity = 220 * np.abs(value).clip(0, 1) ** 0.7
    palette = np.hstack([colours, opacity]).astype(np.uint8)
    picture.putpalette(palette.tobytes(), "RGBA")
    return picture


def _enlarged(heat: Array) -> Array:
    """Returns a heat map (rows, columns) with `HEAT_SIDE` rows and columns."""
    picture = Pil.fromarray(heat.astype(np.float32))
    return np.asarray(picture.resize((HEAT_SIDE, HEAT_SIDE), Pil.Resampling.BICUBIC))


def is_report(page: Path) -> bool:
    """Returns whether a file is the page of a report."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)


def _data_uri(image: Pil.Image, kind: str = "JPEG") -> str:
    """Returns an image as an address that contains it."""
    if kind == "JPEG":
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=80, optimize=True)
    content = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{content}"


def _printable_text(value: Any) -> Any:
    """Returns text as it may be printed; numbers, and text that is marked safe, unchanged."""
    return printable(value) if type(value) is str else value


_LOADER = PackageLoader("fer_vit", "report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=_printable_text,
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.policies["json.dumps_function"] = json_text  # of the filter `tojson`
_ENVIRONMENT.filters |= {"data_uri": _data_uri, "printable": printable}
_ENVIRONMENT.filters |= {"percent": percent, "colour": expression_colour}


def render(path: Path, name: str, **values: object) -> None:
    """Renders values with the template `NAME.html` and the script `NAME.js`.

    An existing page is replaced.
    """
    template = _ENVIRONMENT.get_template(f"{name}.html")
    page = template.render(
        style=_source("page.css"),
        script=_source(f"{name}.js"),
        digest=script_digest(name),
        **values,
    )
    path.write_text(page, encoding="utf-8")


def script_digest(name: str) -> str:
    """Returns the SHA-256 of the script `NAME.js` as content security policies name it."""
    digest = hashlib.sha256(_source(f"{name}.js").encode()).digest()
    return base64.b64encode(digest).decode()


def _source(file: str) -> str:
    """Returns the text of a file of this package."""
    text, _, _ = _LOADER.get_source(_ENVIRONMENT, file)
    return text
