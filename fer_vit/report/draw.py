"""A face or a photo as a picture: boxes, regions and predictions, in the colours of all pictures.

`zoom` first scales a face to display resolution; everything else is drawn at that scale, so that lines and text are
crisp on a 48-pixel face and cheap on a 24-megapixel photo.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
from PIL import Image as Pil, ImageDraw, ImageFont

from fer_vit.errors import printable
from fer_vit.geometry import Array, Image, apply, compose, invert

REGION = "#c3ffa5"  # of regions, which have names, and of attention; far from the others, also with colour-blindness
FOR, AGAINST = "#e8590c", "#1c7ed6"  # of heat maps
ACCENT, FAINT = "#3a3a3c", "#b4b4ba"
CORNERS = np.array(
    [[0, 1], [2, 1], [2, 3], [0, 3]]
)  # indices in a box (xyxy), clockwise from the upper left
EXPRESSIONS = {  # over time
    "neutral": "#9aa0a8",
    "happiness": "#f0b400",
    "surprise": "#1fb5c4",
    "sadness": "#3a6fd8",
    "anger": "#d8362f",
    "disgust": "#5d9c3c",
    "fear": "#7d52c8",
    "contempt": "#b5713c",
}


def expression_colour(label: str) -> str:
    """Returns the colour of an expression; one that is not usual has some colour, always the same."""
    return EXPRESSIONS.get(label, f"hsl({crc32(label.encode(errors='replace')) % 360}, 45%, 55%)")


@dataclass(frozen=True)
class FaceView:
    """One face to draw."""

    photo: Image  # (H, W, 3), RGB uint8, of any size
    to_crop: Array  # matrix (2, 3) from photo to crop pixels
    crop_size: int  # side of the square crop in pixels
    regions: dict[str, Array]  # box (4,) of each region that is present, xyxy in crop pixels
    box: Array | None = (
        None  # detected face (4,), xyxy in photo pixels; None for a crop without landmarks
    )
    name: str = ""  # path of the photo as the user should see it; untrusted text
    face: int = 0  # index in the photo
    track: int | None = None  # the number of the person in a video
    seconds: float = 0.0  # the frame's time
    probabilities: dict[str, float] = field(default_factory=dict)  # of each label
    smoothed: str | None = None  # the expression with the largest smoothed probability in a video

    @property
    def where(self) -> str:
        """Which face of the photo it is; in a video, who and when."""
        minutes, seconds = divmod(round(self.seconds, 1), 60)
        return (
            f"face {self.face}"
            if self.track is None
            else f"person {self.track} at {minutes:.0f}:{seconds:04.1f}"
        )


class Attention(NamedTuple):
    """Attention on a face in V views: the whole encoder, each head, each query; in reports, interactions."""

    relations: Array  # how much each of R regions (row) takes from each (column) (V, R, R)
    output: Array  # how much each region gives to what is classified (V, R)
    patches: Array  # the same for each patch (V, rows, columns)
    distance: (
        Array  # how far a head looks on average, in crop pixels (V,); NaN where there is no head
    )


def zoom(view: FaceView, size: int) -> FaceView:
    """Returns the same face in a cut-out of its photo, scaled to `size` pixels on the longer side."""
    corners = to_photo(view, np.array([0.0, 0.0, view.crop_size, view.crop_size]))
    if view.box is not None:
        corners = np.vstack([corners, view.box.reshape(2, 2)])
    low, high = corners.min(0), corners.max(0)
    extent = np.array(view.photo.shape[1::-1])  # (W, H)
    # No more than the photo's longer side, and shifted into the photo as far as possible.
    side = np.clip((high - low).max() * (1 + 2 * 0.06), 2, extent.max())  # with a margin of 6 %
    start = np.clip((low + high - side) / 2, 0, np.maximum(extent - side, 0))
    left, top = np.floor(start).astype(int)
    right, bottom = np.minimum(np.ceil(start + side).astype(int), extent)
    cut = Pil.fromarray(view.photo[top:bottom, left:right])
    width, height = (max(1, round(length * size / max(cut.size))) for length in cut.size)
    scale = np.array([width / cut.width, height / cut.height])
    matrix = np.hstack([np.diag(scale), -(scale * (left, top))[:, None]])  # photo to cut
    return replace(
        view,
        photo=np.asarray(cut.resize((width, height), Pil.Resampling.BICUBIC, reducing_gap=2.0)),
        box=None if view.box is None else apply(matrix, view.box.reshape(2, 2)).ravel(),
        to_crop=compose(view.to_crop, invert(matrix)),
    )


def draw_boxes(view: FaceView) -> Image:
    """Returns the photo (H, W, 3) with the face box in white and the regions, mapped back, in colour."""
    image = Pil.fromarray(view.photo)
    draw = ImageDraw.Draw(image, "RGBA")
    width = max(1, round(max(image.size) / 160))
    outlines = [(to_photo(view, box), REGION) for box in view.regions.values()]
    if view.box is not None:
        outlines.insert(0, (view.box[CORNERS], "#ffffff"))
    for corners, colour in outlines:
        # The last side is drawn twice so that the join at the first corner is closed.
        path = [tuple(corner) for corner in np.vstack([corners, corners[:2]])]
        draw.line(path, "#00000055", width + 2, "curve")
        draw.line(path, colour, width, "curve")
    return np.asarray(image)


def to_photo(view: FaceView, box: Array) -> Array:
    """Maps a box in crop pixels back to the photo: its corners (4, 2), clockwise from the upper left."""
    return apply(invert(view.to_crop), box[CORNERS])


def ranked(probabilities: dict[str, float]) -> list[tuple[str, float]]:
    """Returns labels and probabilities, the most probable first."""
    return sorted(probabilities.items(), key=lambda item: -item[1])


def percent(value: float, digits: int = 0) -> str:
    """Returns a percentage rounded to some digits, never -0%."""
    return f"{round(value, digits + 2) + 0.0:.{digits}%}"


def fitted(text: str, size: int, width: float) -> str:
    """Returns printable text truncated at its start to a width in pixels: the end of a path is most informative."""
    text = printable(text)
    kept = text[-160:]
    while kept and font(size).getlength("…" + kept if kept != text else kept) > width:
        kept = kept[1:]
    return kept if kept == text else "…" + kept


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns Pillow's own font, so that figures look the same everywhere."""
    return ImageFont.load_default(size)


