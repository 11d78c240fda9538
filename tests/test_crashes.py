"""Nothing is lost: processes that are killed at any call, full disks, signals,
and untrusted zips.
"""

import errno
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from fer_vit import files
from fer_vit.commands.prepare import prepare
from fer_vit.commands.repeat import read_runs
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.files import clear_remains_in, clear_remains_of, scratch_folder
from fer_vit.report.table import TableWriter
from fer_vit.signals import exit_on_signals
from fer_vit.sources.archive import unpacked
from fer_vit.sources.cartoon import draw_face
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.model_folder import read_model
from tests.helpers.commands import TINY, fails, main
from tests.helpers.killed import (
    Writer,
    a_checkpoint,
    a_file,
    a_folder,
    a_table,
    leave_killed,
    mark_as_own,
)
from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE, wait_until

ROOT = Path(__file__).parents[1]

# Killed at any call


def content(path: Path) -> dict[str, bytes]:
    """What a reader finds in a file, or in the files of a folder."""
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in sorted(files)}


writers = pytest.mark.parametrize(
    ("name", "write"),
    [("t.txt", a_file), ("folder", a_folder), ("t.parquet", a_table), ("last.ckpt", a_checkpoint)],
)


@pytest.mark.parametrize(
    ("name", "write"),
    [("folder", a_folder), *slow(("t.parquet", a_table), ("last.ckpt", a_checkpoint))],
)
def test_a_writer_that_is_killed_at_any_call(name: str, write: Writer, tmp_path: Path) -> None:
    states = []
    for version in (1, 2):
        write(tmp_path / str(version) / name, version)
        states.append(content(tmp_path / str(version) / name))
    assert states[0] != states[1]

    places = tmp_path / "killed"
    if write is a_checkpoint:  # this needs PyTorch
        leave_killed(write, name, places)
    else:
        words = [write.__name__, name, str(places)]
        subprocess.run([sys.executable, "-m", "tests.helpers.killed", *words], cwd=ROOT, check=True)
    *killed, finished = sorted(places.iterdir(), key=lambda path: int(path.name[3:]))
    assert len(killed) >= 3
    assert content(finished / name) == states[1]

    seen = [content(place / name) for place in killed]
    is_folder = write is a_folder  # it is missing between two renames
    assert all(state in states or (is_folder and not state) for state in seen)
    assert all(state in seen for state in states)
    for place in killed:
        clear_remains_of(place / name)
        assert content(place / name) in states  # nothing is lost, also a moved folder
        write(place / name, 2)  # what was left does not disturb another write
        assert content(place / name) == states[1]
    for place in (*killed, finished):
        assert [entry.name for entry in place.iterdir()] == [name]


@writers
def test_all_is_on_the_disk_first(
    name: str, write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / name, 1)
    fsync = os.fsync
    flushed = list[int]()
    moved = list[Path]()

    def flush(handle: int) -> None:
        flushed.append(os.fstat(handle).st_ino)
        fsync(handle)

    def move(real: Callable[[Path, Path], Any], old: Path, new: Path) -> Any:
        if ".part" not in str(new):
            moved.append(new)
            assert {path.stat().st_ino for path in (old, *Path(old).rglob("*"))} <= {*flushed}
        return real(old, new)

    monkeypatch.setattr(os, "fsync", flush)
    for call in ("rename", "replace"):
        monkeypatch.setattr(os, call, partial(move, getattr(os, call)))
    write(tmp_path / name, 2)
    assert moved
    assert flushed[-1] == tmp_path.stat().st_ino


def test_remains_are_removed_and_folders_in_use_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.parquet"
    others = [".other.parquet.0123abcd.part", ".out.parquet.0123abcd.parquet"]
    for name in (*others, ".out.parquet.0123abcd.part"):
        (tmp_path / name).mkdir()
    with scratch_folder(out) as writing:
        clear_remains_of(out)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, writing.name])
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), scratch_folder(out):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == others


