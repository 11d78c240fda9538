"""The one exception that users are meant to see, and helpers for its messages."""

import math


class FerVitError(Exception):
    """Something the user can fix: one line that says what was expected, what was found, and what to do.

    The command line prints it without a traceback and exits with code 2 (`--debug` shows the traceback).
    """

    def __init__(self, message: str) -> None:
        # An error raised in a worker arrives with its traceback in front, and file names may hold line breaks.
        super().__init__(" ".join(message.rpartition("fer_vit.errors.FerVitError: ")[2].splitlines()))


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises FerVitError when a number is outside [low, high] or NaN."""
    if not low <= value <= high:
        allowed = (
            "a number" if low == -math.inf else f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        )
        raise FerVitError(f"Expected {name} to be {allowed}, but got {short(value)}.")


def short(value: object) -> str:
    """Returns a value as text for a message, truncated to 80 characters."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
