"""Drawn faces: exact, repeatable, and different in known regions only;
a folder of them keeps the files of others.
"""

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.schema import SPLITS
from fer_vit.errors import FerVitError
from fer_vit.face.crop import REGIONS, region_boxes, warp
from fer_vit.geometry import TEMPLATE, Float32Array, Mask, crop_matrix
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import cartoon, movements
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.drawn import read
from fer_vit.sources.movements import differing_regions


def test_read_draws_a_balanced_data_set(tmp_path: Path) -> None:
    first, again, second_seed = (
        read(tmp_path / str(n), count=80, seed=seed, size=48) for n, seed in enumerate((0, 0, 8))
    )
    assert first.labels == EXPRESSIONS
    assert Counter(row.split for row in first.rows) == {"train": 56, "val": 12, "test": 12}
    for split in SPLITS:
        counts = Counter(row.label for row in first.rows if row.split == split)
        assert set(counts) == set(EXPRESSIONS)
        assert max(counts.values()) - min(counts.values()) <= 1
    for row in first.rows:
        assert row.landmarks is not None
        assert row.score is None
        assert row.image.relative_to(tmp_path / "0").parts[:2] == (row.split, row.label)
    files = [
        [row.image.read_bytes() for row in reading.rows] for reading in (first, again, second_seed)
    ]
    assert len(set(files[0])) == 80
    assert files[0] == files[1]
    assert not set(files[0]) & set(files[2])


