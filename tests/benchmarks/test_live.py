from pathlib import Path

import pytest

from benchmarks.live import measure, scale
from fer_vit import load
from fer_vit.predict.video import read_frames
from tests.helpers.videos import Blobs, write_numbered


def test_a_clip_is_scaled_and_measured(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fer_vit.face.detect.YuNet", lambda min_score: Blobs())
    clip = write_numbered(tmp_path / "a.mp4", [n / 10 for n in range(20)])
    scale(clip, tmp_path / "b.mp4", 240)
    frames = list(read_frames(tmp_path / "b.mp4"))
    assert frames[0].image.shape == (240, 320, 3)
    assert [round(frame.seconds, 2) for frame in frames] == [n / 10 for n in range(20)]
    assert " of 20 frames, " in measure(load(checkpoint, "cpu"), tmp_path / "b.mp4", 1)
