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


def test_lines_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "fer2013.csv"
    pixels = " ".join(["255"] * 48 * 48)  # the longest line of FER2013
    path.write_text(f"emotion,pixels\n0,{pixels}\n")
    ((_, cells),) = read_text_table(path, ("emotion", "pixels"))
    assert cells["pixels"] == pixels
    path.write_text("emotion,pixels\n0,1\n" + " " * 1_000_000)
    with pytest.raises(FerVitError, match="line 3: expected fewer than 1,000,000 characters"):
        list(read_text_table(path, ("emotion", "pixels")))


def test_the_number_of_lines_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" * 600_000)  # AffectNet has 540,000
    assert sum(1 for _ in read_text_table(path, ("a", "b"))) == 599_999
    path.write_text("\n" * 2_000_001)
    with pytest.raises(FerVitError, match="line 2000001: expected at most 2,000,000 lines"):
        list(read_text_table(path, ("a", "b"), header=False))
