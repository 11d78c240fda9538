"""The photos and frames of a report, part by part, with their faces ready to be explained."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fer_vit.data.dataset import Batch, Sample, collate
from fer_vit.faces import Faces
from fer_vit.geometry import Image
from fer_vit.predict.photos import PhotoOptions, crop_again
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from fer_vit.visualization.people import (
    Shown,
    Video,
    Watched,
    limit_pictures,
    read_faces_to_show,
    watch_people,
)
from fer_vit.wording import counted

GROUP_PHOTOS = 32  # photos whose faces are explained together, at most
GROUP_PIXELS = 67_000_000  # of these photos, which are in memory together: one of a large camera


class Part(NamedTuple):
    """Photos or frames that are read together."""

    faces: Sequence[Shown]
    chunks: Sequence[Batch]  # the crops of the faces, ready for the model, perhaps with more faces
    status: Mapping[str, int]  # number of photos by status; empty for frames
    skipped: Mapping[str, str]  # the status of photos without a face, by path
    left_out: Mapping[str, str]  # the faces of photos that are not explained, by path


class DecodedPhoto(NamedTuple):
    """The classified faces of a photo, and its image (H, W, 3); None if it has no face."""

    faces: Faces
    image: Image | None


@dataclass(frozen=True)
class ReportFaces:
    """The faces that a report shows, and what is known of the others.

    Attributes:
        photos: The photos part by part, which are read when they are explained.
        watched: All people in the videos.
        videos: The videos with the people to show, by path.
        people_left_out: The tracks of the people in videos that are not shown, by path.
    """

    photos: Iterable[Part]
    watched: Watched
    videos: Mapping[str, Video]
    people_left_out: Mapping[str, Sequence[int]]

    @property
    def num_pictures(self) -> int:
        """How many faces of videos are shown."""
        return sum(len(list(video.faces_to_show())) for video in self.videos.values())


def choose_faces(photos: Iterable[Part], watched: Watched, max_faces: int) -> ReportFaces:
    """Returns the photos, and at most `max_faces` faces of videos."""
    videos, people_left_out = limit_pictures(watched.videos, max_faces)
    return ReportFaces(photos, watched, videos, people_left_out)


def find_faces(
    model: Recognizer, photos: Sequence[Path], videos: Sequence[Path], options: PhotoOptions
) -> ReportFaces:
    """Returns all faces of videos, which are searched here, and of photos, which are later."""
    frames = model.recognize(videos, options) if videos else ()
    watched = watch_people(frames)
    parts = _find_photo_parts(model, photos, options)
    return ReportFaces(parts, watched, watched.videos, people_left_out={})


def _find_photo_parts(
    model: Recognizer, photos: Sequence[Path], options: PhotoOptions
) -> Iterator[Part]:
    """Yields photos with their faces, part by part."""
    if not photos:
        return
    for found_faces in model.find(photos, options):
        faces = found_faces.faces
        (classified,) = model.classify([found_faces], photos, options.detector)
        without_face = [photo for photo in faces.photos() if not len(photo.faces)]
        yield Part(
            faces=[(face, None) for face in classified],
            chunks=found_faces.batches,
            status=Counter(info.reason for info in faces.infos),
            skipped={photo.path: photo.status for photo in without_face},
            left_out={},
        )


def classified_photo_parts(
    model: Recognizer, photos: Iterable[DecodedPhoto], max_faces: int
) -> Iterator[Part]:
    """Yields photos whose faces are classified, part by part, with the first `max_faces` faces."""
    remaining = max_faces
    for group in _group_photos(photos):
        part = _classified_part(model, group, remaining)
        remaining -= len(part.faces)
        yield part


def _group_photos(photos: Iterable[DecodedPhoto]) -> Iterator[list[DecodedPhoto]]:
    """Yields photos in groups of at most `GROUP_PHOTOS` and `GROUP_PIXELS`, or one larger photo.

    The faces of a group are explained together, which is faster than one by one.
    """
    group: list[DecodedPhoto] = []
    held = 0  # pixels of the group
    for photo in photos:
        pixels = 0 if photo.image is None else photo.image.shape[0] * photo.image.shape[1]
        if group and (len(group) == GROUP_PHOTOS or held + pixels > GROUP_PIXELS):
            yield group
            group = []
            held = 0
        group.append(photo)
        held += pixels
    if group:
        yield group


def _classified_part(model: Recognizer, photos: Sequence[DecodedPhoto], max_faces: int) -> Part:
    """Returns photos whose faces are classified, with the first `max_faces` faces."""
    shown: list[Shown] = []
    samples: list[Sample] = []
    status: Counter[str] = Counter()
    skipped: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for faces, image in photos:
        (info,) = faces.infos
        status[info.reason] += 1
        if image is None:
            skipped[info.path] = info.status
            continue
        first = faces[: max_faces - len(shown)]
        if len(first):
            samples += crop_again(first, image)
            shown += [(face, image) for face in first]
        if len(first) < len(faces):
            left_out[info.path] = counted(len(faces) - len(first), "face")
    chunks = collate(samples).split(FACES_PER_PASS) if samples else []
    ready = [chunk.ready(model.device) for chunk in chunks]
    return Part(
        faces=shown,
        chunks=ready,
        status=status,
        skipped=skipped,
        left_out=left_out,
    )


def video_parts(
    model: Recognizer, videos: Mapping[str, Video], options: PhotoOptions
) -> Iterator[Part]:
    """Yields the frames in which the faces to show of videos lie, part by part."""
    for faces, chunks in read_faces_to_show(model, videos, options):
        yield Part(faces, chunks, status={}, skipped={}, left_out={})
