"""Readers of AffectNet, FairFace, FER2013, RAF-DB and class folders,
which are drawn as distributed.
"""

import io
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.image import decode_image
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import affectnet, fairface, fer2013, folder, rafdb


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize("source", [affectnet, fairface, fer2013, folder, rafdb])
def test_a_folder_without_the_data_set_is_named_with_its_content(
    source: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(FerVitError, match=r"No folder at .*none"):
        source.read(tmp_path / "none")
    with pytest.raises(FerVitError, match="empty"):
        source.read(tmp_path)
    touch(tmp_path, "a.pdf", "b.pdf", ".hidden")
    with pytest.raises(FerVitError, match=r"but got a\.pdf, b\.pdf\."):
        source.read(tmp_path)


# AffectNet


def draw_affectnet(folder: Path, labels: list[object]) -> None:
    """Touches images 0, 1, ... and writes their annotations."""
    touch(folder / "images", *(f"{i}.jpg" for i in range(len(labels))))
    (folder / "annotations").mkdir()
    for i, label in enumerate(labels):
        np.save(folder / "annotations" / f"{i}_exp.npy", np.asarray(label))
        np.save(folder / "annotations" / f"{i}_val.npy", np.asarray("0.5"))


def test_affectnet_labels_as_strings_and_numbers(tmp_path: Path) -> None:
    draw_affectnet(tmp_path / "train_set", ["3"] * 20)
    draw_affectnet(tmp_path / "val_set", ["0", 1, "2", 3, np.int8(4), [5], 6.0, b"7"])
    reading = affectnet.read(tmp_path)
    assert reading.labels == (
        "neutral",
        "happiness",
        "sadness",
        "surprise",
        "fear",
        "disgust",
        "anger",
        "contempt",
    )
    assert tuple(row.label for row in reading.rows if row.split == "test") == reading.labels
    assert Counter(row.split for row in reading.rows) == {"train": 18, "val": 2, "test": 8}
    assert {row.label for row in reading.rows if row.split != "test"} == {"surprise"}
    assert reading.rows[-1].name == "val_set/images/7.jpg"
    assert reading.rows[-1].image == tmp_path / "val_set" / "images" / "7.jpg"
    assert "val_set" in reading.notes[0]
    assert "Held out from train" in reading.notes[1]


def test_affectnet_seven_classes_leave_contempt_out(tmp_path: Path) -> None:
    draw_affectnet(tmp_path / "val_set", ["7", "0", "7"])
    reading = affectnet.read(tmp_path, classes=7)
    assert len(reading.labels) == 7
    assert [row.label for row in reading.rows] == ["neutral"]
    ((reason, count),) = reading.dropped.items()
    assert count == 2
    assert "contempt" in reason
    assert "No train split" in reading.notes[0]


def test_affectnet_images_and_annotations_without_the_other_are_counted(tmp_path: Path) -> None:
    draw_affectnet(tmp_path / "val_set", ["0", "1", "2", "3"])
    (tmp_path / "val_set" / "images" / "0.jpg").unlink()
    (tmp_path / "val_set" / "annotations" / "1_exp.npy").unlink()
    (tmp_path / "val_set" / "images" / "2.jpg").rename(tmp_path / "val_set" / "images" / "2.PNG")
    (tmp_path / "val_set" / "images" / "._3.jpg").touch()
    reading = affectnet.read(tmp_path)
    assert [row.name for row in reading.rows] == ["val_set/images/2.PNG", "val_set/images/3.jpg"]
    assert reading.dropped == {"image missing": 1, "annotation missing": 1}


def claimed_array(numbers: int) -> bytes:
    """An array of which only the header is there."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (numbers,)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize(
    "label",
    [
        *("8", "happy", [1, 2], np.nan, b"not an array", b"\x93NUMPY\x01\x00"),
        claimed_array(10**12),
    ],
)
def test_affectnet_wrong_annotation(tmp_path: Path, label: object) -> None:
    draw_affectnet(tmp_path / "val_set", ["0", "0"])
    path = tmp_path / "val_set" / "annotations" / "1_exp.npy"
    if isinstance(label, bytes):
        path.write_bytes(label)
    else:
        np.save(path, np.asarray(label))
    with pytest.raises(
        FerVitError,
        match=r"1_exp\.npy: .* 0 to 7",
    ):
        affectnet.read(tmp_path)


# FairFace


OFFICIAL = "file,age,gender,race,service_test"


def draw_fairface(base: Path, tables: dict[str, list[str]], *images: str) -> Path:
    """Writes tables and touches images."""
    touch(base, *images)
    for name, lines in tables.items():
        (base / name).write_text("\n".join(lines) + "\n")
    return base


def test_fairface_one_table(tmp_path: Path) -> None:
    lines = [
        "path,age,gender,race",
        "train/1.jpg,50-59,male,East Asian",
        "train/3.jpg,3-9,female,Black",
    ]
    draw_fairface(
        tmp_path / "fairface",
        {"labels.csv": [*lines, "train/2.jpg,0-2,male,White"]},
        "train/1.jpg",
        "train/3.jpg",
    )
    reading = fairface.read(tmp_path)
    assert reading.labels == EXPRESSIONS
    assert reading.extra == ("age", "gender", "race")
    assert [(row.name, row.split, row.label, row.votes) for row in reading.rows] == [
        ("train/1.jpg", "train", None, None),
        ("train/3.jpg", "train", None, None),
    ]
    assert reading.rows[1].image == tmp_path / "fairface" / "train" / "3.jpg"
    assert reading.rows[1].extra == {"age": "3-9", "gender": "female", "race": "Black"}
    assert reading.dropped == {"image missing": 1}


def test_fairface_the_official_tables(tmp_path: Path) -> None:
    tables = {
        "fairface_label_train.csv": [OFFICIAL, "train/1.jpg,more than 70,Male,White,True"],
        "fairface_label_val.csv": [OFFICIAL, "val/1.jpg,20-29,Female,Indian,False"],
    }
    reading = fairface.read(draw_fairface(tmp_path, tables, "train/1.jpg", "val/1.jpg"))
    assert [(row.name, row.split) for row in reading.rows] == [
        ("train/1.jpg", "train"),
        ("val/1.jpg", "val"),
    ]
    assert reading.rows[0].extra == {"age": "more than 70", "gender": "Male", "race": "White"}


def test_fairface_no_image_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    draw_fairface(
        tmp_path, {"labels.csv": ["path,age,gender,race", "../x.jpg,0-2,male,White"]}, "../x.jpg"
    )
    with pytest.raises(FerVitError, match="train"):
        fairface.read(tmp_path)


# FER2013


FER2013_LABELS = ("anger", "disgust", "fear", "happiness", "sadness", "surprise", "neutral")
FACES = np.random.default_rng(0).integers(0, 256, (3, 48, 48))


def pixels(face: np.ndarray) -> str:
    """A face as the table writes it."""
    return " ".join(str(value) for value in face.ravel())


def table(*lines: str) -> str:
    """A table in the challenge's form."""
    return "\n".join(("emotion,pixels,Usage", *lines)) + "\n"


GOOD = f"3,{pixels(FACES[0])},Training"


def test_fer2013_table(tmp_path: Path) -> None:
    lines = (GOOD, f"0,{pixels(FACES[1])},PublicTest", f"6,{pixels(FACES[2])},PrivateTest")
    path = tmp_path / "fer2013.csv"
    path.write_text(table(*lines))
    reading = fer2013.read(tmp_path)
    assert reading.labels == FER2013_LABELS
    assert [(row.name, row.split, row.label) for row in reading.rows] == [
        ("fer2013.csv:2", "train", "happiness"),
        ("fer2013.csv:3", "val", "anger"),
        ("fer2013.csv:4", "test", "neutral"),
    ]
    for row, face in zip(reading.rows, FACES, strict=True):
        assert isinstance(row.image, bytes)
        assert (decode_image(row.image) == face[..., None]).all()
    assert not reading.notes
    assert fer2013.read(path).rows == reading.rows, "a root may be the table"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("3,", "7,", 1), "line 3: .*0 to 6.*`7`"),
        (
            GOOD.replace("Training", "Train"),
            "line 3: .*Training, .*`Train`",
        ),
        (
            f"3,{pixels(FACES[0][1:])},Training",
            "line 3: .*2304.*2256",
        ),
        (f"3,{pixels(FACES[0] + 1000)},Training", "line 3: .*2304.*0 to 255"),
        (f"3,{pixels(FACES[0])} x,Training", "line 3: .*2304.*0 to 255"),
    ],
)
def test_fer2013_malformed_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "fer2013.csv").write_text(table(GOOD, line))
    with pytest.raises(FerVitError, match=message) as error:
        fer2013.read(tmp_path)
    assert len(str(error.value)) < 500, "the message shows few of the pixels"


