"""From videos to face crops: the frames of a video go the way of photos, and its faces are followed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
from torch.utils.data import IterableDataset

from fer_vit.face.detect import Face, follow
from fer_vit.face.image import ImageError
from fer_vit.geometry import Image
from fer_vit.predict.photos import NO_FACE, OK, Item, Photo, PhotoDataset, PhotoOptions
from fer_vit.predict.tracks import Tracker
from fer_vit.predict.video import Frame, read_frames


@dataclass(eq=False)
class VideoDataset(IterableDataset[Item]):
    """Videos as frames with faces. No video raises an error: after its last good frame comes a status that says why.

    `indices` are those of the videos among the sources of `photos`, which finds and crops their faces.
    """

    photos: PhotoDataset
    indices: Sequence[int]
    options: PhotoOptions

    def __iter__(self) -> Iterator[Item]:
        """Yields frame after frame, and video after video."""
        for index in self.indices:
            try:
                yield from self._frames(index)
            except ImageError as error:
                yield Photo(str(self.photos.sources[index]), str(error), [], index), []
            except (cv2.error, MemoryError):  # from frames of an odd shape, or huge ones
                yield Photo(str(self.photos.sources[index]), "the video cannot be processed", [], index), []

    def _frames(self, index: int) -> Iterator[Item]:
        path, options = Path(str(self.photos.sources[index])), self.options
        frames = read_frames(path, options.every, options.fps, options.start, options.end)
        return find_faces(self.photos, frames, str(path), index, options.detect_every)


def find_faces(
    photos: PhotoDataset, frames: Iterable[Frame], path: str, index: int, detect_every: int
) -> Iterator[Item]:
    """Yields the frames of source number `index` with their faces, and these as the model's input."""
    find = FaceFinder(photos, detect_every)
    for frame in frames:
        faces, tracks = find(frame)
        status, size = OK if faces else NO_FACE, (frame.image.shape[1], frame.image.shape[0])
        photo = Photo(path, status, faces, index, frame.number, frame.seconds, tracks, size)
        yield photo, photos.samples(frame.image, 1, faces, path)


class FaceFinder:
    """Finds the faces of a video's frames, given one after another, and numbers the people.

    The whole frame is searched `detect_every` frames after the last search; in the frames between, the faces are only
    followed. Once a face is lost the frame is searched at once.
    """

    def __init__(self, photos: PhotoDataset, detect_every: int) -> None:
        self.photos = photos
        self.detect_every = detect_every
        self._tracker = Tracker()
        self._due = 0

    def __call__(self, frame: Frame) -> tuple[list[Face | None], tuple[int, ...]]:
        """Returns a frame's faces and their tracks."""
        if self.photos.face == "crop":
            return self.photos.read(frame.image)[2], (0,)  # all crops of a video are one person's
        faces = self._follow(frame.image, frame.seconds) if frame.number < self._due else None
        if faces is None:
            self._due = frame.number + self.detect_every
            faces = [face for face in self.photos.read(frame.image)[2] if face]
        return [*faces], tuple(self._tracker.number(faces, frame.seconds))

    def _follow(self, image: Image, seconds: float) -> list[Face] | None:
        """Returns the last frame's faces where they are now; None if one is lost."""
        expected, detector = self._tracker.expected(seconds), self.photos.detector
        assert detector is not None  # for crops only
        found = follow(detector, image, expected)
        return found if len(found) == len(expected) else None
