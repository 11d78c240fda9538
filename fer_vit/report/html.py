"""All explained faces as one page that opens from disk: `index.html` holds its pictures, style and script itself.

`save_face` keeps each face's figure as a file of its own and returns a small record; `write_page` takes the pictures
out of these figures, one after the other, and sets the words as text, so that they can be searched and read on a phone.
What users name (files, labels) is escaped, and a content policy forbids the page to load or to run anything else.
"""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.report import draw


@dataclass(frozen=True)
class FaceRecord:
    """What the page needs of a face.

    Attributes:
        name: Path of the photo as the user should see it. Untrusted text.
        face: Index of the face in the photo.
        probabilities: Probability of each label.
        shares: Share of the attention of each region that was present, and of `draw.PATCHES`.
        figure: File of its figure.
    """

    name: str
    face: int
    probabilities: dict[str, float]
    shares: dict[str, float]
    figure: Path

    @property
    def label(self) -> str:
        """The predicted label."""
        return draw.ranked(self.probabilities)[0][0]

    @property
    def confidence(self) -> float:
        """The probability of the predicted label."""
        return draw.ranked(self.probabilities)[0][1]


def save_face(folder: Path, number: int, view: draw.FaceView) -> FaceRecord:
    """Draws a face, writes the figure to `folder/faces/<number>.jpg` and returns what the page needs of it.

    Raises:
        FerVitError: The file cannot be written.
    """
    path = folder / "faces" / f"{number:06d}.jpg"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Full colour resolution: the lines of the regions are thin.
        draw.face_figure(view).save(path, quality=90, subsampling=0)
    except OSError as error:
        raise FerVitError(f"Cannot write {path}: {error.strerror}. Choose a folder you may write.") from error
    return FaceRecord(view.name, view.face, view.probabilities, draw.token_shares(view), path)


def mean_shares(records: Iterable[FaceRecord]) -> dict[str, dict[str, float]]:
    """Returns each region's mean share per predicted label, over the faces that show the region."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for region, share in record.shares.items():
            found.setdefault(record.label, {}).setdefault(region, []).append(share)
    return {
        label: {region: sum(shares) / len(shares) for region, shares in regions.items()}
        for label, regions in found.items()
    }


def write_page(
    path: Path, records: Sequence[FaceRecord], title: str, facts: Mapping[str, str], heads: Sequence[Pil.Image] = ()
) -> None:
    """Writes the page.

    Args:
        path: The HTML file; an existing one is replaced.
        records: The faces, all of one model, in the order in which the page shows them first.
        title: Its heading.
        facts: What was run, for example {"Method": ..., "Checkpoint": ..., "Photos": ...}; the page counts the faces.
        heads: Pictures of the attention heads, for a section of their own.

    Raises:
        FerVitError: The page cannot be written or a figure cannot be read.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_page(records, title, {**facts, "Faces": str(len(records))}, heads))
    except OSError as error:
        raise FerVitError(f"Cannot write the page {path}: {error}. Choose a folder you may write.") from error


