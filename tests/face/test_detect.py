"""Detection on real photos and in crops, landmarks against ONNX Runtime, known poses, and how a model file is found."""

import hashlib
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from fer_vit.errors import FerVitError
from fer_vit.face import detect
from fer_vit.face.crop import mirror, warp
from fer_vit.face.detect import (
    Face,
    FaceDetector,
    detect_in_crop,
    find_landmarks,
    head_pose,
    refine_landmarks,
    yunet_path,
)
from fer_vit.geometry import (
    MIRRORED,
    TEMPLATE,
    Array,
    Image,
    apply,
    compose,
    crop_matrix,
    fit_matrix,
    invert,
)
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import draw_face

CM = 6.354 / 0.35
"""Width in cm of a picture in which the eyes are as far apart as in `geometry.TEMPLATE`."""


def turn_head(image: Image, yaw: float, pitch: float = 0.0) -> Image:
    """Turns the head in a square picture, its nose in the middle, by degrees: pitch first, then yaw."""
    axis = (np.arange(len(image)) + 0.5) / len(image) * CM
    x, y = np.meshgrid(axis - 0.5 * CM, axis - 0.55 * CM)
    round_head = 9.5 * np.sqrt((1 - (x / 8.5) ** 2 - (y / 11.5) ** 2).clip(0))
    nose = 2.5 * np.exp(-((x**2 + (y - 0.037 * CM) ** 2) / (2 * 1.3**2)))
    depth = (
        round_head + nose - 8.0
    )  # towards the camera, from axes below the eyes, so that the face stays in place
    pitched, depth = _turn_rows(np.dstack([image, depth]).swapaxes(0, 1), y.T, -pitch)
    turned, _ = _turn_rows(np.dstack([pitched, depth]).swapaxes(0, 1), x, yaw)
    return turned.round().clip(0, 255).astype(np.uint8)


def _turn_rows(layers: Array, along: Array, degrees: float) -> tuple[Array, Array]:
    """Turns colours and depth (H, W, 4), the last layer, about an axis across the rows; what lies behind is hidden."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    depth = layers[..., 3]
    target = along * cos + depth * sin
    # Looked at from the side towards which the head turns, the nearer parts cover those behind them.
    visible = (
        np.maximum.accumulate(target, 1)
        if sin < 0
        else np.minimum.accumulate(target[:, ::-1], 1)[:, ::-1]
    )
    back = np.array(
        [
            np.interp(row, seen, np.arange(len(row)))
            for row, seen in zip(along, visible, strict=True)
        ]
    )
    rows = np.broadcast_to(np.arange(len(along))[:, None], along.shape)
    moved = cv2.remap(
        np.dstack([layers, along]).astype(np.float32),
        back.astype(np.float32),
        rows.astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return moved[..., :3], moved[..., 3] * cos - moved[..., 4] * sin


ASTRONAUT = np.array(
    [[203.0, 101.5], [247.0, 103.5], [223.0, 126.5], [202.0, 140.0], [244.0, 140.0]]
)
"""The landmarks of scikit-image's astronaut, read off the photo by eye."""


@pytest.fixture(scope="module")
def astronaut() -> Image:
    """A photo (512, 512, 3) of one smiling woman, whose face is 90 pixels wide."""
    return np.asarray(pytest.importorskip("skimage.data").astronaut())


def resized(image: Image, scale: float) -> Image:
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, None, fx=scale, fy=scale, interpolation=method), np.uint8)


def error(found: Array, true: Array) -> float:
    """Mean distance of landmarks in units of the eyes' distance."""
    return float(np.linalg.norm(found - true, axis=1).mean() / np.linalg.norm(true[1] - true[0]))


@pytest.mark.parametrize("scale", [0.15, 0.5, 1.0, 1.6, 3.5])
@pytest.mark.parametrize("mirrored", [False, True])
def test_finds_the_one_face_of_a_photo(
    yunet: Path, astronaut: Image, scale: float, mirrored: bool
) -> None:
    """77 to 1,792 pixels: enlarged, unchanged and reduced. The person's right comes first."""
    image, landmarks = resized(astronaut, scale), ASTRONAUT * scale
    if mirrored:
        image, landmarks = mirror(image, landmarks)
    (face,) = FaceDetector(yunet)(image)
    assert error(face.landmarks, landmarks) < (0.1 if scale == 1 else 0.2)
    assert face.score > 0.85 or scale != 1
    assert (face.box[:2] < landmarks.min(0)).all()
    assert (landmarks.max(0) < face.box[2:]).all()


