"""A folder of files as scraping finds them: a row each, whatever is in them."""

import os
from pathlib import Path

import numpy as np
import pytest

from fer_vit.face.crop import CropSpec
from fer_vit.face.detect import Face
from fer_vit.geometry import TEMPLATE, Image
from fer_vit.predict.inputs import find_images
from fer_vit.predict.photos import NO_FACE, OK, PhotoDataset
from tests.helpers.hostile import bomb, hostile, write_hostile
from tests.helpers.marks import slow


class Crowd:
    """A detector that sees thirty faces everywhere: cut by the border, outside, upside down, tiny, all in one point."""

    def __call__(self, image: Image) -> list[Face]:
        height, width = image.shape[:2]
        faces = []
        for number in range(30):
            side = max(height, width) * (number + 1) / 10
            turned = -1 if number % 3 == 0 else 1
            corner = np.array([width, height]) * (number / 10 - 1)
            points = corner + (0 if number % 7 == 0 else turned) * np.array(TEMPLATE) * side
            faces.append(Face(np.hstack([corner, corner + side]), points, 0.9))
        return faces


def test_a_seed_gives_the_same_file() -> None:
    assert [hostile(seed) for seed in range(20)] == [hostile(seed) for seed in range(20)]


def test_names_are_of_every_kind() -> None:
    names = [os.fsencode(hostile(seed)[0]) for seed in range(100)]
    assert max(map(len, names)) > 245
    assert any(b"\xff" in name for name in names)
    assert any(b"\n" in name for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("count", [60, *slow(1000)])
def test_every_file_has_a_status(count: int, tmp_path: Path) -> None:
    write_hostile(tmp_path, count)
    for name, data in {"empty": b"", "text": b"text", "large": bomb("jpeg"), "scans": bomb("scans")}.items():
        (tmp_path / f"{name}.jpg").write_bytes(data)
    files = find_images([tmp_path])
    assert len(files) == count + 4
    dataset = PhotoDataset(files, CropSpec(48), "detect", Crowd())
    found = [dataset[place] for place in range(len(files))]
    whole = [(photo, samples) for photo, samples in found if photo.status == OK]
    assert count / 2 < len(whole) < len(files)  # some are broken, and some of these are read nevertheless
    for photo, samples in whole:
        assert len(samples) == len(photo.faces) == 30
        assert all(sample.image.shape == (48, 48, 3) for sample in samples)
        assert all(np.isfinite(sample.boxes[sample.valid]).all() for sample in samples)
    for photo, samples in found:
        assert photo.status
        assert photo.status != NO_FACE
        assert len(samples) == (30 if photo.status == OK else 0)
    status = {Path(photo.path).stem: photo.status for photo, _ in found}
    assert status["empty"] == "the file is empty"
    assert status["text"].startswith("not an image")
    assert status["large"].startswith("too large: 65,500 x 65,500 pixels")
    assert status["scans"].startswith("too many scans")
