from pathlib import Path

import pytest

from benchmarks import video
from fer_vit import load
from fer_vit.predict.video import read_frames


def test_every_measure_has_its_line(
    tmp_path: Path, yunet_named: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(video, "EVERY", (1, 5))
    video.draw(tmp_path / "drawn.mp4", frames=6)
    video.report(load(device="cpu"), tmp_path / "drawn.mp4", drawn=True)
    out = capsys.readouterr().out
    assert "drawn.mp4: tracks by detect_every {1: 3, 5: 3}" in out
    assert "detect_every 5: 18 of 18 faces in the same track" in out
    assert out.count(" changes/s, accuracy ") == 18


def test_a_clip_repeated(tmp_path: Path) -> None:
    once = video.draw(tmp_path / "once.mp4", frames=8, people=1, height=90)
    seconds = [frame.seconds for frame in read_frames(video.repeat(once, tmp_path / "thrice.mp4", 3))]
    assert seconds == pytest.approx([number / 25 for number in range(24)])
