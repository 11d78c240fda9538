"""The held-out split and the errors that all sources share."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.sources.common import hold_out, not_found, read_csv, read_table


def reading(**counts: int) -> Reading:
    """A reading with so many training images of every class, and one test image of each."""
    rows = [Row(b"", f"{label}/{i}.png", "train", label) for label, count in counts.items() for i in range(count)]
    return Reading(tuple(counts), rows + [Row(b"", f"test/{label}", "test", label) for label in counts])


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
    assert {r.name for r in held.rows if r.split == "val"} == {r.name for r in again.rows if r.split == "val"}
    assert [r.name for r in held.rows] == [r.name for r in rows.rows]
    # Fixed: a change would mix training images into the validation of earlier models.
    assert [r.name for r in held.rows if r.split == "val"] == [f"fear/{i}.png" for i in (1, 8, 11, 18, 42)]
    assert all(r.split != "val" for r in rows.rows), "the given reading is unchanged"


def test_read_csv_counts_lines_and_skips_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfa,"(0, 1)"\r\n\r\nb,2\r\n')
    assert list(read_csv(path)) == [(1, ["a", "(0, 1)"]), (3, ["b", "2"])]
    path.write_text('a,"' + "x" * 200_000)
    with pytest.raises(FerVitError, match=r"a\.csv, line 1: expected comma-separated values, but got"):
        list(read_csv(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the columns file, Age, but got ``"),
        ("a.png,1\n", "line 1: expected the columns file, Age, but got `a.png,1`"),
        ("file,age,x\na.png,1,2\n\nb.png,1\n", "line 4: expected 3 columns, but got `b.png,1`"),
    ],
)
def test_malformed_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(FerVitError, match=rf"a\.csv, {message}"):
        list(read_table(tmp_path / "a.csv", ("file", "Age")))


def test_not_found_lists_the_content(tmp_path: Path) -> None:
    assert "but got no such folder" in str(not_found(tmp_path / "none", "X"))
    assert "but got an empty folder" in str(not_found(tmp_path, "X"))
    for name in ("a", "b", "c", "d", "e", "f", ".hidden"):
        (tmp_path / name).touch()
    assert f"Expected X in {tmp_path}, but got a, b, c, d, e and 1 more." in str(not_found(tmp_path, "X"))
    assert "but got a file" in str(not_found(tmp_path / "a", "X"))