def _page(
    records: Sequence[FaceRecord], title: str, facts: Mapping[str, str], heads: Sequence[Pil.Image]
) -> Iterator[str]:
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    facts_list = "".join(f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>" for key, value in facts.items())
    yield f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
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
        labels = [label for label in records[0].probabilities if label in counts]
        yield from _table(labels, counts, mean_shares(records))
        if heads:
            yield from _heads(heads)
        yield from _controls(labels, counts)
        yield '<div class="gallery">\n'
        for record in records:
            yield _card(record)
        yield f"</div>\n</section>\n</main>\n<script>{_SCRIPT}</script>\n"
    else:
        yield "<p>No face was found.</p>\n</main>\n"
    yield "</body>\n</html>\n"


def _table(labels: list[str], counts: Counter[str], means: dict[str, dict[str, float]]) -> Iterator[str]:
    """The mean shares as a heat map; all patches together stand apart, because they would drown the regions."""
    columns = dict.fromkeys(region for label in labels for region in means.get(label, {}))
    regions = [region for region in columns if region != draw.PATCHES]
    largest = max((means[label].get(region, 0.0) for label in labels for region in regions), default=0.0)
    yield """<section>
<h2>Mean share by predicted expression</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Mean share by predicted expression">
<table>
<thead><tr><th scope="col">predicted</th><th scope="col">faces</th>"""
    for region in regions:
        yield f'<th scope="col">{_dot(region)}{_text(region.replace("_", " "))}</th>'
    if draw.PATCHES in columns:
        yield '<th scope="col">all patches</th>'
    yield "</tr></thead>\n<tbody>\n"
    for label in labels:
        mean = means.get(label, {})
        yield f'<tr><th scope="row">{_text(label)}</th><td class="count">{counts[label]}</td>'
        for region in regions:
            tint = f' style="--v:{mean[region] / max(largest, 1e-12):.3f}"' if region in mean else ""
            yield f"<td{tint}>{_percent(mean.get(region))}</td>"
        if draw.PATCHES in columns:
            yield f'<td class="count">{_percent(mean.get(draw.PATCHES))}</td>'
        yield "</tr>\n"
    yield "</tbody>\n</table>\n</div>\n</section>\n"


def _heads(pictures: Sequence[Pil.Image]) -> Iterator[str]:
    yield "<section>\n<h2>Attention heads</h2>\n"
    yield "<p>Where each head looks, how many pixels of the crop it looks over on average, and the region it looks at"
    yield " most. The folder <code>heads</code> beside this page has the same for every face.</p>\n"
    for picture in pictures:
        yield '<div class="scroll" tabindex="0" role="region" aria-label="Attention heads">'
        size = f'width="{picture.width}" height="{picture.height}"'
        yield f'<img src="{_data_uri(picture)}" alt="Attention heads" {size}></div>\n'
    yield "</section>\n"


def _controls(labels: list[str], counts: Counter[str]) -> Iterator[str]:
    yield """<section>
<h2>Faces</h2>
<form>
<fieldset><legend>Predicted expression</legend>
<label><input type="radio" name="label" value="" checked><span>all</span></label>
"""
    for label in labels:
        yield f'<label><input type="radio" name="label" value="{_text(label)}">'
        yield f"<span>{_text(label)} <small>{counts[label]}</small></span></label>\n"
    yield """</fieldset>
<label>Order <select name="order"><option value="found">as found<option value="most">most confident first
<option value="least">least confident first</select></label>
<label>File name <input type="search" name="text" placeholder="contains …" autocomplete="off"></label>
<output aria-live="polite"></output>
</form>
"""


def _card(record: FaceRecord) -> str:
    with Pil.open(record.figure) as figure:
        pictures = [_data_uri(figure.crop(panel)) for panel in draw.PANELS]
    images = "".join(
        f'<img src="{uri}" alt="{alt}" width="{draw.SIDE}" height="{draw.SIDE}" loading="lazy" decoding="async">'
        for uri, alt in zip(pictures, ("Photo with face and regions", "Heat map of the attention"), strict=True)
    )
    return f"""<article data-label="{_text(record.label)}" data-confidence="{record.confidence:.6f}">
<h3>{_text(record.label)} <span>{record.confidence:.0%}</span></h3>
<p><bdi class="name">{_text(record.name)}</bdi> <span>face&nbsp;{record.face}</span></p>
<div class="pictures">{images}</div>
<div class="charts">
{_bars("share of the attention", draw.share_bars(record.shares))}
{_bars("probability", draw.probability_bars(record.probabilities))}
</div>
</article>
"""


def _bars(title: str, bars: Iterable[draw.Bar]) -> str:
    lines = "".join(
        f"<li{' class=strong' if bar.strong else ''}><span>{_text(bar.name)}</span>"
        + ("<i></i>" if bar.length is None else f'<i style="--w:{bar.length:.3f};--c:{bar.colour}"></i>')
        + f"<b>{bar.value:.0%}</b></li>"
        for bar in bars
    )
    return f"<div><h4>{title}</h4><ul>{lines}</ul></div>"


def _dot(region: str) -> str:
    return f'<i class="dot" style="--c:{draw.REGION_COLOURS.get(region, draw.OTHER_COLOUR)}"></i>'


def _percent(share: float | None) -> str:
    return "&ndash;" if share is None else f"{share:.1%}"


def _text(text: str) -> str:
    return escape(draw.printable(text))


def _data_uri(image: Pil.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


_NOTE = """<details open><summary>How to read this</summary>
<p>A share says how much of the attention that the method follows through the model ends at a token: the shares of all
patches and all regions of a face add up to 100%. It says where the model took its information from, not that this made
the decision: a region can be attended to and change nothing, and regions overlap each other and the patches beneath
them. Means are over the faces that the model <em>predicted</em> as an expression, right or wrong, and over those that
show the region. The bars of the regions and the heat map are scaled within each face, from nothing to its
largest value, so their lengths and colours cannot be compared between faces; the percentages can.</p>
</details>"""

_STYLE = """
:root { --paper: #fbfbfa; --card: #fff; --ink: #1c1c1e; --muted: #66666c; --line: #e4e4e2; --track: #ededeb;
  --heat: 214 90 40; --accent: #1c1c1e; --on-accent: #fff; --faint: #b4b4ba }
@media (prefers-color-scheme: dark) { :root { --paper: #151517; --card: #1d1d20; --ink: #ededf0; --muted: #a0a0a8;
  --line: #303035; --track: #2c2c31; --heat: 224 104 52; --accent: #ededf0; --on-accent: #151517; --faint: #6c6c74 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1320px; padding: 2.5rem clamp(1rem, 4vw, 3rem) 5rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100% }
h1, h2 { font-family: "Iowan Old Style", Charter, "Palatino Linotype", Palatino, Georgia, serif; font-weight: 500;
  letter-spacing: -.01em; line-height: 1.2; text-wrap: balance }
h1 { font-size: clamp(1.7rem, 4vw, 2.3rem); margin: 0 0 1rem }
h2 { font-size: 1.35rem; margin: 3rem 0 .9rem }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2.2rem; margin: 0 0 1.4rem }
dt { color: var(--muted); font-size: .8rem }
dd { margin: 0; overflow-wrap: anywhere }
details { max-width: 46rem; color: var(--muted) }
summary { cursor: pointer; color: var(--ink) }
details p { margin: .4rem 0 0 }
.scroll { overflow-x: auto }
.scroll img { width: auto }
table { border-collapse: separate; border-spacing: 2px; font-size: .87rem }
th { font-weight: 400; text-align: right; padding: .3rem .6rem; white-space: nowrap }
thead th { color: var(--muted); vertical-align: bottom; white-space: normal; line-height: 1.25; min-width: 3.9rem }
tr > th:first-child { position: sticky; left: 0; background: var(--paper); text-align: left; padding-left: 0 }
td { text-align: right; padding: .4rem .6rem; border-radius: 4px;
  background: rgb(var(--heat) / calc(var(--v, 0) * .55)) }
.count { color: var(--muted) }
.dot { display: block; width: .6rem; height: .6rem; border-radius: 50%; background: var(--c); margin: 0 0 .25rem auto }
form { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; align-items: center; gap: .6rem 1.2rem;
  padding: .7rem 0; margin-bottom: 1rem; background: var(--paper); border-bottom: 1px solid var(--line);
  color: var(--muted); font-size: .87rem }
fieldset { display: flex; gap: .3rem; border: 0; margin: 0; padding: 3px 0; min-width: 0; max-width: 100%;
  overflow-x: auto; flex: 1 0 100% }
legend, fieldset input { position: absolute; opacity: 0; pointer-events: none }
fieldset label { position: relative; flex: none }
fieldset span { display: block; padding: .25rem .8rem; border: 1px solid var(--line); border-radius: 99px;
  cursor: pointer; color: var(--ink); background: var(--card) }
small { color: var(--muted); font-size: .85em }
:checked + span { background: var(--accent); border-color: var(--accent); color: var(--on-accent) }
:checked + span small { color: inherit; opacity: .7 }
:focus-visible, :focus-visible + span { outline: 2px solid #3b82f6; outline-offset: 1px }
select, input[type=search] { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .5rem; margin-left: .3rem; max-width: 12rem }
output { margin-left: auto }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1.2rem }
article { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem 1.1rem 1.1rem;
  content-visibility: auto; contain-intrinsic-size: auto 30rem }
article[hidden] { display: none }
h3 { margin: 0; font-size: 1.15rem; font-weight: 600 }
h3 span { font-weight: 400; color: var(--muted) }
article p { margin: 0 0 .7rem; font-size: .87rem; overflow-wrap: anywhere }
article p span { color: var(--muted) }
.pictures { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem }
img { display: block; width: 100%; height: auto; border-radius: 6px }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem; margin-top: .8rem; font-size: .78rem;
  line-height: 1.3 }
h4 { margin: 0 0 .25rem; font-weight: 400; font-size: inherit; color: var(--muted) }
ul { list-style: none; margin: 0; padding: 0 }
li { display: grid; grid-template-columns: 5.4rem 1fr 2.3rem; align-items: center; gap: .35rem; padding: .12rem 0 }
li span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
li i[style] { height: .5rem;
  background: linear-gradient(var(--c), var(--c)) 0 / calc(var(--w) * 100%) no-repeat var(--track) }
li b { font-weight: 400; text-align: right }
.strong, .strong b { font-weight: 600 }
.strong i[style] { background-image: linear-gradient(var(--accent), var(--accent)) }
@media (max-width: 34rem) { body { padding-top: 1.5rem } article { padding: .8rem } .charts { gap: .8rem }
  li { grid-template-columns: 4.6rem 1fr 2rem } output { margin-left: 0 } form { position: static } }
@media print { form { display: none } article { break-inside: avoid } }
"""

_SCRIPT = """
const form = document.querySelector('form'), gallery = document.querySelector('.gallery');
const cards = [...gallery.children];
const rank = {found: () => 0, most: card => -card.dataset.confidence, least: card => +card.dataset.confidence};
let ordered = 'found';
function show() {
  const {label, order, text} = Object.fromEntries(new FormData(form));
  let shown = 0;
  for (const card of cards) {
    const name = card.querySelector('.name').textContent.toLowerCase();
    card.hidden = (label !== '' && label !== card.dataset.label) || !name.includes(text.trim().toLowerCase());
    shown += !card.hidden;
  }
  if (order !== ordered) {
    for (const card of [...cards].sort((a, b) => rank[order](a) - rank[order](b))) gallery.append(card);
    ordered = order;
  }
  form.querySelector('output').value = `${shown} of ${cards.length} faces`;
}
form.addEventListener('input', show);
form.addEventListener('submit', event => event.preventDefault());
show();
"""
