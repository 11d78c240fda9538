"""RAF-DB's basic set, drawn."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.sources import rafdb


def draw(base: Path, *lines: str) -> None:
    """Writes the table and touches the aligned image of every line that reads `name.jpg label`."""
    (base / "EmoLabel").mkdir(parents=True)
    (base / "EmoLabel" / "list_patition_label.txt").write_text("\n".join(lines) + "\n")
    images = base / "Image" / "aligned"
    images.mkdir(parents=True)
    for line in lines:
        (images / f"{line.split('.')[0]}_aligned.jpg").touch()


SEVEN = [f"test_{i:04d}.jpg {i}" for i in range(1, 8)]
FEATURES = ("female", "Asian", "70+"), ("unclear", "Caucasian", "0-3")


def test_labels_and_splits(tmp_path: Path) -> None:
    draw(tmp_path, *(f"train_{i:05d}.jpg 4" for i in range(1, 21)), *SEVEN)
    found = rafdb.read(tmp_path)
    assert found.names == ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
    assert tuple(row.label for row in found.rows if row.split == "test") == found.names
    assert Counter(row.split for row in found.rows) == {"train": 18, "val": 2, "test": 7}
    assert found.rows[0].name == "Image/aligned/train_00001_aligned.jpg"
    assert found.rows[0].image == tmp_path / "Image" / "aligned" / "train_00001_aligned.jpg"
    assert found.notes[0] == "RAF-DB has no validation split."
    assert "held out as val" in found.notes[1]


def test_gender_race_and_age_of_the_annotations(tmp_path: Path) -> None:
    draw(tmp_path, *SEVEN)
    found = rafdb.read(tmp_path)
    assert (found.extra, [row.extra for row in found.rows]) == ((), [{}] * 7)
    manual = tmp_path / "Annotation" / "manual"
    manual.mkdir(parents=True)
    points = "10.5\t20.25\n" * 5
    (manual / "test_0001_manu_attri.txt").write_text(f"{points}1\n2\n4\n")
    (manual / "test_0007_manu_attri.txt").write_text(f"{points}2\n0\n0")
    found = rafdb.read(tmp_path)
    assert found.extra == ("gender", "race", "age")
    first, last = (dict(zip(found.extra, values, strict=True)) for values in FEATURES)
    assert [row.extra for row in found.rows] == [first, *[{}] * 5, last]
    for text in (f"{points}1\n3\n4\n", points, "1\n2\n"):
        (manual / "test_0007_manu_attri.txt").write_text(text)
        with pytest.raises(FerVitError, match=r"test_0007_manu_attri\.txt, line 6: expected the numbers of gender"):
            rafdb.read(tmp_path)


def test_missing_image_is_counted(tmp_path: Path) -> None:
    draw(tmp_path, *SEVEN, "")
    (tmp_path / "Image" / "aligned" / "test_0003_aligned.jpg").unlink()
    found = rafdb.read(tmp_path)
    assert len(found.rows) == 6
    assert found.dropped == {"image missing": 1}
    assert not any("held out" in note for note in found.notes), "there is no train to hold out from"


@pytest.mark.parametrize("line", ["train_00001.jpg 8", "train_00001.jpg", "train_00001.jpg happy", "val_1.jpg 3"])
def test_malformed_line(tmp_path: Path, line: str) -> None:
    draw(tmp_path, SEVEN[0], line)
    with pytest.raises(FerVitError, match=rf"label\.txt, line 2: expected (.* 1 to 7|2 columns), but got `{line}`"):
        rafdb.read(tmp_path)
