"""Notes about classes."""

import re

import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.sources.class_names import class_notes, similar_names


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
