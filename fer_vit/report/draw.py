"""Draws boxes, regions and predictions on faces and photos; defines the colours of all pictures.

`zoom` first scales a face to display resolution. Everything else is drawn at that scale: lines and
text are crisp on a 48-pixel face, and drawing is fast for a 24-megapixel photo.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from PIL import Image as Pil, ImageDraw

from fer_vit.errors import printable
from fer_vit.faces import Face
from fer_vit.geometry import Array, Image, apply, compose, invert
from fer_vit.report.explained_face import FaceView
from fer_vit.report.fonts import drawable, font

FigureKind = Literal["pdf", "svg", "png"]  # the formats of figures for papers

# All regions have one colour, since their names are written beside them; attention has the same
# colour. It differs clearly from all other colours, also for colour-blind readers.
REGION_COLOUR = "#c3ffa5"

FOR_COLOUR = "#e8590c"  # contributions for the explained score; also bars of movements
AGAINST_COLOUR = "#1c7ed6"  # contributions against the explained score
ACCENT_COLOUR = "#3a3a3c"  # the most important part of a figure
FAINT_COLOUR = "#b4b4ba"  # the less important parts of a figure

# Each row indexes (x, y) of a corner in a box (xyxy), clockwise from the upper left.
CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])

CLOSE_UP_MARGIN = 0.06  # the margin around a face in a close-up, as a fraction of the face's side
EXPRESSION_COLOURS = {  # boxes of faces, and areas over time
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
    """Returns the CSS colour of an expression; an unusual label gets a colour by its hash."""
    hue = crc32(label.encode(errors="replace")) % 360
    return EXPRESSION_COLOURS.get(label, f"hsl({hue}, 45%, 55%)")


def cut_close_up(view: FaceView) -> FaceView:
    """Returns a face in a cut-out of its photo, a copy that does not keep the photo in memory.

    The cut-out contains the crop and the detected box. `zoom` shows the same of photo and cut-out.
    """
    # The crop and the detected box, in photo pixels.
    corners = to_photo(view, np.array([0.0, 0.0, view.face.crop_size, view.face.crop_size]))
    if view.box is not None:
        corners = np.vstack([corners, view.box.reshape(2, 2)])
    low = corners.min(0)
    high = corners.max(0)

    # The cut-out is a square, at most as long as the photo's longer side. The square is shifted
    # into the photo as far as possible.
    extent = np.array(view.photo.shape[1::-1])  # (W, H)
    side = np.clip((high - low).max() * (1 + 2 * CLOSE_UP_MARGIN), 2, extent.max())
    start = np.clip((low + high - side) / 2, 0, np.maximum(extent - side, 0))
    left, top = np.floor(start).astype(int)
    right, bottom = np.minimum(np.ceil(start + side).astype(int), extent)

    cut = view.photo[top:bottom, left:right].copy()
    return _moved(view, cut, np.array([[1.0, 0.0, -left], [0.0, 1.0, -top]]))


def zoom(view: FaceView, size: int) -> FaceView:
    """Returns a face in a cut-out of its photo; the longer side of the cut-out has `size` pixels.

    The cut-out contains the crop and the detected box.
    """
    close_up = cut_close_up(view)
    cut = Pil.fromarray(close_up.photo)
    longer = max(cut.size)
    width = max(1, round(cut.width * size / longer))
    height = max(1, round(cut.height * size / longer))
    scaled = cut.resize((width, height), Pil.Resampling.BICUBIC, reducing_gap=2.0)
    matrix = np.array([[width / cut.width, 0.0, 0.0], [0.0, height / cut.height, 0.0]])
    return _moved(close_up, np.asarray(scaled), matrix)


def _moved(view: FaceView, picture: Image, matrix: Array) -> FaceView:
    """Returns a face in another picture (H, W, 3), by the matrix (2, 3) from photo to picture."""
    box = None
    if view.box is not None:
        box = apply(matrix, view.box.reshape(2, 2)).ravel()
    return replace(view, photo=picture, box=box, to_crop=compose(view.to_crop, invert(matrix)))


def draw_boxes(view: FaceView) -> Image:
    """Returns the photo (H, W, 3) with the box of the face in white and the regions in colour."""
    image = Pil.fromarray(view.photo)
    draw = ImageDraw.Draw(image, "RGBA")
    width = max(1, round(max(image.size) / 160))
    outlines = []
    if view.box is not None:
        outlines.append((view.box[CORNERS], "#ffffff"))
    for box in view.regions.values():
        outlines.append((to_photo(view, box), REGION_COLOUR))
    for corners, colour in outlines:
        # The last side is drawn twice so that the join at the first corner is closed.
        path = [tuple(corner) for corner in np.vstack([corners, corners[:2]])]
        draw.line(path, "#00000055", width + 2, "curve")
        draw.line(path, colour, width, "curve")
    return np.asarray(image)


def to_photo(view: FaceView, box: Array) -> Array:
    """Maps a box (4,), xyxy in crop pixels, to the photo.

    Returns:
        The corners (4, 2), (x, y) in pixels of the photo, clockwise from the upper left.
    """
    return apply(invert(view.to_crop), box[CORNERS])


def ranked(probabilities: dict[str, float]) -> list[tuple[str, float]]:
    """Returns pairs of a label and its probability, in descending order of probability."""
    return sorted(probabilities.items(), key=lambda item: -item[1])


def percent(value: float, digits: int = 0) -> str:
    """Returns a fraction as a percentage with `digits` decimals, never -0%."""
    return f"{round(value, digits + 2) + 0.0:.{digits}%}"


def probability_text(value: float) -> str:
    """Returns a probability as a percentage; 100% becomes >99%, since no prediction is certain."""
    text = percent(value)
    return ">99%" if text == "100%" else text


def fitted(text: str, size: int, width: float) -> str:
    """Returns printable text that is truncated at the start to a width in pixels.

    The end is kept, since the end of a path is most informative.
    """
    text = drawable(printable(text))
    tail = text[-160:]
    result = tail if tail == text else "…" + tail
    text_font = font(result, size)
    while tail and text_font.getlength(result) > width:
        tail = tail[1:]
        result = "…" + tail
    return result


class Marked(NamedTuple):
    """What is drawn of a face in a picture.

    A live page and a marked copy of a video need no more of a `Face`. The picture may be smaller
    than the photo.
    """

    box: Array | None  # (4,), xyxy in pixels of the picture; None: the whole picture
    label: str | None  # untrusted text; None: the probability is below the minimum
    probability: float
    number: int | None = None  # the number of the person in a video, or of the face in a photo


def mark(face: Face, min_confidence: float = 0.0) -> Marked:
    """Returns what is drawn of a face in its photo; in a video, the expression is smoothed.

    If the probability is below `min_confidence`, no label is drawn.
    """
    label = face.label_smoothed or face.label
    assert label is not None  # a face that is drawn is classified
    probability = (face.smoothed or face.probabilities)[label]
    if probability < min_confidence:
        label = None
    return Marked(face.box, label, probability, number=face.track)


def draw_faces(image: Image, faces: Sequence[Marked]) -> Image:
    """Returns a picture (H, W, 3), RGB uint8, with boxes and plates for its faces.

    A plate shows number, label and probability. Boxes have the colours of expressions. A plate that
    would cover the plate of a larger face is left out.
    """
    picture = Pil.fromarray(image)
    draw = ImageDraw.Draw(picture, "RGBA")
    style = PlateStyle.for_picture(picture.size)
    boxes = [_whole_box(face, picture.size) for face in faces]
    for face, box in zip(faces, boxes, strict=True):
        _draw_box(draw, box, _colour(face), style.line)

    # Place the plates; the plates of large faces first.
    areas = [(right - left) * (bottom - top) for left, top, right, bottom in boxes]
    occupied: list[Box] = []  # the plates that have been drawn
    for index in sorted(range(len(boxes)), key=lambda index: -areas[index]):
        face = faces[index]
        text = _plate_text(face, style, picture.width)
        plate = _place_plate(boxes[index], style.size_of(text), picture.size, occupied)
        if plate is not None:
            occupied.append(plate)
            _draw_plate(draw, plate, text, face, style)
    return np.asarray(picture)


Box: TypeAlias = tuple[int, int, int, int]  # xyxy in pixels


class PlateStyle(NamedTuple):
    """Sizes of boxes and plates, in pixels."""

    text: int  # height of the text
    line: int  # width of a line
    pad: int  # margin around the text

    @classmethod
    def for_picture(cls, size: tuple[int, int]) -> "PlateStyle":
        """Returns sizes for a picture of `size` (width, height), large enough to be legible."""
        text = max(11, round(max(size) / 60))
        return cls(text, line=max(1, text // 8), pad=text // 3)

    def size_of(self, text: str) -> tuple[int, int]:
        """Returns the width and height of a plate with a text."""
        return round(font(text, self.text).getlength(text)) + 2 * self.pad, self.text + 3 * self.pad


def _colour(face: Marked) -> str:
    """Returns the colour of a face's expression; grey for a face without a label."""
    if face.label is None:
        return FAINT_COLOUR
    return expression_colour(face.label)


