"""AffectNet, drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.sources import affectnet


def draw(folder: Path, labels: list[object]) -> None:
    """Touches images 0, 1, ... and writes their annotations."""
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    for i, label in enumerate(labels):
        (folder / "images" / f"{i}.jpg").touch()
        np.save(folder / "annotations" / f"{i}_exp.npy", np.asarray(label))
        np.save(folder / "annotations" / f"{i}_val.npy", np.asarray("0.5"))


def test_labels_as_strings_and_numbers(tmp_path: Path) -> None:
    draw(tmp_path / "train_set", ["3"] * 20)
    draw(tmp_path / "val_set", ["0", 1, "2", 3, np.int8(4), [5], 6.0, b"7"])
    found = affectnet.read(tmp_path)
    assert found.names == ("neutral", "happiness", "sadness", "surprise", "fear", "disgust", "anger", "contempt")
    assert tuple(row.label for row in found.rows if row.split == "test") == found.names
    assert Counter(row.split for row in found.rows) == {"train": 18, "val": 2, "test": 8}
    assert {row.label for row in found.rows if row.split != "test"} == {"surprise"}
    assert found.rows[-1].name == "val_set/images/7.jpg"
    assert found.rows[-1].image == tmp_path / "val_set" / "images" / "7.jpg"
    assert found.notes[0] == "AffectNet's val_set is the test split here."
    assert "held out as val" in found.notes[1]


def test_seven_classes_leave_contempt_out(tmp_path: Path) -> None:
    draw(tmp_path / "val_set", ["7", "0", "7"])
    found = affectnet.read(tmp_path, 7)
    assert len(found.names) == 7
    assert [row.label for row in found.rows] == ["neutral"]
    assert found.dropped == {"contempt, not among the 7 classes": 2}
    assert "No train split" in found.notes[0]


def test_images_and_annotations_without_the_other_are_counted(tmp_path: Path) -> None:
    draw(tmp_path / "val_set", ["0", "1", "2", "3"])
    (tmp_path / "val_set" / "images" / "0.jpg").unlink()
    (tmp_path / "val_set" / "annotations" / "1_exp.npy").unlink()
    (tmp_path / "val_set" / "images" / "2.jpg").rename(tmp_path / "val_set" / "images" / "2.PNG")
    (tmp_path / "val_set" / "images" / "._3.jpg").touch()
    found = affectnet.read(tmp_path)
    assert [row.name for row in found.rows] == ["val_set/images/2.PNG", "val_set/images/3.jpg"]
    assert found.dropped == {"image missing": 1, "annotation missing": 1}


@pytest.mark.parametrize("label", ["8", "happy", [1, 2], np.nan, b"not an array", b"\x93NUMPY\x01\x00"])
def test_wrong_annotation(tmp_path: Path, label: object) -> None:
    draw(tmp_path / "val_set", ["0", "0"])
    path = tmp_path / "val_set" / "annotations" / "1_exp.npy"
    path.write_bytes(label) if isinstance(label, bytes) else np.save(path, np.asarray(label))
    with pytest.raises(FerVitError, match=r"1_exp\.npy: expected an array that holds one number from 0 to 7, but got"):
        affectnet.read(tmp_path)
