"""All explained faces as one page that opens from disk: `index.html` contains its data, style and script.

`page.js` builds the gallery and the large faces from JSON. The browser loads pictures only when they come into view, so
that a page of thousands of faces opens quickly. File names and labels are escaped, and a content security policy allows
only the pictures beside the page and its own script.
"""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from PIL import Image as Pil

from fer_vit.geometry import Array, invert
from fer_vit.report.colours import evidence_colours, expression_colour, region_colour
from fer_vit.report.draw import FaceView, percent, printable, ranked, zoom
from fer_vit.report.heads import JOINED
from fer_vit.report.table import Interval

Means: TypeAlias = dict[str, dict[str, Interval]]
"""Mean share by predicted label and region."""
PHOTO = 480
"""Longer side of the pictures that the page shows, in pixels."""
HEAT = 96
"""Side of a heat map for the page, in pixels."""
GENERATOR = "fer-vit visualize"


class Evidence(NamedTuple):
    """Attribution for labels of a face.

    Attributes:
        order: Indices of the labels, the most probable first.
        labels: Shares (R,) and heat (h, w) by the index of each label that was explained.
        contrast: Shares and heat for the most probable label rather than the second.
        relations: How much each region takes from each (R, R).
    """

    order: Sequence[int]
    labels: Mapping[int, tuple[Array, Array]]
    contrast: tuple[Array, Array]
    relations: Array


@dataclass(frozen=True)
class FaceRecord:
    """What the page needs of a face.

    Attributes:
        probabilities: Probability of each label.
        shares: Attribution of the predicted label to each region that was present, negative against it.
        data: What `page.js` draws the face from, as JSON; indices refer to labels and regions.
    """

    probabilities: dict[str, float]
    shares: dict[str, float]
    data: str

    @property
    def label(self) -> str:
        """The predicted label."""
        return ranked(self.probabilities)[0][0]


def save_face(folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]) -> FaceRecord:
    """Writes pictures of face `number` in a report and returns what the page needs.

    The report's folder `photos` gets the face and its heat maps. The view explains the predicted label; `regions` are
    the model's, in its order.
    """
    close = zoom(view, PHOTO)
    name = f"{number:06d}.jpg"
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    Pil.fromarray(close.photo).save(folder / "photos" / name, quality=82)
    heat_maps(evidence).save((folder / "photos" / name).with_suffix(".png"))
    data = _page_data(close, f"photos/{name}", evidence, regions)
    return FaceRecord(view.probabilities, view.shares, htmlsafe_json_dumps(data, separators=(",", ":")))


def _page_data(close: FaceView, image: str, evidence: Evidence, regions: Sequence[str]) -> dict[str, Any]:
    labels = [evidence.labels.get(label) for label in range(len(close.probabilities))]
    return {
        "name": printable(close.name),
        "where": close.where,
        "track": close.track,
        "seconds": close.seconds,
        "image": image,
        "size": close.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": _rounded(np.array(list(close.probabilities.values())), 4),
        "matrix": _rounded(invert(close.to_crop).T.ravel(), 4),  # from the crop to the picture, as SVG has it
        "crop": close.crop_size,
        "boxes": [_rounded(close.regions.get(name), 2) for name in regions],
        "shares": [label and _rounded(label[0]) for label in labels],
        "contrast": _rounded(evidence.contrast[0]),
        "relations": _rounded(evidence.relations),
    }


def _rounded(values: Array | None, digits: int = 3) -> list[Any] | None:
    return None if values is None else np.round(values, digits).tolist()


def heat_maps(evidence: Evidence) -> Pil.Image:
    """Returns the heat of every label, and of the contrast, from top to bottom as one picture; clear where none is.

    Each is scaled to its own largest value, and smooth between the cells of its grid.
    """
    found = dict(evidence.labels) | {len(evidence.order): evidence.contrast}
    maps = np.zeros((len(evidence.order) + 1, HEAT, HEAT))
    for index, (_, heat) in found.items():
        large = Pil.fromarray(heat.astype(np.float32)).resize((HEAT, HEAT), Pil.Resampling.BICUBIC)
        maps[index] = np.asarray(large)
    maps /= np.abs(maps).max((1, 2), keepdims=True).clip(1e-12)
    picture = Pil.fromarray((128 + 127 * maps.reshape(-1, HEAT)).round().astype(np.uint8))
    picture.putpalette(evidence_colours().tobytes(), "RGBA")
    return picture


def is_report(page: Path) -> bool:
    """Returns whether a file is a page of `write_page`."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)


def _data_uri(image: Pil.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


_LOADER = PackageLoader("fer_vit", "report")
_ENVIRONMENT = Environment(
    loader=_LOADER,
    autoescape=True,
    finalize=lambda value: printable(value) if type(value) is str else value,  # others are numbers or marked safe
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters |= {"data_uri": _data_uri, "percent": percent, "printable": printable, "colour": expression_colour}


def render(path: Path, name: str, **values: object) -> None:
    """Writes the page that the template `NAME.html` and the script `NAME.js` make of values; replaces another one."""
    style, script = (_LOADER.get_source(_ENVIRONMENT, file)[0] for file in ("page.css", f"{name}.js"))
    digest = script_digest(name)
    page = _ENVIRONMENT.get_template(f"{name}.html").generate(style=style, script=script, digest=digest, **values)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(page)


def script_digest(name: str) -> str:
    """Returns the SHA-256 of the script `NAME.js` as content security policies name it."""
    script = _LOADER.get_source(_ENVIRONMENT, f"{name}.js")[0]
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def write_page(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    records: Sequence[FaceRecord],
    means: Means,
    regions: Sequence[str],
    *,
    relations: Sequence[Pil.Image] = (),
    heads: Sequence[Pil.Image] = (),
    people: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes the page beside the folder `photos` of `save_face`; an existing one is replaced.

    It shows the faces of one model in the order of `records`, and their `mean_shares`. `facts` describe the run, for
    example {"Method": ..., "Model": ...}. The pictures of `relations` and `heads` become part of the page. Each of the
    `people` in videos has a time line, see `timeline.Video.lines`.
    """
    render(
        path,
        "page",
        title=title,
        facts=facts,
        records=records,
        counts=Counter(record.label for record in records),
        means=means,
        regions=[{"name": name, "colour": region_colour(name)} for name in regions],
        relations=relations,
        heads=heads,
        people=people,
        joined=JOINED,
        generator=GENERATOR,
    )
