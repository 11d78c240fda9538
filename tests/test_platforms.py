"""Code paths of macOS, Windows and Python 3.14, on the system that runs the tests.

What another system lacks is taken out of the modules of fer-vit; libraries keep it.
"""

import builtins
import importlib
import multiprocessing
import runpy
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

import fer_vit.processes as processes
import fer_vit.signals as signals
from fer_vit.errors import FerVitError
from fer_vit.files import atomic_write, clear_remains_of
from tests.helpers.commands import CROPS, exit_code, run
from tests.helpers.killed import leave_remains
from tests.helpers.processes import squares

LACKING = {
    "darwin": {
        "os": {"sched_getaffinity"},
        "signal": {"sigwaitinfo", "sigtimedwait", "pidfd_send_signal"},
        "modules": set(),
    },
    "win32": {
        "os": {
            *("sched_getaffinity", "geteuid", "getuid", "fork", "sysconf", "getpgid", "killpg"),
            *("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC"),
        },
        "signal": {
            *("SIGHUP", "SIGKILL", "SIGCHLD", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGPIPE"),
            *("pthread_sigmask", "sigwaitinfo", "alarm", "SIG_BLOCK"),
        },
        "modules": {"fcntl", "resource", "pwd", "grp"},
    },
}
"""What Python does not have on a system (its documentation, "Availability")."""
SYSTEMS = sorted(LACKING)


def without(module: ModuleType, names: set[str], **changes: object) -> ModuleType:
    """A copy of a module that lacks some names."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update({name: value for name, value in vars(module).items() if name not in names})
    copy.__dict__.update(changes)
    return copy


def become(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the loaded modules of fer-vit see another system."""
    lacking = LACKING[system]
    copies = {
        "os": without(importlib.import_module("os"), lacking["os"]),
        "signal": without(signal, lacking["signal"]),
        "sys": without(sys, set(), platform=system),
    }
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] == "fer_vit":
            for copied, copy in copies.items():
                if isinstance(getattr(module, copied, None), ModuleType):
                    monkeypatch.setattr(module, copied, copy)

    plain = builtins.__import__

    def limited(name: str, *rest: Any, **named: Any) -> ModuleType:
        """Refuses modules to fer-vit alone."""
        space = rest[0] if rest else named.get("globals")
        importer = (space or {}).get("__name__", "")
        if name in lacking["modules"] and importer.split(".")[0] == "fer_vit":
            raise ModuleNotFoundError(f"No module named '{name}'")
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", limited)


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    become(request.param, monkeypatch)
    return request.param


def test_a_folder_is_predicted_and_evaluated(
    drawn: Path, checkpoint: Path, system: str, tmp_path: Path
) -> None:
    table = tmp_path / "faces.csv"
    words = [*CROPS, "--workers=0", f"--checkpoint={checkpoint}", f"--output={table}"]
    run("predict", drawn / "faces" / "val", *words)
    assert (pd.read_csv(table)["status"] == "ok").all()
    output = tmp_path / "evaluation"
    run("evaluate", table, f"--output={output}")
    run("evaluate", table, f"--output={output}", "--overwrite")
    assert {path.name for path in output.iterdir()} == {"index.html", "results.json", "results.md"}
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_folders_are_replaced_and_files_are_not_lost(system: str, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for number in range(3):
        with atomic_write(folder) as new:
            new.mkdir()
            (new / f"{number}.txt").write_text("x")
    assert [path.name for path in folder.iterdir()] == ["2.txt"]

    file = tmp_path / "table.csv"
    with atomic_write(file, overwrite=False) as new:
        new.write_text("first")
    with pytest.raises(FerVitError), atomic_write(file, overwrite=False) as new:
        new.write_text("second")
    assert file.read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "table.csv"]


def test_an_error_leaves_the_folder_of_before(system: str, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    with suppress(RuntimeError), atomic_write(folder) as new:
        new.mkdir()
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["old.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_remains_of_a_killed_process_stay_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = leave_remains(tmp_path / "faces.csv")
    with monkeypatch.context() as patch:
        become("win32", patch)  # Windows has no locks here, so the process may be alive
        clear_remains_of(tmp_path / "faces.csv")
        assert stale.is_dir()
    clear_remains_of(tmp_path / "faces.csv")
    assert not stale.exists()


def test_the_limit_of_open_files_is_checked_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    few = Mock(getrlimit=lambda _: (63, 1000), RLIMIT_NOFILE=0, RLIM_INFINITY=-1)
    monkeypatch.setitem(sys.modules, "resource", few)
    assert exit_code("models") == 2
    assert "ulimit" in capsys.readouterr().err
    become("win32", monkeypatch)
    assert exit_code("models") == 0


def test_cores_are_counted(system: str) -> None:
    assert processes.cores() >= 1


def test_signals_that_end_a_command_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "signal", without(signal, LACKING["win32"]["signal"]))
    windows = runpy.run_path(str(signals.__file__))
    assert [ending.name for ending in windows["ENDING_SIGNALS"]] == ["SIGTERM"]
    with windows["exit_on_signals"]():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def start_as(system: str, sender: Connection) -> None:
    """Runs in a process: starts a worker as on another system."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        become(system, monkeypatch)
        processes.start_worker()
        sender.send([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_worker_ends_with_the_signal_of_the_main_process(system: str) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=start_as, args=(system, sender))
    process.start()
    assert receiver.recv() == [signal.SIG_DFL, signal.SIG_IGN]
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_start_as_on_other_systems_and_in_python_3_14(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS and Windows spawn; Python 3.14 has a server that forks on Linux."""
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(multiprocessing, "get_context", lambda *_: context)
    results = processes.work_in_processes(squares, [1, 2, 3], 2)
    assert list(results) == [(1, 1), (2, 4), (3, 9)]
