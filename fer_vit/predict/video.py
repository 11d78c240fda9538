"""Videos as streams of frames: faces are found in them, followed between searches, and numbered by person."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import cv2
import numpy as np
from torch.utils.data import IterableDataset

from fer_vit.face.detectors import Detector, follow_faces, search_frame
from fer_vit.face.face import Face, box_iou
from fer_vit.face.image import ImageError
from fer_vit.geometry import Array
from fer_vit.predict.frames import Frame, read_frames
from fer_vit.predict.photos import NO_FACE, OK, Item, Photo, PhotoDataset, PhotoOptions


@dataclass(eq=False)
class VideoDataset(IterableDataset[Item]):
    """Frames of videos with their faces. For an unreadable video, the status of the last item has the reason."""

    photos: PhotoDataset  # detects and crops faces
    indices: Sequence[int]  # the videos among its sources
    options: PhotoOptions

    def __iter__(self) -> Iterator[Item]:
        options = self.options
        for index in self.indices:
            path = str(self.photos.sources[index])
            frames = read_frames(Path(path), options.every, options.fps, options.start, options.end)
            try:
                yield from track_faces(self.photos, frames, path, index, options.detect_every)
            except (
                ImageError,
                cv2.error,
                MemoryError,
            ) as error:  # from frames of an odd shape, or huge ones
                reason = (
                    str(error) if isinstance(error, ImageError) else "the video cannot be processed"
                )
                yield Photo(path, reason, [], index), []


Found = tuple[Frame, list[Face | None], list[int]]
FINE = 8  # at least one of this many searches is at full size, for small faces that appear
LARGE = (
    1 / 12
)  # side of a large face as a fraction of the frame's longer side; it is also found at a third of the size


def track_faces(
    photos: PhotoDataset, frames: Iterable[Frame], path: str, index: int, detect_every: int
) -> Iterator[Item]:
    """Yields the frames of source `index` with faces and tracks, and the faces as the model's input."""
    found: Iterator[Found]
    if photos.face == "crop" or photos.detector is None:  # all crops of a video show one person
        found = ((frame, photos.read(frame.image)[2], [0]) for frame in frames)
    else:
        found = find_faces(photos.detector, frames, detect_every)
    for (image, number, seconds), faces, tracks in found:
        size = image.shape[1], image.shape[0]
        photo = Photo(
            path, OK if faces else NO_FACE, faces, index, number, seconds, tuple(tracks), size
        )
        yield photo, photos.crop_faces(image, 1, faces, path)


def find_faces(detector: Detector, frames: Iterable[Frame], detect_every: int) -> Iterator[Found]:
    """Yields each frame with its faces and their tracks.

    The whole frame is searched every `detect_every` frames, and at once if a face is lost; in between, faces are
    followed. While all faces are large and none is lost, most searches are at a third of the size.
    """
    tracker, due, fine = Tracker(), 0, 0
    for frame in frames:
        image, number, seconds = frame
        expected, missing = tracker.expect_faces(seconds)
        found = follow_faces(detector, image, expected) if number < due else []
        if number >= due or len(found) < len(expected):
            large = all(max(f.box[2:] - f.box[:2]) > LARGE * max(image.shape) for f in expected)
            coarse = large and due <= number < fine and not missing
            found = search_frame(detector, image, coarse=True) if coarse else []
            if not coarse or len(found) < len(expected):
                found, fine = (
                    search_frame(detector, image, coarse=False),
                    number + FINE * detect_every,
                )
            due = number + detect_every
        yield frame, [*found], tracker.number_faces(found, seconds)


MAX_GAP = 2.0  # seconds without a face after which its track ends
MEMORY = 0.2  # seconds over which a track's speed is averaged
MAX_DISTANCE, MAX_SPEED = (
    0.6,
    1.5,
)  # between expected and found landmarks: widths, and further widths per second
MAX_GROWTH = 1.7  # largest ratio of a face's sizes in two successive detections
NEVER = 1e6  # the cost of an impossible pair


@dataclass
class Track:
    """A person's number and last detection."""

    number: int
    face: Face
    seconds: float
    speed: Array = field(default_factory=lambda: np.zeros(2))  # pixels a second (x, y)

    def expect_face(self, seconds: float) -> Face:
        """Returns the face moved at its speed."""
        return self.face.moved(1.0, self.speed * min(abs(seconds - self.seconds), 1.0))

    def cost(self, face: Face, seconds: float) -> float:
        """Returns 1 - IoU, plus the landmarks' distance in widths, plus the gap in seconds."""
        expected, gap = self.expect_face(seconds), abs(seconds - self.seconds)
        width, other = np.sqrt([np.prod(f.box[2:] - f.box[:2]) for f in (expected, face)])
        distance = float(
            np.linalg.norm(face.landmarks - expected.landmarks, axis=1).mean() / max(width, other)
        )
        if (
            distance > MAX_DISTANCE + MAX_SPEED * min(gap, MAX_GAP)
            or not 1 / MAX_GROWTH < other / width < MAX_GROWTH
        ):
            return NEVER
        return 1 - box_iou(expected, face) + distance + gap

    def update(self, face: Face, seconds: float) -> None:
        """Sets the newest detection and updates the speed."""
        passed = seconds - self.seconds
        if passed > 0:
            speed = (face.landmarks - self.face.landmarks).mean(0) / passed
            self.speed = self.speed + (speed - self.speed) * (1 - np.exp(-passed / MEMORY))
        self.face, self.seconds = face, seconds


class Tracker:
    """Assigns faces to tracks of constant speed, at the least cost (Hungarian), as SORT does (Bewley et al. 2016)."""

    def __init__(self) -> None:
        self._tracks: list[Track] = []
        self._numbers = count()
        self._seconds = 0.0

    def expect_faces(self, seconds: float) -> tuple[list[Face], bool]:
        """Returns the last frame's faces, moved at their speeds, and whether another may come back to its track."""
        missing = (
            abs(seconds - track.seconds) <= MAX_GAP
            for track in self._tracks
            if track.seconds != self._seconds
        )
        faces = [
            track.expect_face(seconds) for track in self._tracks if track.seconds == self._seconds
        ]
        return faces, any(missing)

    def number_faces(self, faces: list[Face], seconds: float) -> list[int]:
        """Returns the track of each face in the next frame."""
        from scipy.optimize import linear_sum_assignment  # only here: it takes time to import

        # The last frame's tracks continue, however long ago it was.
        recent = (
            t
            for t in self._tracks
            if t.seconds == self._seconds or abs(seconds - t.seconds) <= MAX_GAP
        )
        tracks = self._tracks = list(recent)
        costs = np.array([track.cost(face, seconds) for track in tracks for face in faces])
        costs = costs.reshape(len(tracks), len(faces))
        pairs = zip(*linear_sum_assignment(costs), strict=True)
        chosen = {face: tracks[row] for row, face in pairs if costs[row, face] < NEVER}
        for index, face in enumerate(faces):
            if index not in chosen:
                chosen[index] = Track(next(self._numbers), face, seconds)
                self._tracks.append(chosen[index])
            chosen[index].update(face, seconds)
        self._seconds = seconds
        return [chosen[index].number for index in range(len(faces))]
