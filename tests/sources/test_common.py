"""Held-out splits, tables, errors, workers and notes about classes, which all sources share."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.face.detectors import YuNet, detect_in_crop
from fer_vit.face.image import UNREADABLE, decode_image, encode_png
from fer_vit.geometry import Image
from fer_vit.labels import canonical, check_labels
from fer_vit.sources.common import (
    add_landmarks,
    class_notes,
    hold_out,
    not_found,
    read_text_table,
    similar_names,
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


def counts(reading: Reading, split: str) -> dict[str | None, int]:
    """How many images of every class a split has."""
    return dict(Counter(row.label for row in reading.rows if row.split == split))


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
    held = hold_out(rows)
    again = hold_out(turned)
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
    rows = list(read_text_table(path, ("x", "y"), header=False))
    assert rows == [(1, {"x": "a", "y": "(0, 1)"}), (3, {"x": "b", "y": "2"})]
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
            list(read_text_table(path, ("file", "Age")))


def test_not_found_lists_the_content(tmp_path: Path) -> None:
    assert "no such folder" in str(not_found(tmp_path / "none", "X"))
    assert "empty" in str(not_found(tmp_path, "X"))
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).touch()
    assert f"Expected X in {tmp_path}, but got a, b." in str(not_found(tmp_path, "X"))


def test_worker_processes_keep_the_order_and_count_what_they_drop(
    astronaut: Image, yunet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fer_vit.sources.common.IMAGES_PER_WORKER", 4)
    crop = astronaut[58:176, 166:284]
    rows = []
    for index in range(22):
        data = encode_png(np.roll(crop, index, axis=1)) if index % 5 else b"broken"
        rows.append(Row(data, f"{index}.png", "train", "fear"))
    given = Reading(("fear",), rows, Counter({"earlier": 1}))
    reading = add_landmarks(given, YuNet(yunet), workers=2)
    assert [row.name for row in reading.rows] == [
        f"{index}.png" for index in range(22) if index % 5
    ]
    assert reading.dropped == {"earlier": 1, UNREADABLE: 5}
    here = add_landmarks(given, YuNet(yunet), workers=0)  # this process
    assert here.dropped == reading.dropped
    assert [row.name for row in here.rows] == [row.name for row in reading.rows]
    detector = YuNet(yunet)
    for row in reading.rows:
        assert isinstance(row.image, bytes)
        expected = detect_in_crop(detector, decode_image(row.image)).landmarks
        np.testing.assert_allclose(row.landmarks, expected, atol=1e-3)


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
        with pytest.raises(FerVitError, match=r"photos: .* 1 to 100 "):
            check_labels(["calm", odd], "photos")


# Notes about classes


def test_classes_without_training_images_are_named() -> None:
    rows = [Row(b"", "", split, label) for split, label in (("train", "fear"), ("val", "awe"))]
    notes = class_notes(Reading(("fear", "awe", "joy"), rows))
    none, few = notes
    assert "awe, joy" in none
    assert "fear" in few
    assert not re.search("awe|joy", few)
    assert class_notes(Reading(("awe",), rows[1:])) == [], "a data set to test on"
    unlabelled = [Row(b"", str(number), "train", None) for number in range(2)]
    assert class_notes(Reading(("fear", "awe"), unlabelled)) == [], "a data set without labels"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("surprise", "suprise"), [("surprise", "suprise")]),
        (("suprise", "calm"), [("suprise", "surprise")]),
        (("calm", "neutrla"), [("neutrla", "neutral")]),
        (("very happy", "very_happy"), [("very happy", "very_happy")]),
        (("boredom", "bordom"), [("boredom", "bordom")]),
        (("happiness", "unhappiness"), []),
        (("pleasant", "unpleasant", "male", "female"), []),
        (("level 1", "level 2", "level 12"), []),
        (("anger", "fear", "disgust", "contempt", "neutral", "sadness"), []),
        (("positive", "negative"), []),
    ],
)
def test_similar_names(names: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert similar_names(names) == expected
    notes = class_notes(Reading(names, [Row(b"", "", "test", name) for name in names]))
    assert len(notes) == len(expected)
