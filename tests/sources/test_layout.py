"""What folders mean: splits in either place, persons, and what is an error instead of a guess."""

import zlib
from collections import Counter
from pathlib import Path

import pytest

from fer_vit.data.schema import Reading
from fer_vit.errors import FerVitError
from fer_vit.sources import folder


def touch(root: Path, *patterns: str, count: int = 10) -> Path:
    """Touches photos in each of some folders."""
    for pattern in patterns:
        (root / pattern).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / pattern / f"{number}.jpg").touch()
    return root


def sizes(reading: Reading) -> dict[tuple[str, str | None], int]:
    return dict(Counter((row.split, row.label) for row in reading.rows))


# Splits and classes


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("Training", "Validation", "Testing"), ("TRAIN", "dev", "test")],
)
@pytest.mark.parametrize("split_first", [True, False])
def test_splits_above_and_below_the_classes(
    train: str, val: str, test: str, split_first: bool, tmp_path: Path
) -> None:
    for label in ("calm", "bored", "happy"):
        for name in (train, val, test):
            touch(tmp_path, f"{name}/{label}" if split_first else f"{label}/{name}", count=2)
    reading = folder.read(tmp_path)
    assert reading.labels == ("happiness", "bored", "calm")
    expected = {(split, label): 2 for split in ("train", "val", "test") for label in reading.labels}
    assert sizes(reading) == expected
    assert reading.notes == []


def test_train_and_test_below_the_classes_give_val(tmp_path: Path) -> None:
    touch(tmp_path, "calm/train", "calm/test", "bored/train", "bored/test")
    assert sizes(folder.read(tmp_path)) == {
        ("train", "calm"): 9,
        ("val", "calm"): 1,
        ("test", "calm"): 10,
        ("train", "bored"): 9,
        ("val", "bored"): 1,
        ("test", "bored"): 10,
    }


def test_small_classes_give_one_image_but_never_their_last(tmp_path: Path) -> None:
    for count, label in enumerate(("fear", "anger", "sadness", "disgust"), 1):
        touch(tmp_path, label, count=count)
    assert sizes(folder.read(tmp_path)) == {
        ("train", "fear"): 1,
        ("train", "anger"): 2,
        **{(split, "sadness"): 1 for split in ("train", "val", "test")},
        ("train", "disgust"): 2,
        ("val", "disgust"): 1,
        ("test", "disgust"): 1,
    }


def test_the_images_that_are_held_out_are_fixed_by_their_names(tmp_path: Path) -> None:
    """Others would mix training images into the validation of earlier models."""
    touch(tmp_path, "train/fear", count=50)
    touch(tmp_path, "train/calm", "test/calm")
    val = [row.name for row in folder.read(tmp_path).rows if row.split == "val"]
    names = [f"train/fear/{number}.jpg" for number in range(50)]
    names.sort(key=lambda name: zlib.crc32(name.encode()))
    assert [name for name in val if "fear" in name] == sorted(names[:5])


@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        (
            ("calm/anna", "bored/anna"),
            r"20 photos lie deeper, such as bored/anna/0.jpg. If anna .*person='/\(\[",
        ),
        (("calm/anna", "bored"), "10 photos lie deeper"),
        (("calm/images/raw", "bored/images/raw"), "lie deeper"),
        (("train/calm/anna", "train/bored/anna"), "lie deeper"),
        (("calm/train/anna", "bored/train/anna"), "lie deeper"),
        (("anna/happy", "anna/sad", "ben/happy", "ben/sad"), "lie deeper"),
        (("fold_0/calm", "fold_0/bored", "fold_1/calm"), "lie deeper"),
        (("train_set/calm", "train_set/bored", "holdout/calm"), "a split is train, val or test"),
        (("calm/anna", "calm/test", "bored/anna"), "only split folders beside test .*anna"),
        (("calm/anna/train", "bored/anna/train"), "lie deeper"),
        (("calm", "bored", "test"), "beside test .*bored, calm"),
        (("calm", "bored", "test/calm", "test/bored"), "beside test"),
        (("train", "rest"), "beside train .*rest"),
        (("train/calm", "extra/calm"), "beside train .*extra"),
        (("calm/train", "calm/test", "bored"), "10 photos such as bored/0.jpg .*no split"),
        (("train", "test"), "20 photos such as test/0.jpg .*no class"),
        (("happy_train", "sad_train", "happy_test"), "happy_train, sad_train"),
        (("Train-Happy", "Test-Happy"), "Train-Happy"),
        (("data/calm", "data/bored"), "two classes or more .*only data"),
        (("calm",), "two classes or more .*only calm"),
    ],
)
def test_other_folders_are_one_line(patterns: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=named) as error:
        folder.read(touch(tmp_path, *patterns))
    assert str(error.value).startswith("Expected ")
    assert "\n" not in str(error.value)