def test_a_folder_of_others_is_refused_and_one_drawn_before_is_taken_again(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    for root in (tmp_path, tmp_path / "note.txt"):
        with pytest.raises(FerVitError, match=r"something else"):
            read(root, count=8)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    rows = read(tmp_path / "faces", count=9, size=32).rows
    again = read(tmp_path / "faces", count=9, size=32).rows
    assert [(row.image, row.split, row.label) for row in again] == [
        (row.image, row.split, row.label) for row in rows
    ]
    for changed in ({"seed": 1}, {"size": 33}, {"colour": True}, {"count": 10}):
        with pytest.raises(FerVitError, match="holds something else"):
            read(tmp_path / "faces", **{"count": 9, "size": 32} | changed)  # type: ignore[arg-type]


BROWS = {"right_brow", "left_brow"}
EYES = {"right_eye", "left_eye"}
PAIRS = list(combinations(EXPRESSIONS, 2))


def box_mask(box: Float32Array, size: int, margin: float) -> Mask:
    """Pixels (size, size) that lie wholly in a box which is wider by `margin` pixels
    on every side.
    """
    x0, y0, x1, y1 = box
    low = np.arange(size)
    high = np.arange(size) + 1
    columns = (low >= x0 - margin) & (high <= x1 + margin)
    return ((low >= y0 - margin) & (high <= y1 + margin))[:, None] & columns


def test_regions_of_each_expression_against_neutral() -> None:
    truth = {
        "neutral": set(),
        "happiness": {"mouth"},
        "surprise": BROWS | EYES | {"mouth"},
        "sadness": BROWS | {"mouth"},
        "anger": BROWS,
        "disgust": {"nose", "mouth"},
        "fear": BROWS | EYES,
        "contempt": {"mouth"},
    }
    assert {name: set(differing_regions(name, "neutral")) for name in EXPRESSIONS} == truth
    assert differing_regions("surprise", "fear") == BROWS | {"mouth"}
    for a, b in PAIRS:
        assert differing_regions(a, b) == differing_regions(b, a) <= REGIONS.keys()
        assert differing_regions(a, b)


@pytest.mark.parametrize("size", [48, 96])
@pytest.mark.parametrize("seed", [0, 1])
def test_expressions_differ_inside_their_regions_only(size: int, seed: int) -> None:
    faces = {name: draw_face(name, seed, size, colour=True) for name in EXPRESSIONS}
    assert faces["fear"][0].std(2).any()
    assert not draw_face("fear", seed, size)[0].std(2).any()
    for a, b in PAIRS:
        names = sorted(differing_regions(a, b))
        change = np.abs(faces[a][0].astype(int) - faces[b][0]).max(2)
        for landmarks in (faces[a][1], faces[b][1]):
            boxes = region_boxes(landmarks, names)
            # One pixel for anti-aliasing.
            allowed = np.any([box_mask(box, size, margin=1) for box in boxes], axis=0)
            assert not change[~allowed].any(), (a, b)
            for name, box in zip(names, boxes, strict=True):
                assert change[box_mask(box, size, margin=0)].max() > 20, (a, b, name)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("movement", movements.Parameters._fields)
def test_the_largest_movements_stay_inside_their_regions(
    movement: str, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cartoon, "JITTER", 0.0)
    monkeypatch.setitem(movements.LOOKS, "intensity", (1.0, 1.0))
    feature = movement.split("_")[0]
    names = [name for name in REGIONS if name.endswith(feature)]
    still = draw_face("neutral", 3, 96)
    moved = movements.Parameters(**{movement: movements.MOVEMENT_RANGES[movement][end]})
    monkeypatch.setitem(movements.EXPRESSION_MOVEMENTS, "neutral", moved)
    face = draw_face("neutral", 3, 96)
    change = np.abs(face[0].astype(int) - still[0]).max(2)
    for landmarks in (face[1], still[1]):
        boxes = region_boxes(landmarks, names)
        allowed = np.any([box_mask(box, 96, margin=1) for box in boxes], axis=0)
        assert not change[~allowed].any()
    assert change.any() == any(moved)


def test_half_of_the_faces_with_heads_have_independent_movements(tmp_path: Path) -> None:
    reading = read(tmp_path / "faces", count=160, size=32, heads=True)
    free = [row for row in reading.rows if row.label is None]
    assert len(free) == 80
    assert {row.image.parent.name for row in free} == {"unlabelled"}
    assert {row.split for row in free} == set(SPLITS)
    columns = reading.outputs.of_head("movements").columns
    values = np.array([[row.targets[name] for name in columns] for row in free])
    assert values.min() == 0
    assert (values.max(0) > 0.8).all()
    r = np.corrcoef(values.T)
    sides = {"browRaise", "mouthSmile", "mouthCornerUpLeft"}  # each excludes the one after it
    for a, b in combinations(range(len(columns)), 2):
        if b > a + 1 or columns[a].removeprefix("move_") not in sides:
            assert abs(r[a, b]) < 0.4, (columns[a], columns[b])


def test_faces_with_an_expression_are_the_same_with_heads(tmp_path: Path) -> None:
    plain = read(tmp_path / "plain", count=24, size=32).rows
    heads = read(tmp_path / "heads", count=24, size=32, heads=True).rows
    for first, second in zip(plain, heads, strict=True):
        same = first.image.read_bytes() == second.image.read_bytes()
        assert same == (second.label is not None)


def test_a_gap_between_the_lips_is_an_open_mouth() -> None:
    look = {name: (low + high) / 2 for name, (low, high) in movements.LOOKS.items()}
    sneer = movements.Parameters(mouth_sneer=1.0)
    opened = movements.Parameters(mouth_opening=0.055 / 0.145)
    gaps = [movements.draw_targets(look, moved)["move_mouthOpen"] for moved in (sneer, opened)]
    assert gaps == pytest.approx([0.055 / 0.145] * 2)


def test_landmarks_lie_on_pupils_and_mouth_corners() -> None:
    """Aligned by their landmarks, the mean of many faces has pupils and mouth corners
    at the template's points.
    """
    size = 96
    faces = [draw_face("neutral", seed) for seed in range(40)]
    mean = np.mean(
        [warp(image, crop_matrix(points, size), size)[..., 0] for image, points in faces], axis=0
    )
    for x, y in np.array(TEMPLATE[:2]) * size:
        left = int(x) - 8
        top = int(y) - 3
        row, column = np.unravel_index(mean[top : top + 12, left : left + 17].argmin(), (12, 17))
        assert abs(left + column + 0.5 - x) < 2
        assert abs(top + row + 0.5 - y) < 3
    mouth = mean[int(0.70 * size) : int(0.82 * size)]
    assert abs(int(0.70 * size) + mouth[:, size // 2].argmin() + 0.5 - TEMPLATE[3][1] * size) < 3
    dark = np.flatnonzero(mouth.min(0) < (mouth.min(0).min() + mouth.max()) / 2) + 0.5
    assert (
        np.abs(np.array([dark.min(), dark.max()]) / size - (TEMPLATE[3][0], TEMPLATE[4][0])).max()
        < 0.04
    )


def test_brows_at_one_height_and_eyes_of_one_size_have_equal_targets() -> None:
    look = {name: (low + high) / 2 for name, (low, high) in movements.LOOKS.items()}
    raised = movements.Parameters(brow_raise=0.4, eye_opening=0.5)
    expected = movements.draw_targets(look, raised)
    assert expected["move_browRaise"] == pytest.approx(0.4)
    assert expected["move_eyeWide"] == pytest.approx(0.5)

    low_brows = look | {"brow_y": look["brow_y"] + 0.1 * movements.BROW_RISE}
    same = movements.draw_targets(low_brows, raised._replace(brow_raise=0.5))
    assert same == pytest.approx(expected)
    height = look["eye_height"] * (1 + 0.5 * movements.EYE_OPENING)
    large_eyes = look | {"eye_height": height}
    same = movements.draw_targets(large_eyes, raised._replace(eye_opening=0.0))
    assert same == pytest.approx(expected)


@pytest.mark.parametrize("option", ["count", "seed", "size"])
def test_numbers_that_are_too_large_are_one_line(option: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=f"`{option}`"):
        read(tmp_path / "faces", **{option: 10**30})
    assert not (tmp_path / "faces").exists()
