"""Held-out splits."""

from collections import Counter

from fer_vit.data.schema import Reading, Row
from fer_vit.sources.splits import hold_out


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


def test_hold_out_takes_a_tenth_of_the_persons_and_a_tenth_of_the_images_without_a_person() -> None:
    rows = [Row(b"", f"unknown/{index}.png", "train") for index in range(30)]
    for index in range(30):
        name = f"person {index}"
        rows.append(Row(b"", f"{name}/a.png", "train", extra={"person": name}))
        rows.append(Row(b"", f"{name}/b.png", "train", extra={"person": name}))
    held = hold_out(Reading(("fear", "anger"), rows, extra=("person",)))
    val = [row for row in held.rows if row.split == "val"]
    persons = {row.extra["person"] for row in val if row.extra}
    assert len(persons) == 3
    assert sum(bool(row.extra) for row in val) == 6
    assert sum(not row.extra for row in val) == 3


def test_the_note_of_hold_out_names_persons_and_images_without_a_person_where_both_are() -> None:
    unknown = [Row(b"", f"unknown/{index}.png", "train") for index in range(10)]
    known = [Row(b"", f"{index}.png", "train", extra={"person": f"{index}"}) for index in range(10)]
    for rows, has_persons, has_images in (
        (unknown, False, False),
        (known, True, False),
        (unknown + known, True, True),
    ):
        (note,) = hold_out(Reading(("fear",), rows, extra=("person",))).notes
        assert ("the persons" in note) == has_persons
        assert ("without a person" in note) == has_images


def test_hold_out_depends_on_names_alone_and_keeps_the_order() -> None:
    rows = reading(fear=50)
    turned = Reading(rows.labels, rows.rows[::-1])
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
