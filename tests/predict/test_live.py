"""Live video: a file in its own time, an address, a camera; and whether frames are dropped."""

import io
import socket
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event, Thread
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from PIL import Image as Pil

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.detectors import DETECTORS
from fer_vit.face.image import UNREADABLE_VIDEO
from fer_vit.geometry import Image
from fer_vit.predict.camera import public_source_name, watch
from fer_vit.predict.frames import read_frames
from fer_vit.predict.recognizer import Recognizer
from tests.helpers.cameras import watch_all
from tests.helpers.faces import tiny_recognizer
from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE
from tests.helpers.videos import Blobs, number_of, numbered, write_numbered, write_video

UNEVEN = [0.5, 0.52, 0.6, 1.6, 1.64]


@pytest.fixture(scope="module")
def model() -> Recognizer:
    return tiny_recognizer(("a", "b"))


def serve(*answers: bytes, silent: bool = False) -> int:
    """Answers the next request with these bytes, and then hangs up, unless it is to be `silent`;
    returns the port.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with server, server.accept()[0] as viewer:
            viewer.recv(4096)
            for data in answers:
                viewer.sendall(data)
            while silent and viewer.recv(4096):
                pass

    Thread(target=answer, daemon=True).start()
    return int(server.getsockname()[1])


def mjpeg(images: list[Image]) -> list[bytes]:
    """The response of a network camera."""
    parts = [b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=b\r\n\r\n"]
    for image in images:
        buffer = io.BytesIO()
        Pil.fromarray(image).save(buffer, "JPEG", quality=95)
        parts.append(
            b"--b\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
            % len(buffer.getvalue())
        )
        parts.append(buffer.getvalue() + b"\r\n")
    return parts


def test_frames_are_dropped_while_one_is_processed(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Event()
    read = Event()
    numbers = count()

    def show() -> tuple[bool, Image | None]:
        number = next(numbers)
        if number == 1:
            taken.wait()
        if number == 99:
            read.set()  # 99 may come or not before it is looked for
        return (True, numbered(number)) if number < 100 else (False, None)

    monkeypatch.setattr(cv2, "VideoCapture", lambda number: Mock(read=show))
    frames = watch(model, "0")
    assert number_of(next(frames).image) == 0
    taken.set()
    read.wait()
    seen = []
    with pytest.raises(FerVitError, match="disconnected"):
        seen.extend(frames)
    numbers = [(number_of(frame.image), frame.faces.infos[0].frame) for frame in seen]
    assert numbers in ([(98, 98), (99, 99)], [(99, 99)])


def test_the_reader_ends_with_its_viewer(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Event()
    device = Mock(read=lambda: (True, numbered(0)), release=closed.set)
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: device)
    frames = watch(model, "0")
    next(frames)
    frames.close()
    assert closed.wait(PATIENCE)


@pytest.mark.parametrize("step", [0.0, 0.05])
def test_a_file_is_played_in_real_time(
    step: float, model: Recognizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a reader that needs `step` seconds between two looks at the clock."""
    path = write_numbered(tmp_path / "a.mp4", UNEVEN)
    now = [100.0]
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    def look() -> float:
        now[0] += step
        return now[0]

    monkeypatch.setattr(time, "perf_counter", look)
    monkeypatch.setattr(time, "sleep", sleep)
    for frame in watch(model, str(path)):
        (info,) = frame.faces.infos
        assert number_of(frame.image) == info.frame
        assert info.seconds == pytest.approx(UNEVEN[info.frame], abs=1e-3)
    assert info.frame == 4
    assert len(naps) == 5
    assert min(naps) == 0
    expected = [0, 0.02, 0.08, 1.0, 0.04]
    assert naps == pytest.approx(expected, abs=2e-3) if not step else sum(naps) < sum(expected)


