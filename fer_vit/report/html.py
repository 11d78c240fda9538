"""All explained faces as one page that opens from disk: `index.html` holds its data, style and script itself.

`save_face` writes each face's picture beside the page and returns a record; `write_page` puts the records into the page
as JSON, out of which `page.js` makes gallery and large faces. The browser reads pictures only when they are looked at,
so that thousands of faces open at once. What users name (files, labels) is escaped, and a content policy forbids the
page to load anything but pictures beside it, or to run any script but its own.
"""

import base64
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.intervals import Interval, mean_intervals
from fer_vit.report import draw

Array = NDArray[np.float64]
Means: TypeAlias = dict[str, dict[str, Interval]]
"""Mean share by predicted label and region."""

SECTIONS = {
    "Relations between regions": "How much each region (row) takes from each other (column): attention through all "
    "blocks, heads averaged, mean over the faces predicted as an expression that show both. What it keeps of itself is "
    "left out.",
    "Attention heads": "Where each head looks, how many pixels of the crop it looks over on average, and the region it "
    "looks at most; lines join two regions that take 40 % or more from one another, both directions together. Below "
    "that, how much each region (row) takes from each other (column), head by head. The folder <code>heads</code> "
    "beside this page has the first picture for every face.",
}
"""What stands below the heading of a section."""

