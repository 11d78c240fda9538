"""Near-duplicates across splits, on made pictures."""

import cv2
import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.geometry import Image
from fer_vit.sources import common
from fer_vit.sources.common import CORRELATION, SIDE, add_landmarks, drop_near_duplicates, find_near_duplicates


def picture(seed: int, side: int = 96) -> Image:
    """A picture like no other: soft spots of colour."""
    spots = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return np.asarray(cv2.resize(spots, (side, side), interpolation=cv2.INTER_CUBIC))


def encoded(image: Image, suffix: str = ".png", *options: int) -> bytes:
    return bytes(cv2.imencode(suffix, image, options)[1])


HELD = picture(0)
SAME = {
    "exact": encoded(HELD),
    "mirrored": encoded(HELD[:, ::-1]),
    "as JPEG": encoded(HELD, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 40),
    "smaller and darker": encoded(cv2.resize(HELD, (48, 48)) // 2 + 20),
    "grey": encoded(np.asarray(cv2.cvtColor(HELD, cv2.COLOR_BGR2GRAY))),
}


@pytest.mark.parametrize("split", ["val", "test"])
def test_training_images_that_are_near_duplicates_are_dropped_and_the_others_marked(split: str) -> None:
    rows = [Row(encoded(picture(1)), "held, single", split), Row(encoded(HELD), "held", split)]
    rows += [Row(image, name, "train") for name, image in SAME.items()]
    rows += [Row(encoded(picture(seed)), str(seed), "train") for seed in range(2, 20)]
    given = add_landmarks(Reading(("fear",), rows), None, workers=1)
    found = drop_near_duplicates(given)
    assert [row.name for row in found.rows] == ["held, single", "held", *map(str, range(2, 20))]
    assert [row.near_duplicate for row in found.rows] == [False, True, *[None] * 18]
    assert found.dropped == {"near-duplicate of a val or test image": len(SAME)}
    assert len(given.rows) == len(rows)
    assert not given.dropped


def test_pictures_of_one_grey_are_no_near_duplicates() -> None:
    grey = encoded(np.full((50, 40, 3), 90, np.uint8))
    given = add_landmarks(Reading(("fear",), [Row(grey, "a", "train"), Row(grey, "b", "val")]), None, 1)
    assert [row.near_duplicate for row in drop_near_duplicates(given).rows] == [None, False]


def test_near_duplicates_are_those_of_numpys_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "BLOCK", 7)
    rng = np.random.default_rng(0)
    pixels = np.stack([cv2.cvtColor(picture(seed // 4, SIDE), cv2.COLOR_BGR2GRAY) for seed in range(80)]).astype(float)
    pixels[::3] = pixels[::3, :, ::-1]
    pixels += rng.normal(0, 1, pixels.shape) * rng.uniform(0, 20, (80, 1, 1))  # correlations on both sides of the limit
    pixels = pixels.clip(0, 255).astype(np.uint8)
    trained = rng.random(80) < 0.6
    expected, close = np.zeros(80, bool), []
    for i in np.flatnonzero(trained):
        for j in np.flatnonzero(~trained):
            views = pixels[j], pixels[j, :, ::-1]
            best = max(np.corrcoef(pixels[i].ravel(), view.ravel())[0, 1] for view in views)
            expected[[i, j]] |= best >= CORRELATION
            close.append(abs(best - CORRELATION))
    assert min(close) > 1e-5
    assert 5 < expected.sum() < 75
    assert (find_near_duplicates(pixels, trained) == expected).all()
