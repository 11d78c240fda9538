"""Tables of targets as users of DISFA, BP4D, Aff-Wild2 and OpenFace have them,
and AffectNet's affect.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.schema import Reading
from fer_vit.errors import FerVitError
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import affectnet, folder


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


FOLDERS = "([^/]+)/[^/]+$"  # persons are the innermost folders
FRAMES = [f"SN{person:03d}/{frame:03d}.png" for person in range(1, 5) for frame in range(5)]


def read(root: Path, *lines: str, **options: object) -> Reading:
    """The data set of a table and of the photos that it names."""
    touch(root / "photos", *(re.split("[,;]", line)[0] for line in lines[1:]))
    table = write(root / "t.csv", *lines)
    return folder.read(root / "photos", targets=table, **options)


def values(reading: Reading, column: str) -> list[float]:
    """The targets of a column in the order of the photos, NaN for unknown ones."""
    rows = sorted(reading.rows, key=lambda row: row.name)
    return [row.targets.get(column, np.nan) for row in rows]


# Names of columns


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("AU1", "move_AU01"),
        ("au_06", "move_AU06"),
        ("AU 12", "move_AU12"),
        ("AU45_c", "move_AU45"),
        ("AU12L", "move_AU12Left"),
        ("AU12_R", "move_AU12Right"),
        ("AU14_left", "move_AU14Left"),
        ("move_jawOpen", "move_jawOpen"),
        ("ROLL", "roll"),
        *((name, None) for name in ("AU", "AU0", "AU123", "author", "move_", "gaze_x", "val")),
    ],
)
def test_spellings_of_a_column(name: str, target: str | None, tmp_path: Path) -> None:
    reading = read(tmp_path, f"path,pitch,{name}", "a.jpg,0,0")
    assert {*reading.outputs.columns} == {"pitch", target} - {None}


# Layouts


def test_disfa_intensities_are_divided_by_five(tmp_path: Path) -> None:
    touch(tmp_path / "disfa", *FRAMES)
    lines = [f"{name},{row % 6},0,{'' if row % 2 else 5}" for row, name in enumerate(FRAMES)]
    table = write(tmp_path / "aus.csv", "path,AU1,AU2,AU12", *lines)
    reading = folder.read(tmp_path / "disfa", targets=table, person=FOLDERS)
    assert reading.labels == EXPRESSIONS
    assert reading.outputs.plain == {"movements": ["AU01", "AU02", "AU12"]}
    by_name = {row.name: row for row in reading.rows}
    assert by_name["SN001/003.png"].targets == {"move_AU01": 0.6, "move_AU02": 0.0}
    assert by_name["SN001/004.png"].targets == {
        "move_AU01": 0.8,
        "move_AU02": 0.0,
        "move_AU12": 1.0,
    }
    assert {row.label for row in reading.rows} == {None}
    assert "divided by" in " ".join(reading.notes)


def test_frames_of_a_person_are_in_one_split(tmp_path: Path) -> None:
    touch(tmp_path / "disfa", *FRAMES)
    table = write(tmp_path / "aus.csv", "path,AU1", *(f"{name},1" for name in FRAMES))
    with pytest.raises(FerVitError, match=r"folders SN001, .*person="):
        folder.read(tmp_path / "disfa", targets=table)
    reading = folder.read(tmp_path / "disfa", targets=table, person=FOLDERS)
    splits = {(row.extra["person"], row.split) for row in reading.rows}
    assert len(splits) == 4
    assert {split for _, split in splits} == {"train", "val", "test"}


def test_bp4d_and_affwild_marks_are_unknown_and_occurrences_stay(tmp_path: Path) -> None:
    cells = ["0,9", "1,0", "-1,1", "1,999"] * 5
    lines = [f"{name},{two}" for name, two in zip(FRAMES, cells, strict=True)]
    reading = read(tmp_path, "path,AU6,AU12", *lines, person=FOLDERS)
    np.testing.assert_array_equal(values(reading, "move_AU06")[:4], [0, 1, np.nan, 1])
    np.testing.assert_array_equal(values(reading, "move_AU12")[:4], [np.nan, 0, 1, np.nan])
    assert "15 targets" in " ".join(reading.notes)
    assert "occurrences" in " ".join(reading.notes)


def test_affwild_valence_and_arousal_with_splits_and_labels(tmp_path: Path) -> None:
    names = ["train/v1/1.jpg", "train/v2/1.jpg", "train/v3/1.jpg", "val/v4/1.jpg"]
    touch(tmp_path / "aff", *names)
    cells = ["0.5,-0.25,Happy", "-5,-5,", "-1,1,sad", "0,0,neutral"]
    lines = [f"{name},{row}" for name, row in zip(names, cells, strict=True)]
    table = write(tmp_path / "va.csv", "path,valence,arousal,label", *lines)
    reading = folder.read(tmp_path / "aff", targets=table, person=FOLDERS)
    assert reading.labels == ("neutral", "happiness", "sadness")
    assert [(row.split, row.label, row.targets) for row in reading.rows] == [
        ("train", "happiness", {"valence": 0.5, "arousal": -0.25}),
        ("train", None, {}),
        ("train", "sadness", {"valence": -1.0, "arousal": 1.0}),
        ("val", "neutral", {"valence": 0.0, "arousal": 0.0}),
    ]
    assert [row.extra["person"] for row in reading.rows] == ["v1", "v2", "v3", "v4"]


def test_openface_columns_and_decimal_commas(tmp_path: Path) -> None:
    reading = read(tmp_path, "path;AU01_r;AU45_r", "a.jpg;2,5;0,25", "b.jpg;0,0;5,0")
    assert values(reading, "move_AU01") == pytest.approx([0.5, 0])
    assert values(reading, "move_AU45") == pytest.approx([0.05, 1])
    assert any("AU01_r as move_AU01" in note for note in reading.notes)


def test_columns_split_and_person_decide(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg"]
    touch(tmp_path / "photos", *names)
    lines = ["a.jpg,training,anna,0.5", "b.jpg,Validation,ben,0.25", "c.jpg,test,cleo,1"]
    table = write(tmp_path / "t.csv", "path,split,person,move_jawOpen", *lines)
    reading = folder.read(tmp_path / "photos", targets=table)
    assert [(row.split, row.extra["person"]) for row in reading.rows] == [
        ("train", "anna"),
        ("val", "ben"),
        ("test", "cleo"),
    ]


def test_class_folders_keep_their_labels_and_photos_without_a_row(tmp_path: Path) -> None:
    names = [f"{label}/{number}.jpg" for label in ("happy", "sad") for number in range(5)]
    touch(tmp_path / "photos", *names)
    table = write(tmp_path / "va.csv", "path,valence", "happy/1.jpg,0.5", "sad/2.jpg,-0.5")
    reading = folder.read(tmp_path / "photos", targets=table)
    assert len(reading.rows) == 10
    targets = {row.name: (row.label, row.targets) for row in reading.rows if row.targets}
    assert targets == {
        "happy/1.jpg": ("happiness", {"valence": 0.5}),
        "sad/2.jpg": ("sadness", {"valence": -0.5}),
    }


def test_what_has_no_partner_is_counted(tmp_path: Path) -> None:
    touch(tmp_path / "photos", "a.jpg", "b.jpg", "c.jpg", "notes.pdf")
    table = write(tmp_path / "t.csv", "path,yaw,valance", "a.jpg,3,1", "b.jpg,4,1", "z.jpg,5,1")
    reading = folder.read(tmp_path / "photos", targets=table)
    assert reading.dropped == {"no row in t.csv, for example c.jpg": 1}
    text = " ".join(reading.notes)
    assert "1 of 3 rows" in text
    assert "z.jpg" in text
    assert "Did you mean `valence`?" in text
    assert "1 file (1 .pdf)" in text


def test_a_column_without_values_is_left_out(tmp_path: Path) -> None:
    reading = read(tmp_path, "path,yaw,AU4", "a.jpg,3,", "b.jpg,4,-1")
    assert reading.outputs.plain == {"pose": ["yaw"]}
    assert any("AU4" in note for note in reading.notes)


# What is wrong


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["path,AU1,AU01", "a.jpg,1,1"], "`AU1` and `AU01` .*move_AU01"),
        (["path,AU1_r,AU01_r", "a.jpg,1,1"], "`AU1_r` and `AU01_r`"),
        (["path,Valence,valence", "a.jpg,1,1"], "`Valence` and `valence`"),
        (["path,move_jawOpen,move_JawOpen", "a.jpg,1,1"], "both move_JawOpen"),
        (["path,AU1", "a.jpg,1", "b.jpg,7"], "row 2 .* 0 to 5 .*`AU1`.*`7"),
        (["path,AU1", "a.jpg,1", "b.jpg,-0.5"], "row 2 .* 0 to 5 .*`AU1`"),
        (["path,move_jawOpen", "a.jpg,-1"], "row 1 .* 0 to 1 .*`move_jawOpen`"),
        (["path,move_jawOpen", "a.jpg,9"], "row 1 .* 0 to 1 .*`move_jawOpen`"),
        (["path,valence", "a.jpg,0.1", "b.jpg,1.2"], "row 2 .* -1 to 1 .*`valence`"),
        (["path,yaw", "a.jpg,270"], "row 1 .* -180 to 180 .*`yaw`"),
        (["path,yaw", "a.jpg,left"], "row 1 .*number .*`yaw`.*`left`"),
        (["path,yaw", "a.jpg,inf"], "row 1 .*finite.*`yaw`"),
        (["path,age", "a.jpg,3"], "labels or targets.* path, age"),
        (["path,yaw", "a.jpg,"], "none of their cells"),
        (["image,yaw", "a.jpg,3"], "column path"),
        (["path,yaw", "a.jpg,3", ",4"], "row 2 .*path.*empty"),
        (["path,yaw", "a.jpg,3", "./a.jpg,4"], "row 2 .*has several"),
        (["path,yaw,split", "a.jpg,3,fold7"], "train, val or test .*split .*a.jpg.*`fold7`"),
        (["path,yaw,split", "a.jpg,3,train", "b.jpg,3,"], "train, val or test .*split .*b.jpg"),
    ],
)
def test_wrong_tables_are_named_in_one_line(lines: list[str], named: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=named) as error:
        read(tmp_path, *lines)
    assert "\n" not in str(error.value)


# Units


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        # UNBC: pain has intensities, closed eyes are an occurrence; also the marks of BP4D
        (["path,AU4,AU43", "a.jpg,5,1", "b.jpg,0,0"], r"`AU43` .*0 and 1.*`AU4` .*to 5.*`AU43_c`"),
        (["path,AU43,AU4", "a.jpg,1,5", "b.jpg,9,0"], "`AU43` .*au_scale=5"),
        # a calm part of a set with intensities up to 5
        (["path,AU4,AU12", "a.jpg,0,0.97", "b.jpg,0,0"], "`AU12` .*au_scale=5.*au_scale=1"),
        (["path,yaw,pitch", "a.jpg,0.3,", "b.jpg,-0.6,0.1"], "yaw, pitch .*0.6.*radians.*degrees"),
    ],
)
def test_an_unclear_unit_is_one_line_with_both_remedies(
    lines: list[str], named: str, tmp_path: Path
) -> None:
    with pytest.raises(FerVitError, match=named) as error:
        read(tmp_path, *lines)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        # _c is an occurrence in any table
        (
            ["path,AU4,AU43,AU6_c", "a.jpg,5,1,1", "b.jpg,0,0.5,0"],
            {"au_scale": 5},
            {"move_AU04": [1, 0], "move_AU43": [0.2, 0.1], "move_AU06": [1, 0]},
        ),
        (["path,AU12", "a.jpg,0.9", "b.jpg,0"], {"au_scale": 1}, {"move_AU12": [0.9, 0]}),
        (["path,AU12", "a.jpg,0.9", "b.jpg,0"], {"au_scale": 5}, {"move_AU12": [0.18, 0]}),
        (["path,yaw", "a.jpg,-0.5", "b.jpg,3"], {"targets_unit": "degrees"}, {"yaw": [-0.5, 3]}),
        (["path,yaw", "a.jpg,-0.5", "b.jpg,3"], {}, {"yaw": [-0.5, 3]}),  # too far for radians
        (
            ["path,yaw,roll", "a.jpg,-0.5,0", "b.jpg,3,1.5"],
            {"targets_unit": "radians"},
            {"yaw": np.degrees([-0.5, 3]), "roll": np.degrees([0, 1.5])},
        ),
        # zero has one meaning in any unit
        (["path,yaw", "a.jpg,0"], {}, {"yaw": [0]}),
        (["path,AU1,AU2", "a.jpg,0,3"], {}, {"move_AU01": [0], "move_AU02": [0.6]}),
        # tables of OpenFace
        (
            ["path,AU12_r,AU28_c", "a.jpg,3,1", "b.jpg,0.5,0"],
            {},
            {"move_AU12": [0.6, 0.1], "move_AU28": [1, 0]},
        ),
        (["path,AU12_r", "a.jpg,1", "b.jpg,0.5"], {}, {"move_AU12": [0.2, 0.1]}),
        (
            ["path,AU12_c,AU12_r,AU28_c", "a.jpg,1,5,1", "b.jpg,1,1,0"],
            {},
            {"move_AU12": [1, 0.2], "move_AU28": [1, 0]},
        ),
    ],
)
def test_units(
    lines: list[str], options: dict[str, object], expected: dict[str, object], tmp_path: Path
) -> None:
    reading = read(tmp_path, *lines, **options)
    for column, targets in expected.items():
        assert values(reading, column) == pytest.approx(targets), column
    both = {"AU12_c", "AU12_r"} <= {*lines[0].split(",")}
    assert any("instead of AU12_c" in note for note in reading.notes) == both


@pytest.mark.parametrize(
    ("lines", "options", "named"),
    [
        (["path,AU4", "a.jpg,5"], {"au_scale": 1}, "row 1.* 0 to 1 .*AU4.*5"),
        (["path,yaw", "a.jpg,4"], {"targets_unit": "radians"}, "row 1.*-3.14.* to 3.14.*`yaw`.*4"),
        (["path,AU28_c", "a.jpg,2"], {}, "row 1.*0 to 1.*AU28_c.*2"),
    ],
)
def test_values_outside_of_a_given_unit(
    lines: list[str], options: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(FerVitError, match=named):
        read(tmp_path, *lines, **options)


def test_arousal_that_is_never_negative_is_named(tmp_path: Path) -> None:
    reading = read(tmp_path, "path,valence,arousal", "a.jpg,-0.5,0.5", "b.jpg,0.5,0.2")
    (note,) = [note for note in reading.notes if "below 0" in note]
    assert "no arousal" in note


# Labels


def test_a_table_of_labels_needs_no_targets(tmp_path: Path) -> None:
    names = [f"images/{number}.jpg" for number in range(20)]
    touch(tmp_path / "photos", *names, "images/other.jpg")
    lines = [f"{number}.jpg,{'Happy' if number % 2 else 'calm'}" for number in range(20)]
    table = write(tmp_path / "labels.csv", "path,label", *lines, "gone.jpg,calm")
    reading = folder.read(tmp_path / "photos", targets=table)
    assert reading.labels == ("happiness", "calm")
    assert Counter((row.split, row.label) for row in reading.rows) == {
        ("train", "happiness"): 8,
        ("val", "happiness"): 1,
        ("test", "happiness"): 1,
        ("train", "calm"): 8,
        ("val", "calm"): 1,
        ("test", "calm"): 1,
    }
    assert reading.outputs.plain == {}
    assert reading.dropped == {"no row in labels.csv, for example images/other.jpg": 1}
    assert any("1 of 21 rows name no photo, for example gone.jpg" in n for n in reading.notes)


def test_labels_of_a_table_count_instead_of_folders(tmp_path: Path) -> None:
    names = [f"{label}/{number}.jpg" for label in ("anger", "happy") for number in range(9)]
    touch(tmp_path / "photos", *names)
    rows = [f"{name},happy" if name == "anger/1.jpg" else f"{name},{name[:5]}" for name in names]
    table = write(tmp_path / "photos" / "labels.csv", "path,label,split", *rows)
    lines = [f"{row},{'test' if '8.jpg' in row else 'train'}" for row in rows]
    write(table, "path,label,split", *lines)
    reading = folder.read(tmp_path / "photos", targets=Path("labels.csv"))
    labels = {row.name: row.label for row in reading.rows}
    assert labels["anger/1.jpg"] == "happiness"
    assert labels["anger/2.jpg"] == "anger"
    assert Counter(row.split for row in reading.rows) == {"train": 14, "val": 2, "test": 2}
    assert any("differs from the folder's for 1 photo" in note for note in reading.notes)
    assert not any(".csv" in note and "not read" in note for note in reading.notes)


def test_persons_of_a_table_stay_in_one_split(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(30)]
    touch(tmp_path / "photos", *names)
    lines = [f"{name},{'sad' if row % 2 else 'calm'},P{row % 10}" for row, name in enumerate(names)]
    table = write(tmp_path / "labels.csv", "path,label,person", *lines)
    reading = folder.read(tmp_path / "photos", targets=table)
    assert len({(row.extra["person"], row.split) for row in reading.rows}) == 10
    with pytest.raises(FerVitError, match=r"person .*but got both"):
        folder.read(tmp_path / "photos", targets=table, person=".+")


def test_folders_that_mean_nothing(tmp_path: Path) -> None:
    names = [f"part{number % 3}/{number}.jpg" for number in range(30)]
    touch(tmp_path / "photos", *names)
    lines = [f"{name},{'sad' if row % 2 else 'calm'}" for row, name in enumerate(names)]
    table = write(tmp_path / "labels.csv", "path,label", *lines)
    with pytest.raises(FerVitError, match="folders part0, part1, part2"):
        folder.read(tmp_path / "photos", targets=table)
    reading = folder.read(tmp_path / "photos", targets=table, person=".+")
    assert Counter(row.split for row in reading.rows) == {"train": 24, "val": 3, "test": 3}


def test_only_some_photos_in_split_folders_are_an_error(tmp_path: Path) -> None:
    touch(tmp_path / "photos", "train/a.jpg", "train/b.jpg", "other/c.jpg")
    lines = ("train/a.jpg,sad", "train/b.jpg,calm", "other/c.jpg,calm")
    table = write(tmp_path / "labels.csv", "path,label", *lines)
    with pytest.raises(FerVitError, match=r"other/c\.jpg is in none"):
        folder.read(tmp_path / "photos", targets=table)


def test_a_table_in_the_folder_is_named(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{label}/{number}.jpg" for label in ("sad", "calm") for number in range(5)))
    write(tmp_path / "labels.csv", "path,label", "sad/1.jpg,sad")
    assert any("`--targets labels.csv`" in note for note in folder.read(tmp_path).notes)


def test_units_need_a_table(tmp_path: Path) -> None:
    touch(tmp_path, "sad/1.jpg", "calm/1.jpg")
    with pytest.raises(FerVitError, match="need a table, `targets`"):
        folder.read(tmp_path, au_scale=5)


def test_a_missing_table_and_other_photos(tmp_path: Path) -> None:
    touch(tmp_path / "photos", "a.jpg")
    with pytest.raises(FerVitError, match="there is none at"):
        folder.read(tmp_path / "photos", targets=tmp_path / "none.csv")
    table = write(tmp_path / "t.csv", "path,yaw", "z.jpg,3")
    with pytest.raises(FerVitError, match=r"images .*t\.csv"):
        folder.read(tmp_path / "photos", targets=table)


# AffectNet


def draw_affectnet(base: Path, **files: list[object]) -> None:
    """Touches images 0, 1, ... and writes their annotations by ending; None: there is no file."""
    count = len(files["exp"])
    touch(base / "images", *(f"{number}.jpg" for number in range(count)))
    (base / "annotations").mkdir()
    for ending, values in files.items():
        for number, value in enumerate(values):
            if value is not None:
                np.save(base / "annotations" / f"{number}_{ending}.npy", np.asarray(value))


def test_affectnet_reads_valence_and_arousal(tmp_path: Path) -> None:
    draw_affectnet(
        tmp_path / "val_set",
        exp=["0", "1", "2"],
        val=["-0.25", 1.0, "-2"],
        aro=[np.float32(0.5), None, "-2.0"],
    )
    reading = affectnet.read(tmp_path)
    assert reading.outputs.plain == {"affect": ["valence", "arousal"]}
    assert [row.targets for row in reading.rows] == [
        {"valence": -0.25, "arousal": 0.5},
        {"valence": 1.0},
        {},
    ]


def test_affectnet_without_valence_has_no_head(tmp_path: Path) -> None:
    draw_affectnet(tmp_path / "val_set", exp=["0", "1"])
    assert affectnet.read(tmp_path).outputs.plain == {}


@pytest.mark.parametrize("value", ["1.5", np.nan, "-3", "much", [0.1, 0.2], np.inf])
def test_affectnet_wrong_valence(value: object, tmp_path: Path) -> None:
    draw_affectnet(tmp_path / "val_set", exp=["0", "1"], val=["0", value])
    with pytest.raises(FerVitError, match=r"1_val\.npy: .* -1 to 1"):
        affectnet.read(tmp_path)
