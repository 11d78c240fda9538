"""Live video from a camera, an address, or a file: only the newest frame is classified."""

import re
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import tee
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import cv2
import numpy as np

from fer_vit.data.dataset import collate
from fer_vit.errors import FerVitError
from fer_vit.face.image import QUIET_OPENCV, ImageError
from fer_vit.faces import PhotoInfo
from fer_vit.geometry import Image
from fer_vit.predict.frames import Frame, play
from fer_vit.predict.photos import Item, PhotoOptions
from fer_vit.predict.reading import make_finder
from fer_vit.predict.recognizer import FoundFaces, Recognizer
from fer_vit.predict.results import FaceResults
from fer_vit.predict.smoothing import smooth_faces
from fer_vit.predict.video import track_faces


class ClassifiedFrame(NamedTuple):
    """A classified frame."""

    image: Image  # (H, W, 3)
    arrived: float  # by `time.perf_counter`
    faces: FaceResults  # of the frame


def watch(model: Recognizer, source: str) -> Generator[ClassifiedFrame, None, None]:
    """Yields the newest frame of a source with its faces until the source ends.

    The source is the number of a camera, an address such as rtsp://camera/stream, or a video file.
    Raises FerVitError when there is no such source, or it ended with an error.
    """
    name = shown_name(source)
    if is_camera(source):
        frames = camera_frames(int(source))
    elif "://" in source:
        frames = play(source)
    else:
        frames = play(Path(source))
    try:
        with closing(read_newest(frames)) as newest:
            shown, read = tee(newest)
            classified = recognize_frames(model, (frame for frame, _ in read), name)
            for (frame, arrived), faces in zip(shown, classified, strict=True):
                yield ClassifiedFrame(frame.image, arrived, faces)
    except ImageError as error:
        raise FerVitError(f"{name}: {error}.") from error


def recognize_frames(
    model: Recognizer, frames: Iterable[Frame], name: str
) -> Iterator[FaceResults]:
    """Yields the faces of each frame, without delay; `smoothed` averages the past."""
    options = PhotoOptions()
    items = track_faces(
        make_finder(model.crop_spec, options), frames, PhotoInfo(name), options.detect_every
    )
    classified = model.classify(_ready(items, model), [Path(name)], options.detector)
    return smooth_faces(classified, options.smooth, causal=True)


def _ready(items: Iterable[Item], model: Recognizer) -> Iterator[FoundFaces]:
    """Yields the faces of each frame with their crops as a batch for the model, if it has any."""
    for faces, crops in items:
        batches = [collate(crops).ready(model.device)] if crops else []
        yield faces, batches


def shown_name(source: str) -> str:
    """Returns a source's name without user and query, which may contain passwords."""
    if is_camera(source):
        return f"camera {source}"
    return re.sub(r"(?<=//)[^/?#]*@|[?#].*", "", source) if "://" in source else source


def is_camera(source: str) -> bool:
    """Returns whether a source is the number of a camera rather than a file or an address."""
    return source.isdecimal() and len(source) < 4


def camera_frames(number: int) -> Iterator[Frame]:
    """Yields the frames of the camera with a number in OpenCV.

    Raises ImageError if it is missing or fails.
    """
    with QUIET_OPENCV:  # not while a frame is used: the generator waits there
        camera = cv2.VideoCapture(number)
    start = time.perf_counter()
    count = 0
    try:
        while True:
            with QUIET_OPENCV:
                _, picture = camera.read()
            if picture is None:
                break
            image = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)
            yield Frame(image, count, time.perf_counter() - start)
            count += 1
    finally:
        camera.release()
    raise ImageError("the camera was disconnected" if count else "no such camera")


def read_newest(frames: Iterator[Frame]) -> Generator[tuple[Frame, float], None, None]:
    """Reads frames in a thread.

    Yields the newest one with its time of arrival, each at most once.
    """
    latest: deque[tuple[Frame, float]] = deque(maxlen=1)
    errors: list[Exception] = []
    arrived, ended, stopped = Event(), Event(), Event()

    def read() -> None:
        try:
            for frame in frames:
                latest.append((frame, time.perf_counter()))
                arrived.set()
                if stopped.is_set():
                    break
        except Exception as error:  # raised below, in the thread of the consumer
            errors.append(error)
        ended.set()
        arrived.set()

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        while not ended.is_set() or latest:
            arrived.wait(1)  # Windows ignores Ctrl-C in a wait without a limit
            arrived.clear()
            if latest:
                yield latest.popleft()
    finally:
        stopped.set()
        reader.join(1)
    if errors:
        raise errors[0]
