"""Prepares the photos and frames of a report, part by part, for the explanation of their faces."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tqdm import tqdm

from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import Crops, Face, Faces, join_crops, join_faces, no_faces
from fer_vit.geometry import Image
from fer_vit.predict.photos import PhotoOptions, crop_again
from fer_vit.predict.plot import face_view
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import cut_close_up
from fer_vit.report.explained_face import FaceView
from fer_vit.visualization.timelines import Video

if TYPE_CHECKING:
    from fer_vit.predict.frames import Frame

GROUP_PHOTOS = 32  # most photos in a group; the faces of a group are explained together
# Most pixels of a group with several photos, which are in memory together. One photo of a large
# camera has as many.
GROUP_PIXELS = 67_000_000

# Most frames whose faces are explained together, and most bytes of the close-ups of these faces. A
# frame of 8K has 100 MB, so that frames do not wait.
FRAMES_AT_ONCE = 8
MAX_BYTES_AT_ONCE = 100_000_000


class Part(NamedTuple):
    """Photos or frames that are read together, and their faces that are explained."""

    photos: Faces  # the photos with all their faces; empty for frames
    views: Iterable[FaceView]  # the faces to explain, in their photos or in close-ups; may be lazy
    crops: Crops | None  # their crops; None: no face is explained
    left_out: Mapping[str, int] = {}  # how many faces of a photo are not explained, by path


class DecodedPhoto(NamedTuple):
    """A photo with its classified faces."""

    faces: Faces
    image: Image | None  # (H, W, 3), RGB uint8; None for a photo without a face


def photo_parts(model: Recognizer, photos: Sequence[Path], options: PhotoOptions) -> Iterator[Part]:
    """Finds and classifies the faces of photos; yields the photos part by part."""
    for faces in model.recognize_crops(photos, options):
        views = photo_views(faces, faces.crops) if faces.crops else ()
        yield Part(faces, views, faces.crops)


def photo_views(faces: Faces, crops: Crops) -> Iterator[FaceView]:
    """Yields each face in its photo, or in its crop if the photo can no longer be read.

    Workers return only crops, since photos can be large; the photos are read again here.
    """
    read_photo = lru_cache(maxsize=1)(_read_again)
    for face, crop in zip(faces, crops.image, strict=True):
        photo = read_photo(face.path)
        if photo is None:
            yield replace(face_view(face, crop), box=None, to_crop=np.eye(2, 3))
        else:
            yield face_view(face, photo)


def _read_again(path: str) -> Image | None:
    """Returns a photo (H, W, 3); None if the photo can no longer be read."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None


def classified_photo_parts(photos: Iterable[DecodedPhoto], max_faces: int) -> Iterator[Part]:
    """Yields photos with classified faces, part by part; the first `max_faces` are explained."""
    remaining = max_faces
    for group in _group_photos(photos):
        views: list[FaceView] = []
        crops: list[Crops] = []
        left_out: dict[str, int] = {}
        for faces, image in group:
            if image is None:
                continue
            first = faces[:remaining]
            remaining -= len(first)
            if len(first):
                crops.append(crop_again(first, image))
                views += [face_view(face, image) for face in first]
            if len(first) < len(faces):
                left_out[faces.infos[0].path] = len(faces) - len(first)
        joined = join_faces([faces for faces, _ in group])
        yield Part(joined, views, join_crops(crops) if crops else None, left_out)


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


def video_parts(
    model: Recognizer, videos: Mapping[str, Video], options: PhotoOptions
) -> Iterator[Part]:
    """Reads the frames with faces to show again; yields a few frames at a time.

    The faces are in close-ups from their frames.
    """
    if not videos:
        return
    # not at the top: photos need no PyAV
    from fer_vit.predict.frames import read_frames

    finder = FaceFinder(model.crop_spec, options.face)
    for path, video in videos.items():
        wanted: defaultdict[int, list[Face]] = defaultdict(list)  # faces by number of the frame
        for face in video.faces_to_show():
            wanted[face.frame or 0].append(face)
        frames = islice(read_frames(Path(path), only=wanted), len(wanted))
        with tqdm(total=len(wanted), desc="explaining", unit=" frames", disable=None) as bar:
            while frames_at_once := list(_cut_frames(finder, frames, wanted)):
                views: list[FaceView] = []
                crops: list[Crops] = []
                for views_of_frame, crops_of_frame in frames_at_once:
                    views += views_of_frame
                    crops.append(crops_of_frame)
                yield Part(no_faces(), views, join_crops(crops))
                bar.update(len(frames_at_once))


def _cut_frames(
    finder: FaceFinder, frames: "Iterator[Frame]", wanted: Mapping[int, Sequence[Face]]
) -> Iterator[tuple[list[FaceView], Crops]]:
    """Yields the close-ups and crops of the next frames that are explained together.

    `wanted` has the faces of each frame by number of the frame.
    """
    held = 0  # bytes of the close-ups
    for frame in islice(frames, FRAMES_AT_ONCE):
        faces = wanted[frame.number]
        views: list[FaceView] = []
        for face in faces:
            close_up = cut_close_up(face_view(face, frame.image))
            held += close_up.photo.nbytes
            views.append(close_up)
        cut = finder.crop(frame.image, join_faces([face.alone for face in faces]))
        assert cut.crops is not None  # there are faces
        yield views, cut.crops
        if held >= MAX_BYTES_AT_ONCE:
            return