PHOTO = 480
"""Longer side of the pictures that the page shows, in pixels."""
_MADE = '<meta name="generator" content="fer-vit visualize">'
_STYLE, _SCRIPT = (files("fer_vit.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))


class Evidence(NamedTuple):
    """What speaks for one label or another in a face.

    Attributes:
        order: Places of the labels, the most probable first.
        labels: Shares (R,) and heat (h, w) for each label, by its place; by some methods for the predicted one only.
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
        return draw.ranked(self.probabilities)[0][0]


def save_face(folder: Path, number: int, view: draw.FaceView, evidence: Evidence, regions: Sequence[str]) -> FaceRecord:
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
    cut = draw.zoom(view, PHOTO)
    name = f"{number:06d}.jpg"
    try:
        for place in ("faces", "photos"):
            (folder / place).mkdir(parents=True, exist_ok=True)
        # Full colour resolution: the lines of the regions are thin.
        draw.face_figure(view).save(folder / "faces" / name, quality=90, subsampling=0)
        Pil.fromarray(cut.photo).save(folder / "photos" / name, quality=82)
    except OSError as error:
        raise FerVitError(f"Cannot write to {folder}: {error.strerror}. Choose a folder you may write.") from error
    (a, c, e), (b, d, f) = np.linalg.inv(np.vstack([cut.to_crop, [0.0, 0.0, 1.0]]))[:2].tolist()  # crop to picture
    each = [evidence.labels.get(label) for label in range(len(view.probabilities))]
    data: dict[str, Any] = {
        "name": draw.printable(view.name),
        "number": view.face,
        "image": f"photos/{name}",
        "size": cut.photo.shape[1::-1],
        "order": list(evidence.order),
        "probabilities": [round(value, 4) for value in view.probabilities.values()],
        "matrix": [round(value, 4) for value in (a, b, c, d, e, f)],
        "crop": view.crop_size,
        "grid": view.heat.shape,
        "boxes": [_rounded(view.regions[name], 2) if name in view.regions else None for name in regions],
        "shares": [one and _rounded(one[0]) for one in each],
        "heat": [one and _coloured(one[1]) for one in each] if view.heat.size else None,
        "contrast": None,
        "relations": [_rounded(row) for row in evidence.relations],
    }
    if evidence.contrast is not None:
        shares, heat = evidence.contrast
        data["contrast"] = {"shares": _rounded(shares), "heat": _coloured(heat) if heat.size else None}
    return FaceRecord(view.probabilities, view.shares, _json(data))


def _rounded(values: Array, digits: int = 3) -> list[float]:
    return np.round(values, digits).tolist()  # type: ignore[no-any-return]


def _coloured(heat: Array) -> list[float]:
    """Scores of patches (h, w) as the page colours them: -1 to 1, which many small ones survive being rounded to."""
    return _rounded(heat.ravel() / max(np.abs(heat).max(), 1e-12))


def mean_shares(records: Iterable[FaceRecord], regions: Sequence[str]) -> Means:
    """Returns each region's mean share and its interval per predicted label, over the faces that show the region."""
    found: dict[str, list[list[float]]] = {}
    for record in records:
        shares = [record.shares.get(region, np.nan) for region in regions]
        found.setdefault(record.label, []).append(shares)
    means = {label: zip(regions, mean_intervals(np.array(shares)), strict=True) for label, shares in found.items()}
    return {label: {region: one for region, one in each if one["faces"]} for label, each in means.items()}


def is_report(page: Path) -> bool:
    """Tells whether a file is a page of `write_page`."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return _MADE.encode() in file.read(1000)


class Contents(NamedTuple):
    """What a page shows.

    Attributes:
        title: Its heading.
        facts: What was run, for example {"Method": ..., "Model": ..., "Photos": ...}; the page counts the faces.
        records: The faces, all of one model, in the order in which the page shows them first.
        means: Their `mean_shares`.
        regions: The regions of the model in their order.
        sections: Pictures by the heading under which they stand (see `SECTIONS`).
    """

    title: str
    facts: Mapping[str, str]
    records: Sequence[FaceRecord]
    means: Means
    regions: Sequence[str]
    sections: Mapping[str, Sequence[Pil.Image]]


def write_page(path: Path, contents: Contents) -> None:
    """Writes the page.

    Args:
        path: The HTML file, beside the folder `photos` of `save_face`; an existing one is replaced.
        contents: What it shows.

    Raises:
        FerVitError: The page cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_page(contents))
    except OSError as error:
        raise FerVitError(f"Cannot write the page {path}: {error}. Choose a folder you may write.") from error


def _page(contents: Contents) -> Iterator[str]:
    title, facts, records, means, regions, sections = contents
    facts = {**facts, "Faces": f"{len(records):,}"}
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    # A page from disk has no origin that 'self' could name.
    images = "img-src data: file: 'self'"
    policy = f"default-src 'none'; {images}; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    facts_list = "".join(f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>" for key, value in facts.items())
    yield f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{_MADE}
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
<dl class="facts">{facts_list}</dl>
{_NOTE}
</header>
<main>
"""
    if records:
        counts = Counter(record.label for record in records)
        labels = list(records[0].probabilities)
        yield from _controls(labels, counts)
        yield '<div class="gallery"></div>\n</section>\n'
        yield from _table([label for label in labels if label in counts], counts, means)
        for heading, pictures in sections.items():
            yield from _pictures(heading, pictures)
        yield f"</main>\n{_DIALOG}"
        yield '<script type="application/json" id="data">'
        colours = [{"name": name, "colour": draw.REGION_COLOURS.get(name, draw.OTHER_COLOUR)} for name in regions]
        yield _json({"labels": [draw.printable(label) for label in labels], "regions": colours, "faces": []})[:-2]
        for number, record in enumerate(records):
            yield ",\n" * (number > 0) + record.data
        yield f"]}}</script>\n<script>{_SCRIPT}</script>\n"
    else:
        yield "<p>No face was found.</p>\n</main>\n"
    yield "</body>\n</html>\n"


def _json(value: object) -> str:
    """JSON that cannot end the script that it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _table(labels: list[str], counts: Counter[str], means: Means) -> Iterator[str]:
    """The mean shares as a heat map."""
    regions = list(dict.fromkeys(region for label in labels for region in means.get(label, {})))
    largest = max((one["mean"] or 0.0 for label in labels for one in means.get(label, {}).values()), default=0.0)
    yield """<section>
<h2>Mean share by predicted expression</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Mean share by predicted expression">
<table>
<thead><tr><th scope="col">predicted</th><th scope="col">faces</th>"""
    for region in regions:
        yield f'<th scope="col">{_dot(region)}{_text(region.replace("_", " "))}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for label in labels:
        mean = means.get(label, {})
        yield f'<tr><th scope="row">{_text(label)}</th><td class="count">{counts[label]}</td>'
        for region in regions:
            yield _cell(mean.get(region), largest)
        yield "</tr>\n"
    yield "</tbody>\n</table>\n</div>\n</section>\n"


