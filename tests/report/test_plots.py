"""Plots that the browser draws: their scales and gaps."""

import numpy as np
import pytest

from fer_vit.report.plots import (
    CURVE_COLOURS,
    area_path,
    calibration_plot,
    line_path,
    make_axis,
    round_numbers,
    series_plots,
    tick_text,
)
from fer_vit.stats.series import MeanCourse

NAN = np.nan


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-0.187, 0.291, [-0.1, 0, 0.1, 0.2]),
        (3.2, 3.3, [3.2, 3.22, 3.24, 3.26, 3.28, 3.3]),
        (0, 1e-6, [0, 2e-7, 4e-7, 6e-7, 8e-7, 1e-6]),
        (-730, 41, [-600, -400, -200, 0]),
    ],
)
def test_ticks_are_round_numbers_inside_the_scale(
    low: float, high: float, expected: list[float]
) -> None:
    assert round_numbers(low, high) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_any_scale_has_some_ticks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = float(rng.normal() * 10.0 ** rng.integers(-6, 6))
    high = low + float(rng.exponential() * 10.0 ** rng.integers(-3, 6))
    numbers = round_numbers(low, high)
    slack = 1e-6 * (high - low)
    assert 2 <= len(numbers) <= 6
    assert low - slack <= min(numbers) < max(numbers) <= high + slack


def test_texts_of_ticks() -> None:
    texts = [tick_text(number, "+.1%") for number in (-0.30000000000000004, -0.0, 0.1)]
    assert texts == ["-30", "0", "+10"]  # points
    assert [tick_text(number, ".3f") for number in (0.25, 20.0)] == ["0.25", "20"]


def test_equal_numbers_have_a_scale() -> None:
    axis = make_axis("", 2.0, 2.0)
    assert axis.place(2.0) == 0
    assert axis.ticks[0].text == "2"


def test_a_line_has_gaps_and_single_points() -> None:
    x = np.linspace(0, 1, 6)
    y = np.array([0, 1, NAN, 0.5, NAN, 0.25])
    assert line_path(x, y) == "M0 1000L200 0M600 500L600 500M1000 750L1000 750"
    assert area_path(x, y, y) == ("M0 1000L200 0L200 0L0 1000ZM600 500L600 500ZM1000 750L1000 750Z")
    assert line_path(x, np.full(6, NAN)) == ""


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
    assert last.colour == 7 - CURVE_COLOURS
    assert last.dashes == 1
