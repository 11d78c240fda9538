"""Averages over time of probabilities and outputs."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from fer_vit.faces import Faces, PhotoInfo, no_faces
from fer_vit.geometry import Array
from fer_vit.predict.smoothing import LIVE, RECORDED, Kernel, smooth_faces
from tests.helpers.faces import make_faces

LABELS = ("neutral", "happiness", "sadness")
KERNELS = (RECORDED, LIVE)


def clip(
    times: list[float],
    values: Array,
    tracks: list[int],
    index: int = 0,
    outputs: dict[str, list[float]] | None = None,
) -> list[Faces]:
    """A video with one face a frame."""
    return [
        make_faces(
            LABELS,
            values[number : number + 1],
            index=index,
            frame=number,
            seconds=seconds,
            track=[tracks[number]],
            outputs={name: [column[number]] for name, column in (outputs or {}).items()},
        )
        for number, seconds in enumerate(times)
    ]


def lengths_by_loops(times: list[float], causal: bool, constant: float) -> list[float]:
    """For how long each frame counts; the first and last interval continue at the ends."""
    padded = [2 * times[0] - times[1], *times, 2 * times[-1] - times[-2]]
    lengths = []
    for place in range(1, len(padded) - 1):
        before = padded[place] - padded[place - 1]
        after = padded[place + 1] - padded[place]
        lengths.append(min(before if causal else (before + after) / 2, constant))
    return lengths


def smooth_by_loops(
    times: list[float], values: Array, tracks: list[int], constant: float, causal: bool
) -> Array:
    """Loops over everything in double precision."""
    lengths = lengths_by_loops(times, causal, constant)
    rows = []
    for now, track in zip(times, tracks, strict=True):
        logs = [0.0] * len(LABELS)
        total = 0.0
        frames = zip(times, tracks, values, lengths, strict=True)
        for then, then_track, value, length in frames:
            if (
                track == then_track
                and abs(now - then) <= 3 * constant
                and (then <= now or not causal)
            ):
                age = (now - then) / constant
                exponent = -age if causal else -(age**2) / 2
                weight = length * math.exp(exponent)
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


@pytest.mark.parametrize("kernel", KERNELS, ids=["recorded", "live"])
def test_smoothing_equals_loops(
    kernel: Kernel, uneven: tuple[list[float], Array, list[int]]
) -> None:
    times, values, tracks = uneven
    given = 0

    def frames() -> Iterator[Faces]:
        nonlocal given
        for given, frame in enumerate(clip(times, values, tracks)):  # noqa: B007
            yield frame

    smoothed_frames = []
    for number, faces in enumerate(smooth_faces(frames(), 0.3, kernel)):
        assert faces.infos[0].frame == number
        assert given == number or not kernel.causal  # no delay
        smoothed_frames.append(faces)
    assert np.array_equal(
        np.concatenate([faces.probabilities for faces in smoothed_frames]), values
    )
    expected = smooth_by_loops(times, values, tracks, 0.3, kernel.causal)
    smoothed = np.concatenate([faces.smoothed for faces in smoothed_frames])
    assert np.allclose(smoothed, expected, atol=1e-9)


@pytest.mark.parametrize("rate", [2.0, 25.0])  # frames a second
@pytest.mark.parametrize("kernel", KERNELS, ids=["recorded", "live"])
def test_frames_of_a_constant_rate_count_equally(rate: float, kernel: Kernel) -> None:
    values = np.random.default_rng(0).dirichlet([0.5] * 3, 40).clip(1e-5)
    times = np.arange(40) / rate
    smoothed = smooth_faces(clip(times.tolist(), values, [0] * 40), 0.3, kernel)
    given = np.concatenate([faces.smoothed for faces in smoothed])

    age = (times[:, None] - times) / 0.3
    weights = np.exp(-age if kernel.causal else -0.5 * age**2) * (np.abs(age) <= 3)
    if kernel.causal:
        weights *= age >= 0
    powers = np.exp(weights @ np.log(values) / weights.sum(1, keepdims=True))
    assert given == pytest.approx(powers / powers.sum(1, keepdims=True), abs=1e-9)


def test_smoothing_is_over_time_where_the_frame_rate_changes() -> None:
    """A course over time has one smoothed course, however many frames a second show it.

    Half of the video has 40 frames a second and half has 10. The reference has 80.
    """

    def course(seconds: Array) -> Array:
        logits = np.stack([2 * np.sin(2.4 * seconds), np.cos(1.7 * seconds), 0 * seconds], 1)
        shares = np.exp(logits)
        return shares / shares.sum(1, keepdims=True)

    fast = np.arange(0, 3, 0.025)
    slow = np.arange(3, 6, 0.1)
    times = np.concatenate([fast, slow])
    fine = np.arange(0, 6, 0.0125)
    smoothed = []
    for seconds in (times, fine):
        frames = clip(seconds.tolist(), course(seconds), [0] * len(seconds))
        parts = [faces.smoothed for faces in smooth_faces(frames, 0.25)]
        smoothed.append(np.concatenate(parts))
    inside = (times > 0.8) & (times < 5.2)  # away from the ends
    nearest = np.abs(fine[:, None] - times[inside]).argmin(0)
    # 0.02 at the change of the rate if each frame counts equally
    assert smoothed[0][inside] == pytest.approx(smoothed[1][nearest], abs=2e-3)


def test_frames_of_one_time_are_averaged() -> None:
    values = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    for kernel in KERNELS:
        *_, last = smooth_faces(clip([1.0, 1.0, 1.0], values, [0] * 3), 0.2, kernel)
        powers = np.exp(np.log(values).mean(0))
        assert last.smoothed[0] == pytest.approx(powers / powers.sum())


def test_photos_and_other_videos_stay_apart() -> None:
    happy = np.array([[0.01, 0.98, 0.01]])
    sad = np.array([[0.01, 0.01, 0.98]])
    photo = make_faces(LABELS, sad, path="a.jpg", index=1)
    broken = no_faces([PhotoInfo("a.mp4", "damaged: 3")])
    first = clip([0.0, 0.1], np.concatenate([happy, happy]), [0, 0])
    last = clip([0.2], sad, [0], index=2) + clip([0.2], happy, [0], index=3)
    smoothed = list(smooth_faces([*first, broken, photo, *last], 1.0))
    assert [(faces.infos[0].index, faces.infos[0].frame) for faces in smoothed] == [
        (0, 0),
        (0, 1),
        (0, None),
        (1, None),
        (2, 0),
        (3, 0),
    ]
    assert [faces.infos for faces in smoothed[2:4]] == [broken.infos, photo.infos]
    labels = [face.label_smoothed for faces in smoothed for face in faces]
    assert labels == ["happiness", "happiness", None, "sadness", "happiness"]


@pytest.mark.parametrize("kernel", KERNELS, ids=["recorded", "live"])
def test_labels_that_are_excluded_stay_at_zero(kernel: Kernel) -> None:
    """`classes` sets their probability to 0; others of 0 in one frame alone count as 1e-6."""
    values = np.array([[0.7, 0.3, 0], [1, 0, 0], [0.6, 0.4, 0]])
    smoothed_frames = list(smooth_faces(clip([0.0, 0.1, 0.2], values, [0, 0, 0]), 0.2, kernel))
    smoothed = np.concatenate([faces.smoothed for faces in smoothed_frames])
    assert (smoothed[:, 2] == 0).all()
    assert (smoothed[:, :2] > 0).all()
    expected = smooth_by_loops([0.0, 0.1, 0.2], values.clip(1e-6), [0, 0, 0], 0.2, kernel.causal)
    possible = expected[:, :2] / expected[:, :2].sum(1, keepdims=True)
    assert smoothed[:, :2] == pytest.approx(possible)


def test_outputs_are_averaged_and_angles_as_directions() -> None:
    moves = [0.0, 0.5, 1.0]
    rolls = [170.0, 180.0, -170.0]
    even = np.full((3, 3), 1 / 3)
    frames = clip([0.0, 0.1, 0.2], even, [0, 0, 0], outputs={"move_a": moves, "roll": rolls})
    smoothed = list(smooth_faces(frames, 10.0))
    for faces in smoothed:
        assert faces[0].smoothed_outputs["move_a"] == pytest.approx(0.5, abs=1e-3)
        assert abs(faces[0].smoothed_outputs["roll"]) == pytest.approx(180, abs=0.1)
    assert [faces[0].outputs["move_a"] for faces in smoothed] == moves
    opposite = clip([0.0, 0.1], even[:2], [0, 0], outputs={"roll": [90.0, -90.0]})
    for faces in smooth_faces(opposite, 1e6):  # all frames count equally
        assert faces[0].smoothed_outputs == {}  # opposite angles have no mean
    (photo,) = smooth_faces([make_faces(LABELS, even[:1], outputs={"move_a": [0.3]})], 1.0)
    assert photo[0].smoothed_outputs == {}
    (alone,) = smooth_faces(clip([0.0], even[:1], [0], outputs={"move_a": [0.3]}), 0.0)
    assert alone[0].smoothed_outputs == {"move_a": 0.3}