def test_fer2013_folders(tmp_path: Path) -> None:
    for name in ("angry", "happy", "neutral"):
        touch(tmp_path, *(f"train/{name}/{i}.jpg" for i in range(10)), f"test/{name}/0.jpg")
    reading = fer2013.read(tmp_path)
    assert reading.labels == FER2013_LABELS, "all seven in FER2013's order, always"
    assert Counter(row.split for row in reading.rows) == {"train": 27, "val": 3, "test": 3}
    assert {row.label for row in reading.rows} == {"anger", "happiness", "neutral"}
    assert any("Held out from train" in note for note in reading.notes)


# Class folders


def test_folder_splits_and_labels(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "Train/Happy/2.jpg",
        "Train/Happy/1.JPEG",
        "Train/zen/1.png",
        "Train/awe/1.png",
        "Train/sad/1.webp",
        "Train/sad/notes.txt",
        "Train/sad/.hidden.png",
        "Train/sad/.cache/1.png",
        "Train/.git/1.png",
        "valid/neutrality/1.png",
        "test/neutral/1.png",
    )
    reading = folder.read(tmp_path)
    assert reading.labels == ("neutral", "happiness", "sadness", "awe", "zen")
    assert [(row.name, row.split, row.label) for row in reading.rows] == [
        ("Train/Happy/1.JPEG", "train", "happiness"),
        ("Train/Happy/2.jpg", "train", "happiness"),
        ("Train/awe/1.png", "train", "awe"),
        ("Train/sad/1.webp", "train", "sadness"),
        ("Train/zen/1.png", "train", "zen"),
        ("test/neutral/1.png", "test", "neutral"),
        ("valid/neutrality/1.png", "val", "neutral"),
    ]
    assert reading.rows[1].image == tmp_path / "Train" / "Happy" / "2.jpg"
    files, hidden = reading.notes
    assert "1 .txt" in files
    assert "3 system or hidden" in hidden


