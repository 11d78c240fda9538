"""Tables as people save them: encodings, separators, workbooks,
and what is refused with file and row.
"""

import codecs
import csv
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.errors import FerVitError
from fer_vit.tables import json_lines, layout, table_reader
from fer_vit.tables.table_reader import is_table, read_table
from tests.helpers.marks import slow

ROWS = {"path": ["é, ü.png", 'of "a";b.png'], "x": ["1", "two\nlines"]}


def cells(path: Path) -> dict[str, list[Any]]:
    return dict(read_table(path).cells.to_pydict())


def book(path: Path, *rows: list[Any], sheets: int = 1) -> Path:
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    for _ in range(1, sheets):
        workbook.create_sheet().append(["other"])
    workbook.save(path)
    return path


@pytest.mark.parametrize(
    ("separator", "ending", "encoding"),
    [
        (",", "\n", "utf-8"),
        (";", "\r\n", "utf-8-sig"),
        ("\t", "\r\n", "utf-16"),
        (";", "\r", "cp1252"),
    ],
)
def test_text_in_any_encoding_with_any_separator(
    separator: str, ending: str, encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame(ROWS).to_csv(
        path,
        sep=separator,
        lineterminator=ending,
        encoding=encoding,
        index=False,
        quoting=csv.QUOTE_ALL,
    )
    assert cells(path) == ROWS
    assumed = read_table(path).assumed
    assert len(assumed) == (separator != ",") + (encoding in ("utf-16", "cp1252"))


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_both_orders_of_utf_16(mark: bytes, tmp_path: Path) -> None:
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    (tmp_path / "t.txt").write_bytes(mark + "path\tx\nä\t1\n".encode(encoding))
    assert cells(tmp_path / "t.txt") == {"path": ["ä"], "x": ["1"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sep=;\npath;x\na;1\n", {"path": ["a"], "x": ["1"]}),
        ('"sep=;"\r\npath;x\r\na;1\r\n', {"path": ["a"], "x": ["1"]}),
        ("path,x;y\na,1\n", {"path": ["a"], "x;y": ["1"]}),
        ("path;x\na,b;1\nc,d;2\n", {"path": ["a,b", "c,d"], "x": ["1", "2"]}),
        ('path,"a;b;c"\nx,1\n', {"path": ["x"], "a;b;c": ["1"]}),
        ("path\na\nb\n", {"path": ["a", "b"]}),
        (" path ,\u00a0x\na,1", {"path": ["a"], "x": ["1"]}),
        ("path,x\na,1\n,\n\n , \nb,\n,\n   \n", {"path": ["a", "b"], "x": ["1", ""]}),
        ("path,x\n", {"path": [], "x": []}),
        (",path,x,\n1,a,2,\n", {"path": ["a"], "x": ["2"]}),
        ("path,x\na,'=1+1\n", {"path": ["a"], "x": ["=1+1"]}),
    ],
)
def test_text_of_spreadsheets(text: str, expected: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text, newline="")
    assert cells(tmp_path / "t.csv") == expected


def test_a_table_of_others_that_changes_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,x\na,'=1\nb,'-2\nc,'quoted'\n")
    table = read_table(tmp_path / "t.csv")
    assert table["x"].to_pylist() == ["=1", "-2", "'quoted'"]
    assert table.assumption_notes() == [
        "t.csv: without the apostrophe before a formula in 2 cells."
    ]
    (tmp_path / "t.csv").write_text("path,fer_vit_version\n'=1.jpg,0.2.0\n")
    assert read_table(tmp_path / "t.csv").assumption_notes() == []


def test_a_column_without_a_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",path\n1,a\n")
    (line,) = read_table(tmp_path / "t.csv").assumption_notes()
    assert line.startswith("t.csv: without 1 of 2 columns")


BROKEN = [
    ("t.csv", b"path,b\n1\n", "line 2"),
    ("t.csv", b"path,b\n,\na\n", "line 3"),
    ("t.csv", b"path,b\n1,2,3\n", r"line 2.*row\.names"),
    ("t.csv", b"path,b,path\n1,2,3\n", "several columns `path`"),
    ("t.csv", b"path, b,b \n1,2,3\n", "several columns `b`"),
    ("t.csv", b"Study 1\n\npath,b\na,1\n", "row 3 has them"),
    ("t.csv", b"path,b\n\x81,1\n", "UTF-8, UTF-16 or Windows-1252"),
    ("t.csv", b"path,b\na\0,1\n", "NUL"),
    ("t.csv", "path,b\na,1\n".encode("utf-16-le"), "NUL"),
    ("t.csv", b"", "empty"),
    ("t.csv", b"\n \n", "empty"),
    ("t.csv", b'path,b\n"a,1\n', r"t\.csv"),
    ("t.jsonl", b'{"path": 1\n', "line 1"),
    ("t.jsonl", b'{"path": "a"}\n[1]\n', "line 2"),
    ("t.jsonl", b"null\n", "line 1"),
    ("t.jsonl", b'{"path": "a", "path": "b"}\n', "twice"),
    ("t.jsonl", b"[" * 100_000, "line 1"),
    ("t.jsonl", b"\xff\n", "decode"),
    ("t.parquet", b"PAR1", r"t\.parquet"),
    ("t.xlsx", b"PK", "workbook"),
    ("gone.csv", None, "No such file"),
    ("gone.xlsx", None, "No such file"),
]


