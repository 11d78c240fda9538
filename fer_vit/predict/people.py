"""The people in videos: their expressions and movements over time, by smoothed values."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fer_vit.angles import mean_direction
from fer_vit.faces import Faces
from fer_vit.fields import choose_fields, people_fields
from fer_vit.heads import EXPRESSION, MOVEMENTS, HeadOutputs, Output
from fer_vit.report.table import write_fields

MIN_VIDEO_SECONDS = 1e-6  # seconds assumed for a video of one frame


@dataclass
class Episode:
    """An uninterrupted expression, or movement, of one person."""

    path: str
    track: int
    start: float  # seconds
    end: float
    label: str  # the expression, or the column of the movement
    head: str = EXPRESSION  # or that of movements
    confidence: float = 0.0  # mean over its frames; for a movement, mean intensity
    frames: int = 0

    def add(self, confidence: float, seconds: float, step: float) -> None:
        """Adds a frame of `step` seconds."""
        self.end = seconds + step
        self.frames += 1
        self.confidence += (confidence - self.confidence) / self.frames


@dataclass
class TimeMean:
    """A mean over time."""

    integral: float = 0.0  # integral of the value over time
    duration: float = 0.0  # seconds

    def add(self, value: float, step: float) -> None:
        """Adds a value that lasts `step` seconds."""
        self.integral += value * step
        self.duration += step

    @property
    def value(self) -> float:
        """The mean."""
        return self.integral / self.duration


@dataclass
class AngleMean:
    """The mean direction of angles over time.

    With a period of 360 degrees, -179 and 179 have the mean 180. The order of angles has no
    effect, and memory does not grow with their number.
    """

    period: float  # in the unit of the angles
    sine: float = 0.0  # integral of the sine over time
    cosine: float = 0.0  # integral of the cosine over time
    duration: float = 0.0  # seconds

    def add(self, value: float, step: float) -> None:
        """Adds an angle that lasts `step` seconds."""
        angle = 2 * math.pi / self.period * value
        self.sine += math.sin(angle) * step
        self.cosine += math.cos(angle) * step
        self.duration += step

    @property
    def value(self) -> float | None:
        """The mean, from minus to plus half of the period; None if opposite angles cancel."""
        sine = np.asarray(self.sine / self.duration)
        cosine = np.asarray(self.cosine / self.duration)
        mean = float(mean_direction(sine, cosine, self.period))
        return None if math.isnan(mean) else mean


@dataclass
class Person:
    """One track of a video: when it was seen, its expressions, and the outputs of further heads."""

    path: str
    track: int
    first_seen: float  # seconds
    last_seen: float
    frames: int = 0
    expressions: list[Episode] = field(default_factory=list)
    label: str | None = None  # label in the last frame; None: too low confidence
    # means of outputs by column
    means: dict[str, TimeMean | AngleMean] = field(default_factory=dict)
    movements: list[Episode] = field(default_factory=list)  # intervals above the threshold
    # movements in the last frame by column
    current_movements: dict[str, Episode] = field(default_factory=dict)

    def add(self, label: str | None, confidence: float, seconds: float, step: float) -> None:
        """Adds a frame of `step` seconds."""
        self.frames += 1
        self.last_seen = seconds
        if label is not None:
            if label != self.label:
                self.expressions.append(Episode(self.path, self.track, seconds, seconds, label))
            self.expressions[-1].add(confidence, seconds, step)
        self.label = label

    def add_output(
        self,
        output: Output,
        value: float,
        above: bool,
        seconds: float,
        step: float,
    ) -> None:
        """Adds an output in a frame.

        Args:
            output: The output.
            value: The value of the output.
            above: Whether the output is a movement above the threshold.
            seconds: When the frame begins.
            step: How many seconds the frame lasts.
        """
        column = output.column
        if column not in self.means:
            period = output.kind.period
            self.means[column] = TimeMean() if period is None else AngleMean(period)
        self.means[column].add(value, step)
        if not above:
            self.current_movements.pop(column, None)
            return
        if column not in self.current_movements:
            self.current_movements[column] = Episode(
                self.path, self.track, seconds, seconds, column, output.head
            )
            self.movements.append(self.current_movements[column])
        self.current_movements[column].add(value, seconds, step)

    def end_movements(self, columns: Collection[str]) -> None:
        """Ends the episodes of movements that are not among the `columns` of a frame."""
        for column in [*self.current_movements]:
            if column not in columns:
                del self.current_movements[column]

    def end_episodes(self) -> None:
        """Ends all episodes: the person is not in the frame."""
        self.label = None
        self.current_movements.clear()

    def row(self, labels: Sequence[str], outputs: HeadOutputs) -> dict[str, Any]:
        """Returns the row of the person in the table of people."""
        lengths = [episode.end - episode.start for episode in self.expressions]
        row: dict[str, Any] = {
            "path": self.path,
            "track": self.track,
            "first_seen": self.first_seen,
            "last_seen": self.last_seen,
            "frames": self.frames,
        }
        if lengths:
            longest = self.expressions[lengths.index(max(lengths))]
            row["longest_run"] = longest.label
            row["longest_run_seconds"] = longest.end - longest.start
            times = dict.fromkeys(labels, 0.0)
            for episode, length in zip(self.expressions, lengths, strict=True):
                times[episode.label] += length
            for label, time in times.items():
                row[f"time_{label}"] = time / sum(lengths)
        means = {column: mean.value for column, mean in self.means.items()}
        for mean in outputs.means:
            if mean.left.column in means and mean.right.column in means:
                means[mean.name] = mean.of(means)
        row |= {f"mean_{name}": value for name, value in means.items()}
        return row


class CountedFrame(NamedTuple):
    """What is counted in a frame with F faces for the times of people."""

    path: str
    seconds: float
    tracks: Sequence[int]  # (F,)
    labels: Sequence[str | None]  # smoothed (F,); None: unknown, or too low confidence
    confidences: Sequence[float]  # smoothed probabilities (F,); ignored without a label
    outputs: Sequence[Mapping[str, float]]  # smoothed by column (F,); unknown outputs are absent


def frame_of_faces(faces: Faces, min_confidence: float) -> CountedFrame | None:
    """Returns what is counted in a frame, by its smoothed faces.

    A face with a smoothed probability below `min_confidence` has no expression. Returns None for a
    photo, and for the end of a damaged video.
    """
    (info,) = faces.infos
    if info.seconds is None:
        return None
    outputs = []
    for face in faces:
        finite = {}
        for column, value in face.smoothed_outputs.items():
            if math.isfinite(value):
                finite[column] = value
        outputs.append(finite)
    return CountedFrame(
        path=info.path,
        seconds=info.seconds,
        tracks=faces.track.tolist(),
        labels=faces.sure_smoothed_labels(min_confidence).tolist(),
        confidences=faces.smoothed.max(1, initial=0.0).tolist(),
        outputs=outputs,
    )


class People:
    """Collects the people of videos, frame by frame.

    It keeps sums and episodes but no frames, so that a video may have any length.
    """

    def __init__(self, outputs: HeadOutputs, threshold: float | None) -> None:
        """Starts without people.

        Args:
            outputs: The outputs of further heads.
            threshold: The smoothed intensity above which a movement has an interval; None:
                movements have no intervals.
        """
        self._outputs = outputs
        self._by_column: dict[str, Output] = outputs.by_column(outputs)
        self._threshold = math.inf if threshold is None else threshold
        # By video, start and end of the frames in seconds, including frames without faces.
        self.spans: dict[str, tuple[float, float]] = {}
        self._persons: dict[tuple[str, int], Person] = {}
        self._frame: CountedFrame | None = None  # not yet counted: the next frame ends it
        self._tracks_before: set[int] = set()  # tracks in the frame that was counted last
        self._step = 0.0  # seconds between the last two frames

    def add(self, frame: CountedFrame | None) -> None:
        """Adds a frame; None, for a photo or the end of a damaged video, ends the current video."""
        before = self._frame
        if before is None or frame is None or before.path != frame.path:
            self.end()
        else:
            self._step = max(frame.seconds - before.seconds, 0.0)
            self._count(before)
        self._frame = frame

    def end(self) -> None:
        """Ends a video. The last frame counts as long as the frame before."""
        if self._frame is not None:
            self._count(self._frame)
        self._frame = None
        self._tracks_before = set()
        self._step = 0.0

    def _count(self, frame: CountedFrame) -> None:
        """Counts a frame, which lasts until the next one."""
        step = max(self._step, MIN_VIDEO_SECONDS)
        start, end = self.spans.get(frame.path, (frame.seconds, frame.seconds))
        self.spans[frame.path] = (min(start, frame.seconds), max(end, frame.seconds + step))

        faces = zip(frame.tracks, frame.labels, frame.confidences, frame.outputs, strict=True)
        for track, label, confidence, outputs in faces:
            key = (frame.path, track)
            if key not in self._persons:
                self._persons[key] = Person(frame.path, track, frame.seconds, frame.seconds)
            person = self._persons[key]
            if track not in self._tracks_before:
                person.end_episodes()
            person.add(label, confidence, frame.seconds, step)
            for column, value in outputs.items():
                output = self._by_column[column]
                above = output.head == MOVEMENTS and value > self._threshold
                person.add_output(output, value, above, frame.seconds, step)
            person.end_movements(outputs)
        self._tracks_before = set(frame.tracks)

    def write(
        self, path: Path, labels: list[str], overwrite: bool, heads: Sequence[str] = ()
    ) -> None:
        """Writes a table with a row for each person.

        The table has the columns of `heads`; empty: of all heads.
        """
        self.end()
        fields = choose_fields(people_fields(labels, self._outputs), heads)
        with write_fields(path, fields, overwrite=overwrite) as table:
            table.write([person.row(labels, self._outputs) for person in self._persons.values()])

    def episodes(self, heads: Sequence[str] = ()) -> list[Episode]:
        """Returns the episodes of `heads`, person by person; empty: of all heads.

        For each person, expressions come first, then movements.
        """
        self.end()
        episodes: list[Episode] = []
        for person in self._persons.values():
            if not heads or EXPRESSION in heads:
                episodes += person.expressions
            if not heads or MOVEMENTS in heads:
                episodes += person.movements
        return episodes