def test_a_failed_replacement_of_a_folder_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_folder(tmp_path / "out", 1)
    before = content(tmp_path / "out")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(FerVitError, match=r"out \(Input/output error\)"):
        a_folder(tmp_path / "out", 2)
    assert content(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# Other users of a shared folder


STALE = ".out.csv.0123abcd.part"
"""The name of a scratch folder that a killed process could have left."""
OTHER_USER = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may write, with a private folder of this user."""
    with tempfile.TemporaryDirectory() as folder:
        private = Path(folder, "private")
        (private / "old").mkdir(parents=True)
        (private / "scratch" / "old").mkdir(parents=True)
        mark_as_own(private / "scratch")
        (private / "scratch" / "old" / "result.txt").write_text("precious")
        (private / "secret.txt").write_text("precious")
        (private / "old" / "thesis.txt").write_text("precious")
        Path(folder).chmod(0o777)
        yield Path(folder)


@contextmanager
def another_user() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raises an error if the block takes longer."""
    before = signal.signal(signal.SIGALRM, Mock(side_effect=AssertionError("it waits")))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def a_fifo(stale: Path, private: Path) -> None:
    os.mkfifo(stale)


def a_link_to_a_folder(stale: Path, private: Path) -> None:
    stale.symlink_to(private)


def a_link_to_a_scratch_folder(stale: Path, private: Path) -> None:
    stale.symlink_to(private / "scratch")


def a_link_to_a_file(stale: Path, private: Path) -> None:
    stale.symlink_to(private / "secret.txt")


def a_link_to_nothing(stale: Path, private: Path) -> None:
    stale.symlink_to(private / "nothing")


def a_scratch_folder_with_a_link(stale: Path, private: Path) -> None:
    stale.mkdir()
    mark_as_own(stale)
    (stale / "old").symlink_to(private)


def the_private_folder(stale: Path, private: Path) -> None:
    private.rename(stale)


@pytest.mark.parametrize(
    "entry",
    [
        a_fifo,
        a_link_to_a_folder,
        a_link_to_a_scratch_folder,
        a_link_to_a_file,
        a_link_to_nothing,
        a_scratch_folder_with_a_link,
        the_private_folder,
    ],
)
def test_no_entry_of_another_user_stops_a_writer_or_moves_files(
    entry: Callable[[Path, Path], None], shared: Path
) -> None:
    out = shared / "out.csv"
    with another_user():
        entry(shared / STALE, shared / "private")
    before = {path.name: path.read_text() for path in shared.rglob("*.txt")}
    assert len(before) == 3
    with deadline(int(PATIENCE)):
        clear_remains_of(out)
        clear_remains_in(shared)
        assert not os.path.lexists(out)
        a_file(out, 1)
    assert {path.name: path.read_text() for path in shared.rglob("*.txt")} == before
    assert os.path.lexists(shared / STALE)
    assert out.read_text() == "1" * 1000


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_of_another_user_leads_no_output_elsewhere(overwrite: bool, shared: Path) -> None:
    out = shared / "out.csv"
    with another_user():
        out.symlink_to(shared / "private" / "new.txt")
    if not overwrite:
        with pytest.raises(FerVitError, match="already exists"):
            files.check_output(out, overwrite)
    with TableWriter(out, {"version": int}, live=True) as table:
        table.write([{"version": 1}])
    assert not out.is_symlink()
    names = sorted(path.name for path in (shared / "private").iterdir())
    assert names == ["old", "scratch", "secret.txt"]


def test_another_user_may_not_enter_a_scratch_folder(shared: Path) -> None:
    with scratch_folder(shared / "out") as scratch, another_user(), pytest.raises(PermissionError):
        os.listdir(scratch)


def test_remains_of_any_target_are_removed_from_a_folder(tmp_path: Path) -> None:
    names = [".a.csv.0123abcd.part", ".part-00001-of-00003.parquet.89abcdef.part"]
    for name in names:
        (tmp_path / name / "new").mkdir(parents=True)
        mark_as_own(tmp_path / name)
    kept = [".a.csv.0123abcd.parts", ".a.csv.part", ".moved.0123abcd.part"]
    for name in kept:
        (tmp_path / name / "old").mkdir(parents=True)
        mark_as_own(tmp_path / name)
    with scratch_folder(tmp_path / "b.csv") as writing:
        clear_remains_in(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {*kept, writing.name}
    clear_remains_of(tmp_path / "moved")  # the folder that was to be replaced
    assert (tmp_path / "moved").is_dir()
    clear_remains_in(tmp_path / "absent")


# Signals


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number", "status"),
    [
        ("prepare", signal.SIGINT, 130),
        ("predict", signal.SIGTERM, 143),
        ("parts", signal.SIGKILL, -9),
        ("visualize", signal.SIGTERM, 143),
    ],
)
def test_no_process_stays_behind(
    verb: str,
    number: signal.Signals,
    status: int,
    drawn: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    log = tmp_path / "log"
    many = 12 * [str(path) for path in sorted(drawn.glob("faces/*/*/*.png"))]
    # tens of milliseconds each, so that `prepare` is at work
    large = encode_png(np.zeros((2000, 2000, 3), np.uint8))
    with zipfile.ZipFile(tmp_path / "large.zip", "w") as file:
        for index in range(200):
            file.writestr(f"train/{('anger', 'fear')[index % 2]}/{index}.png", large)
    out = tmp_path / "new" / "out"
    crops = ["--face=crop", "--detector=none", "--workers=2", "--batch_size=2"]
    words = {
        "prepare": [
            "prepare",
            "folder",
            f"{tmp_path}/large.zip",
            f"{out}.parquet",
            "--detector=none",
            "--workers=2",
        ],
        "predict": ["predict", *many, f"--output={out}.parquet", *crops],
        "parts": ["predict", *many, f"--output={out}", "--part_size=4", *crops],
        "visualize": ["visualize", *many, f"--output={out}", *crops],
    }[verb]
    command = [sys.executable, "-m", "fer_vit", *words]
    with log.open("w") as file:
        process = psutil.Popen(command, stdout=file, stderr=file, start_new_session=True)
    wait_until(lambda: len(process.children(recursive=True)) >= 2 or process.poll() is not None)
    time.sleep(0.5)  # while the command works
    started = process.children(recursive=True)
    process.send_signal(number)
    assert process.wait(PATIENCE) == status, log.read_text()
    assert len(started) >= 2
    wait_until(lambda: not any(map(alive, started)))
    if verb == "parts":
        main(words)
        assert f"all {len(set(many)):,} files exactly once" in capsys.readouterr().out
        assert all(path.suffix == ".parquet" for path in out.iterdir())
        return
    left = [path.name for path in out.parent.iterdir()] if out.parent.exists() else []
    if number == signal.SIGKILL:
        assert all(name.endswith(".part") for name in left)
    else:
        assert left == []
    # A thread of multiprocessing in a process that reads may print a traceback at its end.
    if verb == "prepare":
        assert "Traceback" not in log.read_text()


SLEEPER = """
import os, shutil, sys, time
from pathlib import Path
from fer_vit import signals
from fer_vit.files import scratch_folder
from fer_vit.signals import exit_on_signals
signals.REPEAT_SECONDS = 600.0  # the second signal may be late on a busy machine
remove = shutil.rmtree

def remove_slowly(*given, **options):
    print(flush=True)
    sys.stdin.readline()  # while files are removed, a second signal comes
    remove(*given, **options)

shutil.rmtree = remove_slowly
with exit_on_signals(), scratch_folder(Path(sys.argv[1])) as scratch:
    print(flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGHUP, 129), *slow((signal.SIGINT, -signal.SIGINT))]
)
def test_signals_leave_no_file_even_two_of_them(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SLEEPER, tmp_path / "out"]
    pipe = subprocess.PIPE
    with psutil.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        process.send_signal(number)
        process.stdout.readline()  # the process removes its files
        process.send_signal(number)
        process.stdin.close()
        assert process.wait(PATIENCE) == status
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_signal_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", SLEEPER, tmp_path / "out"]
    pipe = subprocess.PIPE
    with psutil.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)  # a system delivers it before SIGTERM
        process.send_signal(signal.SIGTERM)
        process.stdin.close()
        assert process.wait(PATIENCE) == 143


IMPORTING = """
import time
print(flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_signal_while_a_command_is_imported_ends_it_at_once(tmp_path: Path) -> None:
    """An exception would come out of C++ code of torch, which aborts the process."""
    (tmp_path / "torch.py").write_text(IMPORTING)
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ["PYTHONPATH"]])
    with psutil.Popen(
        [sys.executable, "-m", "fer_vit", "export", str(tmp_path / "model.onnx")],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert process.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["-m fer_vit", "cli.py"])
def test_ctrl_c_while_libraries_are_imported_prints_nothing(entry: str, tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text(IMPORTING)  # the command line imports it
    script = f"{ROOT / entry}" if entry.endswith(".py") else entry
    command = [sys.executable, *script.split(), "models"]
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ["PYTHONPATH"]])
    with psutil.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT
        assert process.stderr.read() == b""


