import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError, TableError
from fer_vit.evaluation.read_labelled import EvaluateOptions, read_labelled
from fer_vit.face.image import encode_png
from fer_vit.faces import as_objects
from fer_vit.sources.cartoon import draw_face
from fer_vit.tables.groups import check_groups, describe_groups
from fer_vit.tables.join import align, with_columns
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import read_predictions


def predictions(folder: Path, *names: str) -> Labelled:
    """Predictions in a table: sadness in each photo."""
    rows = [f"{name},ok,0,sadness,0.75,0.75,0.25\n" for name in names]
    (folder / "p.csv").write_text(
        "path,status,face,label,confidence,p_sadness,p_anger\n" + "".join(rows)
    )
    return read_predictions(folder / "p.csv")


def add_labels(faces: Labelled, path: Path) -> Labelled:
    """The faces of `predictions` with the truth in a table beside them."""
    del faces  # they are in the table
    return read_labelled(EvaluateOptions(path.with_name("p.csv"), labels=path))


def add_columns(faces: Labelled, path: Path) -> Labelled:
    return with_columns(faces, Path("p.csv"), path, ())


@pytest.mark.parametrize("yaw", [("1,234", "2,345"), ("1.5", "2,5")])
def test_targets_with_an_unclear_decimal_mark_are_refused(
    tmp_path: Path, yaw: tuple[str, str]
) -> None:
    faces = predictions(tmp_path, "x.png", "y.png")
    truth = tmp_path / "truth.csv"
    truth.write_text(f"path;yaw\nx.png;{yaw[0]}\ny.png;{yaw[1]}\n")
    with pytest.raises(TableError, match=rf"truth\.csv.*`{re.escape(yaw[0])}`"):
        add_labels(faces, truth)


def test_labels_out_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,age\nb/x.png,Angry,30\na/x.png,sad,40\n")
    table = predictions(tmp_path, "a/x.png", "b/x.png", "c/x.png")
    faces = add_labels(table, tmp_path / "t.csv")
    assert faces.paths.tolist() == ["b/x.png", "a/x.png"]
    assert faces.targets is not None
    assert faces.targets.tolist() == [[0, 1], [1, 0]]
    assert faces.correct.tolist() == [False, True]
    assert faces.columns["age"].tolist() == ["30", "40"]
    assert faces.columns["label"].tolist() == ["sadness", "sadness"]  # the prediction


def test_labels_out_of_a_manifest_in_another_order(tmp_path: Path) -> None:
    data = encode_png(draw_face("anger", 0, 32)[0])
    rows = [
        Row(data, f"{label}.png", split, label)
        for label in ("anger", "sadness")
        for split in ("train", "val")
    ]
    rows.append(Row(data, "both.png", "val", "anger", (3.0, 1.0, 0.0)))
    write_manifest(tmp_path / "m.parquet", Reading(("anger", "sadness", "fear"), rows), "drawn")
    table = predictions(tmp_path, "/x/sadness.png", "/x/anger.png", "/x/both.png")
    faces = add_labels(table, tmp_path / "m.parquet")
    assert faces.paths.tolist() == ["/x/anger.png", "/x/sadness.png", "/x/both.png"]
    assert faces.targets is not None
    assert faces.targets.tolist() == [[0, 1], [1, 0], [0.25, 0.75]]
    assert faces.columns["source"].tolist() == ["drawn"] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\na.png,bored\n", "`bored`.* sadness, anger"),
        (
            "path,label\na.png,anger\nb.png,\n",
            r"t\.csv, row 2 .*label",
        ),
        (
            "path,label\na.png,anger\na.png,sadness\n",
            r"t\.csv, row 2 .* a\.png ",
        ),
    ],
)
def test_labels_that_do_not_fit(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FerVitError, match=words):
        add_labels(predictions(tmp_path, "a.png"), tmp_path / "t.csv")


def test_columns_are_joined_by_path(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,age,person\na.png,30,p\nb.png,,p\n")
    faces = add_columns(predictions(tmp_path, "x/a.png", "x/b.png", "x/c.png"), tmp_path / "c.csv")
    assert faces.columns["age"].tolist() == ["30", None, None]
    first, second, third = faces.units.tolist()
    assert first == second != third
    (tmp_path / "c.csv").write_text("image,age\na.png,30\n")
    with pytest.raises(FerVitError, match=r"path in .*c\.csv"):
        add_columns(faces, tmp_path / "c.csv")
    (tmp_path / "c.csv").write_text("path,age\na.png,30\na.png,31\n")
    with pytest.raises(FerVitError, match=r"a\.png has several"):
        add_columns(faces, tmp_path / "c.csv")


def test_another_model_has_its_own_order(tmp_path: Path) -> None:
    ours = predictions(tmp_path, "a.png", "b.png")
    text = "path,confidence,p_anger,p_sadness,p_fear\nb.png,0.7,0.7,0.2,0.1\na.png,,,,\n"
    (tmp_path / "o.csv").write_text(text)
    second = read_predictions(tmp_path / "o.csv")
    ours = replace(ours, targets=np.array([[1.0, 0.0], [0.0, 1.0]]))
    aligned = align(ours, second, "o.csv").probabilities
    assert np.isnan(aligned[0]).all()
    assert aligned[1].tolist() == [0.2, 0.7]
    with pytest.raises(FerVitError, match=r"`fear`.* sadness, anger"):
        align(replace(second, targets=second.probabilities), ours, "p.csv")
    with pytest.raises(FerVitError, match=r"o\.csv"):
        align(ours.take(np.array([0])), second, "o.csv")


@pytest.mark.parametrize("name", ["label", "seconds", "p_anger", "p_sadness", "feature_3", "face"])
def test_columns_of_predict_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"path,{name}\na.png,3\n")
    with pytest.raises(FerVitError, match=rf"c\.csv.*`{name}`"):
        add_columns(predictions(tmp_path, "a.png"), tmp_path / "c.csv")


