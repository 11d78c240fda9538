import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fer_vit.geometry import Array
from fer_vit.predict.photos import OK, Photo
from fer_vit.predict.results import FaceResult
from fer_vit.predict.smoothing import smooth, smoothed

LABELS = ("neutral", "happiness", "sadness")


def face(shares: Array, track: int | None, seconds: float | None) -> FaceResult:
    probabilities = dict(zip(LABELS, shares.tolist(), strict=True))
    nothing = np.zeros(4)
    result = FaceResult(
        "", 0.0, probabilities, "a.mp4", 0, None, None, None, Path("a.mp4"), nothing, 48, {}, {}, 0.0, ()
    )
    return replace(result, track=track, seconds=seconds)


def clip(times: list[float], shares: Array, tracks: list[int], source: int = 0) -> list[Photo[FaceResult]]:
    """A video with one face a frame."""
    return [
        Photo("a.mp4", OK, [face(p, track, t)], source, number, t, (track,))
        for number, (t, p, track) in enumerate(zip(times, shares, tracks, strict=True))
    ]


def values(photos: list[Photo[FaceResult]]) -> Array:
    return np.array([[*photo.faces[0].smoothed.values()] for photo in photos])


def reference(times: list[float], shares: Array, tracks: list[int], constant: float) -> Array:
    """Loops over everything in double precision."""
    rows = []
    for now, own in zip(times, tracks, strict=True):
        logs, total = [0.0] * len(LABELS), 0.0
        for then, other, share in zip(times, tracks, shares, strict=True):
            if own == other and abs(now - then) <= 3 * constant:
                weight = math.exp(-((now - then) ** 2) / (2 * constant**2))
                logs = [log + weight * math.log(p) for log, p in zip(logs, share, strict=True)]
                total += weight
        powers = [math.exp(log / total) for log in logs]
        rows.append([power / sum(powers) for power in powers])
    return np.array(rows)


@pytest.fixture
def uneven() -> tuple[list[float], Array, list[int]]:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.choice([0.01, 0.04, 0.5], 80)).tolist()
    return times, rng.dirichlet([0.5] * 3, 80).clip(1e-5), rng.integers(0, 2, 80).tolist()


def test_a_window_gives_what_all_of_the_video_would(uneven: tuple[list[float], Array, list[int]]) -> None:
    times, shares, tracks = uneven
    frames = clip(times, shares, tracks)
    found = list(smoothed(frames, 0.3))
    assert [photo.frame for photo in found] == [*range(80)]
    assert [[*photo.faces[0].probabilities.values()] for photo in found] == shares.tolist()  # untouched
    assert np.allclose(values(found), reference(times, shares, tracks, 0.3), atol=1e-9)


def test_no_time_constant_leaves_the_probabilities(uneven: tuple[list[float], Array, list[int]]) -> None:
    times, shares, tracks = uneven
    assert np.allclose(values(list(smoothed(clip(times, shares, tracks), 0.0))), shares / shares.sum(1)[:, None])


def test_it_waits_for_no_more_than_the_window() -> None:
    taken = 0

    def frames() -> list[Photo[FaceResult]]:
        nonlocal taken
        for frame in clip(np.arange(1000) / 25, np.full((1000, 3), 1 / 3), [0] * 1000):  # type: ignore[arg-type]
            taken += 1
            yield frame

    stream = smoothed(frames(), 0.5)
    for number in range(900):
        assert next(stream).frame == number
        assert taken <= number + 0.5 * 3 * 25 + 2


def test_times_that_jump_and_tracks_that_come_and_go() -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.normal(0, 1, 300)).tolist()
    frames = clip(times, rng.dirichlet([1.0] * 3, 300), rng.integers(0, 30, 300).tolist())
    found = list(smoothed(frames, 0.3))
    assert [photo.seconds for photo in found] == times
    assert np.allclose(values(found).sum(1), 1)


