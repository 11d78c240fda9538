"""The expressions of the people in videos over time, by smoothed labels: tables and TextGrids."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from fer_vit.files import as_text, atomic_write
from fer_vit.predict.results import SMOOTHED
from fer_vit.report.table import Cell, TableWriter

SHORTEST = 1e-6
"""Seconds assumed for a video of one frame."""


class Interval(NamedTuple):
    """An uninterrupted expression of one person: times in seconds, mean confidence."""

    path: str
    track: int
    start: float
    end: float
    label: str
    confidence: float


@dataclass
class Run:
    """An uninterrupted label: times in seconds, and the sum of its confidences over its frames."""

    label: str
    start: float
    end: float
    confidences: float = 0.0
    frames: int = 0


@dataclass
class Person:
    """One track of a video: the time of its last frame in seconds, and its labels."""

    path: str
    track: int
    last: float = 0.0
    runs: list[Run] = field(default_factory=list)

    def add(self, label: str, confidence: float, seconds: float, step: float, continues: bool) -> None:
        """Adds a frame of `step` seconds; `continues`: the person is also in the frame before."""
        self.last = seconds
        if not (continues and self.runs[-1].label == label):
            self.runs.append(Run(label, seconds, seconds))
        run = self.runs[-1]
        run.end, run.frames, run.confidences = seconds + step, run.frames + 1, run.confidences + confidence

    def intervals(self) -> Iterator[Interval]:
        """Yields the person's uninterrupted expressions."""
        for run in self.runs:
            yield Interval(self.path, self.track, run.start, run.end, run.label, run.confidences / run.frames)

    def row(self, labels: Sequence[str]) -> dict[str, Cell]:
        """Returns the person's row in the table of people."""
        times = defaultdict[str, float](float)
        for run in self.runs:
            times[run.label] += run.end - run.start
        longest = max(self.runs, key=lambda run: run.end - run.start)
        return {
            "path": self.path,
            "track": self.track,
            "first_seen": self.runs[0].start,
            "last_seen": self.last,
            "frames": sum(run.frames for run in self.runs),
            **{f"time_{label}": times[label] / sum(times.values()) for label in labels},
            "longest_run": longest.label,
            "longest_run_seconds": longest.end - longest.start,
        }


class People:
    """Collects the people of videos from the rows of a table, frame by frame."""

    def __init__(self) -> None:
        self.persons: dict[tuple[str, int], Person] = {}
        self._frame: Sequence[Mapping[str, Any]] = ()  # its duration ends with the next frame
        self._before: set[int] = set()
        self._step = 0.0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the rows of a frame. Rows without a time, of a photo or an error, end the current video."""
        path, seconds = rows[0]["path"], rows[0].get("seconds")
        if self._frame and self._frame[0]["path"] == path and seconds is not None:
            self._step = max(seconds - self._frame[0]["seconds"], 0.0)
            self._count()
        else:
            self.end()
        self._frame = () if seconds is None else rows

    def end(self) -> None:
        """Ends a video. Its last frame counts as long as the one before."""
        self._count()
        self._frame, self._before, self._step = (), set(), 0.0

    def _count(self) -> None:
        faces = [row for row in self._frame if row.get("face") is not None]
        for row in faces:
            number, seconds, label = row["track"], row["seconds"], row["label_smoothed"]
            person = self.persons.setdefault((row["path"], number), Person(row["path"], number))
            person.add(label, row[SMOOTHED + label], seconds, max(self._step, SHORTEST), number in self._before)
        self._before = {row["track"] for row in faces}

    def write(self, path: Path, labels: list[str], overwrite: bool) -> None:
        """Writes a table with a row for each person."""
        self.end()
        columns: dict[str, type] = {"path": str, "track": int, "first_seen": float, "last_seen": float, "frames": int}
        columns |= {f"time_{label}": float for label in labels} | {"longest_run": str, "longest_run_seconds": float}
        with TableWriter(path, columns, overwrite=overwrite) as table:
            table.write([person.row(labels) for person in self.persons.values()])

    def intervals(self) -> list[Interval]:
        """Returns the intervals, person by person."""
        self.end()
        return [interval for person in self.persons.values() for interval in person.intervals()]


def is_textgrid(path: Path) -> bool:
    """Returns whether a path has the suffix of a TextGrid."""
    return path.suffix.lower() == ".textgrid"


def write_intervals(path: Path, intervals: Sequence[Interval], overwrite: bool) -> None:
    """Writes intervals as a table or, by its suffix, as a TextGrid."""
    if is_textgrid(path):
        with atomic_write(path, overwrite=overwrite) as file:
            file.write_text(format_textgrid(intervals), encoding="utf-8")
        return
    with TableWriter(path, Interval.__annotations__, overwrite=overwrite) as table:
        table.write([interval._asdict() for interval in intervals])


def format_textgrid(intervals: Sequence[Interval]) -> str:
    """Formats the intervals of one video as a TextGrid for Praat and ELAN, with a tier for each track."""
    start = min((interval.start for interval in intervals), default=0.0)
    start, end = min(start, 0.0), max((interval.end for interval in intervals), default=1.0)
    tiers = [(track, list(tier)) for track, tier in groupby(intervals, attrgetter("track"))]
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", *_format_span(start, end)]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (track, tier) in enumerate(tiers, 1):
        cells = list(_fill_gaps(tier, start, end))
        lines += [f"item [{number}]:", 'class = "IntervalTier"', f'name = "track {track}"', *_format_span(start, end)]
        lines.append(f"intervals: size = {len(cells)}")
        for index, (begin, until, label) in enumerate(cells, 1):
            label = as_text(label).replace('"', '""')
            lines += [f"intervals [{index}]:", *_format_span(begin, until), f'text = "{label}"']
    return "\n".join(lines) + "\n"


def _format_span(start: float, end: float) -> list[str]:
    return [f"xmin = {start:.6f}", f"xmax = {end:.6f}"]


def _fill_gaps(tier: Iterable[Interval], start: float, end: float) -> Iterator[tuple[float, float, str]]:
    """Yields start, end and label of the intervals of a tier; gaps have an empty label."""
    for interval in tier:
        if interval.start - start >= SHORTEST:
            yield start, interval.start, ""
        yield max(start, interval.start), interval.end, interval.label
        start = interval.end
    if end - start >= SHORTEST:
        yield start, end, ""