def _pictures(heading: str, pictures: Sequence[Pil.Image]) -> Iterator[str]:
    if not pictures:
        return
    yield f"<section>\n<h2>{heading}</h2>\n<p>{SECTIONS[heading]}</p>\n"
    for picture in pictures:
        yield f'<div class="scroll" tabindex="0" role="region" aria-label="{heading}">'
        size = f'width="{picture.width}" height="{picture.height}"'
        yield f'<img src="{_data_uri(picture)}" alt="{heading}" {size}></div>\n'
    yield "</section>\n"


def _controls(labels: list[str], counts: Counter[str]) -> Iterator[str]:
    yield """<section>
<h2>Faces</h2>
<form>
<fieldset><legend>Predicted expression</legend>
<label><input type="radio" name="label" value="" checked><span>all</span></label>
"""
    for number, label in enumerate(labels):
        if label in counts:
            yield f'<label><input type="radio" name="label" value="{number}">'
            yield f"<span>{_text(label)} <small>{counts[label]:,}</small></span></label>\n"
    yield """</fieldset>
<label>Order <select name="order"><option value="found">as found<option value="most">most confident first
<option value="least">least confident first</select></label>
<label>File name <input type="search" name="text" placeholder="contains …" autocomplete="off"></label>
<output aria-live="polite"></output>
</form>
"""


def _dot(region: str) -> str:
    return f'<i class="dot" style="--c:{draw.REGION_COLOURS.get(region, draw.OTHER_COLOUR)}"></i>'


def _cell(one: Interval | None, largest: float) -> str:
    if one is None or one["mean"] is None:
        return "<td>&ndash;</td>"
    tint = f"--v:{max(one['mean'], 0) / max(largest, 1e-12):.3f}"
    between = "one face"
    if one["low"] is not None and one["high"] is not None:
        between = f"{one['faces']:,} faces, 95 % interval {draw.percent(one['low'])} to {draw.percent(one['high'])}"
    return f'<td style="{tint}" title="{between}">{round(one["mean"], 3) + 0.0:.1%}</td>'


def _text(text: str) -> str:
    return escape(draw.printable(text))


def _data_uri(image: Pil.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


_NOTE = """<details open><summary>How to read this</summary>
<p>A region's share says how strongly its tokens, and the patches under it, speak for the predicted
expression by the method named above; one below zero, with a grey bar, speaks against it. Methods that follow attention
alone (rollout, raw) do not know the expression: their shares say where the model looked. The shares of a face, signs
aside, add up to 100%. They are about the model, not about what the person felt, and neighbouring regions see some of
the same pixels. Means are over the faces that the model <em>predicted</em> as an expression, right or wrong, and over
those that show the region. The bars and the heat map are scaled within each face, from nothing to its largest value, so
their lengths and colours cannot be compared between faces; the percentages can.</p>
</details>"""

_DIALOG = """<dialog aria-label="One face">
<div class="face">
<header><h3></h3><p><bdi class="name"></bdi> <span class="number"></span></p>
<nav><button type="button" class="before" aria-label="Face before">&larr;</button>
<button type="button" class="after" aria-label="Next face">&rarr;</button>
<button type="button" class="close" autofocus>Close</button></nav></header>
<svg role="img" aria-label="The face with what speaks for the expression"></svg>
<div>
<form class="controls" method="dialog">
<label>What speaks for <select name="label"></select></label>
<label><input type="checkbox" name="heat" checked> heat map</label>
<label><input type="checkbox" name="regions" checked> regions</label>
<label><input type="checkbox" name="relations"> relations</label>
</form>
<h4></h4>
<ul class="shares"></ul>
<h4>probability</h4>
<ul class="probabilities"></ul>
</div>
</div>
</dialog>
"""
