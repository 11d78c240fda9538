"""Signals that end a command, for every command, the servers and the training."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

# Schedulers and services send SIGTERM. A terminal or ssh that closes sends SIGHUP.
SIGNAL_NAMES = ("SIGTERM", "SIGHUP")

ENDING_SIGNALS: Sequence[signal.Signals] = tuple(
    signal.Signals[name]
    for name in SIGNAL_NAMES
    if hasattr(signal, name)  # Windows has no SIGHUP
)

# Signals within this time after a signal count as the same signal: a closed terminal sends two.
REPEAT_SECONDS = 2.0


def handle_ending(
    handle: Callable[[signal.Signals], None], numbers: Sequence[signal.Signals] = ENDING_SIGNALS
) -> None:
    """Calls `handle` for each of the signals.

    Signals that are ignored, for example because of nohup, stay ignored.
    """
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: handle(signal.Signals(received)))


@contextmanager
def _handled(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Calls `handle` for each signal of `ENDING_SIGNALS` and for Ctrl-C within a block."""
    numbers = (*ENDING_SIGNALS, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    handle_ending(handle, numbers)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_at_once() -> Iterator[None]:
    """Makes signals end the process at once, with the exit status 128 + the number of the signal.

    This is for imports before a command starts, when there are no files to remove. torch calls
    Python from C++ at its import, and aborts the process if a signal handler raises an exception.
    """
    with _handled(lambda number: os._exit(128 + number)):
        yield


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Makes signals end the block by an exception, so that its files are removed.

    A signal of `ENDING_SIGNALS` raises SystemExit with the exit status 128 + the number of the
    signal. Ctrl-C raises KeyboardInterrupt. A further signal within `REPEAT_SECONDS` seconds has no
    effect, because it would interrupt the removal of files.
    """
    last = -math.inf  # seconds

    def end(number: signal.Signals) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < REPEAT_SECONDS:
            return
        last = now
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    with _handled(end):
        yield
