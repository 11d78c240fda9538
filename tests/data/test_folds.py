import zlib
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import EMBED_BELOW, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png


def write(path: Path) -> Manifest:
    """A manifest of 300 training images, each fifth of which is there twice, and some others."""
    rng, rows = np.random.default_rng(0), []
    for number in range(300):
        image = encode_png(rng.integers(256, size=(4, 4), dtype=np.uint8))
        rows += [Row(image, f"{number}-{copy}", "train", "x") for copy in range(2 if number % 5 == 0 else 1)]
        rows += [Row(image, f"{number}-{split}", split, "x") for split in ("val", "test") if number < 10]
    write_manifest(path, Reading(("x",), rows), "made")
    return Manifest.read(path)


def test_folds_divide_the_training_faces_and_copies_stay_together(tmp_path: Path) -> None:
    rows = write(tmp_path / "m.parquet")
    folds = np.array([in_fold(rows, f"{index}/3") for index in range(3)])
    split = np.array(rows.table["split"].to_pylist())
    assert folds.sum(0).tolist() == (split == "train").astype(int).tolist()
    assert (folds.sum(1) > 70).all()
    places: dict[bytes, set[int]] = {}
    for row in np.flatnonzero(split == "train").tolist():
        places.setdefault(rows.image_bytes(row), set()).add(int(folds[:, row].argmax()))
        assert folds[zlib.crc32(rows.image_bytes(row)) % 3, row]
    assert len(places) == 300
    assert all(len(place) == 1 for place in places.values())


def test_a_fold_is_the_same_wherever_the_images_are(tmp_path: Path) -> None:
    images = {
        f"{number}.png": encode_png(np.full((4, 4), number, np.uint8)) + bytes(EMBED_BELOW) for number in range(9)
    }
    for name, image in images.items():
        (tmp_path / name).write_bytes(image)
    folds = []
    for form in (lambda name: images[name], lambda name: tmp_path / name):
        rows = [Row(form(name), name, "train", "x") for name in images]
        write_manifest(tmp_path / "m.parquet", Reading(("x",), rows), "made")
        folds.append(in_fold(Manifest.read(tmp_path / "m.parquet"), "1/2").tolist())
    assert folds[0] == folds[1]
    assert 0 < sum(folds[0]) < 9
    (tmp_path / "7.png").unlink()
    with pytest.raises(FerVitError, match=r"m.parquet, image 7.png: "):
        in_fold(Manifest.read(tmp_path / "m.parquet"), "1/2")


@pytest.mark.parametrize("fold", ["3/3", "0/1", "-1/3", "0/3/4"])
def test_folds_that_do_not_exist(fold: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError) as error:
        in_fold(write(tmp_path / "m.parquet"), fold)
    assert str(error.value) == f"Expected a fold such as 0/3, 1/3 or 2/3, but got {fold}."
