"""A face drawn once for every attention head: where each one looks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image as Pil
from PIL import ImageDraw

from fer_vit.geometry import Array, Image
from fer_vit.report.colours import INK, MUTED, PAPER
from fer_vit.report.draw import FaceView, draw_boxes, fitted, font, overlay_heat, ranked, region_heat, to_photo, zoom

JOINED = 0.4
"""Two regions are joined by a line when the shares that they take from each other add up to this."""
TILE = 132
"""Side of one head's picture in pixels."""

_PAD, _HEAD, _LABEL, _CAPTION = 16, 40, 84, 34


@dataclass(frozen=True)
class HeadMap:
    """Where one head looks, or the query of one expression.

    Attributes:
        caption: Text below the picture.
        heat: Share of each patch (h, w); (0, 0) without patch tokens.
        shares: Share of each region that is present.
        relations: How much two regions take from each other, both directions added, by their names.
    """

    caption: str
    heat: Array
    shares: dict[str, float]
    relations: dict[tuple[str, str], float] = field(default_factory=dict)


def heads_figure(view: FaceView, title: str, rows: Sequence[tuple[str, Sequence[HeadMap]]]) -> Pil.Image:
    """Draws where each head looks in colour, the region with the largest share outlined, and lines between regions that
    take `JOINED` or more from each other.

    The face's own heat and shares are not used; the title is untrusted text. Each row has a name and maps.
    """
    columns = max(len(maps) for _, maps in rows)
    step = TILE + 8
    size = (2 * _PAD + _LABEL + columns * step, _PAD + _HEAD + len(rows) * (TILE + _CAPTION))
    figure = Pil.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(figure)
    draw.text((_PAD, _PAD + 14), fitted(title, 15, size[0] - 2 * _PAD), INK, font(15), "ls")
    close = replace(zoom(view, 2 * TILE), box=None)
    for row, (name, maps) in enumerate(rows):
        top = _PAD + _HEAD + row * (TILE + _CAPTION)
        draw.text((_PAD, top + TILE // 2), name, MUTED, font(13), "lm")
        for column, head in enumerate(maps):
            left = _PAD + _LABEL + column * step
            picture = Pil.fromarray(_tile(close, head)).reduce(2)
            figure.paste(picture, (left + (TILE - picture.width) // 2, top + (TILE - picture.height) // 2))
            largest = "".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in ranked(head.shares)[:1])
            for line, text in enumerate((head.caption, largest)):
                draw.text((left, top + TILE + 13 + 14 * line), fitted(text, 11, TILE), MUTED, font(11), "ls")
    return figure


def _tile(view: FaceView, head: HeadMap) -> Image:
    heat = head.heat if head.heat.size else region_heat(replace(view, shares=head.shares))
    covered = overlay_heat(view.photo, heat, view.to_crop, view.crop_size)
    outlined = {name: view.regions[name] for name, _ in ranked(head.shares)[:1]}
    picture = Pil.fromarray(draw_boxes(replace(view, photo=covered, regions=outlined)))
    centres = {name: tuple(to_photo(view, box).mean(0)) for name, box in view.regions.items()}
    draw = ImageDraw.Draw(picture, "RGBA")
    for (one, other), share in head.relations.items():
        if share >= JOINED:
            draw.line([centres[one], centres[other]], f"{PAPER}b0", round(1 + 3 * share))
    return np.asarray(picture)
