"""Signals that end a command, for every command, the servers and the training."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer, main_thread

# Schedulers and services send SIGTERM. A terminal or ssh that closes sends SIGHUP.
SIGNAL_NAMES = ("SIGTERM", "SIGHUP")

ENDING_SIGNALS: Sequence[signal.Signals] = tuple(
    signal.Signals[name]
    for name in SIGNAL_NAMES
    if hasattr(signal, name)  # Windows has no SIGHUP
)
RESEND_SECONDS = 0.1  # seconds after which a signal is sent again

# If a signal arrives during an import, some libraries replace the exception of the signal by one of
# these errors.
REPLACING_ERRORS = (ImportError, RecursionError)

# Signals within this time after a signal count as the same signal: a closed terminal sends two.
REPEAT_SECONDS = 2.0


def handle_ending(handle: Callable[[signal.Signals], None]) -> None:
    """Calls `handle` for each signal of `ENDING_SIGNALS`.

    Signals that are ignored, for example because of nohup, stay ignored.
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: handle(signal.Signals(received)))


def _send(number: signal.Signals) -> None:
    """Sends a signal to the main thread, so that the signal also interrupts a wait."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        signal.pthread_kill(main_thread().ident or 0, number)


class _Ending:
    """The exception that ends the block of `exit_on_signals` after a signal."""

    def __init__(self) -> None:
        self.exception: SystemExit | KeyboardInterrupt | None = None
        self._number = signal.SIGINT
        self._last = -math.inf  # seconds
        self.report_others = sys.unraisablehook

    def raise_first(self, number: signal.Signals) -> None:
        """Raises the exception of a signal, unless the signal repeats an earlier signal."""
        now = time.monotonic()
        if now - self._last >= REPEAT_SECONDS:
            self._last = now
            self._number = number
            interrupted = number == signal.SIGINT
            self.exception = KeyboardInterrupt() if interrupted else SystemExit(128 + number)
            raise self.exception

    def raise_again(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Sends the signal again if Python has ignored its exception, as in a destructor."""
        if self.exception is None or unraisable.exc_value is not self.exception:
            self.report_others(unraisable)
            return
        self._last = -math.inf
        timer = Timer(RESEND_SECONDS, _send, [self._number])
        timer.daemon = True
        timer.start()


@contextmanager
def exit_at_once() -> Iterator[None]:
    """Makes signals end the process at once, with the exit status 128 + the number of the signal.

    This is for imports before a command starts, when there are no files to remove. torch calls
    Python from C++ at its import, and aborts the process if a signal handler raises an exception.
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

    A signal of `ENDING_SIGNALS` raises SystemExit with the exit status 128 + the number of the
    signal. Ctrl-C raises KeyboardInterrupt. A further signal within `REPEAT_SECONDS` seconds has no
    effect, because it would interrupt the removal of files. If a library replaces the exception
    during an import (`REPLACING_ERRORS`), the block ends with the exception of the signal. If
    Python ignores the exception, as in a destructor, the signal is sent again.
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
