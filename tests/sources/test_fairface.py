"""FairFace in both layouts, made."""

from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import fairface

OFFICIAL = "file,age,gender,race,service_test"


def draw(base: Path, tables: dict[str, list[str]], *images: str) -> Path:
    """Writes tables and touches images."""
    for name in images:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).touch()
    for name, lines in tables.items():
        (base / name).write_text("\n".join(lines) + "\n")
    return base


def test_one_table(tmp_path: Path) -> None:
    lines = ["path,age,gender,race", "train/1.jpg,50-59,male,East Asian", "train/3.jpg,3-9,female,Black"]
    draw(tmp_path / "fairface", {"labels.csv": [*lines, "train/2.jpg,0-2,male,White"]}, "train/1.jpg", "train/3.jpg")
    found = fairface.read(tmp_path)
    assert found.names == EXPRESSIONS
    assert found.extra == ("age", "gender", "race")
    assert [(row.name, row.split, row.label, row.votes) for row in found.rows] == [
        ("train/1.jpg", "train", None, None),
        ("train/3.jpg", "train", None, None),
    ]
    assert found.rows[1].image == tmp_path / "fairface" / "train" / "3.jpg"
    assert found.rows[1].extra == {"age": "3-9", "gender": "female", "race": "Black"}
    assert found.dropped == {"image missing": 1}


def test_the_official_tables(tmp_path: Path) -> None:
    tables = {
        "fairface_label_train.csv": [OFFICIAL, "train/1.jpg,more than 70,Male,White,True"],
        "fairface_label_val.csv": [OFFICIAL, "val/1.jpg,20-29,Female,Indian,False"],
    }
    found = fairface.read(draw(tmp_path, tables, "train/1.jpg", "val/1.jpg"))
    assert [(row.name, row.split) for row in found.rows] == [("train/1.jpg", "train"), ("val/1.jpg", "val")]
    assert found.rows[0].extra == {"age": "more than 70", "gender": "Male", "race": "White"}


def test_no_image_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    draw(tmp_path, {"labels.csv": ["path,age,gender,race", "../x.jpg,0-2,male,White"]}, "../x.jpg")
    with pytest.raises(FerVitError, match="and the images in train"):
        fairface.read(tmp_path)