def test_two_faces_far_apart_in_a_large_photo(yunet: Path, astronaut: Image) -> None:
    canvas = np.full((3000, 4000, 3), 127, np.uint8)
    for scale, x, y in ((1.0, 3000, 2000), (0.5, 200, 300)):
        small = resized(astronaut, scale)
        canvas[y : y + len(small), x : x + len(small)] = small
    faces = FaceDetector(yunet)(canvas)
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)
    assert len(faces) == 2
    left, right = sorted(faces, key=lambda face: float(face.box[0]))
    assert error(left.landmarks, ASTRONAUT / 2 + np.array([200, 300])) < 0.2
    assert error(right.landmarks, ASTRONAUT + np.array([3000, 2000])) < 0.15


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (7, 3), (300, 400)])
def test_images_without_a_face_of_any_shape(yunet: Path, shape: tuple[int, int]) -> None:
    image = np.full((*shape, 3), 90, np.uint8)
    assert FaceDetector(yunet)(image) == []
    face = detect_in_crop(FaceDetector(yunet), image)
    assert face.score == 0
    assert face.box.tolist() == [0, 0, *shape[::-1]]
    assert np.isfinite(face.landmarks).all()


def test_a_used_detector_can_be_pickled_with_its_minimum_score(
    yunet: Path, astronaut: Image
) -> None:
    detector = FaceDetector(yunet, min_score=0.5)
    (before,) = detector(astronaut)
    again = pickle.loads(pickle.dumps(detector))
    (after,) = again(astronaut)
    np.testing.assert_array_equal(before.landmarks, after.landmarks)
    assert again.min_score == 0.5
    assert FaceDetector(yunet, min_score=0.99)(astronaut) == []


def test_threads_may_share_a_detector(yunet: Path, astronaut: Image) -> None:
    images = [np.ascontiguousarray(astronaut[:side, :side]) for side in (200, 300, 400, 512)]
    detector = FaceDetector(yunet)
    alone = [detector(image) for image in images]
    with ThreadPoolExecutor(4) as threads:
        for found, image in zip(threads.map(detector, images * 10), alone * 10, strict=True):
            assert [(*face.box, face.score) for face in found] == [
                (*face.box, face.score) for face in image
            ]


# Crops, with a detector of fixed results


class Fixed:
    """Returns the given faces, in fractions of the image; records the images' shapes."""

    def __init__(self, *answers: list[tuple[float, float, float, float, float]]) -> None:
        self.answers, self.shapes = list(answers), list[tuple[int, ...]]()

    def __call__(self, image: Image) -> list[Face]:
        self.shapes.append(image.shape)
        full = np.tile(image.shape[1::-1], 2)
        return [Face(face[:4] * full, np.zeros((5, 2)), face[4]) for face in self.answers.pop(0)]


