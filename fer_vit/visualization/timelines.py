"""Collects the people in videos: curves of their expressions, and faces that a report shows.

Shapes: C labels, K outputs of further heads, T times.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fer_vit.angles import average_direction
from fer_vit.faces import Face, Faces, as_cells
from fer_vit.fields import Cell
from fer_vit.geometry import Array, IntArray
from fer_vit.heads import NO_OUTPUTS, HeadOutputs
from fer_vit.predict.shots import Cuts

# Most pictures of a person. All people in a video have at most four times as many pictures
# together, but each person has at least one.
PICTURES = 120

CURVE_POINTS = 1000  # most points of a curve; a point is a mean over a span of the video


@dataclass
class Timeline:
    """A person in a video: times, smoothed probabilities, and faces that may be shown."""

    track: int
    times: list[float] = field(default_factory=list)  # seconds of T frames with the person
    shares: list[list[float]] = field(default_factory=list)  # (T, C), smoothed probabilities
    outputs: list[Array] = field(default_factory=list)  # (T, K), smoothed; NaN: unknown
    labels: Counter[str] = field(default_factory=Counter)  # frames by smoothed expression
    # start and end, in seconds, of each span without the person
    gaps: list[tuple[float, float]] = field(default_factory=list)
    faces: list[Face] = field(default_factory=list)  # every `_stride`-th face
    changes: list[Face] = field(default_factory=list)  # where the smoothed expression changes
    max_pictures: int = PICTURES
    _frame: int = 0  # index of the last frame with the person, among the frames that were read
    _stride: int = 1
    _label: str | None = None  # the smoothed expression in the last frame with the person

    def choose_faces(self, max_faces: int) -> list[Face]:
        """Returns the faces to show in order of time, at most `max_faces`, at least one.

        Up to half of the faces are where the expression changes. The rest is evenly spaced.
        """
        max_faces = max(1, min(max_faces, self.max_pictures))
        changes = {face.frame: face for face in evenly(self.changes, max_faces // 2)}
        steady = [face for face in self.faces if face.frame not in changes]
        chosen = list(changes.values())
        chosen += evenly(steady, max_faces - len(changes))
        return sorted(chosen, key=lambda face: face.frame or 0)

    def add(self, face: Face, outputs: Array, seconds: float, frame: int) -> None:
        """Adds a face with its smoothed outputs (K,) at a time in seconds.

        `frame` is the index of its frame among the frames read.

        When `faces` has more than twice `PICTURES` faces, every second face is removed.
        """
        if self.times and frame > self._frame + 1:
            self.gaps.append((self.times[-1], seconds))
        if self.times and face.label_smoothed != self._label:
            self.changes.append(face)
        self._label = face.label_smoothed
        self.labels[str(self._label)] += 1

        if len(self.times) % self._stride == 0:
            self.faces.append(face)
            if len(self.faces) > 2 * PICTURES:
                self.faces = self.faces[::2]
                self._stride *= 2

        self.times.append(seconds)
        self.shares.append(list(face.smoothed.values()))
        self.outputs.append(outputs.astype(np.float32))  # half the memory of a long video
        self._frame = frame


@dataclass
class Video:
    """The people in a video."""

    start: float  # time of the first frame in seconds
    end: float  # time of the last frame in seconds
    people: dict[int, Timeline] = field(default_factory=dict)  # people by track
    left_out: list[int] = field(default_factory=list)  # the tracks of people who are not shown
    cuts: Cuts = field(default_factory=Cuts)

    @property
    def max_pictures(self) -> int:
        """Most pictures of each person."""
        return 4 * PICTURES // max(1, len(self.people))

    def faces_to_show(self) -> Iterator[Face]:
        """Yields the faces to show of each person."""
        for person in self.people.values():
            yield from person.choose_faces(self.max_pictures)

    def not_shown(self) -> dict[int, int]:
        """Returns how many faces of each person are not shown, by track; zeros are left out."""
        numbers = {}
        for track, person in self.people.items():
            number = len(person.times) - len(person.choose_faces(self.max_pictures))
            if number:
                numbers[track] = number
        return numbers

    def curves(self, name: str, outputs: HeadOutputs = NO_OUTPUTS) -> Iterator[dict[str, Any]]:
        """Yields the JSON values from which `page.js` draws the curves of each person.

        Times are in seconds, shares in thousandths, outputs in the unit of their head.

        Args:
            name: The video's name on the page.
            outputs: The K outputs of further heads.
        """
        duration = self.end - self.start
        if duration == 0:  # a single frame
            duration = 1.0
        for person in self.people.values():
            # The times of damaged videos may decrease.
            order = np.argsort(person.times, kind="stable")
            times = np.array(person.times)[order]  # (T,)
            shares = np.array(person.shares)[order]  # (T, C)

            # Compute means over equal spans of the video.
            span = np.floor((times - self.start) * CURVE_POINTS / duration).clip(
                max=CURVE_POINTS - 1
            )
            _, first, count = np.unique(span, return_index=True, return_counts=True)
            mean_times = np.add.reduceat(times, first) / count  # (points,)
            mean_shares = np.add.reduceat(shares, first) / count[:, None]  # (points, C)
            values = np.array(person.outputs, float)[order]  # (T, K)
            yield {
                "name": name,
                "track": person.track,
                "frames": len(times),
                "start": round(self.start, 3),
                "end": round(self.end, 3),
                "times": mean_times.round(3).tolist(),
                "shares": (1000 * mean_shares.T).round().astype(int).tolist(),
                "outputs": _output_curves(outputs, values, first),
                "gaps": np.round(person.gaps, 3).tolist(),
            }


def _output_curves(
    outputs: HeadOutputs, values: Array, first: IntArray
) -> dict[str, list[list[Cell]]]:
    """Returns the curve of each output, by head in the order of its outputs.

    Args:
        outputs: The outputs.
        values: Their values (T, K).
        first: The first time of each point (points,); a point is a mean, or a mean direction, of
            the known values.
    """
    curves: dict[str, list[list[Cell]]] = {}
    for output, of_output in zip(outputs, values.T, strict=True):  # (T,) each
        period = output.kind.period
        if period is not None:
            points = average_direction(of_output, period, lambda x: _means(x, first))
        else:
            points = _means(of_output, first)
        digits = int(output.kind.form.strip(".f"))
        curves.setdefault(output.head, []).append(as_cells(points.round(digits)))
    return curves


def _means(values: Array, first: IntArray) -> Array:
    """Returns the mean of the known values (T,) of each point; NaN for a point without one."""
    count = np.add.reduceat(np.isfinite(values).astype(float), first)  # (points,)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.add.reduceat(np.nan_to_num(values), first) / count)


def evenly(faces: Sequence[Face], max_faces: int) -> list[Face]:
    """Returns at most `max_faces` evenly spaced faces."""
    indices = np.linspace(0, len(faces) - 1, min(max_faces, len(faces)))
    return [faces[round(index)] for index in indices]


def limit_pictures(videos: Mapping[str, Video], max_faces: int) -> dict[str, Video]:
    """Limits the faces to show of all people together to `max_faces`.

    Each person has the same limit, at most `PICTURES`. If there are more people than faces, the
    people in most frames are kept, and the others are `left_out` of their video.
    """
    people = []
    for path, video in videos.items():
        for person in video.people.values():
            people.append((path, person))
    people.sort(key=lambda item: -len(item[1].times))
    shown = {(path, person.track) for path, person in people[:max_faces]}
    per_person = min(PICTURES, max_faces // max(1, len(shown)))

    limited = {}
    for path, video in videos.items():
        remaining = {}
        left_out = []
        for track, person in video.people.items():
            if (path, track) in shown:
                remaining[track] = replace(person, max_pictures=per_person)
            else:
                left_out.append(track)
        limited[path] = replace(video, people=remaining, left_out=left_out)
    return limited


@dataclass
class Watched:
    """The people in videos.

    Attributes:
        videos: The videos with at least one frame, by path.
        status: The number of frames by status.
        last_status: The status of each video's last frame, by path. If the video cannot be read,
            this is the reason.
    """

    videos: dict[str, Video] = field(default_factory=dict)
    status: Counter[str] = field(default_factory=Counter)
    last_status: dict[str, str] = field(default_factory=dict)

    @property
    def cuts(self) -> Cuts:
        """The cuts of all videos."""
        return Cuts(sum(video.cuts.count for video in self.videos.values()))

    @property
    def num_shown(self) -> int:
        """The number of faces to show of all people."""
        return sum(len(list(video.faces_to_show())) for video in self.videos.values())

    def add(self, faces: Faces) -> None:
        """Adds the smoothed faces of the next frame."""
        (info,) = faces.infos
        frame = self.status.total()
        self.status[info.reason] += 1
        self.last_status[info.path] = info.status
        if info.seconds is None:  # the video cannot be read, or not to its end
            return
        video = self.videos.setdefault(info.path, Video(info.seconds, info.seconds))
        video.cuts.add(info)
        video.start = min(video.start, info.seconds)  # times of damaged videos may decrease
        video.end = max(video.end, info.seconds)
        for face, outputs in zip(faces, faces.smoothed_outputs, strict=True):
            assert face.track is not None  # every face of a video has a track
            track = face.track
            person = video.people.setdefault(track, Timeline(track))
            person.add(face, outputs, info.seconds, frame)


def watch_people(frames: Iterable[Faces]) -> Watched:
    """Returns the people in the frames of videos."""
    watched = Watched()
    for faces in frames:
        watched.add(faces)
    return watched