def test_folder_one_class_in_a_split(tmp_path: Path) -> None:
    touch(tmp_path, "test/calm/1.jpg")
    assert [row.split for row in folder.read(tmp_path).rows] == ["test"]


def test_folder_persons_are_held_out_with_all_images(tmp_path: Path) -> None:
    people = [f"person {number}" for number in range(20)]
    touch(
        tmp_path,
        *(
            f"{name}/{person}/{i}.jpg"
            for name in ("happy", "sad")
            for person in people
            for i in range(3)
        ),
    )
    touch(tmp_path, *(f"happy/{i}.jpg" for i in range(10)))
    reading = folder.read(tmp_path, person="/([^/]+)/")
    assert reading.extra == ("person",)
    splits = {
        person: {row.split for row in reading.rows if row.extra.get("person") == person}
        for person in people
    }
    assert Counter(split for of_person in splits.values() for split in of_person) == {
        "train": 16,
        "val": 2,
        "test": 2,
    }
    assert Counter(row.split for row in reading.rows if not row.extra) == {
        "train": 8,
        "val": 1,
        "test": 1,
    }
    assert any("tenth of the persons" in note for note in reading.notes)


def test_folder_a_person_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    people = ("Anna", "jos\xe9", "ben"), ("anna", "Jose\u0301", "Ben ")
    touch(
        tmp_path,
        *(
            f"{name}/{who}/1.jpg"
            for name, names in zip(("awe", "sad"), people, strict=True)
            for who in names
        ),
    )
    rows = folder.read(tmp_path, person="/([^/]+)/").rows
    assert sorted(row.extra["person"] for row in rows) == sorted(["Anna", "ben", "jos\xe9"] * 2)


