"""The child process that parses files from elsewhere: limits, deaths, errors, and what stays."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import repeat
from operator import call, mul
from pathlib import Path
from typing import Any

import pytest

from fer_vit.system.untrusted import MEGA, TooHeavyError, memory_limit, parse_apart

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")


def parsed(function: object, *arguments: object, seconds: float = 60) -> list[object]:
    """What a function yields in a child with 100 MB."""
    values = parse_apart(function, *arguments, memory=100 * MEGA, seconds=seconds)  # type: ignore[arg-type]
    return list(values)


def test_values_arrive_in_order() -> None:
    assert parsed(range, 1000) == list(range(1000))
    assert parsed(mul, ["ä", None], 2) == ["ä", None, "ä", None]


def test_values_of_any_total_size_pass_one_after_another() -> None:
    values = parse_apart(repeat, bytes(30 * MEGA), 10, memory=100 * MEGA, seconds=60)
    assert sum(len(value) for value in values) == 300 * MEGA


@on_linux
def test_memory_is_limited() -> None:
    assert len(parsed(mul, [bytes(60 * MEGA)], 1)) == 1
    with pytest.raises(TooHeavyError, match="takes more than 100 MB of memory or 60 s"):
        parsed(mul, bytes(MEGA), 200)


def test_time_is_limited() -> None:
    with pytest.raises(TooHeavyError, match="more than 100 MB of memory or 1 s"):
        parsed(time.sleep, 600, seconds=1)


def test_a_death_is_an_error_and_the_next_file_is_parsed() -> None:
    with pytest.raises(TooHeavyError, match="or crashes"):
        parsed(os.abort)
    assert parsed(range, 2) == [0, 1]


def test_a_child_waits_longer_than_the_last_file_may_take() -> None:
    (first,) = parsed(map, call, [os.getpid], seconds=1)
    time.sleep(1.5)
    assert parsed(map, call, [os.getpid]) == [first]


def test_a_child_that_is_killed_while_it_waits_is_replaced() -> None:
    (first,) = parsed(map, call, [os.getpid])
    assert isinstance(first, int)
    os.kill(first, signal.SIGTERM)
    time.sleep(0.5)
    (second,) = parsed(map, call, [os.getpid])
    assert second != first


def test_an_error_is_raised_here_and_the_next_file_is_parsed() -> None:
    with pytest.raises(FileNotFoundError) as error:
        parsed(os.listdir, "/nowhere/at/all")
    assert "In a worker process: Traceback" in error.value.__notes__[0]
    assert parsed(range, 2) == [0, 1]


def test_the_child_prints_nothing_and_prints_do_not_disturb(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert parsed(map, print, ["a" * 10_000]) == [None]
    assert capfd.readouterr() == ("", "")


def test_an_unfinished_file_leaves_no_process() -> None:
    before = children()
    values = parse_apart(repeat, bytes(MEGA), memory=100 * MEGA, seconds=60)
    next(values)
    values.close()
    assert len(children()) <= len(before)


def test_threads_and_nested_files_have_a_child_each() -> None:
    results: list[object] = []

    def parse() -> None:
        for value in parse_apart(range, 3, memory=100 * MEGA, seconds=60):
            results.append((value, parsed(range, value)))

    threads = [threading.Thread(target=parse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([(n, list(range(n))) for n in range(3)] * 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_share_the_child() -> None:
    assert parsed(range, 2) == [0, 1]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if parsed(range, 3) == [0, 1, 2] else 1)
    assert parsed(range, 2) == [0, 1]
    assert os.waitpid(pid, 0)[1] == 0


@on_linux
def test_no_process_stays_when_the_main_process_is_killed() -> None:
    code = (
        "import os, signal\n"
        "from fer_vit.system.untrusted import parse_apart\n"
        "(path,) = parse_apart(map, os.readlink, ['/proc/self'], memory=10**8, seconds=60)\n"
        "print(path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    child = Path("/proc", run.stdout.strip())
    deadline = time.monotonic() + 60
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists()


@on_linux
def test_the_limit_of_a_process_counts_from_what_it_has() -> None:
    code = (
        "from fer_vit.system.untrusted import limit_memory\n"
        "has = bytearray(200_000_000)\n"
        "limit_memory(100_000_000)\n"
        "bytearray(80_000_000)\n"
        "try: bytearray(120_000_000)\n"
        "except MemoryError: print('limited')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "limited\n"


@on_linux
def test_a_block_does_not_raise_the_limit_of_its_process() -> None:
    code = (
        "from fer_vit.system.untrusted import limit_memory, memory_limit\n"
        "limit_memory(100_000_000)\n"
        "with memory_limit(10**9):\n"
        "    bytearray(80_000_000)\n"
        "    try: bytearray(120_000_000)\n"
        "    except MemoryError: print('limited')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "limited\n"


@on_linux
def test_blocks_that_overlap_in_threads_leave_no_limit() -> None:
    code = (
        "import resource\n"
        "from contextlib import ExitStack\n"
        "from fer_vit.system.untrusted import memory_limit\n"
        "before = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "first, second = ExitStack(), ExitStack()\n"
        "first.enter_context(memory_limit(10**8))\n"
        "second.enter_context(memory_limit(10**9))\n"
        "first.close()\n"
        "try: bytearray(120_000_000)\n"
        "except MemoryError: print('limited')\n"
        "second.close()\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA) == before)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "limited\nTrue\n"


def test_without_a_count_of_memory_there_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    open_file = open

    def open_status(file: Any, *more: Any, **options: Any) -> Any:
        return open_file(status if file == "/proc/self/status" else file, *more, **options)

    monkeypatch.setattr("builtins.open", open_status)
    for text in (None, "Name:\tpython\n", "VmData:\t       0 kB\n"):
        if text is not None:
            status.write_text(text)
        with memory_limit(MEGA):
            assert len(bytearray(30 * MEGA)) == 30 * MEGA


def children() -> set[str]:
    """The processes that this process has started, on Linux."""
    path = Path("/proc/self/task")
    if not path.exists():
        return set()
    found: set[str] = set()
    for task in path.iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update((task / "children").read_text().split())
    return found
