import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fer_vit import load
from fer_vit.app import server
from fer_vit.app.server import LivePage, create_app
from fer_vit.commands import live as command
from fer_vit.face.detectors import DETECTORS
from fer_vit.fields import table_columns
from fer_vit.predict.camera import ClassifiedFrame
from tests.helpers.commands import fails, main, run
from tests.helpers.processes import PATIENCE, wait_until
from tests.helpers.videos import Actor, Blobs, scene, write_video

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bright square, which is taken for a face, for ten frames."""
    monkeypatch.setitem(DETECTORS, "yunet", Blobs())
    image = np.zeros((120, 160, 3), np.uint8)
    image[30:90, 50:110] = 220
    return write_video(tmp_path / "a.mp4", [image] * 10, [n / 25 for n in range(10)])


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_live_watches_a_file_to_its_end(
    clip: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    show = LivePage.show

    def record(page: LivePage, seen: ClassifiedFrame) -> None:
        shown.append(seen.faces[0])
        show(page, seen)

    monkeypatch.setattr(LivePage, "show", record)
    table = tmp_path / "live.csv"
    main(
        ["live", str(clip), "--checkpoint", str(checkpoint), "--output", str(table), "--port", "0"]
    )
    out, err = capsys.readouterr()
    written = rows(table)
    lines = out.splitlines()
    assert [*written[0]] == [*table_columns(load(checkpoint, "cpu").labels, videos=True)]
    assert written[-1]["frame"] == "9"
    assert {row["path"] for row in written} == {str(clip)}
    assert [face.label_smoothed for face in shown] == [row["label_smoothed"] for row in written]
    assert lines[0].startswith(f"{clip}: open http://localhost:")
    assert lines[1] == f"{len(written)} frames"
    assert lines[4] == f"Table: {table}"
    assert f"{10 - len(written)} skipped" in lines[3]
    assert "ms (95%: " in lines[3]
    assert err == ""  # outside a terminal, no line is updated


def interrupted(frames: Iterator[ClassifiedFrame]) -> Iterator[ClassifiedFrame]:
    yield next(frames)
    raise KeyboardInterrupt


@pytest.mark.parametrize("stopped", [True, False], ids=["by a viewer", "by Ctrl-C"])
def test_live_is_ended_by_its_page_and_by_ctrl_c(
    stopped: bool,
    clip: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show = LivePage.show
    watch = command.watch

    def show_and_stop(page: LivePage, seen: ClassifiedFrame) -> None:
        page.stopped = True
        show(page, seen)

    if stopped:
        monkeypatch.setattr(LivePage, "show", show_and_stop)
    else:
        monkeypatch.setattr(command, "watch", lambda *given: interrupted(watch(*given)))
    words = [
        "live",
        clip,
        "--checkpoint",
        checkpoint,
        "--output",
        clip.parent / "live.csv",
        "--port",
        0,
    ]
    known = []

    def record(page: object, hosts: list[str], public: object) -> object:
        known.append(hosts)
        return create_app(page, hosts, public)

    monkeypatch.setattr(server, "create_app", record)
    run(*words, "--host", "0.0.0.0", "--hostnames", "lab", "lab.example")
    assert known == [["0.0.0.0", "lab", "lab.example"]]
    out, err = capsys.readouterr()
    assert len(rows(clip.parent / "live.csv")) == 1
    assert "\n1 frames\n1 faces: 1 " in out
    assert "http://0.0.0.0:" in err
    assert "already exists" in fails(capsys, *words)
    assert ".jsonl" in fails(capsys, *words, "--output", clip.parent / "live.parquet")
    assert "nothing" in fails(capsys, "live", "nothing")
    run(*words, "--overwrite")
    run(*words[:4], "--port", 0)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_recording_is_complete_however_it_ends(end: signal.Signals, tmp_path: Path) -> None:
    still = next(scene([Actor(7, lambda t: (320, 180, 200))], [0.0]))[0]
    clip = write_video(tmp_path / "a.mp4", [still] * 150, [n / 5 for n in range(150)])
    table = tmp_path / "live.csv"
    words = ["-m", "cli", "live", str(clip), "--output", str(table), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    wait_until(lambda: process.poll() is not None or (table.exists() and len(rows(table)) >= 3))
    assert process.poll() is None
    process.send_signal(end)
    out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err
    assert process.returncode == {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGKILL: -9}[end]
    written = rows(table)
    assert (f"\n{len(written)} frames\n" in out) == (end != signal.SIGKILL)
    assert all(None not in row and None not in row.values() for row in written)
    assert all(row["label_smoothed"] for row in written)
    assert [*tmp_path.glob(".*")] == []
