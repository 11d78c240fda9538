"""Signals that end a command: one table for every command, the servers and the training."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SIGNAL_NAMES = ("SIGTERM", "SIGHUP")
"""Sent by schedulers and services; when a terminal or ssh closes."""
ENDING: Sequence[signal.Signals] = tuple(
    signal.Signals[name]
    for name in SIGNAL_NAMES
    if hasattr(signal, name)  # Windows has no SIGHUP
)
REPEATED = 2.0  # seconds in which further signals belong to the first: a closed terminal sends two


def handle_ending(handle: Callable[[signal.Signals], None]) -> None:
    """Calls `handle` for each signal of `ENDING`.

    Signals that are ignored, as by nohup, stay ignored.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: handle(signal.Signals(received)))


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Makes signals end the block by an exception, so that its files are removed.

    A signal of `ENDING` raises SystemExit with the status of a shell, 128 + its number; Ctrl-C
    raises KeyboardInterrupt. A further signal within `REPEATED` seconds does nothing: it would
    interrupt the removal.
    """
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT)}
    last = -REPEATED

    def is_first() -> bool:
        nonlocal last
        now = time.monotonic()
        first = now - last >= REPEATED
        if first:
            last = now
        return first

    def leave(number: signal.Signals) -> None:
        if is_first():
            sys.exit(128 + number)

    def interrupt(_number: int, _frame: object) -> None:
        if is_first():
            raise KeyboardInterrupt

    handle_ending(leave)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
