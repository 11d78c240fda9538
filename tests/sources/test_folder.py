"""Class folders with splits and without, drawn."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.sources import folder


def draw(root: Path, *names: str) -> None:
    """Touches files."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_splits_and_labels(tmp_path: Path) -> None:
    draw(
        tmp_path,
        "Train/Happy/2.jpg",
        "Train/Happy/deep/er/1.JPEG",
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
    found = folder.read(tmp_path)
    assert found.names == ("neutral", "happiness", "sadness", "awe", "zen")
    assert [(row.name, row.split, row.label) for row in found.rows] == [
        ("Train/Happy/2.jpg", "train", "happiness"),
        ("Train/Happy/deep/er/1.JPEG", "train", "happiness"),
        ("Train/awe/1.png", "train", "awe"),
        ("Train/sad/1.webp", "train", "sadness"),
        ("Train/zen/1.png", "train", "zen"),
        ("test/neutral/1.png", "test", "neutral"),
        ("valid/neutrality/1.png", "val", "neutral"),
    ]
    assert found.rows[0].image == tmp_path / "Train" / "Happy" / "2.jpg"
    assert found.dropped == {"not an image by its suffix": 1}
    assert not found.notes


@pytest.mark.parametrize("name", ["val", "valid", "validation", "VALIDATION"])
def test_names_of_val(tmp_path: Path, name: str) -> None:
    draw(tmp_path, f"{name}/happy/1.jpg")
    assert [row.split for row in folder.read(tmp_path).rows] == ["val"]


def test_missing_splits_are_noted(tmp_path: Path) -> None:
    draw(tmp_path, *(f"train/happy/{i}.jpg" for i in range(20)), "holiday/beach/1.jpg")
    found = folder.read(tmp_path)
    assert Counter(row.split for row in found.rows) == {"train": 18, "val": 2}
    assert [note.partition(" in ")[0] for note in found.notes[1:3]] == ["No val split", "No test split"]
    assert "holiday is not a split and was not read" in found.notes[0]
    assert "held out as val" in found.notes[3]


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    draw(tmp_path, *(f"{name}/anna/{i}.jpg" for name in ("calm", "test") for i in range(20)), "readme.jpg")
    found = folder.read(tmp_path)
    for label in ("calm", "test"):
        assert Counter(row.split for row in found.rows if row.label == label) == {"train": 16, "val": 2, "test": 2}
    assert "held out as val, another as test" in found.notes[1]
    assert found.names == ("calm", "test")
    draw(tmp_path / "alone", "test/calm/1.jpg")
    assert [row.split for row in folder.read(tmp_path / "alone").rows] == ["test"]


def test_persons_are_held_out_with_all_images(tmp_path: Path) -> None:
    people = [f"person {number}" for number in range(20)]
    draw(tmp_path, *(f"{name}/{person}/{i}.jpg" for name in ("happy", "sad") for person in people for i in range(3)))
    draw(tmp_path, *(f"happy/{i}.jpg" for i in range(10)))
    found = folder.read(tmp_path)
    assert found.extra == ("person",)
    splits = {person: {row.split for row in found.rows if row.extra.get("person") == person} for person in people}
    assert Counter(split for one in splits.values() for split in one) == {"train": 16, "val": 2, "test": 2}
    assert Counter(row.split for row in found.rows if not row.extra) == {"train": 8, "val": 1, "test": 1}
    assert "A fixed tenth of the persons of train is held out" in found.notes[1]
    # Given splits stay, and two folders are no persons.
    draw(tmp_path / "b", "train/happy/anna/1.jpg", "test/happy/anna/2.jpg", "train/happy/ben/1.jpg")
    again = folder.read(tmp_path / "b")
    assert (again.extra, [row.extra for row in again.rows]) == ((), [{}] * 3)
    draw(tmp_path / "b", *(f"train/happy/{name}/3.jpg" for name in "cdefg"))
    again = folder.read(tmp_path / "b")
    assert again.extra == ("person",)
    assert [row.split for row in again.rows if row.name.startswith("test")] == ["test"]


def test_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=r"Expected images in class folders.* but got an empty folder"):
        folder.read(tmp_path)
    with pytest.raises(FerVitError, match="but got no such folder"):
        folder.read(tmp_path / "none")
    draw(tmp_path, "1.jpg", "happy/notes.txt")
    with pytest.raises(FerVitError, match=r"but got 1\.jpg, happy"):
        folder.read(tmp_path)


def test_a_folder_above_the_data_set_is_no_class(tmp_path: Path) -> None:
    draw(tmp_path, "faces/train/happy/1.png", "faces/train/sad/2.png")
    with pytest.raises(FerVitError, match=r"two classes or more .* but got only \{'faces'\}"):
        folder.read(tmp_path)


def test_linked_folders_of_persons(tmp_path: Path) -> None:
    draw(tmp_path, *(f"disk/{name}/{i}.jpg" for name in ("anna", "ben", "cleo", "dana") for i in range(2)))
    draw(tmp_path, "set/calm/own.jpg", "set/sad/own.jpg")
    for label, name in (("calm", "anna"), ("calm", "ben"), ("sad", "cleo"), ("sad", "dana")):
        (tmp_path / "set" / label / name).symlink_to(tmp_path / "disk" / name)
    (tmp_path / "set" / "calm" / "loop").symlink_to(tmp_path / "set")
    rows = folder.read(tmp_path / "set").rows
    assert len(rows) == 10
    assert {row.name for row in rows if row.extra.get("person") == "anna"} == {"calm/anna/0.jpg", "calm/anna/1.jpg"}


def test_a_person_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    people = ("Anna", "jos\xe9", "ben"), ("anna", "Jose\u0301", "Ben ")
    draw(tmp_path, *(f"{name}/{who}/1.jpg" for name, some in zip(("calm", "sad"), people, strict=True) for who in some))
    rows = folder.read(tmp_path).rows
    assert sorted(row.extra["person"] for row in rows) == sorted(["Anna", "ben", "jos\xe9"] * 2)


def test_a_class_folder_without_images_is_noted(tmp_path: Path) -> None:
    draw(tmp_path, "calm/1.jpg", "sad/1.jpg", "clips/1.mp4")
    found = folder.read(tmp_path)
    assert found.names == ("sadness", "calm")
    assert f"{tmp_path / 'clips'} has no image, and was not read." in found.notes
