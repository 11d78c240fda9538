import numpy as np

from fer_vit.evaluate.intervals import mean_intervals
from fer_vit.report.charts import (
    distance_figure,
    draw_confusion,
    faithfulness_figure,
    faithfulness_table,
    relations_figure,
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


def test_distances_as_a_picture() -> None:
    picture = distance_figure(np.array([[3.0, 9.0], [5.0, 20.0]]), 48)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.min() < 100


def test_rows_are_those_who_take() -> None:
    matrix = np.array([[0.9, 0.0, 0.5], [0.1, 0.8, np.nan], [0.1, 0.1, 0.8]])
    picture = relations_figure({"happiness": matrix}, ["right_eye", "nose", "mouth"], 4).astype(int)
    grey = (picture == (0xEC, 0xEC, 0xEF)).all(-1)  # the diagonal, and what is not known
    rows, columns = np.nonzero(grey)
    (top, bottom), (left, right) = (rows.min(), rows.max()), (columns.min(), columns.max())

    def middle(row: int, column: int) -> np.ndarray:
        return picture[top + (2 * row + 1) * (bottom - top) // 6, left + (2 * column + 1) * (right - left) // 6]

    assert middle(0, 2).sum() > 650  # most: the bright end of the colours
    assert middle(2, 0).sum() < 300
    assert middle(0, 1).sum() < 20
    for row, column in ((0, 0), (1, 1), (2, 2), (1, 2)):
        assert middle(row, column).tolist() == [0xEC, 0xEC, 0xEF]