# RAF-DB


def draw_rafdb(base: Path, *lines: str) -> None:
    """Writes the table and touches the aligned image of every line that reads `name.jpg label`."""
    touch(base / "Image" / "aligned", *(f"{line.split('.')[0]}_aligned.jpg" for line in lines))
    (base / "EmoLabel").mkdir()
    (base / "EmoLabel" / "list_patition_label.txt").write_text("\n".join(lines) + "\n")


SEVEN = [f"test_{i:04d}.jpg {i}" for i in range(1, 8)]
FEATURES = ("female", "Asian", "70+"), ("unclear", "Caucasian", "0-3")


def test_rafdb_labels_and_splits(tmp_path: Path) -> None:
    draw_rafdb(tmp_path, *(f"train_{i:05d}.jpg 4" for i in range(1, 21)), *SEVEN)
    reading = rafdb.read(tmp_path)
    assert reading.labels == (
        "surprise",
        "fear",
        "disgust",
        "happiness",
        "sadness",
        "anger",
        "neutral",
    )
    assert tuple(row.label for row in reading.rows if row.split == "test") == reading.labels
    assert Counter(row.split for row in reading.rows) == {"train": 18, "val": 2, "test": 7}
    assert reading.rows[0].name == "Image/aligned/train_00001_aligned.jpg"
    assert reading.rows[0].image == tmp_path / "Image" / "aligned" / "train_00001_aligned.jpg"
    assert "RAF-DB" in reading.notes[0]
    assert "Held out from train" in reading.notes[1]


def test_rafdb_gender_race_and_age_of_the_annotations(tmp_path: Path) -> None:
    draw_rafdb(tmp_path, *SEVEN)
    reading = rafdb.read(tmp_path)
    assert reading.extra == ()
    assert [row.extra for row in reading.rows] == [{}] * 7
    manual = tmp_path / "Annotation" / "manual"
    manual.mkdir(parents=True)
    points = "10.5\t20.25\n" * 5
    (manual / "test_0001_manu_attri.txt").write_text(f"{points}1\n2\n4\n")
    (manual / "test_0007_manu_attri.txt").write_text(f"{points}2\n0\n0")
    reading = rafdb.read(tmp_path)
    assert reading.extra == ("gender", "race", "age")
    first, last = (dict(zip(reading.extra, values, strict=True)) for values in FEATURES)
    assert [row.extra for row in reading.rows] == [first, *[{}] * 5, last]
    for text, place in (
        (f"{points}1\n3\n4\n", "line 7: .* race, 0 to 2.*`3`"),
        (f"{points}\n1\n2\n5\n", "line 9: .* age, 0 to 4.*`5`"),  # after an empty line
        (points, "line 3: .* gender"),
        ("1\n2\n", "line 3: .* gender"),
    ):
        (manual / "test_0007_manu_attri.txt").write_text(text)
        with pytest.raises(FerVitError, match=rf"test_0007_manu_attri\.txt, {place}"):
            rafdb.read(tmp_path)


def test_rafdb_missing_image_is_counted(tmp_path: Path) -> None:
    draw_rafdb(tmp_path, *SEVEN, "")
    (tmp_path / "Image" / "aligned" / "test_0003_aligned.jpg").unlink()
    reading = rafdb.read(tmp_path)
    assert len(reading.rows) == 6
    assert reading.dropped == {"image missing": 1}
    assert not any("held out" in note for note in reading.notes), (
        "there is no train to hold out from"
    )


@pytest.mark.parametrize(
    "line", ["train_00001.jpg 8", "train_00001.jpg", "train_00001.jpg happy", "val_1.jpg 3"]
)
def test_rafdb_malformed_line(tmp_path: Path, line: str) -> None:
    draw_rafdb(tmp_path, SEVEN[0], line)
    with pytest.raises(FerVitError, match=rf"label\.txt, line 2: .*(1 to 7|2 columns).* `{line}`"):
        rafdb.read(tmp_path)
