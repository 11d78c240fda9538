import numpy as np

from fer_vit.report.relations import relations_figure


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