def test_columns_of_two_tables_do_not_replace_each_other(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,age\na.png,3\n")
    faces = add_columns(predictions(tmp_path, "a.png"), tmp_path / "c.csv")
    with pytest.raises(FerVitError, match=r"c\.csv.*`age`"):
        add_columns(faces, tmp_path / "c.csv")


def test_columns_of_labels_do_not_replace_predictions(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,confidence\na.png,anger,3\n")
    table = predictions(tmp_path, "a.png", "b.png")
    faces = add_labels(table, tmp_path / "t.csv")
    assert faces.columns["confidence"].tolist() == [0.75]
    assert faces.columns["label"].tolist() == ["sadness"]
    first, second = faces.notes
    assert "confidence" in first
    assert "1 image without a label" in second


def test_rows_that_match_nothing_are_counted(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,age\n a.png ,3\nx.png,4\n")
    faces = add_columns(predictions(tmp_path, "a.png", "b.png"), tmp_path / "c.csv")
    assert faces.columns["age"].tolist() == ["3", None]
    first, second = faces.notes
    assert re.search("1 of 2 images.* b.png", first)
    assert re.search("1 of 2 rows .*x.png", second)
    (tmp_path / "c.csv").write_text("path,age\na.png,3\na.png ,4\n")
    with pytest.raises(FerVitError, match=r"row 2 .*row 1"):
        add_columns(faces, tmp_path / "c.csv")


def check(faces: Labelled, column: str) -> None:
    check_groups(faces.columns, faces.paths.tolist(), [column], Path("t.csv"), faces.labels)


def test_groups_are_described(tmp_path: Path) -> None:
    faces = predictions(tmp_path, *(f"{index}.png" for index in range(5)))
    columns = {
        "condition": as_objects(["rest", "run", "rest", None, "film"]),
        "id": as_objects(["1", "2", "3", "4", "5"]),
    }
    faces = replace(faces, columns=columns)
    (missing,) = describe_groups(faces, ["condition", "id", "condition"])
    assert missing == "`condition` is missing for 1 of 5 faces, the first in 3.png."
    for cells, message in (
        (["rest", "Rest", "rest", None, "film"], r"`rest` and `Rest` \(for 0\.png and 1\.png\)"),
        (["rest", "-", None, None, "film"], r"got `-` for 1\.png\. Empty the cell"),
        (["rest", "film", "#REF!", "?", "film"], r"got `#REF!` for 2\.png"),
    ):
        columns["condition"] = as_objects(cells)
        with pytest.raises(FerVitError, match=message):
            check(faces, "condition")
    for name, words in (
        ("2.02E+11", "shortened"),
        ("2,02E+11", "shortened"),
        ("2.025e+14", "shortened"),  # R and pandas
        ("1e+05", "shortened"),
        ("20240101120000000", "shortened"),  # Excel, in a column of numbers
        ("x" * 10**6, "1,000,000"),
    ):
        columns["id"] = as_objects([name] * 5)
        with pytest.raises(FerVitError, match=words) as error:
            check(faces, "id")
        assert len(str(error.value)) < 300


def test_long_numbers_with_different_last_digits_are_names(tmp_path: Path) -> None:
    faces = predictions(tmp_path, *(f"{index}.png" for index in range(3)))
    names = ["20240101120000000", "20240101120000001", "000"]
    check(replace(faces, columns={"id": as_objects(names)}), "id")


@pytest.mark.parametrize("length", [200, 201, 1_000_000])
def test_a_name_of_a_group_is_short(length: int, tmp_path: Path) -> None:
    faces = predictions(tmp_path, "a.png", "b.png")
    (tmp_path / "more.csv").write_text(f"path,group\na.png,{'x' * length}\nb.png,y\n")
    faces = add_columns(faces, tmp_path / "more.csv")
    if length <= 200:
        check(faces, "group")
        return
    with pytest.raises(FerVitError, match=f"{length:,}: x+") as error:
        check(faces, "group")
    assert len(str(error.value)) < 500


SIMILAR = [
    ["rest", "Rest", "REST", "rest."],
    ["re st", "re  st", "re\u00a0st", "re-st", "Re_St"],
    ["film", "\uff46ilm"],
    ["1", "01", "1.000", "1,0"],
    ["S1", "s01", "S-1", "S_001", "s 1"],
    ["r\u00e9sum\u00e9", "resume"],
    ["1.5", "01.5"],
    ["-1", "-01", "\u22121"],
    ["O'Neil-B", "O\u2019Neil\u2013B"],
    ["\u8bad\u7ec3"],
    *(["15"], ["1.05"], ["2"], ["10"], ["a b"], ["ab"], ["+"], ["c+"], ["c"], ["_"]),
]


@pytest.mark.parametrize("alike", [group for group in SIMILAR if len(group) > 1])
def test_names_that_a_reader_takes_for_one_are_refused(alike: list[str]) -> None:
    for pair in combinations(alike, 2):
        with pytest.raises(FerVitError, match=r"for a\.png and b\.png"):
            check_groups({"group": as_objects(pair)}, ["a.png", "b.png"], ["group"], Path("t"), [])


def test_names_that_differ_are_groups() -> None:
    names = [group[0] for group in SIMILAR if group[0] not in ("+", "_")]  # no names
    check_groups({"group": as_objects(names)}, names, ["group"], Path("t.csv"), [])
