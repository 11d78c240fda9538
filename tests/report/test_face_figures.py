import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.report.draw import REGION_COLOUR
from fer_vit.report.explained_face import Attention, FaceView
from fer_vit.report.face_figures import attention_figure, prediction_figure, strongest_pairs
from fer_vit.report.rendering import rasterize
from fer_vit.sources.cartoon import draw_face
from tests.helpers.faces import make_face

REGIONS = ("right_eye", "nose", "mouth")
BOXES = {"right_eye": np.array([8.0, 8, 16, 16]), "mouth": np.array([40.0, 40, 56, 56])}
VIEW = FaceView(
    make_face({"$x$": 0.75}, crop_size=64), np.full((64, 64, 3), 90, np.uint8), np.eye(2, 3), BOXES
)


def attention(patches: tuple[int, int] = (0, 0)) -> Attention:
    relations = np.array([[[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.2, 0.0, 0.8]]])
    soft = np.zeros((1, *patches))
    if soft.size:
        soft[0, 0, 1] = 1.0
    return Attention(relations, np.array([[0.2, 0.0, 0.8]]), soft, np.zeros(0))


def green(picture: np.ndarray) -> np.ndarray:
    """Where the picture has the colour of regions."""
    colour = [int(REGION_COLOUR[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(picture.astype(int) - colour).sum(-1) < 12)[: picture.shape[1]]


def test_an_arc_joins_the_middles_and_discs_have_the_area_of_their_attention() -> None:
    figure = attention_figure(VIEW, attention(), REGIONS)
    shown = green(rasterize(figure))
    scale = shown.shape[1] * figure.axes[0].get_position().width / 64
    for x, y, covered in ((12, 12, True), (48, 48, True), (50, 12, False), (12, 50, False)):
        assert shown[round(y * scale), round(x * scale)] == covered
    # The arc bends to one side of the straight line.
    middle = np.array([30, 30]) + np.array([36, -36]) * 0.15 / 2 * -1
    near = shown[round((middle[1] - 3) * scale) : round((middle[1] + 3) * scale)]
    assert near[:, round((middle[0] - 3) * scale) : round((middle[0] + 3) * scale)].any()
    none = attention()._replace(relations=np.zeros((1, 3, 3)))
    discs = green(rasterize(attention_figure(VIEW, none, REGIONS)))
    small = discs[: round(30 * scale)].sum()
    large = discs[round(30 * scale) :].sum()
    assert 2.5 < large / small < 6  # 4, less the outlines


def test_patches_are_a_soft_map_where_they_are() -> None:
    figure = attention_figure(VIEW, attention((2, 2)), REGIONS)
    with_map = rasterize(figure).astype(int)
    without = rasterize(attention_figure(VIEW, attention(), REGIONS)).astype(int)
    change = np.abs(with_map - without).sum(-1)
    scale = with_map.shape[1] * figure.axes[0].get_position().width / 64
    assert change[round(10 * scale), round(54 * scale)] > 60
    assert change[round(54 * scale), round(26 * scale)] == 0


def test_pairs_are_of_regions_that_are_there_strongest_first() -> None:
    relations = np.array([[0.4, 0.3, 0.3], [0.5, 0.4, 0.1], [0.0, 0.0, 1.0]])
    assert strongest_pairs(relations, [0, 1, 2]) == [(0.8, 0, 1), (0.3, 0, 2), (0.1, 1, 2)]
    assert strongest_pairs(relations, [0, 2]) == [(0.3, 0, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"box": np.array([2.0, 2, 60, 60])},
        {"photo": np.zeros((4000, 6000, 3), np.uint8)},
        {
            "regions": {},
            "name": "line\nbreak \udcff \x00 $漢_$" + "x" * 5000,
            "face": make_face({"$a_$ long " * 9: 1.0}, crop_size=64),
        },
        {"face": make_face({f"{number}": number / 190 for number in range(20)}, crop_size=64)},
    ],
)
def test_every_face_becomes_a_picture_of_the_same_size(changes: dict[str, Any]) -> None:
    figure = prediction_figure(replace(VIEW, **changes))
    assert rasterize(figure).shape == (420, 600, 3)
    _, bars = figure.axes
    probabilities = changes.get("face", VIEW.face).probabilities.values()
    assert [bar.get_width() for bar in bars.patches] == sorted(probabilities, reverse=True)[:12]


@pytest.mark.slow
def test_a_notebook_plots_attention_and_saves_it(tmp_path: Path) -> None:
    model = load("ferplus-fairface-small", "cpu")
    face = model.predict(draw_face("happiness", 0, 160)[0], face="crop")[0]
    drawn = model.attend(face)
    assert drawn.relations.shape == (19, 11, 11)  # the encoder and 3 x 6 heads
    assert np.allclose(drawn.output.sum(-1), 1, atol=1e-5)
    assert model.plot_attention(face, tmp_path / "face.svg").size[0] == 669
    text = (tmp_path / "face.svg").read_text()
    assert len(re.findall("<image", text)) == 1
    assert text.count(f"stroke: {REGION_COLOUR}") > 5
    with pytest.raises(FerVitError, match="ends in"):
        model.plot_attention(face, tmp_path / "face.txt")
