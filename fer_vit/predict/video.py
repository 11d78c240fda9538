"""Reads videos: finds faces, follows them between searches, and numbers them by person.

A cut ends all tracks, because tracks follow places: after it, others may stand there.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from fer_vit.face.detection import Detection, box_iou, to_faces
from fer_vit.face.detectors import SAME_FACE_IOU, Detector, follow_faces
from fer_vit.face.finder import IN_MEMORY, FaceFinder
from fer_vit.face.image import ImageError
from fer_vit.faces import NO_FACE, OK, Faces, PhotoInfo, as_objects, no_faces
from fer_vit.geometry import Array
from fer_vit.predict.frames import Frame, UntilError, read_frames
from fer_vit.predict.photos import PhotoOptions
from fer_vit.processes import read_ahead

FRAMES_AHEAD = 3  # most frames that are decoded before they are needed
# Most bytes of such frames, and again of frames that a search ahead of its turn takes; and most
# bytes of frames that wait for faces in later frames. One frame of each kind is held in any case.
# With the frames on their way between these, up to 14 frames of 4K (25 MB each) or 7 frames of 8K
# (100 MB each, 700 MB in all) are held, besides those of the decoder.
MAX_BYTES_AHEAD = 80_000_000
MAX_WAITING_BYTES = 260_000_000


def find_in_video(
    path: Path, info: PhotoInfo, finder: FaceFinder, options: PhotoOptions
) -> Iterator[Faces]:
    """Yields the faces of each frame with their crops; the last status says if it is damaged."""
    frames = read_frames(path, options.every, options.fps, *options.span)
    try:
        yield from track_faces(finder, decode_ahead(frames), info, options.detect_every, fill=True)
    except ImageError as error:
        yield no_faces([replace(info, status=str(error))])
    except (cv2.error, MemoryError):  # frames of an odd shape, or huge frames
        yield no_faces([replace(info, status="the video cannot be processed")])


def decode_ahead(frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yields frames; a thread decodes the next ones meanwhile."""
    for first in frames:
        yield first
        yield from read_ahead(frames, most_frames(first, FRAMES_AHEAD, MAX_BYTES_AHEAD))


