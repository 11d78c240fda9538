"""All explained faces as one page that opens from disk: `index.html` contains its data, style and script.

`save_face` writes each face's picture beside the page and returns a record; `write_page` puts the records into the page
as JSON, from which `page.js` builds the gallery and the large faces. The browser loads pictures only when they come
into view, so that thousands of faces open at once. Names of files and labels are escaped, and a content security policy
forbids the page to load anything but the pictures beside it, or to run any script but its own.
"""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jinja2 import Environment, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.geometry import Array, invert
from fer_vit.intervals import Interval, mean_intervals
from fer_vit.report.colours import region_colour
from fer_vit.report.draw import FaceView, face_figure, percent, printable, ranked, zoom
from fer_vit.report.heads import JOINED

Means: TypeAlias = dict[str, dict[str, Interval]]
"""Mean share by predicted label and region."""

PHOTO = 480
"""Longer side of the pictures that the page shows, in pixels."""
GENERATOR = "fer-vit visualize"


class Evidence(NamedTuple):
    """What speaks for one label or another in a face.

    Attributes:
        order: Indices of the labels, the most probable first.
        labels: Shares (R,) and heat (h, w) by the index of the label; by some methods for the predicted one only.
        contrast: Shares and heat for the most probable label rather than the second; None without one.
        relations: How much each region takes from each (R, R).
    """

    order: Sequence[int]
    labels: Mapping[int, tuple[Array, Array]]
    contrast: tuple[Array, Array] | None
    relations: Array


@dataclass(frozen=True)
class FaceRecord:
    """What the page needs of a face.

    Attributes:
        probabilities: Probability of each label.
        shares: Share of each region that was present, negative where it speaks against, for the predicted label.
        data: What `page.js` draws the face from, as JSON; indices are those of labels and regions.
    """

    probabilities: dict[str, float]
    shares: dict[str, float]
    data: str

    @property
    def label(self) -> str:
        """The predicted label."""
        return ranked(self.probabilities)[0][0]


def save_face(folder: Path, number: int, view: FaceView, evidence: Evidence, regions: Sequence[str]) -> FaceRecord:
    """Draws a face, writes pictures of it to `folder` and returns what the page needs.

    Args:
        folder: The report. `faces` gets a figure, `photos` the face as it is.
        number: Number of the face in the report.
        view: The face, explained for the predicted label.
        evidence: The explanation for other labels.
        regions: The regions of the model in their order.

    Raises:
        FerVitError: A file cannot be written.
    """
    close = zoom(view, PHOTO)
    name = f"{number:06d}.jpg"
    try:
        for subfolder in ("faces", "photos"):
            (folder / subfolder).mkdir(parents=True, exist_ok=True)
        # Full colour resolution: the lines of the regions are thin.
        face_figure(view).save(folder / "faces" / name, quality=90, subsampling=0)
        Pil.fromarray(close.photo).save(folder / "photos" / name, quality=82)
    except OSError as error:
        raise FerVitError(f"Cannot write to {folder}: {error.strerror}. Choose a folder you may write.") from error
    data = _page_data(close, f"photos/{name}", evidence, regions)
    return FaceRecord(view.probabilities, view.shares, htmlsafe_json_dumps(data, separators=(",", ":")))


def _page_data(close: FaceView, image: str, evidence: Evidence, regions: Sequence[str]) -> dict[str, Any]:
    (a, c, e), (b, d, f) = invert(close.to_crop).tolist()  # from the crop to the picture
    labels = [evidence.labels.get(label) for label in range(len(close.probabilities))]
    contrast = evidence.contrast
    return {
        "name": printable(close.name),
        "number": close.face,
        "image": image,
        "size": close.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": [round(value, 4) for value in close.probabilities.values()],
        "matrix": [round(value, 4) for value in (a, b, c, d, e, f)],
        "crop": close.crop_size,
        "grid": close.heat.shape,
        "boxes": [_rounded(close.regions.get(name), 2) for name in regions],
        "shares": [label and _rounded(label[0]) for label in labels],
        "heat": [label and _scaled(label[1]) for label in labels],
        "contrast": contrast and {"shares": _rounded(contrast[0]), "heat": _scaled(contrast[1])},
        "relations": [_rounded(row) for row in evidence.relations],
    }


def _rounded(values: Array | None, digits: int = 3) -> list[float] | None:
    return None if values is None else np.round(values, digits).tolist()


def _scaled(heat: Array) -> list[float] | None:
    """Scales patch scores (h, w) to [-1, 1] so that small ones survive rounding; None for a model without patches."""
    return _rounded(heat.ravel() / max(np.abs(heat).max(), 1e-12)) if heat.size else None


def mean_shares(records: Iterable[FaceRecord], regions: Sequence[str]) -> Means:
    """Returns each region's mean share and its interval per predicted label, over the faces that show the region."""
    shares: dict[str, list[list[float]]] = {}
    for record in records:
        row = [record.shares.get(region, np.nan) for region in regions]
        shares.setdefault(record.label, []).append(row)
    means: Means = {}
    for label, rows in shares.items():
        each = zip(regions, mean_intervals(np.array(rows)), strict=True)
        means[label] = {region: mean for region, mean in each if mean["faces"]}
    return means


def is_report(page: Path) -> bool:
    """Tells whether a file is a page that `write_page` made."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(1000)


def _data_uri(image: Pil.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # others are numbers or marked safe
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"data_uri": _data_uri, "percent": percent, "printable": printable}
    return environment


_STYLE, _SCRIPT, _PAGE = (
    files("fer_vit.report").joinpath(f"page.{suffix}").read_text("utf-8") for suffix in ("css", "js", "html")
)
_TEMPLATE = _environment().from_string(_PAGE)


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
) -> None:
    """Writes the page.

    Args:
        path: The HTML file, beside the folder `photos` of `save_face`; an existing one is replaced.
        title: Its heading.
        facts: What was run, for example {"Method": ..., "Model": ..., "Photos": ...}; the page counts the faces.
        records: The faces, all of one model, in the order in which the page shows them first.
        means: Their `mean_shares`.
        regions: The regions of the model in their order.
        relations: Pictures of the relations between regions.
        heads: Pictures of the attention heads.

    Raises:
        FerVitError: The page cannot be written.
    """
    shown = {region for shares in means.values() for region in shares}
    largest = max((share["mean"] or 0.0 for shares in means.values() for share in shares.values()), default=0.0)
    page = _TEMPLATE.generate(
        title=title,
        facts={**facts, "Faces": f"{len(records):,}"},
        records=records,
        labels=list(records[0].probabilities) if records else [],
        counts=Counter(record.label for record in records),
        means=means,
        largest=max(largest, 1e-12),
        regions=[{"name": name, "colour": region_colour(name)} for name in regions],
        shown=shown,
        relations=relations,
        heads=heads,
        joined=JOINED,
        generator=GENERATOR,
        style=_STYLE,
        script=_SCRIPT,
        digest=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
    )
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(page)
    except OSError as error:
        raise FerVitError(f"Cannot write the page {path}: {error}. Choose a folder you may write.") from error
