"""Text tables of data sets, as RAF-DB and FairFace have them."""

from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.sources import fairface, text_tables


def read(folder: Path, text: str) -> list[tuple[str, dict[str, str]]]:
    """The name and the columns of each image; `folder` has an image a.png in train."""
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "a.png").touch()
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return [(row.name, row.extra) for row in fairface.read(folder).rows]


HEADER = "path,age,gender,race\n"
LINE = "train/a.png,3-9,male,White\n"


def test_marks_of_spreadsheets_quotes_and_blank_lines_are_no_cells(tmp_path: Path) -> None:
    text = "\ufeff" + HEADER + "\n" + LINE.replace("White", '"White, or other"')
    expected = {"age": "3-9", "gender": "male", "race": "White, or other"}
    assert read(tmp_path, text.replace("\n", "\r\n")) == [("train/a.png", expected)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,age,sex,race\n" + LINE, "line 1: .*gender.*sex"),
        (HEADER + LINE + "\ntrain/b.png,3-9\n", "line 4: .*4 columns.*train/b.png"),
        (HEADER + 200_000 * "x", "line 2: .*comma-separated.*larger"),
        (HEADER + LINE + " " * 1_000_000, "line 3: .*1,000,000 characters"),
    ],
)
def test_a_damaged_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=rf"labels\.csv, {message}"):
        read(tmp_path, text)


def test_the_number_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_tables.MAX_LINES > 540_000, "AffectNet's"
    monkeypatch.setattr(text_tables, "MAX_LINES", 50)
    assert len(read(tmp_path, HEADER + 49 * LINE)) == 49
    with pytest.raises(FerVitError, match=r"line 51: .*50 lines"):
        read(tmp_path, HEADER + 50 * LINE)
