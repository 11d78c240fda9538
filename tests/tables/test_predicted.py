"""The typed columns of a table of `predict`."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.errors import TableError
from fer_vit.tables.predicted import read_predictions

TEXT = """path;face;label;confidence;ambiguous;p_happiness;p_anger;yaw;feature_0;age
./a.png;0;happiness;0,75;true;0,75;0,25;-1,5;0,1;30
a.png;1;anger;0,5;;0,5;0,5;;0,2;NA
b.png;;;;;;;;;1.0
"""


def test_columns_have_the_types_of_their_fields(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TEXT)
    table = read_predictions(tmp_path / "t.csv")
    assert table.labels == ["happiness", "anger"]
    assert table.paths.tolist() == ["./a.png", "./a.png", "b.png"]  # in one spelling
    assert table.predicted.tolist() == [True, True, False]
    np.testing.assert_array_equal(table.probabilities, [[0.75, 0.25], [0.5, 0.5], [np.nan, np.nan]])
    assert table.columns["face"].tolist() == [0, 1, None]
    assert [type(cell) for cell in table.columns["face"]] == [int, int, type(None)]
    assert table.columns["yaw"].tolist() == [-1.5, None, None]
    assert table.columns["ambiguous"].tolist() == [True, None, None]
    assert table.columns["age"].tolist() == ["30", None, "1"]  # a column of a user has names
    assert not {"p_anger", "feature_0"} & table.columns.keys()
    assert (
        len(table.notes) == 3
    )  # how it was read, a word for a missing value, and a photo without a face


@pytest.mark.parametrize(
    ("column", "cell", "shown"),
    [
        ("yaw", "x", "x"),
        ("face", "0,5", "0.5"),
        ("ambiguous", "2", "2"),
        ("confidence", "1e13", "1e+13"),
    ],
)
def test_a_cell_that_does_not_fit_its_column(
    column: str, cell: str, shown: str, tmp_path: Path
) -> None:
    head, *lines = TEXT.splitlines()
    cells = lines[1].split(";")
    cells[head.split(";").index(column)] = cell
    lines[1] = ";".join(cells)
    (tmp_path / "t.csv").write_text("\n".join([head, *lines]))
    with pytest.raises(TableError, match=rf"t\.csv, row 2 .*`{column}`.*`{re.escape(shown)}`"):
        read_predictions(tmp_path / "t.csv")


def test_a_cell_of_a_part_is_named_by_its_file(tmp_path: Path) -> None:
    for part, yaw in enumerate(["1", "x"]):
        cells = {"path": [f"{part}.png"], "confidence": [0.75], "yaw": [yaw]}
        cells |= {"p_happiness": [0.75], "p_anger": [0.25]}
        pq.write_table(pa.table(cells), tmp_path / f"part-{part:05d}-of-00002.parquet")
    with pytest.raises(TableError, match=r"part-00001-of-00002\.parquet, row 1 .*`yaw`.*`x`"):
        read_predictions(tmp_path)
