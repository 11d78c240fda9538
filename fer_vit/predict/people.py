"""The expressions of the people in videos over time, by smoothed labels: tables and TextGrids."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from fer_vit.files import as_text, atomic_write
from fer_vit.predict.results import SMOOTHED
from fer_vit.report.table import TableWriter

SHORTEST = 1e-6
"""Seconds assumed for a video of one frame."""


@dataclass
class Interval:
    """An uninterrupted expression of one person."""

    path: str
    track: int
    start: float  # seconds
    end: float
    label: str
    confidence: float = 0.0  # mean over its frames
    frames: int = 0
    last: float = 0.0  # the time of its last frame, which ends later

    def add(self, confidence: float, seconds: float, step: float) -> None:
        """Adds a frame of `step` seconds."""
        self.last, self.end, self.frames = seconds, seconds + step, self.frames + 1
        self.confidence += (confidence - self.confidence) / self.frames


class People:
    """Collects the people of videos from the rows of a table, frame by frame."""

    def __init__(self) -> None:
        self._persons: defaultdict[tuple[str, int], list[Interval]] = defaultdict(list)
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
            path, track, seconds, label = (
                row[name] for name in ("path", "track", "seconds", "label_smoothed")
            )
            runs = self._persons[path, track]
            if track not in self._before or runs[-1].label != label:
                runs.append(Interval(path, track, seconds, seconds, label))
            runs[-1].add(row[SMOOTHED + label], seconds, max(self._step, SHORTEST))
        self._before = {row["track"] for row in faces}

    def write(self, path: Path, labels: list[str], overwrite: bool) -> None:
        """Writes a table with a row for each person."""
        self.end()
        columns: dict[str, type] = {
            "path": str,
            "track": int,
            "first_seen": float,
            "last_seen": float,
            "frames": int,
        }
        columns |= {f"time_{label}": float for label in labels} | {
            "longest_run": str,
            "longest_run_seconds": float,
        }
        with TableWriter(path, columns, overwrite=overwrite) as table:
            for runs in self._persons.values():
                times = {
                    label: sum(run.end - run.start for run in runs if run.label == label)
                    for label in labels
                }
                shares = [time / sum(times.values()) for time in times.values()]
                longest = max(runs, key=lambda run: run.end - run.start)
                cells = [
                    runs[0].path,
                    runs[0].track,
                    runs[0].start,
                    runs[-1].last,
                    sum(run.frames for run in runs),
                ]
                cells += [*shares, longest.label, longest.end - longest.start]
                table.write([dict(zip(columns, cells, strict=True))])

    def intervals(self) -> list[Interval]:
        """Returns the intervals, person by person."""
        self.end()
        return [*chain.from_iterable(self._persons.values())]


def is_textgrid(path: Path) -> bool:
    """Returns whether a path has the suffix of a TextGrid."""
    return path.suffix.lower() == ".textgrid"


def write_intervals(path: Path, intervals: Sequence[Interval], overwrite: bool) -> None:
    """Writes intervals as a table or, by its suffix, as a TextGrid."""
    if is_textgrid(path):
        with atomic_write(path, overwrite=overwrite) as file:
            file.write_text(format_textgrid(intervals), encoding="utf-8")
        return
    columns = {
        "path": str,
        "track": int,
        "start": float,
        "end": float,
        "label": str,
        "confidence": float,
    }
    with TableWriter(path, columns, overwrite=overwrite) as table:
        table.write([vars(interval) for interval in intervals])


def format_textgrid(intervals: Sequence[Interval]) -> str:
    """Formats the intervals of one video as a TextGrid for Praat and ELAN, with a tier for each track."""
    start = min((interval.start for interval in intervals), default=0.0)
    start, end = min(start, 0.0), max((interval.end for interval in intervals), default=1.0)
    tiers = [(track, list(tier)) for track, tier in groupby(intervals, attrgetter("track"))]
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", *_format_span(start, end)]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (track, tier) in enumerate(tiers, 1):
        cells = list(_fill_gaps(tier, start, end))
        lines += [
            f"item [{number}]:",
            'class = "IntervalTier"',
            f'name = "track {track}"',
            *_format_span(start, end),
        ]
        lines.append(f"intervals: size = {len(cells)}")
        for index, (begin, until, label) in enumerate(cells, 1):
            label = as_text(label).replace('"', '""')
            lines += [f"intervals [{index}]:", *_format_span(begin, until), f'text = "{label}"']
    return "\n".join(lines) + "\n"


def _format_span(start: float, end: float) -> list[str]:
    return [f"xmin = {start:.6f}", f"xmax = {end:.6f}"]


def _fill_gaps(
    tier: Iterable[Interval], start: float, end: float
) -> Iterator[tuple[float, float, str]]:
    """Yields start, end and label of the intervals of a tier; gaps have an empty label."""
    for interval in tier:
        if interval.start - start >= SHORTEST:
            yield start, interval.start, ""
        yield max(start, interval.start), interval.end, interval.label
        start = interval.end
    if end - start >= SHORTEST:
        yield start, end, ""
