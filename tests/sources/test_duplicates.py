"""Near-duplicates: copies of a picture are found; other faces before the same wall are not."""

import re

import cv2
import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import Detector
from fer_vit.face.image import decode_image
from fer_vit.geometry import Array, Image
from fer_vit.sources import duplicates
from fer_vit.sources.add_landmarks import add_landmarks
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.duplicates import (
    SAME_CORRELATION,
    THUMBNAIL_SIDE,
    handle_near_duplicates,
)
from tests.helpers.marks import slow


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
def test_training_images_that_are_near_duplicates_are_dropped_and_the_others_marked(
    split: str,
) -> None:
    rows = [Row(encoded(picture(1)), "held, single", split), Row(encoded(HELD), "held", split)]
    rows += [Row(image, name, "train") for name, image in SAME.items()]
    rows += [Row(encoded(picture(seed)), str(seed), "train") for seed in range(2, 20)]
    given = add_landmarks(Reading(("fear",), rows), None, workers=1)
    reading = handle_near_duplicates(given)
    assert [row.name for row in reading.rows] == ["held, single", "held", *map(str, range(2, 20))]
    assert [row.near_duplicate for row in reading.rows] == [False, True, *[None] * 18]
    assert reading.dropped == {"near-duplicate of a val or test image": len(SAME)}
    assert len(given.rows) == len(rows)
    assert not given.dropped


def test_pictures_of_one_grey_are_no_near_duplicates() -> None:
    grey = encoded(np.full((50, 40, 3), 90, np.uint8))
    given = add_landmarks(
        Reading(("fear",), [Row(grey, "a", "train"), Row(grey, "b", "val")]), None, 1
    )
    assert [row.near_duplicate for row in handle_near_duplicates(given).rows] == [
        None,
        False,
    ]