def test_an_error_after_a_signal_that_was_expected_is_its_own() -> None:
    """As in `live`, where Ctrl-C is the normal end and the table may then fail."""

    def work() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"), exit_on_signals():
        work()


# What a command that fails leaves


def test_folders_that_were_made_for_a_failed_output_are_removed(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c.csv"
    files.check_output(target, overwrite=False)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "a").mkdir()  # a file of the user
    with pytest.raises(FileNotFoundError), files.atomic_write(target):
        (tmp_path / "input").read_text()
    assert [*tmp_path.rglob("*")] == [tmp_path / "a"]
    with files.atomic_write(target) as new:
        new.write_text("whole")
    assert target.read_text() == "whole"


def test_a_folder_that_another_process_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a" / "c.csv"
    mkdir = Path.mkdir
    removed = []

    def remove_first(self: Path, *given: Any, **options: Any) -> None:
        if self.name.endswith(".part") and not removed:
            removed.append(self.parent)
            self.parent.rmdir()
        mkdir(self, *given, **options)

    monkeypatch.setattr(Path, "mkdir", remove_first)
    with files.atomic_write(target) as new:
        new.write_text("whole")
    assert removed == [target.parent]
    assert target.read_text() == "whole"


# Full disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk may be mounted here: {done.stderr.strip()}")
    yield place
    # a table may be mapped into memory
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ("csv", 0),
        *slow(("zip", 0), ("parts", 40_000), ("model", 40_000), ("report", 40_000)),
    ],
)
def test_a_full_disk_keeps_what_was_there(
    what: str, left: int, drawn: Path, checkpoint: Path, disk: Path, capsys: pytest.CaptureFixture
) -> None:
    options = "--face=crop --detector=none --workers=0"
    crops = f"{drawn}/faces/val {options} --checkpoint={checkpoint} --output={disk}/out"
    words = {
        "zip": f"prepare folder {disk}.zip {disk}/out.parquet --detector=none --workers=1",
        "csv": f"predict {crops}.csv",
        "parts": f"predict {crops} --part_size=4",
        "model": f"export {disk}/out --checkpoint={checkpoint}",
        "report": f"visualize {crops}",
    }[what].split()
    if what == "zip":
        shutil.make_archive(str(disk), "zip", drawn / "faces")
    if what != "parts":  # because existing parts are never replaced
        main(words)
        words = [*words, "--overwrite"]
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        file.write(bytes(shutil.disk_usage(disk).free - left))
    error = fails(capsys, *words)
    assert os.strerror(errno.ENOSPC) in error or "room" in error
    assert ".part" not in error
    filler.unlink()
    assert all(path.read_bytes() == data for path, data in before.items())
    now = [path for path in disk.rglob("*") if path not in before and path.is_file()]
    if what == "parts":
        assert all(pq.read_table(path).num_rows for path in now)
    else:
        assert now == []
    assert not list(disk.rglob("*.part"))
    main(words)
    if what == "parts":
        assert re.search(r"\b7 tables.*\b26 files", capsys.readouterr().out)