class Marked(NamedTuple):
    """A face to mark."""

    box: Array | None  # (4,), xyxy in pixels; None: the whole picture
    label: str  # untrusted text
    probability: float
    track: int | None = None  # the number of the person in a video


def draw_faces(image: Image, faces: Iterable[Marked]) -> Image:
    """Returns a picture (H, W, 3), RGB uint8, with its faces marked."""
    picture = Pil.fromarray(image)
    draw = ImageDraw.Draw(picture, "RGBA")
    width, height = picture.size
    size = max(11, round(max(width, height) / 60))
    line, pad = max(1, size // 8), size // 3
    for face in faces:
        left, top, right, bottom = (
            (0, 0, width - 1, height - 1) if face.box is None else face.box.round().astype(int)
        )
        draw.rectangle(
            (left - 1, top - 1, right + 1, bottom + 1), outline="#00000066", width=line + 2
        )
        draw.rectangle((left, top, right, bottom), outline="#ffffff", width=line)
        number = "" if face.track is None else f"{face.track}  "
        text = fitted(f"{number}{face.label}  {percent(face.probability)}", size, width - 2 * pad)
        wide, high = round(font(size).getlength(text)) + 2 * pad, size + 3 * pad
        x = max(0, min(left, width - wide))
        y = max(
            0, min(top - high - 2, height - high)
        )  # inside the box where there is no room above it
        draw.rectangle((x, y, x + wide, y + high), "#000000b0")
        draw.text((x + pad, y + pad + 0.8 * size), text, "#ffffff", font(size), "ls")
        bar = (x + pad, y + high - pad - 2 * line, x + wide - pad, y + high - pad)
        draw.rectangle(bar, "#ffffff40")
        filled = bar[0] + round(face.probability * (bar[2] - bar[0]))
        draw.rectangle((*bar[:2], filled, bar[3]), expression_colour(face.label))
    return np.asarray(picture)
