import numpy as np

from fer_vit.intervals import mean_intervals
from fer_vit.report.faithfulness import faithfulness_figure, faithfulness_table

BETTER = {"deletion": -1, "insertion": 1}


def test_the_table_says_which_way_is_better() -> None:
    one, none = mean_intervals(np.array([[0.25, np.nan], [0.75, np.nan]]))
    table = faithfulness_table({"relevance": {"deletion": one, "insertion": none}}, BETTER).splitlines()
    assert table[0] == "| method | deletion ↓ | insertion ↑ |"
    assert table[2] == "| relevance | 0.500 (0.250 to 0.750) | - |"


def test_the_picture_has_a_panel_for_each_measure() -> None:
    one, none = mean_intervals(np.array([[0.25, np.nan], [0.75, np.nan]]))
    found = {"relevance": {"deletion": one, "insertion": none}, "random": {"deletion": one, "insertion": one}}
    figure = faithfulness_figure(found, BETTER, {"relevance": {"classifier": one, "block 0": none}}, ["random"])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["deletion\nless is better", "insertion\nmore is better"]
    assert len(figure.axes) == 3
    figure.canvas.draw()