def test_names_that_only_contain_a_word_for_a_split_are_classes(tmp_path: Path) -> None:
    reading = folder.read(touch(tmp_path, "trained", "test anxiety", "level_1"))
    assert reading.labels == ("level_1", "test anxiety", "trained")


def test_what_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/calm", "train/bored", "train/calm/@eaDir")
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "train" / "7.jpg").touch()
    (tmp_path / "8.jpg").touch()
    (tmp_path / "train" / "calm" / "9.xcf").touch()
    reading = folder.read(tmp_path)
    assert len(reading.rows) == 20
    assert reading.dropped == {"no class folder, for example 8.jpg": 2}
    notes = "\n".join(reading.notes)
    for words in (
        "1 folder (train/empty)",
        "not read: 1 file (1 .xcf)",
        "not read: 1 system or hidden entry (1 @eaDir)",
        f"No test split in {tmp_path}",
    ):
        assert words in notes


def test_spellings_of_a_class_are_noted(tmp_path: Path) -> None:
    notes = folder.read(touch(tmp_path, "Happy", "happy", "sad")).notes
    assert any("happiness: Happy, happy" in note for note in notes)


def test_a_link_to_the_top_is_no_class(tmp_path: Path) -> None:
    touch(tmp_path, "calm", "bored")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "calm")
    reading = folder.read(tmp_path)
    assert len(reading.rows) == 20
    assert reading.labels == ("bored", "calm")


# Persons by a regular expression


@pytest.mark.parametrize(
    ("pattern", "person"),
    [
        ("calm/{}", "/([^/]+)/"),
        ("train/calm/{}", "/[^/]+/([^/]+)/"),
        ("calm/train/{}", "[^/]+(?=/[^/]+$)"),
        ("{}/calm", "([^/]+)/"),
        ("train/{}/calm", "/([^/]+)/"),
        ("calm/{}/session 1", "/(.+)/"),
    ],
)
def test_a_folder_of_a_person_is_no_class(pattern: str, person: str, tmp_path: Path) -> None:
    people = ["anna", "Dev", "Val", "tom"]
    for name in people:
        for label in ("calm", "bored"):
            touch(tmp_path, pattern.format(name).replace("calm", label), count=3)
    reading = folder.read(tmp_path, person=person)
    assert reading.labels == ("bored", "calm")
    assert len(reading.rows) == 24
    assert reading.extra == ("person",)
    for name in people:
        rows = [row for row in reading.rows if row.extra["person"].startswith(name)]
        assert len(rows) == 6
        assert len({row.split for row in rows}) == 1
    assert reading.warnings == []


@pytest.mark.parametrize(
    ("person", "named"),
    [
        ("(", r"regular expression, but got `\(`"),
        (r"S\d+", "matches none"),
        ("()", "matches none"),
        ("^[^/]+", "matches (happy|sad)"),
        ("(anna|ben)/", r"3 persons or more .*anna, ben"),
    ],
)
def test_wrong_patterns(person: str, named: str, tmp_path: Path) -> None:
    touch(tmp_path, *(f"{label}/{name}" for label in ("happy", "sad") for name in ("anna", "ben")))
    with pytest.raises(FerVitError, match=named):
        folder.read(tmp_path, person=person)


