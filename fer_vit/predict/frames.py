"""From videos to face crops: the frames of a video go the way of photos, and its faces are followed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
from torch.utils.data import IterableDataset

from fer_vit.face.detect import follow
from fer_vit.face.image import ImageError
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
    """Yields the frames of source number `index` with their faces and people, and the faces as the model's input.

    The whole frame is searched `detect_every` frames after the last search; in the frames between, the faces are only
    followed. Once a face is lost the frame is searched at once.
    """
    tracker, due = Tracker(), 0
    for frame in frames:
        image, size = frame.image, (frame.image.shape[1], frame.image.shape[0])
        if photos.face == "crop" or photos.detector is None:
            faces, tracks = photos.read(image)[2], [0]  # all crops of a video are one person's
        else:
            expected = tracker.expected(frame.seconds)
            found = follow(photos.detector, image, expected) if frame.number < due else []
            if frame.number >= due or len(found) < len(expected):
                due = frame.number + detect_every
                found = [face for face in photos.read(image)[2] if face]
            faces, tracks = [*found], tracker.number(found, frame.seconds)
        status = OK if faces else NO_FACE
        photo = Photo(path, status, faces, index, frame.number, frame.seconds, tuple(tracks), size)
        yield photo, photos.samples(image, 1, faces, path)
