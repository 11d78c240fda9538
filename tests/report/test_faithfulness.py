import numpy as np
import pytest

from fer_vit.report.faithfulness import draw, markdown
from fer_vit.report.means import figures

BETTER = {"deletion": -1, "insertion": 1}


def test_figures_are_a_mean_and_the_interval_that_theory_expects() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = figures(np.append(values, np.nan))
    assert found["faces"] == 400
    assert found["mean"] == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20
    assert found["low"] == pytest.approx(values.mean() - half, abs=0.02)
    assert found["high"] == pytest.approx(values.mean() + half, abs=0.02)
    assert figures(np.full(5, 0.5)) == {"mean": 0.5, "low": 0.5, "high": 0.5, "faces": 5}
    assert figures(np.array([0.5])) == {"mean": 0.5, "low": None, "high": None, "faces": 1}
    assert figures(np.full(5, np.nan)) == {"mean": None, "low": None, "high": None, "faces": 0}


def test_the_table_says_which_way_is_better() -> None:
    (one, none) = figures(np.array([[0.25, np.nan], [0.75, np.nan]]))
    table = markdown({"relevance": {"deletion": one, "insertion": none}}, BETTER).splitlines()
    assert table[0] == "| method | deletion ↓ | insertion ↑ |"
    assert table[2] == "| relevance | 0.500 (0.250 to 0.750) | - |"


def test_the_picture_has_a_panel_for_each_measure() -> None:
    (one, none) = figures(np.array([[0.25, np.nan], [0.75, np.nan]]))
    found = {"relevance": {"deletion": one, "insertion": none}, "random": {"deletion": one, "insertion": one}}
    figure = draw(found, BETTER, {"relevance": {"classifier": one, "block 0": none}}, ["random"])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["deletion\nless is better", "insertion\nmore is better"]
    assert len(figure.axes) == 3
    figure.canvas.draw()