@pytest.mark.parametrize("side", [24, 900])
def test_a_crop_is_resized_and_its_face_is_in_its_pixels(side: int) -> None:
    detector, image = (
        Fixed([(0.125, 0.0, 0.875, 1.0, 0.9)]),
        np.zeros((side, 2 * side, 3), np.uint8),
    )
    face = detect_in_crop(detector, image)
    assert detector.shapes == [(detect.MIN_SIDE // 2, detect.MIN_SIDE, 3)]
    np.testing.assert_allclose(face.box, np.array([0.25, 0, 1.75, 1]) * side)
    np.testing.assert_array_equal(face.landmarks, detect.full_image_face(image).landmarks)


def test_a_large_face_is_chosen_before_a_small_one_with_a_better_score() -> None:
    detector = Fixed(
        [(0.8, 0.8, 1.0, 1.0, 0.9), (0.1, 0.1, 0.8, 0.8, 0.6), (0.1, 0.1, 0.8, 0.8, 0.5)]
    )
    face = detect_in_crop(detector, np.zeros((48, 48, 3), np.uint8))
    assert face.score == 0.6


@pytest.mark.parametrize("first", [[], [(0.4, 0.4, 0.6, 0.6, 0.7)]])
def test_a_photo_is_searched_again_at_full_size(first: list[Any]) -> None:
    detector = Fixed(first, [(0.41, 0.4, 0.6, 0.6, 0.9)], [])
    face = detect_in_crop(detector, np.zeros((600, 1000, 3), np.uint8))
    assert detector.shapes[1] == (600, 1000, 3)
    np.testing.assert_allclose(face.box, [410, 240, 600, 360])


@pytest.mark.usefixtures("usual_landmarks")
def test_landmarks_of_a_face_in_a_part_of_a_crop_are_searched_there() -> None:
    face = detect_in_crop(Fixed([(0.3, 0.2, 0.9, 0.8, 0.9)]), np.zeros((100, 100, 3), np.uint8))
    np.testing.assert_allclose(
        face.landmarks, (60, 50) + 60 / detect.FILL * (np.array(TEMPLATE) - 0.5)
    )


def test_a_photos_size_hardly_changes_the_crop(yunet: Path, astronaut: Image) -> None:
    def scales(refine: bool) -> list[float]:
        found = []
        for scale in (1.0, 0.7, 0.5, 0.3, 0.2):
            image = resized(astronaut, scale)
            faces = FaceDetector(yunet)(image)
            (face,) = refine_landmarks(image, faces) if refine else faces
            found.append(
                scale * float(np.linalg.det(crop_matrix(face.landmarks, 48)[:, :2])) ** 0.5
            )
        return found

    assert max(scales(True)) < 1.06 * min(scales(True))
    assert max(scales(False)) > 1.1 * min(scales(False))


# Landmarks and poses

EYES = np.linalg.norm(ASTRONAUT[1] - ASTRONAUT[0])
FRAME = crop_matrix(ASTRONAUT, detect.SIDE)


def about_the_nose(degrees: float, scale: float = 1.0, right: float = 0.0) -> Array:
    """Turns and scales the photo about the nose, and shifts it by so many distances of the eyes."""
    x, y = ASTRONAUT[2]
    matrix = np.asarray(cv2.getRotationMatrix2D((x, y), degrees, scale), float)
    matrix[0, 2] += right * EYES
    return matrix


@pytest.mark.parametrize("degrees", [-40, -20, 0, 20, 40])
@pytest.mark.parametrize(("scale", "right"), [(1.0, 0.0), (0.7, 0.2), (1.3, -0.2)])
def test_a_face_is_found_turned_and_moved(
    astronaut: Image, degrees: float, scale: float, right: float
) -> None:
    change = about_the_nose(degrees, scale, right)
    image = warp(astronaut, change, 512)
    assert error(find_landmarks(image, FRAME), apply(change, ASTRONAUT)) < 0.17


def test_landmarks_of_drawn_faces_beat_the_template() -> None:
    """Drawn faces, which were not in its training data."""
    found, usual = [], []
    for seed in range(40):
        image, landmarks = draw_face(EXPRESSIONS[seed % 8], seed, 96)[:2]
        to_cut = fit_matrix(image, detect.SIDE)
        found.append(error(find_landmarks(image, to_cut), landmarks))
        usual.append(error(np.array(TEMPLATE) * 96, landmarks))
    assert np.median(found) < 0.8 * np.median(usual)


def test_onnx_runtime_agrees(astronaut: Image) -> None:
    """Both passes, each with the mirror image, by another program."""
    session = pytest.importorskip("onnxruntime").InferenceSession(detect.LANDMARKS)

    def predict(image: Image, to_cut: Array) -> Array:
        cut = detect.network_input(warp(image, to_cut, detect.SIDE))[None]
        (points,) = session.run(None, {session.get_inputs()[0].name: cut})
        return apply(invert(to_cut), points.reshape(5, 2) * detect.SIDE)

    def both(to_cut: Array) -> Array:
        mirrored = predict(warp(astronaut, to_cut, detect.SIDE)[:, ::-1], np.eye(2, 3)) * [
            -1,
            1,
        ] + [detect.SIDE, 0]
        return (predict(astronaut, to_cut) + apply(invert(to_cut), mirrored[list(MIRRORED)])) / 2

    first = compose(about_the_nose(0), FRAME)
    expected = both(crop_matrix(both(first), detect.SIDE))
    np.testing.assert_allclose(find_landmarks(astronaut, first), expected, atol=1e-2)


def project(head: Array, yaw: float, pitch: float, roll: float) -> Array:
    """The landmarks (5, 2) of a head (5, 3) that is turned by degrees, in pixels of a camera."""
    turn = Rotation.from_euler("ZYX", [roll, -yaw, -pitch], degrees=True).as_rotvec()
    camera = np.array([[900.0, 0, 320], [0, 900, 240], [0, 0, 1]])
    return np.asarray(
        cv2.projectPoints(
            head - head.mean(0), turn, np.array([0, 0, detect.DISTANCE]), camera, None
        )[0]
    )[:, 0]


@pytest.mark.parametrize(
    "pose", [(0, 0, 0), (40, 0, 0), (-60, 10, 5), (20, -30, 60), (-10, 25, -170)]
)
def test_pose_of_the_mean_head(pose: tuple[float, float, float]) -> None:
    assert head_pose(project(detect.HEAD, *pose)) == pytest.approx(
        pose, abs=1
    )  # seen from slightly other points


def test_sign_and_order_of_the_yaw_of_drawn_heads(rng: np.random.Generator) -> None:
    poses = rng.uniform((-40, -15), (40, 15), (120, 2))
    heads = (
        turn_head(draw_face("neutral", seed, 112)[0], *pose) for seed, pose in enumerate(poses)
    )
    found, true = (
        np.array([head_pose(detect.full_image_face(head).landmarks).yaw for head in heads]),
        poses[:, 0],
    )
    large = np.abs(true) >= 10
    assert (np.sign(found) == np.sign(true))[large].mean() >= 0.95
    difference, expected = np.subtract.outer(found, found), np.subtract.outer(true, true)
    apart = np.abs(expected) >= 10
    assert (np.sign(difference) == np.sign(expected))[apart].mean() >= 0.95


# The model file


class Served(BaseHTTPRequestHandler):
    """Serves what a file holds; the path /to?URL is a redirect."""

    file: Path

    def do_GET(self) -> None:
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to?"))
        else:
            self.send_response(200 if self.file.is_file() else 404)
        self.end_headers()
        if self.file.is_file():
            self.wfile.write(self.file.read_bytes())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://localhost:{served.server_port}"
        served.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a stand-in for the model to download."""
    (tmp_path / "served.onnx").write_bytes(b"a model")
    monkeypatch.delenv("FER_VIT_YUNET", raising=False)
    monkeypatch.setenv("FER_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setattr(Served, "file", tmp_path / "served.onnx", raising=False)
    monkeypatch.setattr(detect, "YUNET_URL", f"{server}/served.onnx")
    monkeypatch.setattr(detect, "YUNET_SHA256", hashlib.sha256(b"a model").hexdigest())
    monkeypatch.setattr(detect, "YUNET_NAME", "served.onnx")
    return tmp_path / "cache"


def test_downloads_once_into_the_cache_where_auto_finds_it(cache: Path) -> None:
    assert detect.choose_detector("auto") == "builtin"
    assert not cache.exists()
    path = yunet_path()
    assert detect.choose_detector("auto") == "yunet"
    assert path == cache / "served.onnx"
    path.write_bytes(b"a mod")  # damaged
    assert yunet_path().read_bytes() == b"a model"
    (cache.parent / "served.onnx").unlink()
    assert yunet_path() == path
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("served", [b"another model", b""])
def test_a_wrong_download_is_an_error_and_leaves_no_file(cache: Path, served: bytes) -> None:
    (cache.parent / "served.onnx").write_bytes(served)
    with pytest.raises(FerVitError, match=f"but got {hashlib.sha256(served).hexdigest()}"):
        yunet_path()
    assert not cache.exists() or not list(cache.iterdir())


NOT_HTTPS = ["/served.onnx", "http://localhost:1/x", "//localhost:1/x", "file:///etc/hostname"]


@pytest.mark.parametrize(
    ("place", "words"),
    [*((place, "which is not https") for place in NOT_HTTPS), ("https://localhost:1/x", "port=1")],
)
def test_redirects_to_https(
    cache: Path, server: str, place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "YUNET_URL", f"{server}/to?{place}")
    with pytest.raises(FerVitError, match=f"Cannot download .*{words}"):  # port 1 is closed
        yunet_path()
    assert not list(cache.iterdir())


def test_a_named_file_is_checked(
    yunet: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = "ebafce4e3c118d6554634be5c27ab333b4c047a9a8c3faf1d7cf93101c22f0f0"
    monkeypatch.setattr(detect, "YUNET_SHA256", expected)
    monkeypatch.setenv("FER_VIT_YUNET", str(yunet))
    assert yunet_path() == yunet
    (tmp_path / "other.onnx").write_bytes(b"other")
    monkeypatch.setenv("FER_VIT_YUNET", str(tmp_path / "other.onnx"))
    with pytest.raises(
        FerVitError, match=f"{expected}.*but got {hashlib.sha256(b'other').hexdigest()}"
    ):
        yunet_path()
    assert not cache.exists()
