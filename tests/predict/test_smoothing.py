"""Averages over time of probabilities and outputs, against loops over what was predicted."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fer_vit import load
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.face.detectors import DETECTORS
from fer_vit.face.image import encode_jpeg
from fer_vit.faces import Face, Faces
from fer_vit.geometry import Array, Image
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.recognizer import Recognizer
from tests.helpers.cameras import watch_all
from tests.helpers.videos import Blobs, matroska

OUTPUTS = {"movements": ["jawOpen"], "pose": ["yaw", "pitch", "roll"]}
CONSTANT = 0.25  # the default of `smooth`, in seconds
pytestmark = pytest.mark.usefixtures("usual_landmarks")


@pytest.fixture(scope="module")
def model() -> Recognizer:
    """A model whose probabilities and outputs differ from frame to frame."""
    torch.manual_seed(0)
    config = RegionViTConfig(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, regions=DEFAULT_REGIONS
    )
    net = build_model(config, ["neutral", "happiness", "sadness"], outputs=OUTPUTS)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(net.vit.head.weight, std=5)
    return load(net, "cpu")


@pytest.fixture(autouse=True)
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bright squares are taken for faces."""
    monkeypatch.setitem(DETECTORS, "yunet", Blobs())


def pictures(count: int) -> Iterator[Image]:
    """Two squares of changing noise on a dark stage; the second one is often away."""
    rng = np.random.default_rng(0)
    floor = rng.integers(0, 90, (96, 160, 3), np.uint8)
    for number in range(count):
        image = floor.copy()
        for left in (16, 96)[: 1 + (number % 5 < 3)]:
            light = rng.integers(150, 256, (6, 6, 3), np.uint8)
            image[16:64, left : left + 48] = np.kron(light, np.ones((8, 8, 1), np.uint8))
        yield image


def write(path: Path, times: list[int]) -> Path:
    """A clip of the pictures at times in milliseconds."""
    encoded = [encode_jpeg(image) for image in pictures(len(times))]
    path.write_bytes(matroska(times, encoded, (160, 96), times[-1] + 40))
    return path


def lengths_by_loops(times: list[float], causal: bool, constant: float) -> list[float]:
    """For how long each frame counts; the first and last interval continue at the ends."""
    padded = [2 * times[0] - times[1], *times, 2 * times[-1] - times[-2]]
    lengths = []
    for place in range(1, len(padded) - 1):
        before = padded[place] - padded[place - 1]
        after = padded[place + 1] - padded[place]
        lengths.append(max(min(before if causal else (before + after) / 2, constant), 1e-6))
    return lengths


def smooth_by_loops(
    frames: list[Faces], constant: float, causal: bool
) -> Iterator[tuple[Face, Array, float, float]]:
    """Yields each face with its average, by loops over everything in double precision."""
    times = [faces.infos[0].seconds for faces in frames]
    lengths = lengths_by_loops(times, causal, constant)
    for now, faces in zip(times, frames, strict=True):
        for face in faces:
            logs = np.zeros(3)
            jaw = 0.0
            turn = 0j
            total = 0.0
            for then, others, length in zip(times, frames, lengths, strict=True):
                age = (now - then) / constant
                if abs(age) > 3 or (causal and age < 0):
                    continue
                for other in others:
                    if other.track != face.track:
                        continue
                    weight = length * math.exp(-age if causal else -(age**2) / 2)
                    shares = np.array([*other.probabilities.values()])
                    logs += weight * np.log(shares.clip(1e-6))
                    jaw += weight * other.outputs["move_jawOpen"]
                    turn += weight * np.exp(1j * np.deg2rad(other.outputs["roll"]))
                    total += weight
            powers = np.exp(logs / total)
            yield face, powers / powers.sum(), jaw / total, np.rad2deg(np.angle(turn))


def assert_smoothed(frames: list[Faces], constant: float, causal: bool) -> None:
    for face, shares, jaw, roll in smooth_by_loops(frames, constant, causal):
        assert [*face.smoothed.values()] == pytest.approx(shares, abs=1e-6)
        assert face.smoothed_outputs["move_jawOpen"] == pytest.approx(jaw, abs=1e-6)
        difference = (face.smoothed_outputs["roll"] - roll + 180) % 360 - 180
        assert abs(difference) < 1e-3


UNEVEN = np.cumsum(np.random.default_rng(0).choice([10, 40, 300], 40)).tolist()


@pytest.mark.parametrize("times", [UNEVEN, [40 * number for number in range(40)], [7, 7, 7]])
def test_averages_of_a_recording_are_those_of_loops(
    times: list[int], model: Recognizer, tmp_path: Path
) -> None:
    frames = [photo.faces for photo in model.stream(write(tmp_path / "a.mkv", times), workers=0)]
    assert len(frames) == len(times)
    assert {1, 2} <= {track for faces in frames for track in faces.track}
    assert np.ptp([face.probabilities["neutral"] for faces in frames for face in faces]) > 0.05
    assert_smoothed(frames, CONSTANT, causal=False)


def test_averages_of_live_video_are_those_of_loops_over_the_past(model: Recognizer) -> None:
    """Each frame is there before the next one is shown."""
    times = [time / 1000 for time in UNEVEN]
    frames = [seen.faces for seen in watch_all(model, pictures(40), times)]
    assert [faces.infos[0].frame for faces in frames] == [*range(40)]
    assert_smoothed(frames, CONSTANT, causal=True)


def test_photos_and_other_videos_stay_apart(model: Recognizer, tmp_path: Path) -> None:
    clips = [write(tmp_path / f"{name}.mkv", UNEVEN[:8]) for name in "ab"]
    photo = next(iter(pictures(1)))
    broken = tmp_path / "broken.mkv"
    broken.write_bytes(clips[0].read_bytes()[:-2000])
    together = [*model.stream([broken, photo, *clips], workers=0)]
    alone = [*model.stream(clips[1], workers=0)]
    for among, expected in zip(together[-8:], alone, strict=True):
        assert among.faces.smoothed == pytest.approx(expected.faces.smoothed, abs=1e-5)
    (shown,) = (each for each in together if each.path.startswith("image"))
    for face in shown.faces:
        assert face.label_smoothed is None
        assert face.smoothed_outputs == {}


def test_classes_that_are_excluded_stay_at_zero(model: Recognizer, tmp_path: Path) -> None:
    some = load(model.net, "cpu", classes=["neutral", "sadness"])
    clip = write(tmp_path / "a.mkv", UNEVEN[:8])
    frames = [photo.faces for photo in some.stream(clip, workers=0)]
    for face, shares, *_ in smooth_by_loops(frames, CONSTANT, causal=False):
        assert face.smoothed["happiness"] == 0
        possible = shares[[0, 2]] / shares[[0, 2]].sum()
        assert [face.smoothed["neutral"], face.smoothed["sadness"]] == pytest.approx(possible)


def test_no_average(model: Recognizer, tmp_path: Path) -> None:
    clip = write(tmp_path / "a.mkv", UNEVEN[:8])
    for photo in model.stream(clip, workers=0, smooth=0):
        assert photo.faces.smoothed == pytest.approx(photo.faces.probabilities)