def test_photos_without_a_person_are_counted_and_named(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{label}/S{number}" for label in ("happy", "sad") for number in range(4)))
    touch(tmp_path, "happy")
    reading = folder.read(tmp_path, person=r"S\d+")
    assert any("does not match 10 photos, for example happy/0.jpg" in n for n in reading.notes)
    assert any("4 persons" in note for note in reading.notes)
    assert any("persons and" in note and "without a person" in note for note in reading.notes)
    assert Counter(row.split for row in reading.rows if not row.extra) == {
        "train": 8,
        "val": 1,
        "test": 1,
    }


def test_persons_in_several_splits_are_a_warning(tmp_path: Path) -> None:
    touch(tmp_path, "train/happy/S1", "train/sad/S2", "val/sad/S1", "test/happy/S3")
    (warning,) = folder.read(tmp_path, person=r"S\d").warnings
    assert "3 persons, and 1 of them" in warning
    assert "(S1)" in warning


# Persons in the names of photos


def named_like(root: Path, labels: str, names: list[str]) -> Path:
    """Touches photos in class folders; `{}` in a name is the number of the class."""
    for number, label in enumerate(labels.split()):
        (root / label).mkdir()
        for name in names:
            (root / label / name.format(number)).touch()
    return root


CK = [f"S{person:03d}_00{{}}_{frame:08d}.png" for person in range(10, 30) for frame in range(3)]
KDEF = [f"{who}{number:02d}A{{}}{angle}.JPG" for who in ("AF", "AM", "BF") for number in range(8)
        for angle in ("FL", "HL", "S", "HR")]  # fmt: skip
JAFFE = [f"{who}.X{{}}{take}.jpg" for who in ("KA", "KL", "MK", "NA", "YM") for take in range(3)]
STUDY = [f"{who}_{{}}_{take}.jpg" for who in ("anna", "jos\xe9", "eve", "tom") for take in range(4)]


@pytest.mark.parametrize(
    ("names", "count"), [(CK, 20), (KDEF, 24), (JAFFE, 5), (STUDY, 4)], ids=["ck", "kdef", "j", "s"]
)
def test_names_that_look_like_persons_are_one_line_with_the_option(
    names: list[str], count: int, tmp_path: Path
) -> None:
    named_like(tmp_path, "happy sad fear", names)
    (warning,) = folder.read(tmp_path).warnings
    assert f"look like {count} persons" in warning
    pattern = warning.split("--person '")[1].split("'")[0]
    reading = folder.read(tmp_path, person=pattern)
    assert len({row.extra["person"] for row in reading.rows}) == count
    splits = {(row.extra["person"], row.split) for row in reading.rows}
    assert len(splits) == count
    assert reading.warnings == []


@pytest.mark.parametrize(
    "names",
    [
        [f"IMG_{number:04d}.jpg" for number in range(40)],  # one counter for each class
        [f"Training_{{}}{number}.jpg" for number in range(40)],
        [f"{{}}/{number}_{take}.jpg".replace("/", "") for number in range(9) for take in range(4)],
        [f"{hash(str(number)) % 16**8:08x}{{}}.jpg" for number in range(40)],
        [f"image{{}}{number:07d}.jpg" for number in range(40)],
        [f"cam{camera}_{number:03d}.jpg" for camera in range(2) for number in range(20)],
        ["1.jpg", "2.jpg", "3.jpg"],
    ],
)
def test_other_names_do_not(names: list[str], tmp_path: Path) -> None:
    assert folder.read(named_like(tmp_path, "happy sad fear", names)).warnings == []


def test_splits_by_person_are_no_warning(tmp_path: Path) -> None:
    for split, people in {"train": range(10), "val": range(10, 14), "test": range(14, 18)}.items():
        for label in ("happy", "sad"):
            for person in people:
                (tmp_path / split / label).mkdir(parents=True, exist_ok=True)
                for take in range(3):
                    (tmp_path / split / label / f"S{person}_{take}.jpg").touch()
    assert folder.read(tmp_path).warnings == []
