import pytest

from fer_vit.report.html import name_parts
from fer_vit.report.plots import ChartRow, interval_chart
from fer_vit.stats.estimate import Estimate


def test_results_lie_on_one_scale_with_the_place_of_zero() -> None:
    rows = [
        ChartRow("悲しみ", Estimate(mean=0.0, low=-1.0, high=1.0)),
        ChartRow("b", Estimate(mean=2.0)),
        ChartRow("c", Estimate(mean=None)),
    ]
    chart = interval_chart(rows, "+.1f", "height")
    assert chart is not None
    assert chart.zero == pytest.approx(1 / 3)
    assert chart.axis.name == "height"
    assert [row.name for row in chart.rows] == ["悲しみ", "b"]
    assert [row.mark for row in chart.rows] == ["estimate", "none"]
    assert [chart.place(bound, 0.0) for bound in (-1.0, 1.0)] == pytest.approx([0, 2 / 3])
    assert chart.place(None, 2.0) == 1


def test_zero_is_absent_where_the_scale_does_not_reach_it() -> None:
    rows = [ChartRow("a", Estimate(mean=2.0, low=1.0, high=3.0))]
    chart = interval_chart(rows, ".1f", "height")
    assert chart is not None
    assert chart.zero is None
    assert interval_chart([ChartRow("a", Estimate(mean=None))], ".1f", "height") is None


def test_differences_are_drawn_with_zero_and_unclear_ones_are_circles() -> None:
    rows = [
        ChartRow("a", Estimate(mean=2.0, low=1.0, high=4.0), is_clear=True),
        ChartRow("b", Estimate(mean=1.0, low=0.5, high=2.0), is_clear=False),
    ]
    chart = interval_chart(rows, "+.1f", "a - b", "lower", "higher")
    assert chart is not None
    assert chart.zero == 0
    assert [row.mark for row in chart.rows] == ["clear", "unclear"]
    assert [tick.text for tick in chart.axis.ticks] == ["0", "+1", "+2", "+3", "+4"]


@pytest.mark.parametrize(
    ("counts", "shown"), [((30, 1), (30, 1)), ((30, 30), (None, None)), ((None, None),) * 2]
)
def test_numbers_of_faces_are_shown_where_they_differ(
    counts: tuple[int | None, int | None], shown: tuple[int | None, int | None]
) -> None:
    rows = [ChartRow("joy", Estimate(mean=0.5), faces=count) for count in counts]
    chart = interval_chart(rows, ".1%", "recall")
    assert chart is not None
    assert tuple(row.faces for row in chart.rows) == shown


def test_the_axis_of_differences_of_shares_is_in_points() -> None:
    row = ChartRow("joy", Estimate(mean=-0.292, low=-0.504, high=-0.0791), is_clear=True)
    chart = interval_chart([row], "+.1%", "points", "lower", "higher")
    assert chart is not None
    assert [tick.text for tick in chart.axis.ticks] == ["-40", "-20", "0"]


def test_a_name_may_be_broken_before_capitals() -> None:
    assert name_parts("mouthSmileLeft") == ["mouth", "Smile", "Left"]
    assert name_parts("happiness") == ["happiness"]
    assert "".join(name_parts("<b>aB c, AU12_r")) == "<b>aB c, AU12_r"
