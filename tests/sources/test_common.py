"""Held-out splits, tables, errors, workers and near-duplicates, which all sources share."""

from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.geometry import Image
from fer_vit.labels import canonical, check_labels
from fer_vit.sources import common
from fer_vit.sources.common import (
    add_landmarks,
    drop_near_duplicates,
    hold_out,
    not_found,
    read_table,
)


def reading(**counts: int) -> Reading:
    """A reading with so many training images of every class, and one test image of each."""
    rows = [
        Row(b"", f"{label}/{i}.png", "train", label)
        for label, count in counts.items()
        for i in range(count)
    ]
    return Reading(
        tuple(counts), rows + [Row(b"", f"test/{label}", "test", label) for label in counts]
    )


def counts(found: Reading, split: str) -> dict[str | None, int]:
    """How many images of every class a split has."""
    return dict(Counter(row.label for row in found.rows if row.split == split))


def test_hold_out_takes_a_tenth_of_every_class() -> None:
    held = hold_out(reading(fear=50, anger=20))
    assert counts(held, "val") == {"fear": 5, "anger": 2}
    assert counts(held, "train") == {"fear": 45, "anger": 18}
    assert counts(held, "test") == {"fear": 1, "anger": 1}
    both = hold_out(reading(fear=50), ("val", "test"))
    assert counts(both, "val") == {"fear": 5}
    assert counts(both, "test") == {"fear": 6}


def test_small_classes_give_one_image_but_never_their_last() -> None:
    held = hold_out(reading(fear=1, anger=2, sadness=3, disgust=4), ("val", "test"))
    assert counts(held, "train") == {"fear": 1, "anger": 2, "sadness": 1, "disgust": 2}
    assert counts(held, "val") == {"sadness": 1, "disgust": 1}
    assert counts(hold_out(reading(anger=2)), "val") == {"anger": 1}


def test_hold_out_depends_on_names_alone_and_keeps_the_order() -> None:
    rows = reading(fear=50)
    turned = Reading(rows.names, rows.rows[::-1])
    held, again = hold_out(rows), hold_out(turned)
    assert {r.name for r in held.rows if r.split == "val"} == {
        r.name for r in again.rows if r.split == "val"
    }
    assert [r.name for r in held.rows] == [r.name for r in rows.rows]
    # Fixed: a change would mix training images into the validation of earlier models.
    assert [r.name for r in held.rows if r.split == "val"] == [
        f"fear/{i}.png" for i in (1, 8, 11, 18, 42)
    ]
    assert all(r.split != "val" for r in rows.rows), "the given reading is unchanged"


def test_tables_count_lines_and_skip_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfa,"(0, 1)"\r\n\r\nb,2\r\n')
    found = list(read_table(path, ("x", "y"), header=False))
    assert found == [(1, {"x": "a", "y": "(0, 1)"}), (3, {"x": "b", "y": "2"})]
    for text, message in (
        ("a.png,1\n", "line 1: expected the columns file, Age, but got `a.png,1`"),
        ("file,age,x\na.png,1,2\n\nb.png,1\n", "line 4: expected 3 columns, but got `b.png,1`"),
        (
            "file,age\n" + 200_000 * "x",
            "line 2: expected comma-separated values, but got `field larger than",
        ),
    ):
        path.write_text(text)
        with pytest.raises(FerVitError, match=rf"a\.csv, {message}"):
            list(read_table(path, ("file", "Age")))


def test_not_found_lists_the_content(tmp_path: Path) -> None:
    assert "but got no such folder" in str(not_found(tmp_path / "none", "X"))
    assert "but got an empty folder" in str(not_found(tmp_path, "X"))
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).touch()
    assert f"Expected X in {tmp_path}, but got a, b." in str(not_found(tmp_path, "X"))


def test_worker_processes_keep_the_order_and_count_what_they_drop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fer_vit.sources.common.CHUNK", 4)
    rows = [
        Row(b"broken" if i % 5 == 0 else encoded(picture(i)), f"{i}.png", "train", "fear")
        for i in range(22)
    ]
    reading = add_landmarks(Reading(("fear",), rows, Counter({"earlier": 1})), None, workers=2)
    assert [row.name for row in reading.rows] == [f"{i}.png" for i in range(22) if i % 5]
    assert reading.dropped == {"earlier": 1, "not an image that can be decoded": 5}


# Near-duplicates across splits


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
    found = drop_near_duplicates(given)
    assert [row.name for row in found.rows] == ["held, single", "held", *map(str, range(2, 20))]
    assert [row.near_duplicate for row in found.rows] == [False, True, *[None] * 18]
    assert found.dropped == {"near-duplicate of a val or test image": len(SAME)}
    assert len(given.rows) == len(rows)
    assert not given.dropped


def test_pictures_of_one_grey_are_no_near_duplicates() -> None:
    grey = encoded(np.full((50, 40, 3), 90, np.uint8))
    given = add_landmarks(
        Reading(("fear",), [Row(grey, "a", "train"), Row(grey, "b", "val")]), None, 1
    )
    assert [row.near_duplicate for row in drop_near_duplicates(given).rows] == [None, False]


def test_near_duplicates_are_those_of_numpys_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "BLOCK", 7)
    rng = np.random.default_rng(0)
    drawn = [
        cv2.cvtColor(picture(seed // 4, common.SIDE), cv2.COLOR_BGR2GRAY) for seed in range(80)
    ]
    pixels = np.array(drawn, float)
    pixels[::3] = pixels[::3, :, ::-1]
    pixels += rng.normal(0, 1, pixels.shape) * rng.uniform(
        0, 20, (80, 1, 1)
    )  # correlations on both sides of the limit
    pixels = pixels.clip(0, 255).astype(np.uint8)
    trained, expected = rng.random(80) < 0.6, np.zeros(80, bool)
    flat, mirrored = pixels.reshape(80, -1), pixels[..., ::-1].reshape(80, -1)
    best = np.maximum(np.corrcoef(flat), np.corrcoef(flat, mirrored)[:80, 80:])[trained][
        :, ~trained
    ]
    expected[trained], expected[~trained] = (
        (best >= common.CORRELATION).any(1),
        (best >= common.CORRELATION).any(0),
    )
    assert np.abs(best - common.CORRELATION).min() > 1e-5
    assert 5 < expected.sum() < 75
    assert (common.find_near_duplicates(pixels, trained) == expected).all()


# Labels


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Happy", "happiness"),
        (" angry ", "anger"),
        ("fear", "fear"),
        ("Boredom", "boredom"),
        ("Ge\u0301ne", "g\xe9ne"),
    ],
)
def test_canonical(name: str, expected: str) -> None:
    assert canonical(name) == expected


def test_labels_of_every_script() -> None:
    check_labels(
        ["calm", "ruhig \xfc", "\u0628\u06cc\u200c\u062a\u0641\u0627\u0648\u062a", "\u6012"],
        "photos",
    )
    for odd in ("a\nb", "", "a\u202eb", "\u200c", 1, "a" * 101):
        with pytest.raises(
            FerVitError, match="photos: expected labels of 1 to 100 printable characters"
        ):
            check_labels(["calm", odd], "photos")
