"""A camera that shows given pictures at given times."""

import time
from collections.abc import Iterable, Iterator
from threading import Semaphore
from unittest.mock import Mock

import cv2
import pytest

from fer_vit.errors import FerVitError
from fer_vit.geometry import Image
from fer_vit.predict.camera import ClassifiedFrame, watch
from fer_vit.predict.recognizer import Recognizer


def watch_all(
    model: Recognizer, images: Iterable[Image], times: Iterable[float]
) -> Iterator[ClassifiedFrame]:
    """What a viewer of a camera sees that waits for its viewer, so that no picture is skipped."""
    taken = Semaphore(1)
    clock = [0.0]
    left = zip(images, times, strict=False)

    def read() -> tuple[bool, Image | None]:
        taken.acquire()
        for image, seconds in left:
            clock[0] = seconds
            return True, image[..., ::-1].copy()
        return False, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cv2, "VideoCapture", lambda number: Mock(read=read))
        patch.setattr(time, "perf_counter", lambda: clock[0])
        try:
            for seen in watch(model, "0"):
                yield seen
                taken.release()
        except FerVitError:  # the camera has no more pictures
            assert next(left, None) is None