def test_near_duplicates_are_those_of_numpys_correlation() -> None:
    rng = np.random.default_rng(0)
    count = 600  # compared in several blocks
    drawn = [
        cv2.cvtColor(picture(seed // 4, THUMBNAIL_SIDE), cv2.COLOR_BGR2GRAY)
        for seed in range(count)
    ]
    pixels = np.array(drawn, float)
    pixels[::3] = pixels[::3, :, ::-1]
    # correlations on both sides of the limit
    pixels += rng.normal(0, 1, pixels.shape) * rng.uniform(0, 20, (count, 1, 1))
    pixels = pixels.clip(0, 255).astype(np.uint8)
    trained = rng.random(count) < 0.6
    flat = pixels.reshape(count, -1)
    mirrored = pixels[..., ::-1].reshape(count, -1)
    r = np.maximum(np.corrcoef(flat), np.corrcoef(flat, mirrored)[:count, count:])
    best = r[trained][:, ~trained]
    expected = np.zeros(count, bool)
    expected[trained] = (best >= SAME_CORRELATION).any(1)
    expected[~trained] = (best >= SAME_CORRELATION).any(0)
    assert np.abs(best - SAME_CORRELATION).min() > 1e-6
    assert 100 < expected.sum() < 500
    rows = [
        Row(b"", str(number), "train" if trained[number] else "val", thumbnail=bytes(image))
        for number, image in enumerate(pixels)
    ]
    reading = handle_near_duplicates(Reading(("fear",), rows))
    kept = {row.name: row.near_duplicate for row in reading.rows}
    for number, repeated in enumerate(expected):
        if trained[number]:
            assert (str(number) in kept) == (not repeated)
        else:
            assert kept[str(number)] == repeated


# Classes


def labelled(*rows: tuple[Image, Split, str]) -> Reading:
    names = tuple(dict.fromkeys(label for _, _, label in rows))
    made = [Row(encoded(im), f"{i}.png", split, label) for i, (im, split, label) in enumerate(rows)]
    return add_landmarks(Reading(names, made), None, workers=1)


def test_the_same_picture_in_several_classes_is_named() -> None:
    copy = np.ascontiguousarray(HELD[:, ::-1])
    given = labelled(
        (HELD, "train", "fear"),
        (picture(1), "train", "fear"),
        (copy, "train", "anger"),
        (cv2.resize(HELD, (48, 48)), "train", "joy"),
        (picture(1), "test", "anger"),
    )
    reading = handle_near_duplicates(given)
    assert [row.name for row in reading.rows] == ["0.png", "2.png", "3.png", "4.png"]
    notes = " ".join(reading.notes)
    assert " 4 pairs: " in notes
    assert "0.png (train, fear) and 2.png (train, anger)" in notes
    assert "1 of fear" in notes
    assert len(reading.warnings) == 1
    assert re.search(r"\b1 of 2 .* fear\b", reading.warnings[0])


def test_within_a_large_train_only_equal_copies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given = labelled(
        (picture(3), "train", "fear"),
        (cv2.resize(HELD, (48, 48)), "train", "fear"),
        (HELD, "train", "joy"),
        (HELD, "val", "joy"),
        (picture(3), "train", "joy"),
        (cv2.resize(picture(3), (48, 48)), "train", "anger"),
        (picture(3), "train", "anger"),
        (picture(5), "test", "anger"),
    )
    whole = handle_near_duplicates(given)
    monkeypatch.setattr(duplicates, "MAX_COMPARED", 5)
    bounded = handle_near_duplicates(given)
    for reading in (whole, bounded):
        assert [row.name for row in reading.rows] == [
            f"{number}.png" for number in (0, 3, 4, 5, 6, 7)
        ]
    assert "in 7 pairs" in whole.notes[1]
    pairs = re.findall(r"(\d)\.png [^;]* and (\d)\.png", bounded.notes[1])
    assert pairs == [("0", "4"), ("0", "6"), ("1", "3")]
    assert "only equal copies" in bounded.notes[2]
    assert len(whole.notes) == 2


def test_near_duplicates_may_be_kept() -> None:
    given = labelled((HELD, "train", "fear"), (HELD, "val", "fear"), (picture(1), "train", "fear"))
    reading = handle_near_duplicates(given, "keep")
    assert [row.near_duplicate for row in reading.rows] == [None, True, None]
    assert not reading.dropped
    assert not reading.warnings
    assert "train: 1 of fear" in reading.notes[0]


def test_one_person_with_two_expressions_is_no_near_duplicate() -> None:
    faces = [draw_face(name, 3, 96, colour=True)[0] for name in ("neutral", "disgust")]
    for held_out in (faces[1], faces[0]):
        given = labelled((faces[0], "train", "neutral"), (held_out, "test", "disgust"))
        assert similar(given.rows).all()
        reading = handle_near_duplicates(given)
        assert len(reading.rows) == (1 if held_out is faces[0] else 2)


# A fixed camera


def room() -> Image:
    """A wall with a window and a shelf."""
    y, x = np.mgrid[0:360, 0:640]
    wall = np.stack([90 + x / 10, 100 + y / 7, 120 - x / 21], -1)
    wall[30:165, 30:210] = 220
    wall[200:, 450:630] = 60
    return wall.clip(0, 255).astype(np.uint8)


def portrait(name: str, seed: int, size: int, rng: np.random.Generator) -> tuple[Image, Array]:
    """A photo of a drawn person before the wall, with the camera's noise,
    and the box (4,) of the face.
    """
    photo = (room() + rng.normal(0, 3, (360, 640, 3))).clip(0, 255).astype(np.uint8)
    top = (340 - size) // 2 + rng.integers(0, 20)
    left = (620 - size) // 2 + rng.integers(0, 20)
    photo[top : top + size, left : left + size] = draw_face(name, seed, size, colour=True)[0]
    middle = np.array([left, top, left, top]) + size / 2
    return photo, middle + 0.35 * size * np.array([-1, -1, 1, 1])


class Known(Detector):
    """Finds each face a few per cent beside its true box (4,)."""

    def __init__(self, boxes: dict[bytes, Array], rng: np.random.Generator) -> None:
        self.boxes = boxes
        self.rng = rng

    def detect(self, image: Image) -> list[Detection]:
        raise NotImplementedError

    def find_in_crop(self, image: Image) -> Detection:
        box = self.boxes[image.tobytes()]
        error = self.rng.normal(0, 0.02 * (box[2] - box[0]), 4)
        return Detection(box + error, np.zeros((5, 2)), score=0.9)


def similar(rows: list[Row]) -> Array:
    """Which pairs (N, N) of whole pictures are similar."""
    thumbnails = np.array([np.frombuffer(row.thumbnail, np.uint8) for row in rows], float)
    return np.corrcoef(thumbnails) > 0.9


@pytest.mark.parametrize("size", [85, *slow(175, 325)])
def test_a_fixed_camera_does_not_make_near_duplicates(size: int, rng: np.random.Generator) -> None:
    boxes = {}
    rows = []

    def add(photo: Image, box: Array, name: str, split: Split) -> None:
        data = encoded(photo)
        boxes[decode_image(data).tobytes()] = box
        rows.append(Row(data, name, split, name.split()[0]))

    for seed in range(12):
        name = ("happiness", "sadness", "anger")[seed % 3]
        photo, box = portrait(name, seed, size, rng)
        add(photo, box, f"{name} {seed}", "test" if seed < 4 else "train")
        if seed < 2:
            jpeg = cv2.imencode(".jpg", photo, (cv2.IMWRITE_JPEG_QUALITY, 60))[1]
            half = cv2.resize(photo, (320, 180), interpolation=cv2.INTER_AREA)
            flipped = box[[2, 1, 0, 3]] * [-1, 1, -1, 1] + [640, 0, 640, 0]
            add(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), box, f"{name} copy jpeg", "train")
            add(half, box / 2, f"{name} copy half", "train")
            add(photo[:, ::-1].copy(), flipped, f"{name} copy mirrored", "train")
            add(photo // 2 + 20, box, f"{name} copy darker", "train")
    given = Reading(("happiness", "sadness", "anger"), rows)
    found = add_landmarks(given, Known(boxes, rng), workers=0)
    if size < 150:
        assert similar(found.rows).mean() > 0.3, "the whole pictures are similar"
    reading = handle_near_duplicates(found)
    assert [row.name for row in reading.rows] == [
        row.name for row in rows if "copy" not in row.name
    ]
    assert [row.near_duplicate for row in reading.rows[:4]] == [True, True, False, False]


@pytest.mark.parametrize(("low", "high", "has"), [(30, 370, False), (100, 300, True)])
def test_a_face_that_fills_the_picture_has_no_close_up(
    low: int, high: int, has: bool, rng: np.random.Generator
) -> None:
    data = encoded(picture(0, 400))
    detector = Known({decode_image(data).tobytes(): np.array([low, low, high, high])}, rng)
    (row,) = add_landmarks(Reading(("fear",), [Row(data, "a", "val")]), detector, 0).rows
    assert (row.close_up is not None) == has
