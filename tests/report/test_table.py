import csv
import errno
import json
import math
import os
import re
import resource
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import openpyxl
import pandas
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from fer_vit.errors import FerVitError
from fer_vit.files import check_output
from fer_vit.report.table import (
    SUFFIXES,
    TableWriter,
    csv_text,
    csv_value,
    markdown,
)
from fer_vit.tables.cells import read_numbers, read_paths
from fer_vit.tables.table_reader import is_table, read_table

COLUMNS = {"path": str, "face": int, "score": float}
ROWS = [
    {"path": 'a, "b"\nc.png', "face": 0, "score": 0.25},
    {"path": "é/漢.png"},
    {"path": "bad\udcff.png", "face": 2, "score": 1e-9},
]


def write(path: Path) -> Path:
    with TableWriter(path, COLUMNS) as table:
        table.write(ROWS[:2])
        table.write(ROWS[2:])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_live_table_can_be_read_before_its_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    table = TableWriter(path, COLUMNS, live=True).__enter__()
    for number in range(3):
        table.write([{"path": "a", "face": number}])
        assert [int(face) for face in read_table(path)["face"].to_pylist()] == [*range(number + 1)]
    table.__exit__(KeyError, KeyError(), None)
    assert len(read_table(path)["face"]) == 3
    assert [*tmp_path.iterdir()] == [path]


def test_a_table_in_csv(tmp_path: Path) -> None:
    with write(tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "face", "score"],
        ['a, "b"\nc.png', "0", "0.25"],
        ["é/漢.png", "", ""],
        ["bad\\udcff.png", "2", "1e-09"],
    ]


