"""Figures of a face for papers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fer_vit.report.face_figures import (
    attention_figure,
    attribution_figure,
    movements_figure,
    shares_figure,
    spread_out,
)
from fer_vit.report.interval_figures import means_figure
from fer_vit.report.plots import ChartRow
from fer_vit.report.rendering import save_figure
from fer_vit.stats.estimate import Estimate
from tests.helpers.reports import ATTENTION, REGIONS, make_evidence, make_view

VIEW = make_view("a.png")
TARGET = make_evidence().targets[0]
NAMES = ["mouth smile left", "jaw open", "nose sneer"]
FIGURES: dict[str, Callable[[], Figure]] = {
    "drives": lambda: attribution_figure(VIEW, TARGET, REGIONS),
    "regions": lambda: shares_figure(VIEW, TARGET, REGIONS),
    "attention": lambda: attention_figure(VIEW, ATTENTION, REGIONS),
    "movements": lambda: movements_figure(VIEW, NAMES, [0.8, 0.3, 0.9], [0, 2, 1], REGIONS),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_with_text_that_can_be_read_and_edited(
    name: str, tmp_path: Path
) -> None:
    figure = FIGURES[name]()
    assert figure.get_figwidth() * 25.4 == pytest.approx(85)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert texts
    assert min(text.get_fontsize() for text in texts) >= 7
    save_figure(figure, tmp_path / "a.svg")
    save_figure(figure, tmp_path / "a.pdf")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("<text") >= 1
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # an embedded TrueType font
    assert b"/Type3" not in pdf


@pytest.mark.parametrize("name", ["drives", "attention", "movements"])
def test_names_stand_beside_the_face(name: str) -> None:
    figure = FIGURES[name]()
    (axes,) = figure.axes
    _, right = axes.get_xlim()
    names = [text for text in axes.texts if text.get_text()]
    assert names
    assert all(text.get_position()[0] > right for text in names)


@pytest.mark.parametrize("name", FIGURES)
def test_text_lies_inside_the_figure(name: str) -> None:
    figure = FIGURES[name]()
    figure.canvas.draw()
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        if text.get_text():
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_names_keep_their_distance_and_stay_inside() -> None:
    spread = spread_out([1.0, 1.5, 9.5, 9.6], 2.0, 1.0, 10.0)
    assert np.diff(spread).min() >= 2 - 1e-9
    assert min(spread) >= 1
    assert max(spread) <= 10


def test_many_names_stay_inside_the_figure() -> None:
    names = [f"movement {index}" for index in range(12)]
    figure = movements_figure(VIEW, names, [0.9] * 12, [0, 1, 2] * 4, REGIONS)
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(texts) > 8
    for text in texts:
        box = text.get_window_extent()
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_bars_of_shares_have_the_same_scale_in_all_figures() -> None:
    ends = []
    for share in (0.1, 0.5, 0.51):
        target = TARGET._replace(shares=np.array([share, 0.0, -0.2]))
        (axes,) = shares_figure(VIEW, target, REGIONS).axes
        ends.append(axes.get_xlim())
        assert axes.get_xticks().tolist() == pytest.approx(
            [-ends[-1][1] / 1.05, 0, ends[-1][1] / 1.05]
        )
    assert ends[0] == ends[1]
    assert ends[2] == pytest.approx((-1.05, 1.05))


def test_twenty_conditions_look_different() -> None:
    rows = []
    for number in range(20):
        mean = Estimate(number, number - 1, number + 1)
        rows.append(ChartRow(f"condition {number}", mean, "joy"))
    figure = means_figure(rows, "mean")
    (legend,) = figure.legends
    looks = {(line.get_marker(), line.get_color()) for line in legend.get_lines()}
    assert len(looks) == 20
