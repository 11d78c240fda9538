"""Means over faces, of which some lack a region."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fer_vit.geometry import Array
from fer_vit.report.explained_face import Attention, Attributed, Evidence, FaceView
from fer_vit.visualization.mean_faces import PHOTO_SIDE, Average, write_averages, write_heads
from tests.helpers.faces import make_face

REGIONS = ("right_eye", "nose", "mouth")
FACES = 40


@pytest.fixture
def faces(rng: np.random.Generator) -> list[tuple[FaceView, Evidence]]:
    """Faces with the whole encoder and two heads; every fourth lacks the mouth."""
    pairs = []
    for number in range(FACES):
        present = REGIONS[:2] if number % 4 == 0 else REGIONS
        boxes = {name: rng.uniform(0, 32, 4) for name in present}
        photo = rng.integers(0, 256, (PHOTO_SIDE, PHOTO_SIDE, 3), np.uint8)
        view = FaceView(
            face=make_face({"a": 1.0}),
            photo=photo,
            to_crop=np.eye(2, 3) * 32 / PHOTO_SIDE,
            regions=boxes,
            name=f"{number}.png",
        )
        distance = np.array([5.0, 7.0]) + number
        attention = Attention(
            rng.random((3, 3, 3)), rng.random((3, 3)), rng.random((3, 2, 2)), distance, blocks=2
        )
        target = Attributed("a", rng.normal(size=3), rng.normal(size=(4, 4)))
        pairs.append((view, Evidence([0], [target], attention, rng.normal(size=(3, 3)))))
    return pairs


@pytest.fixture
def average(faces: list[tuple[FaceView, Evidence]]) -> Average:
    """The mean of the faces."""
    average = Average(REGIONS)
    for face in faces:
        average.add(*face)
    return average


def means(
    faces: list[tuple[FaceView, Evidence]], *regions: int
) -> tuple[list[Attention], Array, list[Evidence]]:
    """Attention, shares and evidence of the faces that show some regions."""
    with_regions = [
        evidence for view, evidence in faces if {REGIONS[r] for r in regions} <= view.regions.keys()
    ]
    shares = np.stack([evidence.targets[0].shares for evidence in with_regions])
    return [evidence.attention for evidence in with_regions], shares, with_regions


def test_the_frames_of_a_video_are_no_independent_faces(
    faces: list[tuple[FaceView, Evidence]], average: Average
) -> None:
    """Ten frames of each face are no more evidence than one, and one video is none."""
    frames = Average(REGIONS)
    single = Average(REGIONS)
    for view, evidence in faces:
        for _ in range(10):
            frames.add(view, evidence)
        single.add(replace(view, name="clip.mp4"), evidence)
    for of_photos, of_frames in zip(average.intervals(), frames.intervals(), strict=True):
        result = [of_frames.mean, of_frames.low, of_frames.high]
        expected = [of_photos.mean, of_photos.low, of_photos.high]
        assert result == pytest.approx(expected, abs=1e-6)
    assert {interval.low for interval in single.intervals()} == {None}


def rounded(value: float) -> float:
    """A number as tables have it, with four significant digits."""
    return float(f"{value:.4g}")


def test_tables_hold_means_over_faces(
    faces: list[tuple[FaceView, Evidence]], average: Average, tmp_path: Path
) -> None:
    write_averages(tmp_path, {"a": average}, REGIONS)
    mean = average.attention()
    assert mean is not None
    write_heads(tmp_path, mean, REGIONS)
    tables = {path.stem: list(csv.DictReader(path.open())) for path in tmp_path.glob("*.csv")}
    assert [row["region"] for row in tables["shares"]] == list(REGIONS)
    for r, row in enumerate(tables["shares"]):
        _, shares, _ = means(faces, r)
        assert int(row["faces"]) == len(shares)
        assert float(row["mean"]) == rounded(shares[:, r].mean())
        assert float(row["low"]) < float(row["mean"]) < float(row["high"])
    assert len(tables["relations"]) == 3 + 9
    for row in tables["relations"]:
        b = REGIONS.index(row["takes_from"])
        if row["region"] == "output":
            expected = [attention.output[0, b] for attention in means(faces, b)[0]]
        else:
            a = REGIONS.index(row["region"])
            expected = [attention.relations[0, a, b] for attention in means(faces, a, b)[0]]
        assert int(row["faces"]) == len(expected)
        assert float(row["mean"]) == rounded(np.mean(expected))
    assert [(row["block"], row["head"]) for row in tables["heads"]] == [("1", "1"), ("2", "1")]
    for view, row in enumerate(tables["heads"], 1):
        assert float(row["distance_px"]) == pytest.approx(3 + 2 * view + (FACES - 1) / 2)
        expected = [attention.output[view, 2] for attention in means(faces, 2)[0]]
        assert float(row["mouth"]) == rounded(np.mean(expected))
    row = next(
        row
        for row in tables["heads_relations"]
        if (row["block"], row["takes_from"]) == ("2", "mouth")
    )
    expected = [attention.relations[2, 0, 2] for attention in means(faces, 0, 2)[0]]
    assert float(row["mean"]) == rounded(np.mean(expected))


def test_the_mean_face_has_the_means_of_its_faces(
    faces: list[tuple[FaceView, Evidence]], average: Average
) -> None:
    view, evidence = average.face("a", 32)
    assert (
        np.abs(
            view.photo - np.mean([face_view.photo.astype(float) for face_view, _ in faces], axis=0)
        ).max()
        <= 0.5
    )
    for name, box in view.regions.items():
        assert np.allclose(
            box,
            np.mean(
                [face_view.regions[name] for face_view, _ in faces if name in face_view.regions],
                axis=0,
            ),
        )
    heat = [
        face_evidence.targets[0].heat / np.abs(face_evidence.targets[0].heat).sum()
        for _, face_evidence in faces
    ]
    assert np.allclose(evidence.targets[0].heat, np.mean(heat, axis=0))
    assert np.allclose(
        evidence.attention.patches,
        np.mean([face_evidence.attention.patches for _, face_evidence in faces], axis=0),
    )
    logits = [face_evidence.interactions[0, 1] for face_evidence in means(faces, 0, 1)[2]]
    assert evidence.interactions[0, 1] == pytest.approx(np.mean(logits))
    assert len(average.intervals()) == 3 + 3 + 9
