"""Attention drawn on a face: regions as discs, arcs between them, patches as a soft map. For notebooks and papers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Affine2D

from fer_vit.geometry import Array, invert
from fer_vit.report.colours import REGION
from fer_vit.report.draw import Attention, FaceView, percent, printable, ranked, to_photo, zoom

ARCS = 12
"""Pairs of regions that are joined by an arc, at most."""
SHADOW = "#000000aa"
FOOT = 0.75
"""Height of the text below the face, in inches."""


def strongest_pairs(relations: Array, present: Sequence[int]) -> list[tuple[float, int, int]]:
    """Returns the attention between two of the regions that are present, both directions added, largest first."""
    pairs = [(float(relations[a, b] + relations[b, a]), a, b) for a in present for b in present if a < b]
    return [pair for pair in sorted(pairs, reverse=True)[:ARCS] if pair[0] > 0]


def attention_figure(view: FaceView, attention: Attention, regions: Sequence[str], number: int = 0) -> Figure:
    """Draws one view of the attention on a face.

    Arcs are as wide as the attention between two regions. The area of a disc is the attention from a region to the
    output. `regions` are the model's R regions, of which the face may lack some; `number` is the index of the view.
    """
    close = zoom(view, 640)
    height, width = close.photo.shape[:2]
    figure = Figure(figsize=(5, 5 * height / width + FOOT), dpi=120)
    foot = FOOT / figure.get_figheight()
    axes = figure.add_axes((0, foot, 1, 1 - foot))
    axes.imshow(close.photo.mean(2), cmap="gray", vmin=0, vmax=330, extent=(0, width, height, 0))
    relations, output, patches = (values[number] for values in attention[:3])
    if patches.size:
        _draw_patches(axes, close, patches)
    centres = {
        index: to_photo(close, close.regions[name]).mean(0)
        for index, name in enumerate(regions)
        if name in close.regions
    }
    pairs = strongest_pairs(relations, [*centres])
    _draw_arcs(axes, pairs, centres)
    for index, (x, y) in centres.items():
        axes.scatter(x, y, 400 * output[index] / max(output.max(), 1e-12), REGION, edgecolors=SHADOW, zorder=3)
        text = f"{regions[index].replace('_', ' ')} {percent(output[index])}"
        name = axes.annotate(text, (x, y), (0, -7), textcoords="offset points", ha="center", va="top", fontsize=7)
        name.set(color="white", zorder=4, path_effects=[withStroke(linewidth=2, foreground="black")])
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    figure.text(0.02, 0.02, _legend(view, pairs, regions), fontsize=8, va="bottom", parse_math=False)
    return figure


def _draw_patches(axes: Axes, close: FaceView, patches: Array) -> None:
    colours = np.broadcast_to(to_rgba(REGION), (*patches.shape, 4)).copy()
    colours[..., 3] = 0.75 * patches / max(patches.max(), 1e-12)
    place = Affine2D(np.vstack([invert(close.to_crop), [0, 0, 1]])) + axes.transData
    extent = (0, close.crop_size, close.crop_size, 0)
    axes.imshow(colours, extent=extent, interpolation="bilinear", transform=place)


def _draw_arcs(axes: Axes, pairs: Sequence[tuple[float, int, int]], centres: Mapping[int, Array]) -> None:
    for share, a, b in reversed(pairs):
        start, end = centres[a], centres[b]
        bend = (end - start)[::-1] * (-0.15, 0.15)
        path = Path([start, (start + end) / 2 + bend, end], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        width = 6 * share / pairs[0][0]
        for colour, line in ((SHADOW, width + 1.5), (REGION, width)):
            axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=line, capstyle="round"))


def _legend(view: FaceView, pairs: Sequence[tuple[float, int, int]], regions: Sequence[str]) -> str:
    label, confidence = ranked(view.probabilities)[0]
    arcs = "Arcs: attention between two regions"
    if pairs:
        share, a, b = pairs[0]
        arcs += f"; widest: {regions[a]} and {regions[b]}, {percent(share)}".replace("_", " ")
    title = f"{printable(label)} {percent(confidence)}: where the model looks"
    return f"{title}\n{arcs}.\nDiscs: attention from a region to the output."
