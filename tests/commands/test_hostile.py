"""Predict, prepare and visualize with files as from scraping: each file is in the results or
counted, and no file ends a run.
"""

import errno
import os
import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, Detector
from fer_vit.face.image import CRASHED, encode_png
from fer_vit.faces import FIRST_FRAME, OK
from fer_vit.geometry import TEMPLATE, Image
from fer_vit.predict.inputs import find_inputs, is_video
from fer_vit.texts import as_text
from tests.helpers.commands import CROPS, TINY, fails, predict, run
from tests.helpers.hostile import add_odd, write_hostile
from tests.helpers.marks import slow

COUNT = 60
"""How many files are drawn."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind in two folders, that a source can take for classes."""
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile(folder / "happy", COUNT // 2)
    write_hostile(folder / "sad", COUNT // 2, seed=COUNT // 2)
    add_odd(folder / "sad")
    return folder


def texts(paths: Sequence[Path]) -> list[str]:
    return sorted(as_text(str(path)) for path in paths)


@pytest.mark.parametrize(
    "words", [(*CROPS, "--workers=0"), ("--workers=2",)], ids=["crops", "photos"]
)
def test_predict_has_a_row_for_each(
    words: tuple[str, ...],
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    rows = predict(photos, checkpoint, tmp_path / "t.parquet", *words)
    files = find_inputs([photos]).files
    assert len(files) == COUNT + 3
    assert sorted({row["path"] for row in rows}) == texts(files)
    twice = [path for path, number in Counter(row["path"] for row in rows).items() if number > 1]
    assert {*twice} <= {*texts([file for file in files if is_video(file)])}  # GIFs that move
    by_name = {Path(row["path"]).name: row["status"] for row in rows}
    assert by_name["dangling.png"] == os.strerror(errno.ENOENT)
    assert by_name["round.png"] == os.strerror(errno.ELOOP)
    assert by_name["pipe.png"] == "not a regular file"
    assert all((row["label"] is None) or row["status"] in (OK, FIRST_FRAME) for row in rows)
    assert all((row["label"] is not None) or row["status"] != OK for row in rows)
    assert sum(row["label"] is not None for row in rows) > COUNT / (2 if words[:2] == CROPS else 25)


def test_prepare_counts_each(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "m.parquet"
    run("prepare", "folder", photos, out, "--detector=none", "--workers=1", "--embed=always")
    text = capsys.readouterr().out
    left_out = {
        reason: int(number)
        for number, reason in re.findall(r"^left out: ([\d,]+) \((.*)\)$", text, re.M)
    }
    rows = pq.read_table(out).to_pylist()
    assert len(rows) + sum(left_out.values()) == COUNT + 3
    assert left_out["not a regular file"] == left_out[os.strerror(errno.ELOOP)] == 1
    assert all(row["image"]["bytes"] for row in rows)


@pytest.mark.slow
def test_visualize_shows_or_counts_each(photos: Path, checkpoint: Path, tmp_path: Path) -> None:
    run(
        "visualize",
        photos,
        "--checkpoint",
        checkpoint,
        "--output",
        tmp_path / "r",
        *CROPS,
        "--method=ablation",
    )
    listed = re.findall(
        r"<dt>Photos</dt><dd>(.*?)</dd>", (tmp_path / "r" / "index.html").read_text("utf-8")
    )[0]
    status = Counter(
        {what: int(number) for number, what in re.findall(r"(\d+) (.*?)(?=, \d+ |$)", listed)}
    )
    rows = pq.read_table(tmp_path / "r" / "faces.parquet").to_pylist()
    films = sum(map(is_video, find_inputs([photos]).files))  # GIFs that move
    assert status.total() == COUNT + 3 - films
    assert len(rows) == len(list((tmp_path / "r" / "photos").glob("*.jpg")))
    first_frames = status[FIRST_FRAME.partition(":")[0]]  # the page has the short form
    assert sum(row.get("frame") is None for row in rows) == status[OK] + first_frames
    assert status["not a regular file"] == 1


class KillAt66(Detector):
    """Kills its process at the photo of 66 pixels, as the kernel does when memory ends."""

    def detect(self, image: Image) -> list[Detection]:
        if image.shape[1] == 66:
            os.kill(os.getpid(), signal.SIGKILL)
        return [Detection(np.array([0.0, 0, 50, 50]), 50 * np.array(TEMPLATE), 0.9)]


@pytest.mark.parametrize(
    ("output", "count", "batch_size"),
    [
        ("folder", 10, 2),
        *slow(("t.parquet", 7, 32), ("folder", 1000, 32)),
    ],
)
def test_a_file_that_kills_its_worker_is_a_row(
    output: str,
    count: int,
    batch_size: int,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for width in range(60, 60 + count):
        (photos / f"{width}.png").write_bytes(encode_png(np.zeros((64, width, 3), np.uint8)))
    monkeypatch.setitem(DETECTORS, "yunet", KillAt66())
    words = ["--checkpoint", checkpoint, "--output", tmp_path / output]
    run("predict", photos, *words, "--workers=2", f"--batch_size={batch_size}", "--part_size=4")
    tables = sorted((tmp_path / output).glob("*")) if output == "folder" else [tmp_path / output]
    rows = [row for table in tables for row in pq.read_table(table).to_pylist()]
    names = sorted(f"{width}.png" for width in range(60, 60 + count))
    assert [(Path(row["path"]).name, row["status"]) for row in rows] == [
        (name, CRASHED if name == "66.png" else OK) for name in names
    ]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("verb", ["validate", *slow("fit")])
def test_training_names_the_image_that_kills_its_worker(
    verb: str,
    drawn: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = drawn / "faces.parquet"
    split = {"fit": "train", "validate": "val"}[verb]
    rows = pq.read_table(manifest).to_pylist()
    deadly = next(row["image"] for row in rows if row["split"] == split)

    decode = cv2.imdecode

    def die(data: np.ndarray, flags: int) -> Image:
        if data.tobytes() == deadly["bytes"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(data, flags)

    monkeypatch.setattr(cv2, "imdecode", die)
    words = [*TINY, f"--data.manifest={manifest}", "--data.num_workers=2"]
    if verb == "fit":
        words += [
            f"--trainer.logger.init_args.save_dir={tmp_path}",
            # One epoch leaves out the last incomplete batch, three epochs read every image.
            "--trainer.limit_train_batches=1.0",
            "--trainer.max_epochs=3",
        ]
    else:
        words = [f"--ckpt_path={checkpoint}", *words[-2:]]
    line = fails(capsys, verb, *words)
    assert "worker process died" in line
    assert "`--data.num_workers`" in line


def test_prepare_leaves_out_a_file_that_kills_its_worker_and_names_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DETECTORS, "yunet", KillAt66())
    for width in range(62, 70):
        path = tmp_path / "faces" / "train" / ("sad", "happy")[width % 2] / f"{width}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(np.full((64, width, 3), width, np.uint8)))
    out = tmp_path / "m.parquet"
    words = ["--duplicates=keep", "--workers=2", "--embed=always"]
    run("prepare", "folder", tmp_path / "faces", out, *words)
    names = [Path(row["image"]["path"]).name for row in pq.read_table(out).to_pylist()]
    assert sorted(names) == [f"{width}.png" for width in range(62, 70) if width != 66]
    lines = capsys.readouterr().out.splitlines()
    assert f"left out: 1 ({CRASHED})" in lines
    assert [line for line in lines if line.startswith("note: ") and "66.png" in line]
