import numpy as np
import pytest

from fer_vit.report.draw import FaceView
from fer_vit.report.heads import JOINED, TILE, HeadMap, heads_figure


@pytest.mark.parametrize("grid", [(4, 4), (0, 0)])
def test_every_head_has_its_tile_and_the_hottest_patch_shines(grid: tuple[int, int]) -> None:
    boxes = {"right_eye": np.array([4.0, 4.0, 16.0, 16.0]), "mouth": np.array([16.0, 20.0, 30.0, 30.0])}
    view = FaceView(np.full((32, 32, 3), 90, np.uint8), np.eye(2, 3), 32, boxes)
    shares = {"right_eye": 0.4, "mouth": 0.1}
    heat = np.zeros(grid)
    if heat.size:
        heat[0, 3] = 0.5
    picture = heads_figure(view, "<title>", [("block 1", [HeadMap("head 1: 3 px", heat, shares)] * 3)] * 2)
    pixels = np.asarray(picture).astype(int)
    white = (pixels == 255).all(-1)
    assert picture.width > 3 * TILE
    assert picture.height > 2 * TILE
    # Each row of pixels through a tile meets three pictures that are not paper.
    for top in (60, 60 + TILE + 34):
        runs = np.diff((~white[top + TILE // 2, 100:]).astype(int))
        assert (runs == 1).sum() >= 3 - 1
    left, top = 100, 56
    tile = pixels[top : top + TILE, left : left + TILE].sum(-1)
    bright = tile[4 : TILE // 4, -TILE // 4 : -4] if heat.size else tile[20:60, 20:60]
    dark = tile[-TILE // 4 : -4, 4 : TILE // 4]
    assert bright.mean() > dark.mean() + 100


def test_a_line_joins_regions_from_middle_to_middle() -> None:
    boxes = {"right_eye": np.array([4.0, 4.0, 12.0, 12.0]), "mouth": np.array([20.0, 20.0, 28.0, 28.0])}
    view = FaceView(np.zeros((32, 32, 3), np.uint8), np.eye(2, 3), 32, boxes)
    shares = dict.fromkeys(boxes, 0.0)
    without, less, joined = (
        np.asarray(heads_figure(view, "", [("", [HeadMap("", np.zeros((2, 2)), shares, relations)])])).astype(int)
        for relations in ({}, {("right_eye", "mouth"): JOINED - 0.01}, {("right_eye", "mouth"): JOINED})
    )
    assert np.array_equal(without, less)
    rows, columns = np.nonzero((joined - without).sum(-1) > 100)
    left, top = 100, 56
    x, y = (columns - left) * 32 / TILE, (rows - top) * 32 / TILE
    assert np.abs(x - y).max() < 1.5  # both middles lie on the diagonal
    assert (x.min(), x.max()) == (pytest.approx(8, abs=1), pytest.approx(24, abs=1))


def test_without_regions_or_places_nothing_breaks() -> None:
    view = FaceView(np.zeros((8, 8, 3), np.uint8), np.eye(2, 3), 8, {})
    heads_figure(view, "", [("block 1", [HeadMap("", np.zeros((0, 0)), {})])])
