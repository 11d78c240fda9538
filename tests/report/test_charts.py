import numpy as np

from fer_vit.evaluate.scores import mean_intervals
from fer_vit.report.charts import (
    draw_confusion,
    faithfulness_figure,
    faithfulness_table,
)

BETTER = {"deletion": -1, "insertion": 1}


def test_a_class_may_be_called_anything() -> None:
    assert draw_confusion(np.eye(2, dtype=int), ["$$", "x_$a_$"]).ndim == 3


def test_the_diagonal_is_dark_where_all_is_right() -> None:
    right = draw_confusion(np.diag([5, 7, 0]), ["a", "b", "c"])
    wrong = draw_confusion(np.fliplr(np.diag([5, 7, 0])), ["a", "b", "c"])
    assert right.dtype == np.uint8
    assert right.shape == wrong.shape
    blue = np.array([8, 48, 107])  # the dark end of matplotlib's Blues

    def dark(picture: np.ndarray) -> np.ndarray:
        return np.argwhere(np.abs(picture.astype(int) - blue).sum(-1) < 12).mean(0)

    # Two of three cells are dark: above and left of the middle when on the diagonal, above and right when not.
    assert dark(right)[1] < dark(wrong)[1]


def test_the_table_says_which_way_is_better() -> None:
    one, none = mean_intervals(np.array([[0.25, np.nan], [0.75, np.nan]]))
    found = {method: {"deletion": one, "insertion": none} for method in ("relevance", "random")}
    table = faithfulness_table(found, {"relevance": found["relevance"]}, BETTER).splitlines()
    assert table[0] == "| less `random` | deletion ↓ | insertion ↑ |"
    assert table[2] == "| relevance | +0.500 (+0.250 to +0.750) | - |"
    assert table[3] == "| `random` itself | 0.500 (0.250 to 0.750) | - |"


def test_the_picture_has_a_panel_for_each_measure() -> None:
    one, none = mean_intervals(np.array([[0.25, np.nan], [0.75, np.nan]]))
    found = {"relevance": {"deletion": one, "insertion": none}, "centre": {"deletion": one, "insertion": one}}
    figure = faithfulness_figure(found, BETTER, {"relevance": {"classifier": one, "block 0": none}}, ["centre"])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["deletion\nless is better", "insertion\nmore is better"]
    assert len(figure.axes) == 3
    figure.canvas.draw()
