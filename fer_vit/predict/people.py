"""The people in videos: how long each was seen with which expression."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fer_vit.predict.results import SMOOTHED
from fer_vit.report.table import Cell, TableWriter


@dataclass
class Person:
    """What is known of one track; all times are in seconds."""

    first: float
    last: float
    frames: int = 0
    times: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by expression
    run: tuple[str, float] = ("", 0.0)  # the present expression, and how long it has lasted
    longest: tuple[str, float] = ("", 0.0)

    def see(self, label: str, seconds: float, step: float, went_on: bool) -> None:
        """Adds a frame that is shown for `step` seconds; `went_on` if the person was in the one before as well."""
        self.last, self.frames = seconds, self.frames + 1
        self.times[label] += step
        self.run = (label, step + (self.run[1] if went_on and label == self.run[0] else 0.0))
        self.longest = max(self.longest, self.run, key=lambda run: run[1])


class People:
    """Gathers the people of videos from the rows of a table, frame by frame, by their smoothed labels."""

    def __init__(self) -> None:
        self.persons: dict[tuple[str, int], Person] = {}
        self._frame: Sequence[Mapping[str, Any]] = ()  # waits for the next one, which tells how long it is shown
        self._before: set[int] = set()
        self._step = 0.0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes the rows of a frame; those of photos, and of the end of a broken video, end the video before."""
        path, seconds = rows[0]["path"], rows[0].get("seconds")
        if self._frame and self._frame[0]["path"] == path and seconds is not None:
            self._step = max(seconds - self._frame[0]["seconds"], 0.0)
            self._count()
        else:
            self.end()
        self._frame = () if seconds is None else rows

    def end(self) -> None:
        """Ends a video: its last frame is taken to be shown as long as the one before."""
        self._count()
        self._frame, self._before, self._step = (), set(), 0.0

    def _count(self) -> None:
        faces = [row for row in self._frame if row.get("face") is not None]
        for row in faces:
            number, seconds = row["track"], row["seconds"]
            person = self.persons.setdefault((row["path"], number), Person(seconds, seconds))
            step = max(self._step, 1e-9)  # a video of one frame has no duration
            person.see(row[SMOOTHED.format("label")], seconds, step, number in self._before)
        self._before = {row["track"] for row in faces}

    def write(self, path: Path, labels: list[str]) -> None:
        """Writes a table with a row for each person."""
        self.end()
        columns: dict[str, type] = {"path": str, "track": int, "first_seen": float, "last_seen": float, "frames": int}
        columns |= dict.fromkeys(labels, float) | {"longest_run": str, "longest_run_seconds": float}
        with TableWriter(path, columns) as table:
            table.write([_row(*name, person, labels) for name, person in self.persons.items()])


def _row(path: str, track: int, person: Person, labels: list[str]) -> dict[str, Cell]:
    total = sum(person.times.values())
    return {
        "path": path,
        "track": track,
        "first_seen": person.first,
        "last_seen": person.last,
        "frames": person.frames,
        **{label: person.times[label] / total for label in labels},
        "longest_run": person.longest[0],
        "longest_run_seconds": person.longest[1],
    }
