"""Times of clips: `--start`, `--end` and `--rest` read seconds and [h:]m:s, and nothing else."""

import math

import pytest

from fer_vit import FerVitError
from fer_vit.commands.predict import PredictOptions
from fer_vit.predict.photos import PhotoOptions
from tests.helpers.commands import parse

TIMES = {
    "90": 90,
    "1.5": 1.5,
    ".5": 0.5,
    "1:01": 61,
    "0:01": 1,
    "0:01.5": 1.5,
    "00:01:00": 60,
    "1:01:01": 3661,
    "90:00": 5400,  # minutes without hours
}


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_times_are_seconds_or_clock_times(text: str, seconds: float) -> None:
    options = PhotoOptions(start=text, end=2e4)
    assert options.span == (seconds, 2e4)
    assert PhotoOptions(start=seconds).span == (seconds, math.inf)
    assert PhotoOptions(end=text).changed() == {"end": seconds}


WRONG = [
    "1m",
    "1,5",
    "",
    "1:",
    ":30",
    "1:75",
    "1:75:00",
    "-1",
    "-1:00",
    "1e3",
    "nan",
    "inf",
    "1:2:3:4",
]


@pytest.mark.parametrize("text", [*WRONG, "9" * 400 + ":00"])
@pytest.mark.parametrize("option", ["start", "end"])
def test_other_times_are_refused_with_both_forms(option: str, text: str) -> None:
    with pytest.raises(FerVitError) as raised:
        PhotoOptions(**{option: text})
    for form in (f"`{option}`", "1.5", "[h:]m:s"):
        assert form in str(raised.value)


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(FerVitError, match="end"):
        PhotoOptions(start="1:00", end=59)


@pytest.mark.parametrize("text", TIMES)
def test_the_command_line_keeps_a_time_as_it_is_typed(text: str) -> None:
    """YAML would read 1:01 as a number to the base of 60, and 0:01 as text."""
    values = parse("predict", "a.mp4", f"--start={text}", "--end", "2:00:00")
    assert PredictOptions(**values).span == (TIMES[text], 7200)
