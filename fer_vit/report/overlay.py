"""Faces marked in a picture or a frame: a box, a name, the expression and a bar as long as its probability."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image as Pil
from PIL import ImageDraw

from fer_vit.geometry import Array, Image
from fer_vit.report.colours import expression_colour
from fer_vit.report.draw import fitted, font, percent


class Marked(NamedTuple):
    """A face to mark.

    Attributes:
        box: Where it is (4,), xyxy in pixels; None: the whole picture.
        label: Its expression. Untrusted text.
        probability: Of this expression.
        track: The number of the person in a video.
    """

    box: Array | None
    label: str
    probability: float
    track: int | None = None


def draw_faces(image: Image, faces: Iterable[Marked]) -> Image:
    """Returns a picture (H, W, 3), RGB uint8, with its faces marked."""
    picture = Pil.fromarray(image)
    draw = ImageDraw.Draw(picture, "RGBA")
    for face in faces:
        _mark(draw, face, picture.width, picture.height)
    return np.asarray(picture)


def _mark(draw: ImageDraw.ImageDraw, face: Marked, width: int, height: int) -> None:
    size = max(11, round(max(width, height) / 60))
    line, pad, colour = max(1, size // 8), size // 3, expression_colour(face.label)
    left, top, right, bottom = (0, 0, width - 1, height - 1) if face.box is None else face.box.round().astype(int)
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline="#00000066", width=line + 2)
    draw.rectangle((left, top, right, bottom), outline="#ffffff", width=line)

    number = "" if face.track is None else f"{face.track}  "
    text = fitted(f"{number}{face.label}  {percent(face.probability)}", size, width - 2 * pad)
    wide, high = round(font(size).getlength(text)) + 2 * pad, size + 3 * pad
    x = max(0, min(left, width - wide))
    y = max(0, min(top - high - 2, height - high))  # inside the box where there is no room above it
    draw.rectangle((x, y, x + wide, y + high), "#000000b0")
    draw.text((x + pad, y + pad + 0.8 * size), text, "#ffffff", font(size), "ls")
    bar = (x + pad, y + high - pad - 2 * line, x + wide - pad, y + high - pad)
    draw.rectangle(bar, "#ffffff40")
    draw.rectangle((*bar[:2], bar[0] + round(face.probability * (bar[2] - bar[0])), bar[3]), colour)
