"""Live pictures without a camera: servers of this machine, files,
and frames that a test hands out.
"""

import io
import socket
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from threading import Event, Thread
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image as Pil

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.detectors import DETECTORS
from fer_vit.face.image import UNREADABLE_VIDEO, ImageError
from fer_vit.faces import Faces
from fer_vit.geometry import Image
from fer_vit.predict import camera, frames as reader
from fer_vit.predict.camera import camera_frames, public_source_name, read_newest, watch
from fer_vit.predict.frames import Frame, play, read_frames
from fer_vit.predict.recognizer import Recognizer
from tests.helpers.faces import make_faces
from tests.helpers.marks import slow
from tests.helpers.processes import PATIENCE
from tests.helpers.videos import Blobs, number_of, numbered, write_numbered, write_video

UNEVEN = [0.5, 0.52, 0.6, 1.6, 1.64]


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> Recognizer:
    """Replaces a model that finds no face."""

    def recognize(model: Recognizer, frames: Iterable[Frame], name: str) -> Iterator[Faces]:
        for frame in frames:
            yield make_faces(["a"], [], path=name, frame=frame.number, seconds=frame.seconds)

    monkeypatch.setattr(camera, "recognize_frames", recognize)
    return cast(Recognizer, None)


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


def test_frames_are_dropped_while_one_is_processed() -> None:
    taken = Event()
    read = Event()
    alive = []

    def source() -> Iterator[Frame]:
        for number in range(100):
            image = numbered(number)
            alive.append(weakref.ref(image))
            yield Frame(image, number, number / 25)
            if number == 0:
                taken.wait()
            if number == 98:
                read.set()  # 99 may come or not before it is looked for

    frames = read_newest(source())
    assert next(frames)[0].number == 0
    taken.set()
    read.wait()
    newest = next(frames)[0].number
    assert sum(image() is not None for image in alive) <= 3
    assert [newest, *(frame.number for frame, _ in frames)] in ([98, 99], [99])


def test_the_reader_ends_with_its_viewer_and_its_errors_are_raised() -> None:
    closed = Event()

    def source(count: int) -> Iterator[Frame]:
        try:
            for number in range(count):
                yield Frame(numbered(number), number, 0.0)
            raise ImageError("gone")
        finally:
            closed.set()

    frames = read_newest(source(10**9))
    next(frames)
    frames.close()
    assert closed.wait(PATIENCE)
    frames = read_newest(source(1))
    assert next(frames)[0].number == 0
    with pytest.raises(ImageError, match="gone"):
        next(frames)


