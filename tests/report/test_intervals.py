import pytest

from fer_vit.report.html import name_parts
from fer_vit.report.intervals import interval_chart
from fer_vit.report.table import Interval, interval_text


def test_results_lie_on_one_scale_with_the_place_of_zero() -> None:
    chart = interval_chart(
        {
            "悲しみ": Interval(mean=0.0, low=-1.0, high=1.0),
            "b": Interval(mean=2.0, low=None, high=None),
            "c": Interval(mean=None, low=None, high=None),
        },
        "+.1f",
    )
    assert chart is not None
    assert chart.zero == pytest.approx(1 / 3)
    assert [row.name for row in chart.rows] == ["悲しみ", "b"]
    assert chart.rows[0][1:4] == pytest.approx((0, 1 / 3, 2 / 3))
    assert chart.rows[1][1:4] == (1, 1, 1)
    assert chart.rows[0].text == "+0.0 (-1.0 to +1.0)"


def test_zero_is_absent_where_the_scale_does_not_reach_it() -> None:
    chart = interval_chart({"a": Interval(mean=2.0, low=1.0, high=3.0)}, ".1f")
    assert chart is not None
    assert chart.zero is None
    assert interval_chart({"a": Interval(mean=None, low=None, high=None)}, ".1f") is None


def test_differences_are_drawn_with_zero_and_unclear_ones_are_hollow() -> None:
    results = {
        "a": Interval(mean=2.0, low=1.0, high=4.0),
        "b": Interval(mean=1.0, low=None, high=None),
    }
    chart = interval_chart(results, "+.1f", hollow=["b"], with_zero=True)
    assert chart is not None
    assert chart.zero == 0
    assert chart.rows[0][1:4] == pytest.approx((0.25, 0.5, 1))
    assert [row.hollow for row in chart.rows] == [False, True]
    assert [tick.text for tick in chart.axis.ticks] == ["0", "+1", "+2", "+3", "+4"]


def test_a_number_that_is_rounded_to_0_is_not_negative() -> None:
    result = Interval(mean=-0.0001, low=-0.0004, high=0.0001)
    assert interval_text(result, ".3f") == "0.000 (0.000 to 0.000)"
    assert interval_text(result, "+.3f") == "+0.000 (+0.000 to +0.000)"
    assert interval_text(result, "+.1%") == "+0.0% (+0.0% to +0.0%)"


def test_a_name_may_be_broken_before_capitals() -> None:
    assert name_parts("mouthSmileLeft") == ["mouth", "Smile", "Left"]
    assert name_parts("happiness") == ["happiness"]
    assert "".join(name_parts("<b>aB c, AU12_r")) == "<b>aB c, AU12_r"