def test_frames_of_an_address_have_their_time_of_arrival(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(100)  # each look at it takes a second
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    address = f"http://127.0.0.1:{serve(*mjpeg([numbered(n) for n in range(20)]))}/stream"
    seen = []
    with pytest.raises(FerVitError):
        seen.extend(watch(model, address))
    for frame in seen:
        (info,) = frame.faces.infos
        assert number_of(frame.image) == info.frame
        assert info.frame <= info.seconds <= 3 * info.frame
    assert info.frame == 19


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile://{}\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("scheme", "answer", "reason"),
    [
        ("http", b"HTTP/1.0 404 no\r\n\r\n", "404"),
        ("http", b"", UNREADABLE_VIDEO),
        ("http", b"HTTP/1.0 200 OK\r\n\r\n<html>camera</html>", "not a video|error"),
        ("rtsp", b"RTSP/1.0 401 Unauthorized\r\nCSeq: 1\r\n\r\n", "401"),
        *slow(("http", None, "no data for 8 seconds")),
        *slow(("file", b"", "not a video|Protocol")),
    ],
)
def test_a_wrong_address_is_one_line_soon(
    scheme: str, answer: bytes | None, reason: str, model: Recognizer
) -> None:
    port = serve(silent=True) if answer is None else serve(answer)
    with pytest.raises(FerVitError, match=rf"^{scheme}://127.0.0.1:{port}/x: .*({reason})"):
        next(watch(model, f"{scheme}://user:secret@127.0.0.1:{port}/x"))


def test_a_playlist_opens_no_file(model: Recognizer, tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "a.ts", [0.0, 0.04])
    head = b"HTTP/1.0 200 OK\r\nContent-Type: application/vnd.apple.mpegurl\r\n\r\n"
    port = serve(head + PLAYLIST.format(path).encode())
    with pytest.raises(FerVitError):
        next(watch(model, f"http://127.0.0.1:{port}/a.m3u8"))


def test_a_missing_or_disconnected_camera(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = np.full((40, 60, 3), (255, 0, 9), np.uint8)
    device = Mock(**{"read.side_effect": [(True, picture), (False, None), (False, None)]})
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: device)
    frames = watch(model, "0")
    assert next(frames).image[0, 0].tolist() == [9, 0, 255]
    with pytest.raises(FerVitError, match="the camera was disconnected"):
        next(frames)
    with pytest.raises(FerVitError, match=r"^camera 7: no such camera\.$"):
        next(watch(model, "7"))
    assert device.release.call_count == 2


def test_a_camera_leaves_opencv_as_loud_as_it_was(
    model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cv2.utils.logging
    levels: list[int] = []

    def read() -> tuple[bool, np.ndarray | None]:
        levels.append(log.getLogLevel())
        return (True, np.zeros((40, 60, 3), np.uint8)) if len(levels) < 3 else (False, None)

    monkeypatch.setattr(cv2, "VideoCapture", lambda number: Mock(read=read))
    before = log.setLogLevel(log.LOG_LEVEL_WARNING)
    try:
        with suppress(FerVitError):
            for _ in watch(model, "0"):
                pass
        assert log.getLogLevel() == log.LOG_LEVEL_WARNING
    finally:
        log.setLogLevel(before)
    assert {*levels} == {log.LOG_LEVEL_SILENT}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rtsp://me:p@ss@camera.local/stream?a=b@c", "rtsp://camera.local/stream"),
        ("http://camera?pwd=sec@ret", "http://camera"),
        ("1", "camera 1"),
        ("who? #1.mp4", "who? #1.mp4"),
    ],
)
def test_passwords_are_not_shown(source: str, name: str) -> None:
    assert public_source_name(source) == name


def test_watch_and_predict_agree(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bright square crosses a dark stage; it is away in the frames 8 and 9."""
    monkeypatch.setitem(DETECTORS, "yunet", Blobs())
    images = np.zeros((20, 120, 200, 3), np.uint8)
    rng = np.random.default_rng(0)
    for number, image in enumerate(images):
        if number not in (8, 9):
            image[30:90, 10 + 5 * number : 70 + 5 * number] = rng.integers(150, 256, (60, 60, 3))
    times = [n / 25 for n in range(20)]
    clip = write_video(tmp_path / "a.mp4", images, times, options={"crf": "5"})
    model = load(checkpoint, "cpu")
    shown = [frame.image for frame in read_frames(clip)]
    seen = [frame.faces for frame in watch_all(model, shown, times)]
    expected = list(model.stream(clip))
    assert [faces.infos[0].frame for faces in seen] == [*range(20)]
    # `predict` searches the last frame, and a camera's last frame is not known
    for faces, predicted in zip(seen[:-1], expected[:-1], strict=True):
        (info,) = faces.infos
        assert info.path == "camera 0"
        known = predicted.faces.infos[0]
        assert info.seconds == pytest.approx(known.seconds)
        changed = {"path": known.path, "source": known.source, "seconds": known.seconds}
        assert replace(info, **changed) == known
        for face, same in zip(faces, predicted.faces, strict=True):
            assert face.probabilities == pytest.approx(same.probabilities, abs=1e-5)
            assert (face.box == same.box).all()
