"""Boxes are where they belong, and every size of photo becomes one panel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ImageColor
from skimage.color import rgb2lab

from fer_vit.geometry import Array, Image, apply, invert
from fer_vit.report import draw
from fer_vit.report.draw import (
    AGAINST_COLOUR,
    EXPRESSION_COLOURS,
    FAINT_COLOUR,
    FOR_COLOUR,
    REGION_COLOUR,
    Marked,
    draw_faces,
    mark,
)
from fer_vit.report.explained_face import FaceView
from tests.helpers.faces import make_face

CROP = 64


def rotation(degrees: float, scale: float, shift: tuple[float, float]) -> Array:
    cos = scale * np.cos(np.deg2rad(degrees))
    sin = scale * np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])


TURNED = rotation(25, 0.7, (0, 0))
# the crop's centre is the photo's, all of it lies inside
TURNED[:, 2] = CROP / 2 - TURNED[:, :2] @ (
    100,
    80,
)


def make_view(**changes: Any) -> FaceView:
    """A grey photo (160, 200) with a turned face of two regions."""
    view = FaceView(
        face=make_face({"neutral": 0.2, "happiness": 0.7, "fear": 0.1}, face=1, crop_size=CROP),
        name="folder/photo.png",
        photo=np.full((160, 200, 3), 128, np.uint8),
        box=np.array([70.0, 60.0, 150.0, 140.0]),
        to_crop=TURNED,
        regions={
            "mouth": np.array([20.0, 40.0, 44.0, 56.0]),
            "nose": np.array([26.0, 24.0, 38.0, 36.0]),
        },
    )
    return replace(view, **changes)


@pytest.mark.parametrize(
    ("height", "width", "to_crop"),
    [
        (48, 48, np.eye(2, 3) * CROP / 48),
        (3000, 2000, rotation(-10, 0.05, (-20, -60))),
        (90, 30, np.array([[0.7, 0, 21], [0, 0.7, 0]])),
        (100, 100, rotation(0, 1, (60, 60))),  # the crop reaches far over the upper left corner
    ],
)
def test_zoom_shows_the_photo_where_the_matrix_says(
    height: int, width: int, to_crop: Array
) -> None:
    photo = np.zeros((height, width, 3), np.uint8)
    photo[..., 0] = (255 * (np.arange(width) + 0.5) / width).round()
    photo[..., 1] = (255 * (np.arange(height) + 0.5) / height).round()[:, None]
    close = draw.zoom(make_view(photo=photo, box=None, to_crop=to_crop), 160)
    assert max(close.photo.shape[:2]) == 160
    rows, columns = close.photo.shape[:2]
    pixels = np.array(
        [[columns // 2, rows // 2], [columns // 4, rows // 4], [3 * columns // 4, rows // 3]]
    )
    on_photo = apply(invert(to_crop), apply(close.to_crop, pixels + 0.5))
    expected = 255 * on_photo / [width, height]
    np.testing.assert_allclose(close.photo[pixels[:, 1], pixels[:, 0], :2], expected, atol=4)
    view = make_view()  # the face box, seen from the crop, is the same before and after
    before, after = (
        apply(each.to_crop, np.array(each.box).reshape(2, 2))
        for each in (view, draw.zoom(view, 320))
    )
    np.testing.assert_allclose(after, before, atol=1e-9)


def test_a_close_up_is_a_copy_that_looks_like_the_photo() -> None:
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (300, 400, 3), np.uint8)
    for shift in (
        (-60, -40),
        (20, 10),
        (-310.5, -190.25),
    ):  # the last two reach over a corner
        view = make_view(photo=photo, box=None, to_crop=rotation(7, 0.6, shift))
        close_up = draw.cut_close_up(view)
        assert not np.shares_memory(close_up.photo, photo)
        assert close_up.photo.shape[0] < 300
        expected = draw.zoom(view, 160)
        actual = draw.zoom(close_up, 160)
        np.testing.assert_array_equal(actual.photo, expected.photo)
        np.testing.assert_allclose(actual.to_crop, expected.to_crop, atol=1e-9)


def test_box_corners_are_drawn_where_they_belong() -> None:
    view = make_view()
    picture = draw.draw_boxes(view)
    green = np.array(ImageColor.getrgb(REGION_COLOUR))
    left, top, right, bottom = view.regions["mouth"]
    linear = np.vstack([view.to_crop, [0, 0, 1]])
    for corner in ((left, top), (right, top), (right, bottom), (left, bottom)):
        x, y, _ = np.linalg.solve(linear, [*corner, 1.0])
        near = picture[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3].astype(int)
        assert (np.abs(near - green).sum(-1) < 20).any()
    x, y, _ = np.linalg.solve(linear, [(left + right) / 2, (top + bottom) / 2, 1.0])
    assert (picture[int(y), int(x)] == 128).all()  # not filled
    assert (picture[60, 70:150] == 255).all(-1).mean() > 0.9  # the face box


def test_percent() -> None:
    assert [draw.percent(value, 1) for value in (-0.0004, 0.1264)] == ["0.0%", "12.6%"]
    assert [draw.percent(value) for value in (-0.004, 0.126, -0.3, 1)] == [
        "0%",
        "13%",
        "-30%",
        "100%",
    ]


def test_a_probability_is_not_rounded_to_certainty() -> None:
    texts = [draw.probability_text(value) for value in (0.126, 0.994, 0.996, 0.99949, 0.9996, 1)]
    assert texts == ["13%", "99%", ">99%", ">99%", ">99%", ">99%"]


def test_fitted_keeps_the_end_of_a_path() -> None:
    assert draw.fitted("short.png", 14, 500) == "short.png"
    cut = draw.fitted("folder/" * 50 + "name.png", 14, 200)
    assert cut.startswith("…")
    assert cut.endswith("name.png")
    assert draw.font(cut, 14).getlength(cut) <= 200


GREY = np.full((200, 300, 3), 100, np.uint8)


def pixels(image: Image, colour: str) -> int:
    """The number of pixels of a colour."""
    return int((image == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum())


def test_the_bar_is_as_long_as_the_probability_in_the_colour_of_the_expression() -> None:
    box = np.array([50.0, 80, 120, 150])

    def bar_pixels(probability: float) -> int:
        above_box = draw_faces(GREY, [Marked(box, "happiness", probability, 3)])[:75]
        return pixels(above_box, EXPRESSION_COLOURS["happiness"])

    full = bar_pixels(1.0)
    half = bar_pixels(0.5)
    assert full > 0
    assert 0.45 < half / full < 0.6
    assert (draw_faces(GREY, [Marked(box, "joy", 1.0)]) != GREY).any()  # a class of one's own


def test_a_face_below_the_least_confidence_has_a_box_without_a_label() -> None:
    box = np.array([50.0, 80, 120, 150])
    marked = draw_faces(GREY, [Marked(box, None, 0.4, 3)])
    assert pixels(marked, EXPRESSION_COLOURS["happiness"]) == 0
    assert pixels(marked, FAINT_COLOUR) > 0
    labelled = draw_faces(GREY, [Marked(box, "happiness", 0.4, 3)])
    assert (marked[:75] != GREY[:75]).sum() < (labelled[:75] != GREY[:75]).sum()  # a shorter plate


@pytest.mark.parametrize(("limit", "label"), [(0.0, "fear"), (0.6, "fear"), (0.61, None)])
def test_the_mark_of_a_face_has_the_label_of_the_table(limit: float, label: str | None) -> None:
    face = make_face({"fear": 0.6, "joy": 0.4}, seconds=0.0, track=1, smoothed=True)
    assert mark(face, limit).label == label
    assert face.alone.sure_smoothed_labels(limit).tolist() == [label]


def test_the_picture_itself_stays_and_boxes_lie_where_faces_are() -> None:
    marked = draw_faces(GREY, [Marked(np.array([50.0, 80, 120, 150]), "fear", 0.7, 0)])
    assert (GREY == 100).all()
    violet = ImageColor.getrgb(EXPRESSION_COLOURS["fear"])
    assert (marked[80, 51:120] == violet).all()
    assert (marked[150, 51:120] == violet).all()
    assert (marked[90:140, 60:110] == 100).all()
    assert (draw_faces(GREY, []) == GREY).all()


def test_names_in_a_crowd_cover_no_other_name() -> None:
    """A small face whose name does not fit has its box alone."""
    large = Marked(np.array([20.0, 80, 120, 180]), "happiness", 0.9)
    beside = Marked(np.array([130.0, 80, 150, 100]), "fear", 0.9)
    alone = draw_faces(GREY, [large])
    both = draw_faces(GREY, [beside, large])  # the order does not matter
    plate = (slice(50, 79), slice(18, 128))
    assert (alone[plate] != GREY[plate]).any()
    assert (both[plate] == alone[plate]).all()

    hidden = Marked(np.array([40.0, 82, 60, 102]), "fear", 0.9)
    crowd = draw_faces(GREY, [large, hidden])
    assert (crowd[plate] == alone[plate]).all()
    violet = EXPRESSION_COLOURS["fear"]
    assert pixels(crowd, violet) <= 4 * 21  # the box, and no bar


def test_a_name_stands_on_its_box_or_inside_it_at_the_edge_of_the_picture() -> None:
    on_top = draw_faces(GREY, [Marked(np.array([50.0, 80, 120, 150]), "fear", 0.7)])
    assert (on_top[152:] == GREY[152:]).all()
    inside = draw_faces(GREY, [Marked(np.array([50.0, 3, 120, 150]), "fear", 0.7)])
    assert (inside[152:] == GREY[152:]).all()
    assert (inside[6:20, 55:110] != GREY[6:20, 55:110]).any()


def test_any_box_and_any_label_can_be_drawn() -> None:
    boxes = [None, np.array([-20.0, -20, 10, 10]), np.array([290.0, 190, 400, 300])]
    for box in boxes:
        assert draw_faces(GREY, [Marked(box, "a\nb\x00\ud800" * 30, 0.4)]).shape == GREY.shape


MACHADO = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""Machado et al., "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
severity 1, for linear RGB."""


def seen(colour: str, vision: str) -> NDArray[np.float64]:
    """CIELAB of a colour as it is seen."""
    value = np.array(ImageColor.getrgb(colour)) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    shown = np.clip(MACHADO[vision] @ linear, 0, 1)
    value = np.where(shown <= 0.0031308, 12.92 * shown, 1.055 * shown ** (1 / 2.4) - 0.055)
    return rgb2lab(value)


@pytest.mark.parametrize("vision", MACHADO)
def test_regions_differ_from_expressions_and_heat_maps(vision: str) -> None:
    for colour in (*EXPRESSION_COLOURS.values(), FOR_COLOUR, AGAINST_COLOUR):
        assert np.linalg.norm(seen(REGION_COLOUR, vision) - seen(colour, vision)) > 25, colour
    assert np.linalg.norm(seen(FOR_COLOUR, vision) - seen(AGAINST_COLOUR, vision)) > 50
