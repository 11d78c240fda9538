"""Faces marked in frames."""

import numpy as np

from fer_vit.geometry import Image
from fer_vit.report.draw import EXPRESSIONS, Marked, draw_faces

GREY = np.full((200, 300, 3), 100, np.uint8)


def pixels(image: Image, colour: str) -> int:
    """The number of pixels of a colour."""
    return int((image == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum())


def test_the_bar_is_as_long_as_the_probability_in_the_colour_of_the_expression() -> None:
    box = np.array([50.0, 80, 120, 150])
    full, half = (
        pixels(draw_faces(GREY, [Marked(box, "happiness", p, 3)]), EXPRESSIONS["happiness"]) for p in (1.0, 0.5)
    )
    assert full > 0
    assert 0.45 < half / full < 0.6
    assert (draw_faces(GREY, [Marked(box, "joy", 1.0)]) != GREY).any()  # a class of one's own


def test_the_picture_itself_stays_and_boxes_lie_where_faces_are() -> None:
    marked = draw_faces(GREY, [Marked(np.array([50.0, 80, 120, 150]), "fear", 0.7, 0)])
    assert (GREY == 100).all()
    assert (marked[80, 51:120] == 255).all()
    assert (marked[150, 51:120] == 255).all()
    assert (marked[90:140, 60:110] == 100).all()
    assert (draw_faces(GREY, []) == GREY).all()


def test_any_box_and_any_label_can_be_drawn() -> None:
    boxes = [None, np.array([-20.0, -20, 10, 10]), np.array([290.0, 190, 400, 300])]
    for box in boxes:
        assert draw_faces(GREY, [Marked(box, "a\nb\x00\ud800" * 30, 0.4)]).shape == GREY.shape
