"""A drawn data set: balanced, repeatable, and never over somebody else's files."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.data.schema import SPLITS
from fer_vit.errors import FerVitError
from fer_vit.face.image import read_image
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import draw_face, read


def test_read_draws_a_balanced_data_set(tmp_path: Path) -> None:
    first, again, other = (read(tmp_path / str(n), count=80, seed=seed, size=48) for n, seed in enumerate((0, 0, 8)))
    assert first.names == EXPRESSIONS
    assert Counter(row.split for row in first.rows) == {"train": 56, "val": 12, "test": 12}
    for split in SPLITS:
        counts = Counter(row.label for row in first.rows if row.split == split)
        assert set(counts) == set(EXPRESSIONS)
        assert max(counts.values()) - min(counts.values()) <= 1
    for row in first.rows:
        assert row.landmarks is not None
        assert row.score is None
        assert row.image.relative_to(tmp_path / "0").parts[:2] == (row.split, row.label)
    files = [[row.image.read_bytes() for row in reading.rows] for reading in (first, again, other)]
    assert len(set(files[0])) == 80
    assert files[0] == files[1]
    assert not set(files[0]) & set(files[2])


def test_files_hold_what_draw_face_returns(tmp_path: Path) -> None:
    for colour in (False, True):
        row = read(tmp_path / str(colour), count=1, seed=4, size=56, colour=colour).rows[0]
        image, landmarks = draw_face("neutral", 4, 56, colour)
        assert isinstance(row.image, Path)
        assert row.landmarks is not None
        assert (read_image(row.image) == image).all()
        assert (row.landmarks == landmarks).all()


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    for root in (tmp_path, tmp_path / "note.txt"):
        with pytest.raises(FerVitError, match=r"holds something else\. Choose a new folder\."):
            read(root, count=8)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    with pytest.raises(FerVitError, match="Cannot write"):
        read(tmp_path / "note.txt" / "faces", count=8)
    for name, number in (("count", 0), ("seed", -1), ("size", 0)):
        with pytest.raises(FerVitError, match=f"Expected {name} to be . or more, but got {number}"):
            read(tmp_path / "new", **{name: number})


def test_a_folder_that_was_drawn_before_is_taken_again(tmp_path: Path) -> None:
    rows = read(tmp_path / "faces", count=9, size=32).rows
    again = read(tmp_path / "faces", count=9, size=32).rows
    assert [(row.image, row.split, row.label) for row in again] == [(row.image, row.split, row.label) for row in rows]
    for other in ({"seed": 1}, {"size": 33}, {"colour": True}, {"count": 10}):
        with pytest.raises(FerVitError, match="holds something else"):
            read(tmp_path / "faces", **{"count": 9, "size": 32} | other)  # type: ignore[arg-type]
