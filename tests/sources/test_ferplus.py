"""FERPlus: the label rules by hand, against their text step by step, and on the real data."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.schema import Reading
from fer_vit.errors import FerVitError
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import ferplus
from fer_vit.sources.add_landmarks import add_landmarks
from fer_vit.sources.archive import unpacked
from fer_vit.sources.duplicates import handle_near_duplicates

# The columns: neutral happiness surprise sadness anger disgust fear contempt | unknown NF


def by_the_text(counts: list[int], kind: str) -> list[float] | None:
    """The data set's rules one step after the other,
    with all ten columns and nothing made shorter.
    """
    remaining = [0 if count <= 1 else count for count in counts]
    total = sum(remaining)
    taken = [0] * 10
    rejected = [0] * 8 + [1, 0]
    if kind == "majority":
        largest = max(remaining)
        if largest > 0.5 * total:
            taken[remaining.index(largest)] = largest
        else:
            taken = rejected
    else:
        gathered = 0
        number = 0
        stop = False
        while gathered < 0.75 * total and number < 3 and not stop:
            largest = max(remaining)
            for column in range(10):
                if remaining[column] != largest:
                    continue
                taken[column] = largest
                remaining[column] = 0
                gathered += largest
                number += 1
                if column >= 8:
                    stop = True
                    if sum(taken) > largest:
                        taken[column] = 0
                        number -= 1
                    break
        if sum(taken) <= 0.5 * total or number > 3:
            taken = rejected
    if taken.index(max(taken)) >= 8:
        return None
    return [value / sum(taken[:8]) for value in taken[:8]]


def test_rules_agree_with_their_text(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    votes = {}
    for number in range(500):
        # Ten people; concentrations from nearly unanimous to nearly even, so that ties and
        # rejections are common.
        shares = rng.dirichlet(np.full(10, rng.choice([0.1, 0.3, 1.0])))
        votes[f"{number}.png"] = rng.multinomial(10, shares).tolist()
    lines = [f"{name},{BOX},{','.join(map(str, counts))}" for name, counts in votes.items()]
    draw(tmp_path / "FER2013Train", *lines)
    found: dict[str, dict[str, list[float]]] = {"majority": {}, "soft": {}}
    for row in ferplus.read(tmp_path).rows:
        found["majority"][row.image.name] = [float(row.label == name) for name in EXPRESSIONS]
    for row in ferplus.read(tmp_path, labels="soft").rows:
        found["soft"][row.image.name] = list(row.votes)
    assert 50 < len(found["majority"]) < len(found["soft"]) < 450
    for kind, targets in found.items():
        expected = {name: by_the_text(counts, kind) for name, counts in votes.items()}
        known = {name: target for name, target in expected.items() if target}
        assert targets.keys() == known.keys()
        for name, target in targets.items():
            assert target == pytest.approx(known[name]), name


def draw(folder: Path, *lines: str, images: int | None = None) -> None:
    """Writes a label.csv and touches its first images, by default all."""
    folder.mkdir(parents=True)
    (folder / "label.csv").write_text("".join(f"{line}\n" for line in lines))
    for line in lines[:images]:
        (folder / line.partition(",")[0]).touch()


BOX = '"(0, 0, 48, 48)"'
CLEAR = f"a.png,{BOX},0,8,0,0,0,0,0,0,0,2"
MIXED = f"b.png,{BOX},5,0,0,0,5,0,0,0,0,0"
NO_FACE = f"c.png,{BOX},0,0,0,0,0,0,0,0,0,10"


def test_read_majority(tmp_path: Path) -> None:
    draw(
        tmp_path / "FER2013Train",
        MIXED,
        CLEAR,
        NO_FACE,
        CLEAR.replace("a.png", "gone.png"),
        images=3,
    )
    draw(tmp_path / "FER2013Valid", CLEAR)
    (
        tmp_path / "fer2013new.csv"
    ).mkdir()  # the votes of the test images as well: reading it would raise an error
    reading = ferplus.read(tmp_path)
    assert [row.extra for row in reading.rows] == [{"label_votes": "8"}] * 2
    assert reading.labels == EXPRESSIONS
    assert [(row.name, row.split, row.label, row.votes) for row in reading.rows] == [
        ("FER2013Train/a.png", "train", "happiness", None),
        ("FER2013Valid/a.png", "val", "happiness", None),
    ]
    assert reading.rows[0].image == tmp_path / "FER2013Train" / "a.png"
    assert reading.dropped == {"no majority": 1, "unknown or not a face": 1, "image missing": 1}
    assert len(reading.notes) == 1
    assert "No test split" in reading.notes[0]


def test_read_soft_keeps_the_majority_outside_of_train(tmp_path: Path) -> None:
    for folder in ("FER2013Train", "FER2013Valid", "FER2013Test"):
        draw(tmp_path / "ferplus" / folder, CLEAR, MIXED)
    reading = ferplus.read(tmp_path, labels="soft")
    assert [(row.split, row.label, row.votes) for row in reading.rows] == [
        ("train", "happiness", (0, 1, 0, 0, 0, 0, 0, 0)),
        ("train", "neutral", (0.5, 0, 0, 0, 0.5, 0, 0, 0)),
        ("val", "happiness", None),
        ("test", "happiness", None),
    ]
    assert reading.dropped == {"no majority": 2}
    (note,) = reading.notes
    assert "1 training image" in note
    assert ", ".join(EXPRESSIONS) in note


@pytest.mark.parametrize(
    "line",
    [
        "a.png",
        f"a.png,{BOX},1,2,3",
        f"a.png,{BOX},x,8,0,0,0,0,0,0,0,2",
        f"a.png,{BOX},-1,8,0,0,0,0,0,0,0,2",
        f"a.png,{BOX},0,8,0,0,0,0,0,0,0,2,0",
        f"a.png,{BOX},{5000 * '9'},8,0,0,0,0,0,0,0,2",
    ],
)
def test_malformed_line(tmp_path: Path, line: str) -> None:
    draw(tmp_path / "FER2013Train", CLEAR, line)
    with pytest.raises(FerVitError, match=r"label\.csv, line 2: .*(12 columns|file name).* `a"):
        ferplus.read(tmp_path)


@pytest.fixture(scope="module")
def readings(ferplus_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """The real FERPlus with thumbnails, by the kind of its labels."""
    place = tmp_path_factory.mktemp("ferplus") / "m.parquet"
    with unpacked(ferplus_zip, place) as (base, _):
        soft = add_landmarks(ferplus.read(base, labels="soft"), None, 1)
        majority = ferplus.read(base, labels="majority")
    thumbnails = {row.name: row.thumbnail for row in soft.rows}  # of all faces with a majority, too
    rows = [replace(row, thumbnail=thumbnails[row.name]) for row in majority.rows]
    return {"soft": soft, "majority": replace(majority, rows=rows)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "before", "dropped", "marked"),
    [("majority", 25_045, 435, 315), ("soft", 27_947, 463, 329)],
)
def test_real_near_duplicates(
    labels: str, before: int, dropped: int, marked: int, readings: dict[str, Reading]
) -> None:
    given = readings[labels]
    reading = handle_near_duplicates(given)
    assert Counter(row.split for row in given.rows) == {"train": before, "val": 3_191}
    assert Counter(row.split for row in reading.rows) == {"train": before - dropped, "val": 3_191}
    assert sum(reading.dropped.values()) - sum(given.dropped.values()) == dropped
    assert sum(row.near_duplicate is True for row in reading.rows) == marked
    pixels = {
        split: [row.thumbnail for row in reading.rows if row.split == split]
        for split in ("train", "val")
    }
    assert not set(pixels["train"]) & set(pixels["val"])
