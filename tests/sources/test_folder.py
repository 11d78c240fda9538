"""Class folders with splits and without, drawn."""

from collections import Counter
from pathlib import Path

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


def test_a_person_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    people = ("Anna", "jos\xe9", "ben"), ("anna", "Jose\u0301", "Ben ")
    draw(tmp_path, *(f"{name}/{who}/1.jpg" for name, some in zip(("calm", "sad"), people, strict=True) for who in some))
    rows = folder.read(tmp_path).rows
    assert sorted(row.extra["person"] for row in rows) == sorted(["Anna", "ben", "jos\xe9"] * 2)
