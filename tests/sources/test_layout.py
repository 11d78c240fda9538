"""What folders mean: splits in either place, persons, and what is an error instead of a guess."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.data.schema import Reading
from fer_vit.errors import FerVitError
from fer_vit.sources import folder
from fer_vit.sources.layout import split_names


def build(root: Path, *patterns: str, count: int = 10) -> Reading:
    """Reads a folder with photos in each of some folders."""
    for pattern in patterns:
        (root / pattern).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / pattern / f"{number}.jpg").touch()
    return folder.read(root)


def sizes(reading: Reading) -> dict[tuple[str, str | None], int]:
    return dict(Counter((row.split, row.label) for row in reading.rows))


SPELLINGS = {
    "train": "train Train TRAINING train_set trainset training-set Train_Set tr trn train_data "
    "training_images train2017 01_train learning TrainSplit images_train train.crops",
    "val": "val valid VALID validation validation_set val-set dev Dev_Set vld tuning validset",
    "test": "test testing Test_Set testset tst te holdout hold-out held_out unseen test1 TestData",
}


@pytest.mark.parametrize("split", SPELLINGS)
def test_usual_names_of_splits(split: str) -> None:
    for name in SPELLINGS[split].split():
        assert split_names([name]) == {name: split}
    spaced = f"{split} set"
    assert split_names([spaced]) == {spaced: split}


def test_names_of_classes_and_persons_mean_no_split() -> None:
    names = (
        "happy sad contest trained testy valentina devon trainer untrained images 1 fold7 attest"
    )
    assert split_names(names.split()) == {}


def test_an_evaluation_folder_is_val_only_beside_a_test_folder() -> None:
    assert split_names(["train", "eval"]) == {"train": "train", "eval": "test"}
    assert split_names(["train", "eval", "test"])["eval"] == "val"
    assert split_names(["train", "val", "evaluation", "test"])["evaluation"] == "test"
    usages = {"Training": "train", "PublicTest": "val", "PrivateTest": "test"}  # of FER2013
    assert split_names(usages) == usages
    assert split_names(["train", "public_test"])["public_test"] == "test"


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("train_set", "valid_set", "test_set"),
        ("Training", "Validation", "Testing"),
        ("tr", "dev", "te"),
        ("train", "eval", "test"),
        ("trainset", "val", "holdout"),
    ],
)
@pytest.mark.parametrize("split_first", [True, False])
def test_splits_above_and_below_the_classes(
    train: str, val: str, test: str, split_first: bool, tmp_path: Path
) -> None:
    for label in ("calm", "bored", "happy"):
        for name in (train, val, test):
            pattern = f"{name}/{label}" if split_first else f"{label}/{name}"
            reading = build(tmp_path, f"{pattern}/p1", f"{pattern}/p2", f"{pattern}/p3", count=2)
    assert reading.labels == ("happiness", "bored", "calm")
    expected = {(split, label): 6 for split in ("train", "val", "test") for label in reading.labels}
    assert sizes(reading) == expected
    assert {row.extra["person"] for row in reading.rows} == {"p1", "p2", "p3"}


def test_train_and_test_below_the_classes_give_val(tmp_path: Path) -> None:
    reading = build(tmp_path, "calm/train", "calm/test", "bored/train", "bored/test")
    assert sizes(reading) == {
        ("train", "calm"): 9,
        ("val", "calm"): 1,
        ("test", "calm"): 10,
        ("train", "bored"): 9,
        ("val", "bored"): 1,
        ("test", "bored"): 10,
    }


@pytest.mark.parametrize(
    "patterns",
    [
        ("calm/anna", "calm/ben", "calm/test", "bored/anna"),  # a person named like a split
        ("train/calm/test", "train/bored/anna"),
        ("calm/anna/train", "calm/anna/test", "bored/anna/train"),
        ("calm/train", "calm/test", "bored"),  # splits in one class alone
        ("train", "test"),  # no class
        ("train", "rest"),
        ("calm", "bored", "test/calm", "test/bored"),  # a test folder beside classes
        ("happy_train", "sad_train", "happy_test", "sad_test"),
        ("train_happy", "train_sad", "test_happy", "test_sad"),
        ("happy/happy_train", "happy/happy_test", "sad/sad_train", "sad/sad_test"),
        ("calm/calmTrain", "calm/calmTesting", "bored/boredTrain"),
        ("fold_0/calm", "fold_0/bored", "fold_1/calm", "fold_1/bored"),
        ("Fold1/calm", "Fold2/bored"),
        ("part-a/calm", "part-b/calm"),
        ("split1/happy", "split1/sad", "split2/happy", "split2/sad"),
        ("anna/happy", "anna/sad", "ben/happy", "ben/sad"),  # persons above classes
        ("anna/Happy", "anna/angry", "ben/surprised", "ben/fear"),
        ("site A/calm", "site A/bored", "site B/calm", "site B/bored"),
        tuple(f"{who}/{label}" for who in "abcdefgh" for label in ("calm", "bored", "tired")),
        ("data/calm", "data/bored"),  # one folder around all
    ],
)
def test_what_could_mean_something_else_is_one_line(
    patterns: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(FerVitError) as error:
        build(tmp_path, *patterns)
    assert len(str(error.value)) < 500
    assert str(error.value).startswith("Expected ")


@pytest.mark.parametrize(
    "patterns",
    [
        tuple(f"{label}/{who}" for label in ("happy", "sad") for who in ("anna", "ben", "eve")),
        tuple(f"{label}/{who}" for label in ("calm", "happy") for who in ("anna", "ben")),
        tuple(f"{label}/{who}" for label in ("calm", "bored") for who in ("anna", "ben", "eve")),
        tuple(f"{label}/s{who}" for label in ("calm", "bored") for who in range(2)),
        tuple(f"{label}/{who}" for label in ("calm", "bored") for who in ("dev", "anna", "val")),
        ("calm/images", "bored/images"),
        ("calm/camera/raw", "bored/camera/raw"),
        ("level_1", "level_2"),
        ("test anxiety", "calm"),
    ],
)
def test_classes_with_and_without_persons_are_read(
    patterns: tuple[str, ...], tmp_path: Path
) -> None:
    reading = build(tmp_path, *patterns)
    assert len(reading.rows) == 10 * len(patterns)
    assert len(reading.labels) == 2


def test_what_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    patterns = (
        "train/calm",
        "train/bored",
        "test",
        "extra/calm",
        "train/calm/@eaDir",
        "train/empty",
    )
    (tmp_path / "train" / "empty").mkdir(parents=True)
    reading = build(tmp_path, *patterns[:-1])
    (tmp_path / "train" / "7.jpg").touch()
    (tmp_path / "8.jpg").touch()
    (tmp_path / "train" / "calm" / "9.xcf").touch()
    reading = folder.read(tmp_path)
    assert len(reading.rows) == 20
    notes = "\n".join(reading.notes)
    for words in (
        "extra is not a split",
        "10 photos directly in test",
        "1 photo directly in train",
        f"1 photo beside the folders of {tmp_path}",
        f"{tmp_path / 'train' / 'empty'} has no image",
        "not read: 1 file (1 .xcf)",
        "not read: 1 system or hidden entry (1 @eaDir)",
        f"No test split in {tmp_path}",
    ):
        assert words in notes


def test_guesses_are_noted(tmp_path: Path) -> None:
    notes = build(tmp_path / "a", "trainset/calm", "trainset/bored", "holdout/calm").notes
    assert any("holdout as test, trainset as train" in note for note in notes)
    notes = build(tmp_path / "b", "calm", "bored", "test").notes
    assert any("test" in note and "class" in note for note in notes)
    notes = build(tmp_path / "c", "Happy", "happy", "sad").notes
    assert any("happiness: Happy, happy" in note for note in notes)
    persons = [f"{label}/{who}" for label in ("happy", "sad") for who in ("anna", "ben", "eve")]
    notes = build(tmp_path / "d", *persons).notes
    assert any("3 persons (anna, ben, eve)" in note for note in notes)


def test_a_link_to_the_top_is_no_class(tmp_path: Path) -> None:
    build(tmp_path, "calm", "bored")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "calm")
    reading = folder.read(tmp_path)
    assert len(reading.rows) == 20
    assert reading.labels == ("bored", "calm")
