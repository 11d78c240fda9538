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

from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, quiet_opencv
from fer_vit.faces import PhotoInfo
from fer_vit.geometry import Image
from fer_vit.predict.face_results import FaceResults
from fer_vit.predict.frames import Frame, play
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import make_finder
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.shots import make_small, number_shots
from fer_vit.predict.smoothing import LIVE, smooth_faces
from fer_vit.predict.video import track_faces


class ClassifiedFrame(NamedTuple):
    """A frame with its classified faces."""

    image: Image  # (H, W, 3)
    arrived: float  # when it arrived, by `time.perf_counter`
    faces: FaceResults  # the faces in the frame


class ArrivedFrame(NamedTuple):
    """A frame of a source, with the time of its arrival."""

    frame: Frame
    arrived: float  # by `time.perf_counter`


def watch(model: Recognizer, source: str) -> Generator[ClassifiedFrame, None, None]:
    """Yields the newest frame of a source with its faces until the source ends.

    The source is the number of a camera, an address such as rtsp://camera/stream, or a video file.
    Raises FerVitError when there is no such source, or it ended with an error.
    """
    name = public_source_name(source)
    if is_camera(source):
        frames = camera_frames(int(source))
    elif "://" in source:
        frames = play(source)
    else:
        frames = play(Path(source))
    try:
        with closing(read_newest(frames)) as newest:
            to_show, to_classify = tee(newest)
            unclassified = (arrived.frame for arrived in to_classify)
            classified = recognize_frames(model, unclassified, name)
            for (frame, arrived), faces in zip(to_show, classified, strict=True):
                yield ClassifiedFrame(frame.image, arrived, faces)
    except ImageError as error:
        raise FerVitError(f"{name}: {error}.") from error


def recognize_frames(
    model: Recognizer, frames: Iterable[Frame], name: str
) -> Iterator[FaceResults]:
    """Yields the faces of each frame, without delay; `smoothed` averages over past frames."""
    options = PhotoOptions()
    finder = make_finder(model.crop_spec, options)
    found_faces = track_faces(finder, frames, PhotoInfo(name), options.detect_every)
    classified = model.classify(found_faces, [Path(name)], options.detector)
    return smooth_faces(classified, options.smooth, LIVE)


def public_source_name(source: str) -> str:
    """Returns a source's name without user and query, which may contain passwords."""
    if is_camera(source):
        return f"camera {source}"
    return re.sub(r"(?<=//)[^/?#]*@|[?#].*", "", source) if "://" in source else source


def is_camera(source: str) -> bool:
    """Returns whether a source is the number of a camera rather than a file or an address."""
    return source.isdecimal() and len(source) < 4


def camera_frames(index: int) -> Iterator[Frame]:
    """Yields the frames of the camera with an index in OpenCV.

    Raises ImageError if the camera is missing or fails.
    """
    shots = number_shots(_camera_pictures(index), make_small, live=True)
    for number, (picture, seconds, shot) in enumerate(shots):
        image = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)
        yield Frame(image, number, seconds, shot)


def _camera_pictures(index: int) -> Iterator[tuple[Image, float]]:
    """Yields the pictures (H, W, 3) of a camera as BGR, with their times in seconds."""
    with quiet_opencv():  # not around `yield`, where OpenCV would stay quiet for the whole process
        camera = cv2.VideoCapture(index)
    start = time.perf_counter()
    num_frames = 0
    try:
        while True:
            with quiet_opencv():
                _, picture = camera.read()
            if picture is None:
                break
            yield np.asarray(picture, np.uint8), time.perf_counter() - start
            num_frames += 1
    finally:
        camera.release()
    raise ImageError("the camera was disconnected" if num_frames else "no such camera")


def read_newest(frames: Iterator[Frame]) -> Generator[ArrivedFrame, None, None]:
    """Reads frames in a thread, and yields the newest frame that has arrived, each at most once."""
    reader = _NewestFrame(frames)
    try:
        yield from reader
    finally:
        reader.stop()


class _NewestFrame:
    """Reads frames in a thread, and keeps the newest one."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._newest: deque[ArrivedFrame] = deque(maxlen=1)
        self._changed = Event()  # a frame has arrived, or there are no more
        self._ended = False
        self._stopped = False
        self._error: Exception | None = None
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """Reads all frames, in the thread."""
        try:
            for frame in self._frames:
                self._newest.append(ArrivedFrame(frame, time.perf_counter()))
                self._changed.set()
                if self._stopped:
                    break
        except Exception as error:  # `__iter__` raises it in the thread of the consumer
            self._error = error
        self._ended = True
        self._changed.set()

    def __iter__(self) -> Iterator[ArrivedFrame]:
        while not self._ended or self._newest:
            self._changed.wait(1)  # Windows ignores Ctrl-C in a wait without a limit
            self._changed.clear()
            if self._newest:
                yield self._newest.popleft()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends the thread, which may read one more frame."""
        self._stopped = True
        self._thread.join(1)
