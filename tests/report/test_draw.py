"""Boxes are where they belong, and every size of photo becomes one panel."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import ImageColor

from fer_vit.geometry import Array, apply, invert
from fer_vit.report import draw
from fer_vit.report.draw import REGION

CROP = 64


def rotation(degrees: float, scale: float, shift: tuple[float, float]) -> Array:
    cos, sin = scale * np.cos(np.deg2rad(degrees)), scale * np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])


TURNED = rotation(25, 0.7, (0, 0))
TURNED[:, 2] = CROP / 2 - TURNED[:, :2] @ (100, 80)  # the crop's centre is the photo's, all of it lies inside


def make_view(**changes: Any) -> draw.FaceView:
    """A grey photo (160, 200) with a turned face of two regions."""
    view = draw.FaceView(
        name="folder/photo.png",
        face=1,
        photo=np.full((160, 200, 3), 128, np.uint8),
        box=np.array([70.0, 60.0, 150.0, 140.0]),
        to_crop=TURNED,
        crop_size=CROP,
        regions={"mouth": np.array([20.0, 40.0, 44.0, 56.0]), "nose": np.array([26.0, 24.0, 38.0, 36.0])},
        probabilities={"neutral": 0.2, "happiness": 0.7, "fear": 0.1},
    )
    return replace(view, **changes)


def test_zoom_keeps_every_point_in_its_place() -> None:
    view = make_view()
    close = draw.zoom(view, 320)
    assert max(close.photo.shape[:2]) == 320
    # The face box, seen from the crop, is the same before and after.
    before, after = (apply(each.to_crop, np.array(each.box).reshape(2, 2)) for each in (view, close))
    np.testing.assert_allclose(after, before, atol=1e-9)


@pytest.mark.parametrize(
    ("height", "width", "to_crop"),
    [
        (48, 48, np.eye(2, 3) * CROP / 48),
        (3000, 2000, rotation(-10, 0.05, (-20, -60))),
        (90, 30, np.array([[0.7, 0, 21], [0, 0.7, 0]])),
        (100, 100, rotation(0, 1, (60, 60))),  # the crop reaches far over the upper left corner
    ],
)
def test_zoom_shows_the_photo_where_the_matrix_says(height: int, width: int, to_crop: Array) -> None:
    y, x = np.mgrid[:height, :width] + 0.5
    photo = np.stack([255 * x / width, 255 * y / height, np.zeros_like(x)], -1).round().astype(np.uint8)
    close = draw.zoom(make_view(photo=photo, box=None, to_crop=to_crop), 160)
    assert max(close.photo.shape[:2]) == 160
    rows, columns = close.photo.shape[:2]
    pixels = np.array([[columns // 2, rows // 2], [columns // 4, rows // 4], [3 * columns // 4, rows // 3]])
    on_photo = apply(invert(to_crop), apply(close.to_crop, pixels + 0.5))
    expected = 255 * on_photo / [width, height]
    np.testing.assert_allclose(close.photo[pixels[:, 1], pixels[:, 0], :2], expected, atol=4)


def test_box_corners_are_drawn_where_they_belong() -> None:
    view = make_view()
    picture = draw.draw_boxes(view)
    green = np.array(ImageColor.getrgb(REGION))
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
    assert [draw.percent(value) for value in (-0.004, 0.126, -0.3, 1)] == ["0%", "13%", "-30%", "100%"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"photo": np.zeros((48, 48, 3), np.uint8), "box": None, "to_crop": np.eye(2, 3) * CROP / 48},
        {"photo": np.zeros((4000, 6000, 3), np.uint8), "to_crop": rotation(5, 0.02, (-30, -20))},
        {"regions": {}},
        {"name": "line\nbreak \udcff \x00" + "x" * 5000, "probabilities": {"a very long label of one's own " * 9: 1.0}},
    ],
)
def test_every_face_becomes_a_panel_of_the_same_size(changes: dict[str, Any]) -> None:
    figure = draw.prediction_figure(make_view(**changes))
    assert (figure.mode, figure.size) == ("RGB", (584, 410))


def test_fitted_keeps_the_end_of_a_path() -> None:
    assert draw.fitted("short.png", 14, 500) == "short.png"
    cut = draw.fitted("folder/" * 50 + "name.png", 14, 200)
    assert cut.startswith("…")
    assert cut.endswith("name.png")
    assert draw.font(14).getlength(cut) <= 200


def test_a_prediction_is_drawn_without_matplotlib() -> None:
    program = """
import sys
import numpy as np
from fer_vit.report.draw import FaceView, prediction_figure
view = FaceView(np.zeros((32, 32, 3), np.uint8), np.eye(2, 3), 32, {}, probabilities={"happiness": 1.0})
prediction_figure(view)
print("matplotlib" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
