"""Pipes and devices where a command expects files: none waits for them."""

import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from skimage.data import astronaut

from fer_vit.errors import FerVitError
from fer_vit.files import open_input
from fer_vit.texts import user_text
from tests.helpers.commands import read, run
from tests.helpers.processes import PATIENCE

PIPES = ("b.mp4", "c.jpg", "d.gif", "e.webm", "f.csv", "index.html", "train-00000-of-00001.parquet")


@pytest.fixture(autouse=True)
def _an_end() -> Iterator[None]:
    """A command that waits raises an error instead."""

    def end(*_: Any) -> None:
        raise TimeoutError("the command waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(int(PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with a photo, and pipes with the names of all kinds of files."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(astronaut()).save(folder / "a.jpg")
    for name in PIPES:
        os.mkfifo(folder / name)
    return folder


def test_predict_has_a_row_for_each_pipe(photos: Path, tmp_path: Path) -> None:
    run("predict", photos, "--output", tmp_path / "faces.csv", "--workers", 0)
    statuses = {Path(row["path"]).name: row["status"] for row in read(tmp_path / "faces.csv")}
    refused = dict.fromkeys(("b.mp4", "c.jpg", "d.gif", "e.webm"), "not a regular file")
    assert statuses == {"a.jpg": "ok"} | refused


def test_prepare_counts_the_pipes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    for label in ("happiness", "anger"):
        folder = root / label
        shutil.copytree(photos, folder, ignore=shutil.ignore_patterns(*PIPES))
        for name in PIPES:
            os.mkfifo(folder / name)
    run("prepare", "folder", root, tmp_path / "faces.parquet", "--duplicates", "keep")
    assert "left out: 4 (not a regular file)" in capsys.readouterr().out  # two in each folder


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        ("evaluate {pipe} --output out", ".parquet"),
        ("evaluate {table} --labels {pipe} --output out", ".xlsx"),
        ("compare {pipe} --by condition --output out", ".jsonl"),
        ("compare {table} --by condition --columns {pipe} --output out", ".csv"),
        ("predict {photo} --prior {pipe} --output out.csv", ".json"),
        ("fit --config {pipe} --data.manifest {pipe}", ".parquet"),
        ("validate --data.manifest {pipe} --ckpt_path {pipe}", ".ckpt"),
        ("export --checkpoint {pipe} out", ".ckpt"),
        ("predict {photo} --checkpoint {pipe} --output out.csv", ".ckpt"),
        ("predict {photo} --checkpoint {folder} --output out.csv", ".json"),
    ],
)
def test_a_named_pipe_is_one_line(
    words: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(f"pipe{suffix}")
    Path("folder").mkdir()
    for name in ("config.json", "model.safetensors"):
        os.mkfifo(Path("folder", name))
    Path("table.csv").write_text("path,label\na.jpg,anger\n")
    Image.fromarray(astronaut()).save("a.jpg")
    line = words.format(pipe=f"pipe{suffix}", table="table.csv", photo="a.jpg", folder="folder")
    with pytest.raises(SystemExit) as end:
        run(*line.split())
    assert end.value.code == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/tty", "/proc/self"])
def test_what_is_no_regular_file_is_not_opened(name: str) -> None:
    if not os.path.exists(name):
        pytest.skip("this system has no such entry")
    with pytest.raises(OSError, match=r"regular file|No such device"):
        open_input(name)
    with pytest.raises(FerVitError, match=r"regular file|No such device"):
        user_text(name)


def test_a_regular_file_is_opened_and_read(tmp_path: Path) -> None:
    """The largest file that a reader takes is one of the others' tests: here, 300 MB, sparse."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300_000_000)
        file.seek(299_999_999)
        file.write(b"x")
    link = tmp_path / "link"
    link.symlink_to(large)
    with open_input(link) as opened:
        assert stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
        opened.seek(-1, os.SEEK_END)
        assert opened.read() == b"x"
