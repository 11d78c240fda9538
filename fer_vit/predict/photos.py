"""Reads photos: the options, the faces of one photo, and the photo of a face once more.

`video.py` finds the faces of one video, and `reading.py` those of many photos and videos.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np

import fer_vit.face.image as image_file
from fer_vit.errors import FerVitError, check_number, for_reader
from fer_vit.face.crop import warp
from fer_vit.face.detectors import (
    DEFAULT_DETECTOR,
    DETECTORS_HELP,
    SCORES_HELP,
    ChosenDetector,
    find_detector,
)
from fer_vit.face.finder import FaceFinder, FaceMode
from fer_vit.face.headers import has_several_pages, is_animated
from fer_vit.face.image import ImageError
from fer_vit.faces import (
    FIRST_FRAME,
    NO_FACE,
    OK,
    Crops,
    Face,
    Faces,
    PhotoInfo,
    Source,
    no_faces,
)
from fer_vit.geometry import Image
from fer_vit.options import Count, NotNegative, Number, Options, Positive, Share
from fer_vit.predict.inputs import is_video
from fer_vit.predict.smoothing import RECORDED
from fer_vit.times import Time, read_seconds

# Fields of `PhotoOptions` that photos do not use.
VIDEO_OPTIONS = ("every", "fps", "start", "end", "detect_every", "smooth")


@dataclass(frozen=True, kw_only=True)
class PhotoOptions(Options):
    """How photos and videos are read.

    Raises:
        FerVitError: An option has a wrong value, or two contradict each other.
    """

    TEXTS: ClassVar = {
        "DETECTORS": DETECTORS_HELP,
        "SCORES": SCORES_HELP,
        "SMOOTHING": RECORDED.meaning,
    }

    face: FaceMode = "detect"
    """`detect` finds every face; `crop` takes each image as the crop of one face."""
    detector: ChosenDetector = DEFAULT_DETECTOR
    """How faces are found. {DETECTORS}."""
    batch_size: Count = 32
    """Photos or frames per batch; it doesn't change the result."""
    workers: Number | None = None
    """Processes that read photos; 0: this process. Default: one per core."""
    every: Count = 1
    """Use every n-th frame of a video."""
    fps: Positive | None = None
    """Use at most this many frames per second of a video."""
    start: Time = 0.0
    """Where to start in a video: seconds, or [h:]m:s."""
    end: Time = math.inf
    """Where to stop in a video: seconds, or [h:]m:s."""
    detect_every: Count = 5
    """Search every n-th frame of a video for faces, and follow them in between."""
    smooth: NotNegative = 0.25
    """Smoothing of videos in seconds: {SMOOTHING} this value; 0: off."""
    min_score: Share | None = None
    """Leave out faces with a lower detector score. Default: {SCORES}."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.face == "detect" and not find_detector(self.detector).searches:
            remedy = "Remove it, or add `--face crop` if each image is the crop of one face."
            raise FerVitError(f"`--detector {self.detector}` finds no faces in photos. {remedy}")
        start = read_seconds("start", self.start)
        end = read_seconds("end", self.end)
        check_number("end", end, start)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "end", end)
        if self.min_score is not None and self.face == "crop":
            raise FerVitError(
                "`--min_score` is for `--face detect`: a crop is one face with any score. "
                "Remove one of them."
            )
        if self.fps is not None and self.every != 1:
            raise FerVitError(
                f"Expected either `--fps` or `--every`, but got {self.fps:g} and {self.every}. "
                "Remove one of them."
            )

    def reading(self) -> "PhotoOptions":
        """Returns these options without those that a command adds to them."""
        return PhotoOptions(
            **{each.name: getattr(self, each.name) for each in fields(PhotoOptions)}
        )

    @property
    def span(self) -> tuple[float, float]:
        """The start and the end in seconds after the first frame of a video."""
        return float(self.start), float(self.end)

    def unused_notes(self, sources: Sequence[Source]) -> list[str]:
        """Returns a note on changed options of videos if there is no video, else no note."""
        if any(map(is_video, sources)):
            return []
        names = [f"`--{name}`" for name in self.changed() if name in VIDEO_OPTIONS]
        if not names:
            return []
        return [for_reader(f"Not used, since there is no video: {', '.join(names)}.")]

    def changed(self) -> dict[str, object]:
        """Returns the options that change the results and are not the defaults.

        Tables record `face` and `detector` separately.
        """
        values = {}
        for option in fields(self):
            if option.name in ("face", "detector", "batch_size", "workers"):
                continue
            value = getattr(self, option.name)
            if value != option.default:
                values[option.name] = value
        return values


def find_in_photo(source: Source, info: PhotoInfo, finder: FaceFinder) -> Faces:
    """Returns the faces of a photo with their crops; the status says why it cannot be read."""
    try:
        content = image_file.read_bytes(source) if isinstance(source, Path) else source
        if isinstance(content, bytes):
            search = finder.find_in_file(content, info)
            has_more = is_animated(content) or has_several_pages(content)
        else:
            search = finder.search(content, info)
            has_more = False
        faces = finder.crop(search.image, search.faces, search.reduction)
        taken_whole = finder.shows_photo(search.image)
    except ImageError as error:
        return no_faces([replace(info, status=str(error))])
    except (cv2.error, MemoryError):  # an image of an odd shape, or a huge image
        return no_faces([replace(info, status="the image cannot be processed")])
    status = OK if len(faces) else NO_FACE
    if has_more:
        status = FIRST_FRAME
    info = replace(info, status=status, size=search.size, taken_whole=taken_whole)
    return replace(faces, infos=(info,))


def read_photo(face: Face) -> Image:
    """Returns the photo or frame of a face (H, W, 3), RGB uint8.

    Raises ImageError when the photo can no longer be read, or has another size than before.
    """
    try:
        photo = _read_source(face)
    except ImageError as error:
        raise ImageError(f"{face.path}: {error}.") from error
    height, width = photo.shape[:2]
    predicted_size = face.info.size
    if predicted_size is not None and predicted_size != (width, height):
        expected = f"{predicted_size[0]} x {predicted_size[1]}"
        raise ImageError(
            f"{face.path}: Expected {expected} pixels, as when it was predicted, but got "
            f"{width} x {height}. Predict it again."
        )
    return photo


def _read_source(face: Face) -> Image:
    source = face.source
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, bytes):
        return image_file.decode_image(source)
    if face.frame is None:
        return image_file.read_image(source)
    from fer_vit.predict.frames import read_frames  # not at the top: photos need no PyAV

    frame = next(read_frames(source, only={face.frame}), None)
    if frame is None:
        raise ImageError("the video has become shorter")
    return frame.image


def crop_again(faces: Faces, image: Image) -> Crops:
    """Cuts the classified faces of one photo out of its image (H, W, 3) again."""
    size = faces.scheme.crop_size
    return Crops(
        image=np.stack([warp(image, to_crop, size) for to_crop in faces.to_crop]),
        boxes=faces.boxes.astype(np.float32),
        valid=faces.visible,
        to_crop=faces.to_crop,
    )