@pytest.mark.parametrize("group", [1, 2, 10_000])
def test_a_table_in_parquet(tmp_path: Path, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fer_vit.report.table.MAX_PENDING_ROWS", group)
    table = pq.read_table(write(tmp_path / "t.parquet"))
    assert table.column_names == list(COLUMNS)
    assert table.to_pylist()[:2] == [ROWS[0], {"path": "é/漢.png", "face": None, "score": None}]
    assert table.num_rows == 3


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_after_an_error_nothing_is_left(tmp_path: Path, suffix: str) -> None:
    def fail(rows: list[dict[str, object]]) -> None:
        with TableWriter(path, COLUMNS) as table:
            table.write(rows)
            raise ZeroDivisionError

    path = tmp_path / f"t{suffix}"
    with pytest.raises(ZeroDivisionError):
        fail(ROWS)
    assert list(tmp_path.iterdir()) == []
    write(path)
    with pytest.raises(ZeroDivisionError):
        fail([])
    assert list(tmp_path.iterdir()) == [path]  # the older table stays
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["=1+1.jpg", "+1.jpg", "-1.jpg", "@SUM(1).jpg"])
def test_no_spreadsheet_runs_a_name(name: str, tmp_path: Path) -> None:
    rows = [{"path": name, "=x": -1.5}, {"path": "a=b-c.jpg", "=x": None}]
    for suffix in (".csv", ".jsonl", ".parquet"):
        with TableWriter(tmp_path / f"t{suffix}", {"path": str, "=x": float}) as table:
            table.write(rows)
    with open(tmp_path / "t.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "'=x"], [f"'{name}", "-1.5"], ["a=b-c.jpg", ""]]
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["path"] == name
    assert pq.read_table(tmp_path / "t.parquet")["path"].to_pylist() == [name, "a=b-c.jpg"]


SEPARATORS = (",", ";", "\t", "|", "\r", "\n")
BEFORE = ("", " ", '"', "' \"", *"\xa0\u3000\u200b\ufeff\xad\v\f\0\x85\u2028\u202e", "\u2066 '\x01")


@pytest.mark.parametrize("first", [*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufe66"])
def test_no_cell_begins_with_a_formula_wherever_a_program_splits_a_line(first: str) -> None:
    for separator, before in product(SEPARATORS, BEFORE):
        for text in (
            f"a{separator}{before}{first}1{separator}b.jpg",
            f"{before}{first}1{separator}b",
        ):
            written = csv_text(text)
            cells = re.split(r"[;,|\t\r\n]", written)
            for cell in cells:
                assert cell[:1] == "'" or not cell.strip(before).startswith(first), text
            assert csv_value(written) == text


@given(st.text("=-;,\t\n'\" a\uff1d\xa0\u200b", max_size=8))
def test_an_escaped_name_is_read_back(text: str) -> None:
    assert csv_value(csv_text(text)) == text


def test_truth_and_digits_in_text(tmp_path: Path) -> None:
    columns = {"sure": bool, "p": float, "x": float, "t": float}
    row = {"sure": True, "p": 0.000123456, "x": -0.04, "t": 86400.123}
    for suffix in (".csv", ".jsonl", ".parquet"):
        formats = {"p": ".4g", "x": "z.1f"}
        with TableWriter(tmp_path / f"t{suffix}", columns, formats=formats) as table:
            table.write([row, {"sure": False, "p": math.nan, "x": math.inf}])
    text = (tmp_path / "t.csv").read_bytes()
    assert text == b"sure,p,x,t\r\nTRUE,0.0001235,0.0,86400.123\r\nFALSE,,,\r\n"
    assert pandas.read_csv(tmp_path / "t.csv").dtypes["sure"].name == "bool"
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == [
        {"sure": True, "p": 0.0001235, "x": 0.0, "t": 86400.123},
        {"sure": False, "p": None, "x": None, "t": None},
    ]
    assert pq.read_table(tmp_path / "t.parquet").to_pylist()[0] == row


def test_a_workbook_has_typed_cells_and_no_formulas(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    names = ["=1+1.jpg", "#N/A", "TRUE", "007", "bad\udcff\x07.png", "\uff1d1"]
    with TableWriter(path, {"path": str, "=x": float, "n": int, "sure": bool}) as table:
        table.write([{"path": name, "=x": 0.25, "n": 3, "sure": True} for name in names])
        table.write([{"path": "none"}])
    sheet = openpyxl.load_workbook(path).active
    head, *rows = sheet.iter_rows()
    assert [cell.value for cell in head] == ["path", "=x", "n", "sure"]
    assert {cell.data_type for cell in head} == {"s"}
    assert [row[0].value for row in rows] == [
        *names[:4],
        "bad\\udcff\\x07.png",
        "\uff1d1",
        "none",
    ]
    assert {tuple(cell.data_type for cell in row) for row in rows[:-1]} == {("s", "n", "n", "b")}
    assert [cell.value for cell in rows[-1][1:]] == [None, None, None]
    frame = pandas.read_excel(path, engine="openpyxl")
    assert frame["n"].tolist()[:2] == [3, 3]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_csv_has_the_rows_that_a_sheet_lacks(
    at_once: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("fer_vit.report.table.MAX_SHEET_ROWS", 5)
    path = tmp_path / "t.xlsx"
    for count in (4, 5, 11, 6):
        rows = [{"path": f"{number}.jpg", "n": number} for number in range(count)]
        with TableWriter(path, {"path": str, "n": int}) as table:
            for part in [rows] if at_once else [[row] for row in rows]:
                table.write(part)
        sheet = [*openpyxl.load_workbook(path).active.values]
        assert sheet == [("path", "n"), *((row["path"], row["n"]) for row in rows[:4])]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "t.all-rows.csv",
        "t.all-rows1.csv",
        "t.all-rows2.csv",
        "t.xlsx",
    ]
    for name, count in (("t.all-rows.csv", 5), ("t.all-rows1.csv", 11), ("t.all-rows2.csv", 6)):
        assert pandas.read_csv(tmp_path / name)["n"].tolist() == [*range(count)]
        assert f"{tmp_path / name} has all {count}." in caplog.text
    assert "A sheet holds 4 rows" in caplog.text


def test_a_workbook_that_fails_leaves_no_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fer_vit.report.table.MAX_SHEET_ROWS", 2)
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("openpyxl.workbook.workbook.Workbook.save", full)
    with pytest.raises(FerVitError, match=r"t\.xlsx"):
        write(tmp_path / "t.xlsx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".CSV", ".Parquet", ".JSONL", ".XLSX"])
def test_what_is_written_can_be_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    names = [
        "a.png",
        "=1+1.png",
        "'quoted.png",
        "-",
        "two\nlines.png",
        'comma, "quote".png',
        "ünï.png",
        "007",
    ]
    names.append("a\u2028b.png")  # JSON does not escape this end of a line
    with TableWriter(path, {"path": str, "score": float, "face": int, "-1": float}) as writer:
        writer.write([{"path": name, "score": 0.25, "face": 3} for name in names])
        writer.write([{"path": "none.png"}])
    table = read_table(path)
    assert table.names == ["path", "score", "face", "-1"]
    assert read_paths(table["path"]).tolist() == [*names, "none.png"]
    for name, value in (("score", 0.25), ("face", 3)):
        *cells, last = read_numbers(table[name])
        assert cells == [value] * len(names)
        assert math.isnan(last)
    assert is_table(path)


def test_markdown_keeps_cells_apart() -> None:
    assert markdown([["a", "b"], ["x|y", "1\n2"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 2 |\n"


def test_a_table_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with (
        pytest.raises(FerVitError, match="already exists"),
        TableWriter(path, COLUMNS, overwrite=False),
    ):
        path.write_text("another run's")
    assert path.read_text() == "another run's"
    assert [*tmp_path.iterdir()] == [path]


def grow(path: Path, rows: int) -> None:
    with TableWriter(path, {"name": str, "frame": int}, live=True) as table:
        for frame in range(rows):
            table.write([{"name": "x" * 97, "frame": frame}])


def test_a_growing_table_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "live.csv"
    check_output(path, overwrite=False)
    grow(path, 1)
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_growing_table_on_a_full_disk_ends_with_a_complete_row(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"live{suffix}"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(FerVitError, match=rf"^Cannot write .*live{suffix} \(File too large\)"):
            grow(path, 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines = path.read_text().splitlines()
    assert 5 < len(lines) < 12
    assert {len(line) for line in lines[1:]} == {len(lines[1])}
