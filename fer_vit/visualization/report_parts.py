"""Prepares the photos and frames of a report, part by part, for the explanation of their faces."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fer_vit.faces import Crops, Faces, join_crops, join_faces, no_faces
from fer_vit.geometry import Image
from fer_vit.predict.photos import PhotoOptions, crop_again
from fer_vit.predict.plot import face_view
from fer_vit.predict.recognizer import Recognizer
from fer_vit.visualization.timelines import (
    Shown,
    Video,
    Watched,
    limit_pictures,
    read_faces_to_show,
    watch_people,
)

GROUP_PHOTOS = 32  # most photos in a group; the faces of a group are explained together
# Most pixels of a group with several photos, which are in memory together. One photo of a large
# camera has as many.
GROUP_PIXELS = 67_000_000


class Part(NamedTuple):
    """Photos or frames that are read together."""

    photos: Faces  # the photos with all their faces; empty for frames
    faces: Sequence[Shown]  # the faces to explain, of each photo the first
    chunks: Sequence[Crops]  # the crops of the faces; more crops may follow


class DecodedPhoto(NamedTuple):
    """A photo with its classified faces."""

    faces: Faces
    image: Image | None  # (H, W, 3), RGB uint8; None for a photo without a face


@dataclass(frozen=True)
class ReportFaces:
    """The faces that a report shows, and the people that the report leaves out.

    Attributes:
        photos: The photos part by part. The iterable is lazy: photos are read during iteration.
        watched: All people in the videos.
        videos: The videos with the people to show, by path.
        people_left_out: The tracks of people who are not shown, by path of the video.
    """

    photos: Iterable[Part]
    watched: Watched
    videos: Mapping[str, Video]
    people_left_out: Mapping[str, Sequence[int]]

    @property
    def num_video_faces(self) -> int:
        """The number of faces in videos that are shown."""
        return sum(len(list(video.faces_to_show())) for video in self.videos.values())


def choose_faces(photos: Iterable[Part], watched: Watched, max_faces: int) -> ReportFaces:
    """Returns the photos and the people of videos, with at most `max_faces` faces of videos."""
    videos, people_left_out = limit_pictures(watched.videos, max_faces)
    return ReportFaces(photos, watched, videos, people_left_out)


def detect_faces(
    model: Recognizer, photos: Sequence[Path], videos: Sequence[Path], options: PhotoOptions
) -> ReportFaces:
    """Detects the faces of a report in photos and videos.

    All frames of videos are read here, which may take minutes. Photos are read during iteration
    over `ReportFaces.photos`.
    """
    frames = model.recognize(videos, options) if videos else ()
    found = model.recognize_crops(photos, options) if photos else ()
    watched = watch_people(frames)
    parts = (
        Part(faces, [(face, None) for face in faces], [faces.crops] if faces.crops else [])
        for faces in found
    )
    return ReportFaces(parts, watched, watched.videos, people_left_out={})


def classified_photo_parts(photos: Iterable[DecodedPhoto], max_faces: int) -> Iterator[Part]:
    """Yields photos with classified faces, part by part; the first `max_faces` are explained."""
    remaining = max_faces
    for group in _group_photos(photos):
        part = _classified_part(group, remaining)
        remaining -= len(part.faces)
        yield part


def _group_photos(photos: Iterable[DecodedPhoto]) -> Iterator[list[DecodedPhoto]]:
    """Yields groups of at most `GROUP_PHOTOS` photos with at most `GROUP_PIXELS` pixels.

    A larger photo is a group alone. The faces of a group are explained together, which is faster
    than one by one.
    """
    group: list[DecodedPhoto] = []
    held = 0  # the pixels of the group
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


def _classified_part(photos: Sequence[DecodedPhoto], max_faces: int) -> Part:
    """Returns a part with the first `max_faces` faces of photos."""
    shown: list[Shown] = []
    crops: list[Crops] = []
    for faces, image in photos:
        first = faces[: max_faces - len(shown)]
        if image is not None and len(first):
            crops.append(crop_again(first, image))
            shown += [(face, face_view(face, image)) for face in first]
    joined = join_faces([faces for faces, _ in photos])
    return Part(joined, shown, [join_crops(crops)] if crops else [])


def video_parts(
    model: Recognizer, videos: Mapping[str, Video], options: PhotoOptions
) -> Iterator[Part]:
    """Yields the frames that have faces to show, part by part."""
    for faces, chunks in read_faces_to_show(model, videos, options):
        yield Part(no_faces(), faces, chunks)
