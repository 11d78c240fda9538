"""Times of clips as people type them: seconds, or hours, minutes and seconds."""

import re
from typing import TypeAlias

from fer_vit.errors import FerVitError, check_number, short

Time: TypeAlias = str | float

TIME_FORMS = "seconds, such as 90 or 1.5, or [h:]m:s, such as 1:30"
NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
CLOCK = r"(?:(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{1,6}):(?P<seconds>[0-5]?[0-9](?:\.[0-9]*)?)"


def read_seconds(option: str, value: Time) -> float:
    """Returns a time in seconds; `option` is without dashes.

    Raises FerVitError when the time is negative or has another form than `TIME_FORMS`.
    """
    if not isinstance(value, str):
        check_number(option, value, 0)
        return float(value)
    text = value.strip()
    if re.fullmatch(NUMBER, text):
        return float(text)
    clock = re.fullmatch(CLOCK, text)
    if clock is None or (clock["hours"] and int(clock["minutes"]) >= 60):
        raise FerVitError(f"Expected `--{option}` in {TIME_FORMS}, but got {short(value)}.")
    minutes = 60 * int(clock["hours"] or 0) + int(clock["minutes"])
    return 60 * minutes + float(clock["seconds"])