def test_a_file_is_played_in_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_numbered(tmp_path / "a.mp4", UNEVEN)
    now = [100.0]
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(reader.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(reader.time, "sleep", sleep)
    shown = []
    for frame in play(path):
        shown.append((number_of(frame.image), now[0] - 100))
        assert frame.seconds == pytest.approx(UNEVEN[frame.number], abs=1e-3)
        now[0] += 0.05  # the reader needs longer than one of the gaps
    assert [number for number, _ in shown] == [*range(5)]
    assert [seconds for _, seconds in shown] == pytest.approx([0, 0.05, 0.1, 1.1, 1.15], abs=2e-3)
    assert naps == pytest.approx([0, 0, 0, 0.95, 0], abs=2e-3)


def test_frames_of_an_address_have_their_time_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = count(100)  # each look at it takes a second
    monkeypatch.setattr(reader, "time", Mock(perf_counter=lambda: next(clock)))
    stream = play(f"http://127.0.0.1:{serve(*mjpeg([numbered(n) for n in range(20)]))}/stream")
    frames = list(islice(stream, 20))
    with pytest.raises(ImageError):
        next(stream)
    assert [number_of(frame.image) for frame in frames] == [*range(20)]
    assert [frame.seconds for frame in frames] == [*range(20)]


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile://{}\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("scheme", "answer", "reason"),
    [
        ("http", b"HTTP/1.0 404 no\r\n\r\n", "404"),
        ("http", b"HTTP/1.0 401 no\r\n\r\n", "401"),
        ("http", b"", UNREADABLE_VIDEO),
        ("http", b"HTTP/1.0 200 OK\r\n\r\n<html>camera</html>", "not a video|error"),
        ("rtsp", b"RTSP/1.0 401 Unauthorized\r\nCSeq: 1\r\n\r\n", "401"),
        *slow(
            ("rtsp", None, UNREADABLE_VIDEO),
            ("http", None, "no data for 0.5 seconds"),
        ),
        *slow(("file", b"", "not a video|Protocol")),
    ],
)
def test_a_wrong_address_is_one_line_soon(
    scheme: str,
    answer: bytes | None,
    reason: str,
    no_model: Recognizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout = 0.5 if answer is None else PATIENCE
    monkeypatch.setattr(reader, "STREAM_TIMEOUT", timeout)
    port = serve(silent=True) if answer is None else serve(answer)
    with pytest.raises(FerVitError, match=rf"^{scheme}://127.0.0.1:{port}/x: .*({reason})"):
        next(watch(no_model, f"{scheme}://user:secret@127.0.0.1:{port}/x"))


def test_a_playlist_opens_no_file(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "a.ts", [0.0, 0.04])
    head = b"HTTP/1.0 200 OK\r\nContent-Type: application/vnd.apple.mpegurl\r\n\r\n"
    with pytest.raises(ImageError):
        list(play(f"http://127.0.0.1:{serve(head + PLAYLIST.format(path).encode())}/a.m3u8"))


def test_a_missing_or_disconnected_camera(
    no_model: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = np.full((4, 6, 3), (255, 0, 9), np.uint8)
    device = Mock(
        **{"read.side_effect": [(True, picture), (True, picture), (False, None), (False, None)]}
    )
    monkeypatch.setattr(camera.cv2, "VideoCapture", lambda number: device)
    frames = camera_frames(0)
    images = [next(frames), next(frames)]
    assert [frame.number for frame in images] == [0, 1]
    assert images[1].image[0, 0].tolist() == [9, 0, 255]
    assert 0 <= images[0].seconds <= images[1].seconds
    with pytest.raises(ImageError, match="the camera was disconnected"):
        next(frames)
    with pytest.raises(FerVitError, match=r"^camera 7: no such camera\.$"):
        next(watch(no_model, "7"))
    assert device.release.call_count == 2


def test_a_camera_leaves_opencv_as_loud_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    log = camera.cv2.utils.logging
    levels: list[int] = []

    def read() -> tuple[bool, np.ndarray | None]:
        levels.append(log.getLogLevel())
        return (True, np.zeros((4, 6, 3), np.uint8)) if len(levels) < 3 else (False, None)

    monkeypatch.setattr(camera.cv2, "VideoCapture", lambda number: Mock(read=read))
    before = log.setLogLevel(log.LOG_LEVEL_WARNING)
    try:
        for _ in range(2):
            with suppress(ImageError):
                for _ in camera_frames(0):
                    assert log.getLogLevel() == log.LOG_LEVEL_WARNING
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


@pytest.fixture
def model(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Recognizer:
    """A tiny model that takes bright squares for faces."""
    monkeypatch.setitem(DETECTORS, "yunet", Blobs())
    return load(checkpoint, "cpu")


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    """A clip in which a bright square crosses a dark stage; it is away in the frames 8 and 9."""
    images = np.zeros((20, 120, 200, 3), np.uint8)
    rng = np.random.default_rng(0)
    for number, image in enumerate(images):
        if number not in (8, 9):
            image[30:90, 10 + 5 * number : 70 + 5 * number] = rng.integers(150, 256, (60, 60, 3))
    return write_video(
        tmp_path / "a.mp4", images, [n / 25 for n in range(20)], options={"crf": "5"}
    )


def test_watch_and_predict_agree(model: Recognizer, squares: Path) -> None:
    seen = list(camera.recognize_frames(model, read_frames(squares), "a"))
    expected = list(model.stream(squares))
    assert [faces.infos[0].frame for faces in seen] == [*range(20)]
    # `predict` searches the last frame, and a camera's last frame is not known
    for faces, predicted in zip(seen[:-1], expected[:-1], strict=True):
        (info,) = faces.infos
        same_info = replace(info, path=predicted.path)
        assert info.path == "a"
        assert same_info == predicted.faces.infos[0]
        for face, same in zip(faces, predicted.faces, strict=True):
            assert face.probabilities == pytest.approx(same.probabilities, abs=1e-5)
            assert (face.box == same.box).all()


def test_frames_stay_with_their_faces(no_model: Recognizer, tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "a.mp4", [n / 25 for n in range(20)])
    shown = [
        (number_of(seen.image), seen.faces.infos[0].frame) for seen in watch(no_model, str(path))
    ]
    assert [number for number, _ in shown] == [frame for _, frame in shown]
    assert shown[-1] == (19, 19)