@pytest.mark.parametrize(("name", "data", "words"), BROKEN)
def test_what_is_no_table_is_one_line(
    name: str, data: bytes | None, words: str, tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(FerVitError, match=words) as error:
        read_table(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_read_table_reads_a_workbook(tmp_path: Path) -> None:
    day = pd.Timestamp("2026-01-02")
    moment = pd.Timestamp("2026-01-02 03:04")
    path = book(
        tmp_path / "t.xlsx",
        ["path", "id", "x", "sure", "day", None],
        ["a", 1, 0.5, True, day.to_pydatetime()],
        [None, " "],
        ["b", 2, None, False, moment.to_pydatetime()],
        ["c", 3, 1, None, None, None, None],
    )
    table = cells(path)
    assert table["path"] == ["a", "b", "c"]
    assert table["id"] == [1, 2, 3]
    assert table["x"] == [0.5, None, 1]
    assert table["sure"] == [True, False, None]
    assert table["day"] == ["2026-01-02", "2026-01-02 03:04:00", None]
    assert read_table(path).assumed == ()


def test_the_first_visible_sheet_or_the_named_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b.xlsx"
    workbook = openpyxl.Workbook()
    workbook.create_chartsheet("Chart", 0).add_chart(openpyxl.chart.BarChart())
    workbook.active = 1
    workbook["Sheet"].title = "Old"
    for name, cell in (("Old", "old"), ("Study 3", None), ("Data", "new")):
        sheet = workbook["Old"] if name == "Old" else workbook.create_sheet(name)
        for row in (["Study 3"],) if cell is None else (["path"], [cell]):
            sheet.append(row)
    workbook["Old"].sheet_state = "hidden"
    workbook.active = 2
    workbook.save(path)
    assert cells(tmp_path / "b.xlsx#Data") == {"path": ["new"]}
    assert cells(tmp_path / "b.xlsx#Old") == {"path": ["old"]}
    assert read_table(tmp_path / "b.xlsx#Data").assumed == ()
    assert is_table(tmp_path / "b.xlsx#Data")
    table = read_table(path)
    assert table.assumed == (
        "read from the sheet `Study 3`, not from `Old`, `Data`; name another as `b.xlsx#Old`",
    )
    with pytest.raises(FerVitError, match=r"but got Study 3 \(read from the sheet .*`Data`"):
        table.check_columns("path")
    with pytest.raises(FerVitError, match=r"the sheet `data` in .*`Old`, `Study 3`, `Data`\."):
        read_table(tmp_path / "b.xlsx#data")
    with pytest.raises(FerVitError, match=r"c\.xlsx#Data.*No such file"):
        read_table(tmp_path / "c.xlsx#Data")


def test_an_empty_cover_sheet_names_the_others(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", sheets=2)
    with pytest.raises(FerVitError, match=r"but it is empty \(.* not from `Sheet1`"):
        read_table(path)


def test_hidden_rows_are_refused(tmp_path: Path) -> None:
    """Whoever filters a person out sees a table without her; a hidden blank row is no loss."""
    path = book(tmp_path / "t.xlsx", ["path", "x"], ["a", 1], ["b", None], ["c", None])
    workbook = openpyxl.load_workbook(path)
    workbook.active.row_dimensions[9].hidden = True
    workbook.active.column_dimensions["B"].hidden = True
    workbook.save(path)
    assert cells(path)["path"] == ["a", "b", "c"]
    for row in (3, 4):
        workbook.active.row_dimensions[row].hidden = True
    workbook.save(path)
    with pytest.raises(FerVitError, match=r"t\.xlsx: 2 rows hidden .* row 3\. Show all rows"):
        read_table(path)


def test_formulas_have_their_stored_values_or_are_refused(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", ["path", "x"], ["a", "=1+1"], ["b", '=""'])
    with pytest.raises(FerVitError, match=r"formula in B2 has no stored value"):
        read_table(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    first, second = re.findall('<c r="B[23]".*?</c>', members[sheet])
    stored = members[sheet].replace(first, '<c r="B2"><f>1+1</f><v>2</v></c>')
    stored = stored.replace(second, '<c r="B3" t="str"><f>""</f><v></v></c>')
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (members | {sheet: stored}).items():
            archive.writestr(name, text)
    assert cells(path) == {"path": ["a", "b"], "x": [2, None]}


def test_a_workbook_with_a_far_cell_takes_little_memory(tmp_path: Path) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["path", "x"])
    workbook.active["XFD1048576"] = 1
    workbook.save(tmp_path / "t.xlsx")
    with pytest.raises(FerVitError, match=r"1048576 .*t\.xlsx"):
        read_table(tmp_path / "t.xlsx")


def test_workbooks_that_are_not_read(tmp_path: Path) -> None:
    title = book(tmp_path / "title.xlsx", ["Study 1"], [], ["path", "x"], ["a", 1])
    with pytest.raises(FerVitError, match="row 3 has them"):
        read_table(title)
    with zipfile.ZipFile(tmp_path / "zip.xlsx", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(FerVitError, match=r"zip\.xlsx is not a readable workbook"):
        read_table(tmp_path / "zip.xlsx")


def test_json_lines_of_any_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(table_reader, "_read_file", lambda path: json_lines.read_json_lines(path))
    rows = [
        {"path": 7, "x": 1},
        {"x": 2.5, "path": "b"},
        {"path": None, "y": [1]},
        {"path": "d", "y": 10**30, "x": float("nan"), "z": True},
    ]
    (tmp_path / "t.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    table = cells(tmp_path / "t.jsonl")
    assert table["path"] == ["7", "b", None, "d"]
    assert table["x"][:3] == [1, 2.5, None]
    assert table["y"] == [None, None, "[1]", str(10**30)]
    assert table["z"] == [None, None, None, True]


def test_parquet_of_any_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": pd.Categorical(["a", "b", "a"]), "x": [1, None, 3]}, [5, 6, 7])
    frame.to_parquet(tmp_path / "t.parquet")
    assert cells(tmp_path / "t.parquet") == {"path": ["a", "b", "a"], "x": [1, None, 3]}


def test_parts_with_other_types_are_one_table(tmp_path: Path) -> None:
    first = tmp_path / "part-00000-of-00002.parquet"
    second = tmp_path / "part-00001-of-00002.parquet"
    pq.write_table(pa.table({"path": ["a", "b"], "x": [1, 2], "y": pa.nulls(2)}), first)
    pq.write_table(pa.table({"path": ["c"], "x": [0.5], "y": ["z"], "z": [True]}), second)
    table = read_table(tmp_path)
    assert table.cells.to_pydict() == {
        "path": ["a", "b", "c"],
        "x": [1, 2, 0.5],
        "y": [None, None, "z"],
        "z": [None, None, True],
    }
    assert [str(path) in table.row_name(row) for row, path in ((1, first), (2, second))] == [
        True,
        True,
    ]
    assert "row 1 " in table.row_name(2)


@pytest.mark.parametrize("suffix", ["jsonl", *slow("csv", "parquet", "xlsx")])
def test_columns_are_limited(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{suffix}"
    for columns in (10_000, 10_001):
        names = ["path", *(f"c{index}" for index in range(columns - 1))]
        if suffix == "csv":
            path.write_text(",".join(names) + "\n" + "a" + "," * (columns - 1))
        elif suffix == "parquet":
            pq.write_table(pa.table({name: ["a"] for name in names}), path)
        elif suffix == "jsonl":
            path.write_text(json.dumps(dict.fromkeys(names, "a")))
        else:
            book(path, names, ["a"] * columns)
        if columns <= layout.MAX_COLUMNS:
            assert len(read_table(path).names) == columns
            continue
        with pytest.raises(FerVitError, match=rf"10,000 columns .*t\.{suffix}, but got"):
            read_table(path)


@pytest.mark.parametrize(("rows", "columns"), [(12_000_000, 9), (100_000_001, 1)])
def test_cells_are_limited(rows: int, columns: int, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    column = pa.nulls(rows, pa.int8())
    pq.write_table(pa.table([column] * columns, [f"c{index}" for index in range(columns)]), path)
    with pytest.raises(FerVitError, match=r"100,000,000 cells in .*t\.parquet, but got"):
        read_table(path)


@pytest.mark.slow
def test_the_table_of_a_day_of_videos_is_read(tmp_path: Path) -> None:
    """10 hours of 30 frames per second: 97 million cells besides the features."""
    rows = 1_080_000
    numbers = pa.array(np.random.default_rng(0).random(rows).round(4), pa.float32())
    path = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows) // 3000), [f"{n}.mp4" for n in range(360)]
    )
    features = dict.fromkeys([f"feature_{index}" for index in range(10)], numbers)
    columns = {"path": path, **{f"p_{index}": numbers for index in range(89)}, **features}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert (len(table), len(table.names)) == (rows, 90)
    assert table["p_88"].cast(pa.float32()).combine_chunks() == numbers


ROW = {"path": "a", "label": "neutral"}


def of_distinct_columns(path: Path, rows: int) -> None:
    """JSON Lines in which each row has a column of its own."""
    lines = [json.dumps(ROW | {f"c{index}": 1}) for index in range(rows)]
    path.with_suffix(".jsonl").write_text("\n".join(lines))


SHARED_STRINGS = (
    b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-'
    b'officedocument.spreadsheetml.sharedStrings+xml"/>'
)


def of_shared_strings(path: Path, length: int) -> None:
    """A workbook with a million strings that no cell uses: digits and `length` further letters."""
    small = book(path.with_suffix(".small.xlsx"), ["path"], ["a"])
    letters = b"x" * length
    strings = b"".join(b"<si><t>%d%b</t></si>" % (number, letters) for number in range(10_000))
    with (
        zipfile.ZipFile(small) as source,
        zipfile.ZipFile(path.with_suffix(".xlsx"), "w", 8) as copy,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name == "[Content_Types].xml" and b"sharedStrings" not in content:
                content = content.replace(b"</Types>", SHARED_STRINGS + b"</Types>")
            if name != "xl/sharedStrings.xml":
                copy.writestr(name, content)
        with copy.open("xl/sharedStrings.xml", "w", force_zip64=True) as file:
            head = b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
            file.write(head + b"<si><t>path</t></si><si><t>a</t></si>")
            for _ in range(100):
                file.write(strings)
            file.write(b"</sst>")


def of_long_texts(path: Path, rows: int) -> None:
    """A Parquet file in which no two texts of 100 kB are equal; it is compressed well."""
    texts = [f"{index:06}" + "x" * 100_000 for index in range(rows)]
    pq.write_table(
        pa.table({"path": texts}),
        path.with_suffix(".parquet"),
        compression="zstd",
        compression_level=9,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
@pytest.mark.parametrize(
    ("write", "suffix", "honest", "hostile"),
    [
        (of_distinct_columns, ".jsonl", 500, 9_990),
        (of_shared_strings, ".xlsx", 0, 1_500),
        (of_long_texts, ".parquet", 1_000, 12_000),
    ],
)
def test_a_small_table_cannot_take_all_memory(
    write: Callable[[Path, int], None], suffix: str, honest: int, hostile: int, tmp_path: Path
) -> None:
    write(tmp_path / "honest", honest)
    assert "path" in read_table(tmp_path / f"honest{suffix}").names
    write(tmp_path / "hostile", hostile)
    with pytest.raises(FerVitError, match=r"more than .* MB of memory"):
        read_table(tmp_path / f"hostile{suffix}")


def test_columns_of_several_values_or_bytes_are_left_out(tmp_path: Path) -> None:
    values = {
        "list": [[1, 2]],
        "struct": [{"a": 1}],
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
        "bytes": [b"a"],
    }
    pq.write_table(pa.table({"path": ["a"], **values, "x": [1]}), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.names == ["path", "x"]
    (line,) = table.assumption_notes()
    assert line == (
        "t.parquet: without `list`, `struct`, `map` and 1 more: several values or bytes in a cell."
    )


def test_a_missing_column_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("Path,x\x1b[2J\na,1\n")
    with pytest.raises(FerVitError, match=r"Rename `Path`") as error:
        read_table(tmp_path / "t.csv").check_columns("path")
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".xlsx", ".parquet"])
def test_a_fifo_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"t{suffix}")
    for name in (f"t{suffix}", f"t{suffix}#Data"):
        with pytest.raises(FerVitError, match=r"not a regular file|ends in"):
            read_table(tmp_path / name)


def test_a_fifo_called_parquet_has_no_metadata(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.parquet")
    with pytest.raises(FerVitError, match="not a regular file"):
        is_table(tmp_path / "t.parquet")


def test_what_is_a_table(drawn: Path) -> None:
    assert not is_table(drawn / "faces.parquet")  # a manifest
    assert not is_table(drawn)
    assert not is_table(Path("best.ckpt"))
    assert all(is_table(Path(name)) for name in ("a.csv", "a.TSV", "a.xlsx", "a.jsonl", "a.txt"))


def test_another_separator_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("path|p_a|p_b\na,b.png|0,5|0,5\n")
    with pytest.raises(FerVitError, match="commas, semicolons or tabs"):
        read_table(path)
