"""Every file of a scraped folder has a status."""

from pathlib import Path

import numpy as np
import pytest

from fer_vit.face.crop import CropSpec
from fer_vit.face.detect import Face
from fer_vit.geometry import TEMPLATE, Image
from fer_vit.predict.inputs import find_images
from fer_vit.predict.photos import FIRST_FRAME, NO_FACE, OK, PhotoDataset
from tests.helpers.hostile import bomb, write_hostile
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


@pytest.mark.parametrize("count", [60, *slow(1000)])
def test_every_file_has_a_status(count: int, tmp_path: Path) -> None:
    write_hostile(tmp_path, count)
    (tmp_path / "large.jpg").write_bytes(bomb("jpeg"))
    files = find_images([tmp_path])
    assert len(files) == count + 1
    dataset = PhotoDataset(files, CropSpec(48), "detect", Crowd())
    found = [dataset[place] for place in range(len(files))]
    whole = [(photo, samples) for photo, samples in found if photo.status == OK]
    assert count / 2 < len(whole) < len(files)  # some are broken, and some of these are read nevertheless
    for photo, samples in whole:
        assert len(samples) == len(photo.faces) == 30
        assert all(sample.image.shape == (48, 48, 3) for sample in samples)
        assert all(np.isfinite(sample.boxes[sample.valid]).all() for sample in samples)
    for photo, samples in found:
        assert photo.status not in ("", NO_FACE)
        assert len(samples) == (30 if photo.status in (OK, FIRST_FRAME) else 0)