@pytest.mark.slow
def test_a_full_disk_keeps_the_checkpoint_before(
    drawn: Path, disk: Path, capsys: pytest.CaptureFixture
) -> None:
    # the disk has room for two checkpoints, but not for three
    remount = [
        "mount",
        "-o",
        "remount,size=1400k",
        str(disk),
    ]
    subprocess.run(remount, check=True)
    place = [
        f"--data.manifest={drawn / 'faces.parquet'}",
        f"--trainer.logger.init_args.save_dir={disk}",
    ]
    words = ["fit", *TINY, *place, "--trainer.max_epochs=3"]
    line = fails(capsys, *words)
    assert line.startswith("fer-vit: error: Cannot write ")
    assert os.strerror(errno.ENOSPC) in line
    kept = Path(line.partition("--ckpt_path ")[2].partition("`")[0])
    assert load_checkpoint(kept)["global_step"] >= 2
    assert not list(disk.rglob("*.part"))
    subprocess.run([*remount[:2], "remount,size=8m", str(disk)], check=True)
    main([*words, f"--ckpt_path={kept}"])
    assert (
        load_checkpoint(disk / "default" / "version_1" / "checkpoints" / "last.ckpt")["global_step"]
        == 6
    )


def test_a_file_without_permission_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    denied = Mock(side_effect=PermissionError(errno.EACCES, "denied"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "runs" / "a" / "seed0").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "seed0" / "scores.json").touch()
    (tmp_path / "faces.parquet").touch()
    monkeypatch.setattr(Path, "read_text", denied)  # tests may run as root, who may read all
    monkeypatch.setattr(pq, "read_table", denied)
    (tmp_path / "best.ckpt").touch()
    monkeypatch.setattr(pickle, "load", denied)  # what another process reads of a checkpoint
    for read in (
        partial(Manifest.read, tmp_path / "faces.parquet"),
        partial(read_model, str(tmp_path / "model")),
        partial(read_runs, tmp_path / "runs"),
        partial(load_checkpoint, tmp_path / "best.ckpt"),
    ):
        with pytest.raises(FerVitError, match=r"^Cannot read .* \(Permission denied\)\."):
            read()