def _whole_box(face: Marked, size: tuple[int, int]) -> Box:
    """Returns the box of a face in whole pixels, in a picture of `size` (width, height)."""
    if face.box is None:
        return 0, 0, size[0] - 1, size[1] - 1
    left, top, right, bottom = face.box.round().astype(int).tolist()
    return left, top, right, bottom


def _draw_box(draw: ImageDraw.ImageDraw, box: Box, colour: str, line: int) -> None:
    """Draws a box with a shadow around it."""
    left, top, right, bottom = box
    shadow = (left - 1, top - 1, right + 1, bottom + 1)
    draw.rectangle(shadow, outline="#000000aa", width=line + 2)
    draw.rectangle(box, outline=colour, width=line)


def _plate_text(face: Marked, style: PlateStyle, width: int) -> str:
    """Returns the text of a face's plate, truncated to the `width` of the picture in pixels."""
    words = []
    if face.number is not None:
        words.append(str(face.number))
    if face.label is not None:
        words += [face.label, probability_text(face.probability)]
    return fitted("  ".join(words), style.text, width - 2 * style.pad)


def _place_plate(
    box: Box, size: tuple[int, int], picture: tuple[int, int], occupied: Sequence[Box]
) -> Box | None:
    """Returns a place for a plate outside the `occupied` boxes; None if there is no room.

    The plate stands on the face's `box`: below the box, it could be read as the plate of another
    face. If there is no room above the box, the plate is inside the box, at the upper edge. The
    `size` of the plate and the size of the `picture` are (width, height).
    """
    left, top, right, _ = box
    width, height = size
    lowest = max(0, picture[1] - height)
    rightmost = max(0, picture[0] - width)
    y = top - height - 2
    if y < 0:
        y = top
    y = min(max(0, y), lowest)
    for x in (left, right - width):
        x = min(max(0, x), rightmost)
        plate = (x, y, x + width, y + height)
        if not any(_overlap(plate, earlier) for earlier in occupied):
            return plate
    return None


def _overlap(first: Box, second: Box) -> bool:
    """Returns whether two boxes have a point in common."""
    across = first[0] <= second[2] and second[0] <= first[2]
    down = first[1] <= second[3] and second[1] <= first[3]
    return across and down


def _draw_plate(
    draw: ImageDraw.ImageDraw, plate: Box, text: str, face: Marked, style: PlateStyle
) -> None:
    """Draws a plate: the text, and a bar of the probability below the text."""
    left, top, right, bottom = plate
    pad = style.pad
    draw.rectangle(plate, "#000000b0")
    baseline = top + pad + 0.8 * style.text
    draw.text((left + pad, baseline), text, "#ffffff", font(text, style.text), "ls")

    bar_left = left + pad
    bar_right = right - pad
    bar_bottom = bottom - pad
    bar_top = bar_bottom - 2 * style.line
    filled = bar_left + round(face.probability * (bar_right - bar_left))
    draw.rectangle((bar_left, bar_top, bar_right, bar_bottom), "#ffffff40")
    draw.rectangle((bar_left, bar_top, filled, bar_bottom), _colour(face))
