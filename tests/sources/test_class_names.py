"""Notes about classes."""

import re

import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.sources.class_names import class_notes


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
    ("names", "similar"),
    [
        (("surprise", "suprise"), r"\bsurprise .*\bsuprise"),
        (("suprise", "calm"), r"\bsuprise .*\bsurprise"),
        (("very happy", "very_happy"), "very happy .*very_happy"),
        (("happiness", "unhappiness"), None),
        (("level 1", "level 2", "level 12"), None),
        (("anger", "fear", "disgust", "contempt", "neutral", "sadness"), None),
    ],
)
def test_similar_names(names: tuple[str, ...], similar: str | None) -> None:
    notes = class_notes(Reading(names, [Row(b"", "", "test", name) for name in names]))
    assert len(notes) == (similar is not None)
    assert all(re.search(similar, note) for note in notes)