def most_frames(frame: Frame, most: int, max_bytes: int) -> int:
    """Returns how many frames of one size are held: `most`, or fewer that have `max_bytes`."""
    return max(1, min(most, max_bytes // frame.image.nbytes))


class Tracked(NamedTuple):
    """A frame with its faces. The lists grow while the frame waits in a `FrameQueue`."""

    frame: Frame
    faces: list[Detection]
    tracks: list[int]  # the number of each face's person


MAX_WAITING = 12  # most frames that wait for faces in later frames
# least height of a face that is filled in, as a fraction of the frame's height
MIN_FILLED_HEIGHT = 0.05


def track_faces(
    finder: FaceFinder,
    frames: Iterable[Frame],
    video: PhotoInfo,
    detect_every: int,
    fill: bool = False,
) -> Iterator[Faces]:
    """Yields the faces of each frame of a video, with their tracks and crops.

    With `fill`, frames are yielded up to `detect_every` frames later, with new faces that were
    followed back from later frames.
    """
    for frame, faces in _faces_of_frames(finder, frames, detect_every, fill):
        height, width = frame.image.shape[:2]
        status = OK if len(faces) else NO_FACE
        info = replace(
            video,
            status=status,
            frame=frame.number,
            seconds=frame.seconds,
            shot=frame.shot,
            size=(width, height),
        )
        yield replace(finder.crop(frame.image, faces), infos=(info,))


def _faces_of_frames(
    finder: FaceFinder, frames: Iterable[Frame], detect_every: int, fill: bool
) -> Iterator[tuple[Frame, Faces]]:
    """Yields each frame with its faces and their tracks."""
    if finder.searches:
        for frame, faces, tracks in follow_in_frames(finder.detector, frames, detect_every, fill):
            yield frame, to_faces(IN_MEMORY, faces, tracks)
        return
    tracks_of_shots: dict[int, int] = {}
    for frame in frames:
        # All crops of a shot show one person.
        track = tracks_of_shots.setdefault(frame.shot, len(tracks_of_shots) + 1)
        yield frame, replace(finder.find(frame.image), track=as_objects([track]))


def follow_in_frames(
    detector: Detector, frames: Iterable[Frame], detect_every: int, fill: bool
) -> Iterator[Tracked]:
    """Yields each frame with its faces and their tracks, then raises the error of `frames`.

    The whole frame is searched every `detect_every` frames, and at once if a face is lost; in
    between, faces are followed. With `fill`, the last frame of each shot is searched, too, and a
    new face is followed back into the frames since the search before, as far as these wait.
    """
    readable = UntilError(frames)
    queue = FrameQueue(detector, detect_every)
    searches_ahead = fill and detector.parallel
    max_ahead = 0
    max_waiting = 1
    if fill:
        max_ahead = detect_every if searches_ahead else 1
        max_waiting = min(detect_every, MAX_WAITING - 1)  # `look_ahead` holds another one
    with ThreadPoolExecutor(1) as thread:
        try:
            for frame, following in look_ahead(readable, max_ahead):
                if searches_ahead:
                    queue.start_search([frame, *following], thread)
                is_last = fill and (not following or following[0].shot != frame.shot)
                queue.add(frame, is_last)
                while len(queue.waiting) >= most_frames(frame, max_waiting, MAX_WAITING_BYTES):
                    yield queue.waiting.popleft()
        except Exception:  # of the detector: the frames before are good
            yield from queue.waiting
            raise
    yield from queue.waiting
    readable.check()


def look_ahead(frames: Iterable[Frame], most: int) -> Iterator[tuple[Frame, Sequence[Frame]]]:
    """Yields each frame with up to `most` frames that follow it; with none after the last frame."""
    following = deque[Frame]()
    for frame in frames:
        following.append(frame)
        while len(following) > min(most, most_frames(frame, most, MAX_BYTES_AHEAD)):
            yield following.popleft(), following
    while following:
        yield following.popleft(), following


class FrameQueue:
    """Finds the faces of frames, and holds the frames for faces that are found in later frames.

    A new face is followed back into the frames in `waiting`, and is added to them.
    """

    def __init__(self, detector: Detector, detect_every: int) -> None:
        self.waiting = deque[Tracked]()
        self.detect_every = detect_every
        self._detector = detector
        self._found: dict[int, Future[list[Detection]]] = {}  # searches by the number of the frame
        self._tracker = Tracker()
        self._next_search = 0  # before this frame, faces are followed unless one is lost
        self._shot = 0

    def add(self, frame: Frame, is_last: bool) -> None:
        """Finds the faces of a frame, and lets it wait.

        The first frame after a cut is always searched, and the last one.
        """
        if frame.shot != self._shot:
            self._shot = frame.shot
            self._next_search = frame.number
            self._tracker.end_tracks()
        faces = self._find_faces(frame, is_last)

        num_before = self._tracker.num_tracks
        tracks = self._tracker.number_faces(faces, frame.seconds)
        for face, track in zip(faces, tracks, strict=True):
            if track > num_before:
                self._follow_back(face, track)

        self.waiting.append(Tracked(frame, list(faces), tracks))

    def start_search(self, upcoming: Sequence[Frame], thread: ThreadPoolExecutor) -> None:
        """Starts the next search in a thread, if its frame is among the `upcoming` ones.

        If a face is lost before, the frame may not be searched, and the result is not used.
        """
        for frame in upcoming:
            if frame.number >= self._next_search:
                if frame.number not in self._found:
                    self._found[frame.number] = thread.submit(self._detector.find, frame.image)
                return

    def _find_faces(self, frame: Frame, is_last: bool) -> list[Detection]:
        """Follows faces into a frame, or searches the whole frame if this is due."""
        search = self._found.pop(frame.number, None)
        expected = self._tracker.expect_faces(frame.seconds)
        if frame.number < self._next_search and not is_last:
            followed = follow_faces(self._detector, frame.image, expected)
            if len(followed) == len(expected):  # no face is lost
                return followed

        self._next_search = frame.number + self.detect_every
        faces = search.result() if search else self._detector.find(frame.image)
        return self._detector.confirm(frame.image, faces)

    def _follow_back(self, face: Detection, track: int) -> None:
        """Adds a new face to the frames that wait, the newest first.

        This ends at a cut, and at a frame where the face is lost, small, or already found.
        """
        for frame, faces, tracks in reversed(self.waiting):
            if frame.shot != self._shot:
                return
            earlier = follow_faces(self._detector, frame.image, [face])
            if not earlier:
                return
            (face,) = earlier
            height = face.box[3] - face.box[1]
            was_found = any(box_iou(face, other_face) > SAME_FACE_IOU for other_face in faces)
            if was_found or height < MIN_FILLED_HEIGHT * frame.image.shape[0]:
                return
            faces.append(face)
            tracks.append(track)


MAX_GAP = 2.0  # seconds without a face after which its track ends
SPEED_MEMORY = 0.2  # seconds over which a track's speed is averaged
MAX_DISTANCE = 0.6  # between expected and found landmarks, in widths of the face
MAX_SPEED = 1.5  # added to `MAX_DISTANCE` for each second without a face, in widths a second
MAX_GROWTH = 1.7  # largest ratio of a face's sizes in two successive detections
IMPOSSIBLE_COST = 1e6  # the cost of an impossible pair


def assign(costs: Array) -> list[tuple[int, int]]:
    """Returns pairs of a row and a column, each used once, with the least sum of costs (R, C)."""
    if costs.size == 0:
        return []
    # a single row or column needs no solver, whose import takes longer than a second of video
    if min(costs.shape) == 1:
        row, column = np.unravel_index(costs.argmin(), costs.shape)
        return [(int(row), int(column))]
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


@dataclass
class Track:
    """A person's number and last detection."""

    number: int
    face: Detection
    seconds: float  # time of the last detection
    speed: Array = field(default_factory=lambda: np.zeros(2))  # pixels a second (x, y)

    def expect_face(self, seconds: float) -> Detection:
        """Returns the face moved at its speed, for at most a second."""
        return self.face.moved(1.0, self.speed * min(abs(seconds - self.seconds), 1.0))

    def cost(self, face: Detection, seconds: float) -> float:
        """Returns the cost of assigning a face of a later frame to the track.

        The cost is 1 - IoU, plus the mean distance of landmarks in widths of the face, plus the gap
        in seconds; or `IMPOSSIBLE_COST`.
        """
        expected = self.expect_face(seconds)
        gap = abs(seconds - self.seconds)
        width = np.sqrt(np.prod(face.box[2:] - face.box[:2]))
        expected_width = np.sqrt(np.prod(expected.box[2:] - expected.box[:2]))
        if not 1 / MAX_GROWTH < width / expected_width < MAX_GROWTH:
            return IMPOSSIBLE_COST

        distances = np.linalg.norm(face.landmarks - expected.landmarks, axis=1)  # (5,)
        distance = float(distances.mean() / max(expected_width, width))
        if distance > MAX_DISTANCE + MAX_SPEED * min(gap, MAX_GAP):
            return IMPOSSIBLE_COST
        return 1 - box_iou(expected, face) + distance + gap

    def update(self, face: Detection, seconds: float) -> None:
        """Sets the newest detection and updates the speed."""
        passed = seconds - self.seconds
        if passed > 0:
            newest_speed = (face.landmarks - self.face.landmarks).mean(0) / passed
            weight = 1 - np.exp(-passed / SPEED_MEMORY)
            self.speed = self.speed + (newest_speed - self.speed) * weight
        self.face = face
        self.seconds = seconds


class Tracker:
    """Assigns faces to tracks of constant speed at the least cost, as SORT (Bewley et al. 2016)."""

    def __init__(self) -> None:
        self._tracks: list[Track] = []
        self._seconds = 0.0  # time of the last frame
        self.num_tracks = 0  # number of tracks so far; tracks are numbered from 1

    def end_tracks(self) -> None:
        """Ends all tracks: the faces that follow get new numbers."""
        self._tracks = []

    def expect_faces(self, seconds: float) -> list[Detection]:
        """Returns the last frame's faces, moved at their speeds."""
        current = [track for track in self._tracks if track.seconds == self._seconds]
        return [track.expect_face(seconds) for track in current]

    def number_faces(self, faces: list[Detection], seconds: float) -> list[int]:
        """Returns the track of each face in the next frame."""
        # The last frame's tracks continue, however long ago it was.
        tracks = []
        for track in self._tracks:
            if track.seconds == self._seconds or abs(seconds - track.seconds) <= MAX_GAP:
                tracks.append(track)

        costs = np.empty((len(tracks), len(faces)))  # a row for each track
        for row, track in enumerate(tracks):
            for column, face in enumerate(faces):
                costs[row, column] = track.cost(face, seconds)
        assigned = {}  # tracks by the index of the face
        for row, column in assign(costs):
            if costs[row, column] < IMPOSSIBLE_COST:
                assigned[column] = tracks[row]

        numbers = []
        for index, face in enumerate(faces):
            face_track = assigned.get(index)
            if face_track is None:
                self.num_tracks += 1
                face_track = Track(self.num_tracks, face, seconds)
                tracks.append(face_track)
            face_track.update(face, seconds)
            numbers.append(face_track.number)
        self._tracks = tracks
        self._seconds = seconds
        return numbers