# Untrusted zips


def zipped(path: Path, entries: dict[Any, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    return path


def test_no_name_leads_out_of_a_zip(tmp_path: Path) -> None:
    face = encode_png(draw_face("happiness", 0, 48)[0])
    secret = tmp_path / "secret.png"
    secret.write_bytes(encode_png(draw_face("fear", 1, 48)[0]))
    link = zipfile.ZipInfo("train/happy/link.png")
    link.external_attr = 0o120777 << 16
    names = [
        "train/happy/a.png",
        "train/happy/b\nc.png",
        "train/happy/d\0.png",
        f"{tmp_path}/evil.png",
        "C:\\evil.png",
    ]
    names += [
        "../evil.png",
        "train/../../../evil.png",
        "train/happy/../../../evil.png",
        "//server/share/evil.png",
    ]
    strange = zipped(tmp_path / "strange.zip", dict.fromkeys(names, face))
    inside = [
        "train/happy/a.png",
        "train/happy/b\nc.png",
        "../train/happy/e.png",
        "train/sad/f.png",
    ]
    archive = zipped(tmp_path / "x.zip", {**dict.fromkeys(inside, face), link: bytes(secret)})
    (tmp_path / "out").mkdir()
    everything = {path for path in tmp_path.rglob("*") if path.parent.name != "out"}
    with pytest.raises(FerVitError, match="split folders"):
        prepare("folder", strange, tmp_path / "out" / "m.parquet", detector="none")
    assert not [*(tmp_path / "out").iterdir()]
    prepare("folder", archive, tmp_path / "out" / "m.parquet", detector="none")
    assert {path for path in tmp_path.rglob("*") if path.parent.name != "out"} == everything
    manifest = Manifest.read(tmp_path / "out" / "m.parquet")
    # no link was followed
    assert {manifest.image_bytes(row) for row in range(len(manifest))} == {face}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.parquet"]


@pytest.mark.parametrize("more", ["__MACOSX/x", ".hidden", "_notes.txt", "_other/x"])
def test_a_zip_is_the_folder_in_it_or_what_it_holds(more: str, tmp_path: Path) -> None:
    with unpacked(
        zipped(tmp_path / "x.zip", dict.fromkeys(["happy/x", more], b"1")), tmp_path / "out"
    ) as (folder, _):
        assert {path.name for path in folder.iterdir()} == (
            {"happy", "_other"} if more == "_other/x" else {"x"}
        )


def test_the_size_of_a_zip_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(tmp_path / "x.zip", {"train/happy/a.png": bytes(50_000_000)})
    claimed = (50_000_000).to_bytes(4, "little")
    with monkeypatch.context() as patch:
        patch.setattr(
            shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 49_000_000)
        )
        expected = r"room for the 50,000,000 bytes in .*x.zip, but there are 49,000,000"
        with pytest.raises(FerVitError, match=expected), unpacked(archive, tmp_path / "m.parquet"):
            pass
    data = archive.read_bytes()
    written = []
    real = shutil.rmtree
    assert data.count(claimed) == 2
    archive.write_bytes(data.replace(claimed, (1000).to_bytes(4, "little")))

    def measure(folder: Path, *given: Any, **options: Any) -> None:
        everything = [path for path in tmp_path.rglob("*") if path.is_file() and path != archive]
        written.append(sum(path.stat().st_size for path in everything))
        real(folder, *given, **options)

    monkeypatch.setattr(shutil, "rmtree", measure)
    with (
        pytest.raises(FerVitError, match=r"x\.zip.*CRC"),
        unpacked(archive, tmp_path / "m.parquet"),
    ):
        pass
    assert max(written) <= 1000
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_decoder_needs_much_memory_is_refused(kind: int, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", {"train/happy/a.png": bytes(1000)}, kind)
    with (
        pytest.raises(FerVitError, match="deflate"),
        unpacked(archive, tmp_path / "out"),
    ):
        pass
