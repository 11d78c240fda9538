"""Plots that the browser draws: their scales and gaps."""

from typing import Any

import numpy as np
import pytest

from fer_vit.report.plots import calibration_plot, series_plots
from fer_vit.stats.series import MeanCourse

NAN = np.nan


def plot_of(values: list[float], form: str = ".7f") -> Any:
    """The plot of one course without an interval, over as many seconds."""
    mean = np.array(values)
    course = MeanCourse(mean, mean, mean, np.ones(len(mean), int))
    (plot,) = series_plots(np.arange(float(len(mean))), {"a": [course]}, form)
    return plot


@pytest.mark.parametrize(
    ("values", "form", "expected"),
    [
        ([0, 1], ".3f", ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([-0.187, 0.291], "+.1%", ["-10", "0", "+10", "+20"]),  # points
        ([3.2, 3.3], ".3f", ["3.2", "3.22", "3.24", "3.26", "3.28", "3.3"]),
        ([-730, 41], ".3f", ["-600", "-400", "-200", "0"]),
        ([2.0, 2.0], ".3f", ["2", "2.2", "2.4", "2.6", "2.8", "3"]),  # a scale one unit long
    ],
)
def test_ticks_are_round_numbers_inside_the_scale(
    values: list[float], form: str, expected: list[str]
) -> None:
    axis = plot_of(values, form).y
    assert [tick.text for tick in axis.ticks] == expected
    factor = 100 if form.endswith("%") else 1
    for tick in axis.ticks:
        assert axis.low + tick.place * (axis.high - axis.low) == pytest.approx(
            float(tick.text) / factor
        )


@pytest.mark.parametrize("seed", range(5))
def test_any_scale_has_some_ticks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = float(rng.normal() * 10.0 ** rng.integers(-6, 6))
    axis = plot_of([low, low + float(rng.exponential() * 10.0 ** rng.integers(-3, 6))]).y
    places = [tick.place for tick in axis.ticks]
    assert 2 <= len(places) <= 6
    assert -1e-6 <= min(places) < max(places) <= 1 + 1e-6


def test_a_line_has_gaps_and_single_points() -> None:
    (curve,) = plot_of([0, 1, NAN, 0.5, NAN, 0.25]).curves
    assert curve.line == "M0 1000L200 0M600 500L600 500M1000 750L1000 750"
    assert curve.area == "M0 1000L200 0L200 0L0 1000ZM600 500L600 500ZM1000 750L1000 750Z"


def test_calibration_equals_numpy() -> None:
    confidence = np.array([0.05, 0.55, 0.57, 0.59, 1.0])
    right = np.array([False, True, True, False, True])
    plot = calibration_plot(confidence, right)
    (curve,) = plot.curves
    assert [dot.x for dot in curve.dots] == pytest.approx([0.05, 0.57, 1.0])
    assert [dot.y for dot in curve.dots] == pytest.approx([0.0, 2 / 3, 1.0])
    assert curve.dots[1].size > curve.dots[0].size
    assert "3 faces" in curve.dots[1].title


def test_series_of_all_conditions_lie_on_one_scale() -> None:
    times = np.array([0.5, 1.5, 2.5])
    mean = np.array([0.2, NAN, 0.4])
    course = MeanCourse(mean, mean - 0.1, mean + 0.1, np.ones(len(mean), int))
    plots = series_plots(times, {"a": [course], "b": [course, course]}, ".3f")
    assert [plot.title for plot in plots] == ["a", "b"]
    assert plots[0].y == plots[1].y
    assert (plots[0].y.low, plots[0].y.high) == pytest.approx((0.1, 0.5))
    assert plots[0].x.low == 0.5
    assert [curve.colour for curve in plots[1].curves] == [0, 1]
    many = series_plots(times, {"a": [course] * 8}, ".3f")
    last = many[0].curves[-1]
    assert last.colour == many[0].curves[1].colour  # of six, the second time
    assert last.dashes == 1
