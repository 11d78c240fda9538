"""Blur, regions outside the photo, and smoothing over time."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.data import astronaut

from fer_vit.geometry import Array, compose
from fer_vit.predict.photos import OK, Photo
from fer_vit.predict.recognizer import measure_blur, regions_in_photo, smooth_faces
from fer_vit.predict.results import FaceResult

LABELS = ("neutral", "happiness", "sadness")


def measure_blur_by_loops(grey: np.ndarray) -> float:
    edges = [
        grey[y, x - 1] + grey[y, x + 1] + grey[y - 1, x] + grey[y + 1, x] - 4 * grey[y, x]
        for y in range(1, 47)
        for x in range(1, 47)
    ]
    return (np.var(grey, ddof=1) / np.var(edges, ddof=1)) ** 0.25


def crop(side: int) -> torch.Tensor:
    face = torch.from_numpy(astronaut()[64:208, 160:304]).permute(2, 0, 1)[None] / 255
    return torch.nn.functional.interpolate(face, (side, side), mode="bilinear", antialias=True)


def test_blur_equals_loops_at_any_contrast_and_size() -> None:
    face = crop(48)
    blur = measure_blur(face).item()
    assert blur == pytest.approx(measure_blur_by_loops(face[0].double().mean(0).numpy()), rel=1e-4)
    assert measure_blur(0.3 + 0.2 * face).item() == pytest.approx(blur, rel=1e-3)
    assert measure_blur(crop(112)).item() == pytest.approx(blur, rel=0.1)
    assert measure_blur(torch.full((1, 3, 48, 48), 0.5)).isnan().all()


def test_regions_outside_the_photo() -> None:
    angle = np.deg2rad(30)
    turn = np.array([[np.cos(angle), -np.sin(angle), 5.0], [np.sin(angle), np.cos(angle), -3.0]])
    to_crop = compose([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]], turn)
    centres = {"in": (50, 30), "left": (-2, 30), "below": (50, 61), "right": (101, 5), "edge": (99, 59)}
    boxes = {}
    for name, point in centres.items():
        x, y = to_crop @ np.array([*point, 1.0])
        boxes[name] = np.array([x - 8, y - 8, x + 8, y + 8])
    assert regions_in_photo(boxes, to_crop, (100, 60)) == ["in", "edge"]
    assert regions_in_photo({}, to_crop, (100, 60)) == []


def face(values: Array, track: int | None, seconds: float | None) -> FaceResult:
    probabilities = dict(zip(LABELS, values.tolist(), strict=True))
    result = FaceResult(
        "", 0.0, probabilities, "a.mp4", 0, None, None, None, Path("a.mp4"), np.zeros(4), 48, {}, {}, 0.0, (), None
    )
    return replace(result, track=track, seconds=seconds)


def clip(times: list[float], values: Array, tracks: list[int], source: int = 0) -> list[Photo[FaceResult]]:
    """A video with one face a frame."""
    return [
        Photo("a.mp4", OK, [face(p, track, t)], source, number, t, (track,))
        for number, (t, p, track) in enumerate(zip(times, values, tracks, strict=True))
    ]


def smoothed(photos: list[Photo[FaceResult]]) -> Array:
    return np.array([[*photo.faces[0].smoothed.values()] for photo in photos])


def smooth_by_loops(times: list[float], values: Array, tracks: list[int], constant: float, causal: bool) -> Array:
    """Loops over everything in double precision."""
    rows = []
    for now, own in zip(times, tracks, strict=True):
        logs, total = [0.0] * len(LABELS), 0.0
        for then, other, value in zip(times, tracks, values, strict=True):
            if own == other and abs(now - then) <= 3 * constant and (then <= now or not causal):
                age = (now - then) / constant
                weight = math.exp(-age if causal else -(age**2) / 2)
                logs = [log + weight * math.log(p) for log, p in zip(logs, value, strict=True)]
                total += weight
        powers = [math.exp(log / total) for log in logs]
        rows.append([power / sum(powers) for power in powers])
    return np.array(rows)


@pytest.fixture
def uneven() -> tuple[list[float], Array, list[int]]:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.choice([0.01, 0.04, 0.5], 80)).tolist()
    return times, rng.dirichlet([0.5] * 3, 80).clip(1e-5), rng.integers(0, 2, 80).tolist()


@pytest.mark.parametrize("causal", [False, True])
def test_smoothing_equals_loops(causal: bool, uneven: tuple[list[float], Array, list[int]]) -> None:
    times, values, tracks = uneven
    given = 0

    def frames() -> Iterator[Photo[FaceResult]]:
        nonlocal given
        for given, frame in enumerate(clip(times, values, tracks)):  # noqa: B007
            yield frame

    found = []
    for number, photo in enumerate(smooth_faces(frames(), 0.3, causal)):
        assert photo.frame == number
        assert given == number or not causal  # no delay
        found.append(photo)
    assert [[*photo.faces[0].probabilities.values()] for photo in found] == values.tolist()  # unchanged
    assert np.allclose(smoothed(found), smooth_by_loops(times, values, tracks, 0.3, causal), atol=1e-9)


def test_photos_and_other_videos_stay_apart() -> None:
    happy, sad = np.array([0.01, 0.98, 0.01]), np.array([0.01, 0.01, 0.98])
    photo = Photo("a.jpg", OK, [face(sad, None, None)], 1)
    broken: Photo[FaceResult] = Photo("a.mp4", "damaged: 3", [], 0)
    first = clip([0.0, 0.1], np.array([happy, happy]), [0, 0])
    last = clip([0.2], np.array([sad]), [0], source=2) + clip([0.2], np.array([happy]), [0], source=3)
    found = list(smooth_faces([*first, broken, photo, *last], 1.0))
    assert [(p.source, p.frame) for p in found] == [(0, 0), (0, 1), (0, None), (1, None), (2, 0), (3, 0)]
    assert found[2:4] == [broken, photo]
    assert [p.faces[0].label_smoothed for p in found if p.faces] == ["happiness"] * 2 + [None, "sadness", "happiness"]
