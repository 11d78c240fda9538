"""Text tables of data sets."""

from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.sources.text_tables import read_text_table


def test_tables_count_lines_and_skip_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfa,"(0, 1)"\r\n\r\nb,2\r\n')
    rows = list(read_text_table(path, ("x", "y"), header=False))
    assert rows == [(1, {"x": "a", "y": "(0, 1)"}), (3, {"x": "b", "y": "2"})]
    for text, message in (
        ("a.png,1\n", "line 1: expected the columns file, Age, but got `a.png,1`"),
        ("file,age,x\na.png,1,2\n\nb.png,1\n", "line 4: expected 3 columns, but got `b.png,1`"),
        (
            "file,age\n" + 200_000 * "x",
            "line 2: expected comma-separated values, but got `field larger than",
        ),
    ):
        path.write_text(text)
        with pytest.raises(FerVitError, match=rf"a\.csv, {message}"):
            list(read_text_table(path, ("file", "Age")))
