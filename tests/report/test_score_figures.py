"""Figures of the scores of a model."""

import numpy as np

from fer_vit.report.score_figures import draw_confusion


def test_the_diagonal_is_dark_where_all_is_right() -> None:
    right = draw_confusion(np.diag([5, 7, 0]), ["$$", "x_$a_$", "c"])  # a class may have any name
    wrong = draw_confusion(np.fliplr(np.diag([5, 7, 0])), ["$$", "x_$a_$", "c"])
    assert right.dtype == np.uint8
    assert right.shape == wrong.shape
    blue = np.array([8, 48, 107])  # the dark end of matplotlib's Blues

    def dark(picture: np.ndarray) -> np.ndarray:
        return np.argwhere(np.abs(picture.astype(int) - blue).sum(-1) < 12).mean(0)

    # Two of three cells are dark: above and left of the middle when on the diagonal, above and
    # right when not.
    assert dark(right)[1] < dark(wrong)[1]
