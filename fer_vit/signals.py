"""Signals that end a command: one table for every command, the servers and the training."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer, main_thread

# Sent by schedulers and services; when a terminal or ssh closes.
SIGNAL_NAMES = ("SIGTERM", "SIGHUP")

ENDING_SIGNALS: Sequence[signal.Signals] = tuple(
    signal.Signals[name]
    for name in SIGNAL_NAMES
    if hasattr(signal, name)  # Windows has no SIGHUP
)
RESEND_SECONDS = 0.1  # seconds after which a signal is sent again

# What libraries, imported while a signal comes, raise instead of its exception.
REPLACING_ERRORS = (ImportError, RecursionError)

# seconds in which further signals belong to the first: a closed terminal sends two
REPEAT_SECONDS = 2.0


def handle_ending(handle: Callable[[signal.Signals], None]) -> None:
    """Calls `handle` for each signal of `ENDING_SIGNALS`.

    Signals that are ignored, as by nohup, stay ignored.
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: handle(signal.Signals(received)))


def _send(number: signal.Signals) -> None:
    """Sends a signal to the main thread, which may wait for something."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        signal.pthread_kill(main_thread().ident or 0, number)


class _Ending:
    """The exception of a signal, which ends the block of `exit_on_signals`."""

    def __init__(self) -> None:
        self.exception: SystemExit | KeyboardInterrupt | None = None
        self._number = signal.SIGINT
        self._last = -math.inf  # seconds
        self.report_others = sys.unraisablehook

    def raise_first(self, number: signal.Signals) -> None:
        """Raises the exception of a signal, unless it belongs to the one before."""
        now = time.monotonic()
        if now - self._last >= REPEAT_SECONDS:
            self._last = now
            self._number = number
            interrupted = number == signal.SIGINT
            self.exception = KeyboardInterrupt() if interrupted else SystemExit(128 + number)
            raise self.exception

    def raise_again(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Sends the signal again whose exception Python ignores, as in a destructor."""
        if self.exception is None or unraisable.exc_value is not self.exception:
            self.report_others(unraisable)
            return
        self._last = -math.inf
        timer = Timer(RESEND_SECONDS, _send, [self._number])
        timer.daemon = True
        timer.start()


@contextmanager
def exit_at_once() -> Iterator[None]:
    """Makes signals end the process without an exception, with the status of a shell.

    For imports before a command starts, when there is nothing to remove: torch calls Python from
    C++ at its import, and aborts the process if an exception comes out of the handler of a signal.
    """
    before = {number: signal.getsignal(number) for number in (*ENDING_SIGNALS, signal.SIGINT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: os._exit(128 + received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Makes signals end the block by an exception, so that its files are removed.

    A signal of `ENDING_SIGNALS` raises SystemExit with the status of a shell, 128 + its number;
    Ctrl-C raises KeyboardInterrupt. A further signal within `REPEAT_SECONDS` seconds does nothing:
    it would interrupt the removal. A library that is imported meanwhile makes an ImportError of the
    signal's exception, which therefore replaces each that leaves the block. Where Python ignores
    it, as in a destructor, it is raised again soon afterwards.
    """
    before = {number: signal.getsignal(number) for number in (*ENDING_SIGNALS, signal.SIGINT)}
    ending = _Ending()

    def interrupt(_number: int, _frame: object) -> None:
        ending.raise_first(signal.SIGINT)

    handle_ending(ending.raise_first)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = ending.raise_again
    try:
        yield
    except REPLACING_ERRORS:
        if ending.exception is None:
            raise
        raise ending.exception from None
    finally:
        sys.unraisablehook = ending.report_others
        for number, handler in before.items():
            signal.signal(number, handler)
