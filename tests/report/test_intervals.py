import pytest

from fer_vit.report.html import name_parts
from fer_vit.report.intervals import (
    Direction,
    Mark,
    difference_chart,
    grouped_chart,
    interval_chart,
)
from fer_vit.stats.estimate import Estimate

SIDES = Direction("lower", "higher")


def test_results_lie_on_one_scale_with_the_place_of_zero() -> None:
    chart = interval_chart(
        {
            "悲しみ": Estimate(mean=0.0, low=-1.0, high=1.0),
            "b": Estimate(mean=2.0, low=None, high=None),
            "c": Estimate(mean=None, low=None, high=None),
        },
        "+.1f",
        "height",
    )
    assert chart is not None
    assert chart.zero == pytest.approx(1 / 3)
    assert chart.axis.name == "height"
    assert chart.direction is None
    first, second = chart.rows
    assert [first.name, second.name] == ["悲しみ", "b"]
    assert (first.low, first.mean, first.high) == pytest.approx((0, 1 / 3, 2 / 3))
    assert (second.low, second.mean, second.high) == (1, 1, 1)
    assert first.text == "0.0 (-1.0 to +1.0)"
    assert [first.mark, second.mark] == [Mark.ESTIMATE, Mark.NONE]


def test_zero_is_absent_where_the_scale_does_not_reach_it() -> None:
    chart = interval_chart({"a": Estimate(mean=2.0, low=1.0, high=3.0)}, ".1f", "height")
    assert chart is not None
    assert chart.zero is None
    nothing = {"a": Estimate(mean=None, low=None, high=None)}
    assert interval_chart(nothing, ".1f", "height") is None


def test_differences_are_drawn_with_zero_and_unclear_ones_are_circles() -> None:
    results = {
        "a": Estimate(mean=2.0, low=1.0, high=4.0),
        "b": Estimate(mean=1.0, low=0.5, high=2.0),
    }
    chart = difference_chart(results, "+.1f", "a - b", ["b"], SIDES)
    assert chart is not None
    assert chart.zero == 0
    first, second = chart.rows
    assert (first.low, first.mean, first.high) == pytest.approx((0.25, 0.5, 1))
    assert [first.mark, second.mark] == [Mark.CLEAR, Mark.UNCLEAR]
    assert [tick.text for tick in chart.axis.ticks] == ["0", "+1", "+2", "+3", "+4"]
    assert chart.direction == SIDES


def test_numbers_of_faces_are_shown_where_they_differ() -> None:
    results = {name: Estimate(mean=0.5, low=0.0, high=1.0) for name in ("joy", "fear")}
    for counts, shown in (
        ({"joy": 30, "fear": 1}, ["30 faces", "1 face"]),
        ({"joy": 30, "fear": 30}, ["", ""]),
        ({}, ["", ""]),
    ):
        chart = interval_chart(results, ".1%", "recall", counts)
        assert chart is not None
        assert [row.faces for row in chart.rows] == shown


def test_the_conditions_of_a_measure_are_neighbours() -> None:
    mean = Estimate(mean=0.5, low=0.0, high=1.0)
    measures = {"joy": {"rest": mean, "joke": mean}, "fear": {"rest": mean, "joke": mean}}
    chart = grouped_chart(measures, ".1f", "mean")
    assert chart is not None
    places = [(row.group, row.name) for row in chart.rows]
    assert places == [("joy", "rest"), ("joy", "joke"), ("fear", "rest"), ("fear", "joke")]


def test_the_axis_of_differences_of_shares_is_in_points() -> None:
    result = Estimate(mean=-0.292, low=-0.504, high=-0.0791)
    chart = difference_chart({"joy": result}, "+.1%", "points", [], SIDES)
    assert chart is not None
    assert [tick.text for tick in chart.axis.ticks] == ["-40", "-20", "0"]


def test_a_name_may_be_broken_before_capitals() -> None:
    assert name_parts("mouthSmileLeft") == ["mouth", "Smile", "Left"]
    assert name_parts("happiness") == ["happiness"]
    assert "".join(name_parts("<b>aB c, AU12_r")) == "<b>aB c, AU12_r"