def test_live_frames_do_not_wait_and_know_only_the_past(uneven: tuple[list[float], Array, list[int]]) -> None:
    times, shares, tracks = uneven
    given = 0

    def frames() -> Iterator[Photo[FaceResult]]:
        nonlocal given
        for given, frame in enumerate(clip(times, shares, tracks)):  # noqa: B007
            yield frame

    for number, photo in enumerate(smoothed(frames(), 0.3, causal=True)):
        assert photo.frame == given == number
        logs, total = np.zeros(3), 0.0
        for then, other, share in zip(times[: number + 1], tracks, shares, strict=False):
            if other == tracks[number] and times[number] - then <= 0.9:
                weight = math.exp((then - times[number]) / 0.3)
                logs, total = logs + weight * np.log(share), total + weight
        expected = np.exp(logs / total) / np.exp(logs / total).sum()
        assert np.allclose([*photo.faces[0].smoothed.values()], expected, atol=1e-9)


def test_photos_and_other_videos_stay_apart() -> None:
    happy, sad = np.array([0.01, 0.98, 0.01]), np.array([0.01, 0.01, 0.98])
    photo = Photo("a.jpg", OK, [face(sad, None, None)], 1)
    broken: Photo[FaceResult] = Photo("a.mp4", "damaged: 3", [], 0)
    frames = [
        *clip([0.0, 0.1], np.array([happy, happy]), [0, 0]),
        broken,
        photo,
        *clip([0.2, 0.3], np.array([sad, sad]), [0, 0], source=2),
    ]
    found = list(smoothed(frames, 1.0))
    assert [(p.source, p.frame) for p in found] == [(p.source, p.frame) for p in frames]
    assert found[2:4] == [broken, photo]
    assert [p.faces[0].label_smoothed for p in found if p.faces] == ["happiness"] * 2 + [None] + ["sadness"] * 2


def test_causal_is_an_exponential_average_of_the_past() -> None:
    shares = np.random.default_rng(0).dirichlet([1.0] * 3, 50)
    times = np.arange(50) / 25
    state = np.log(shares[0])
    weight = 1.0
    for share in shares[1:]:  # as one would compute it frame by frame
        keep = math.exp(-0.04 / 0.3) * weight
        state, weight = (keep * state + np.log(share)) / (keep + 1), keep + 1
    expected = np.exp(state) / np.exp(state).sum()
    later = np.concatenate([shares, [[0.98, 0.01, 0.01]]])  # the future does not count
    found = smooth(later, times[-1] - np.append(times, 2.5), 0.3, causal=True)
    assert np.allclose(found, expected)


def flicker(labels: Array, seconds: float) -> float:
    """Changes of the label a second."""
    return sum(a != b for a, b in pairwise(labels.tolist())) / seconds


def test_it_steadies_labels_and_keeps_the_time_of_a_change() -> None:
    """A face changes its expression every 3 s, seen by a model that is wrong in every fifth frame."""
    rng, rate, seconds = np.random.default_rng(1), 25, 30
    times = np.arange(rate * seconds) / rate
    truth = (times // 3 % 3).astype(int)
    seen = np.where(rng.random(len(times)) < 0.2, rng.integers(0, 3, len(times)), truth)
    shares = np.where(np.arange(3) == seen[:, None], 0.8, 0.1)
    both = values(list(smoothed(clip(times.tolist(), shares, [0] * len(times)), 0.25))).argmax(1)
    past = np.array([smooth(shares[: n + 1], t - times[: n + 1], 0.25, causal=True) for n, t in enumerate(times)])
    assert flicker(seen, seconds) > 5
    assert flicker(both, seconds) < 0.5  # 0.3 are true
    late, causal = change_delays(both, truth) / rate, change_delays(past.argmax(1), truth) / rate
    assert np.abs(late).max() <= 0.12
    assert 0.1 < np.median(causal) < 0.25


def change_delays(found: Array, truth: Array) -> Array:
    """Frames from each true change of the label to the nearest one that was found."""
    changes = np.flatnonzero(np.diff(found)) + 1
    return np.array([changes[np.abs(changes - c).argmin()] - c for c in np.flatnonzero(np.diff(truth)) + 1])


@pytest.mark.parametrize("constant", [0.25, 1.0])
def test_frames_far_apart_weigh_by_their_times(constant: float) -> None:
    times, shares = [0.0, 2.5, 5.0, 65.0], np.random.default_rng(0).dirichlet([1.0] * 3, 4)
    found = values(list(smoothed(clip(times, shares, [0] * 4), constant)))
    np.testing.assert_allclose(found, reference(times, shares, [0] * 4, constant))
    np.testing.assert_allclose(found[-1], shares[-1])  # nothing else is near
