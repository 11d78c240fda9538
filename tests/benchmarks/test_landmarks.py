"""The training of the landmark network."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage.data import astronaut

from benchmarks import landmarks
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.face.image import encode_png
from fer_vit.face.landmarks import NETWORK
from fer_vit.geometry import Array
from fer_vit.sources.drawing import draw_face

IMAGE, POINTS = draw_face("fear", 0, 64)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for seed in range(24):
        image, points = draw_face("fear", seed, 64)
        rows.append(
            Row(encode_png(image), f"{seed}.png", "val" if seed % 4 == 0 else "train", "fear", landmarks=points)
        )
    write_manifest(tmp_path / "m.parquet", Reading(("fear",), rows), "drawn")
    return tmp_path / "m.parquet"


def test_what_it_writes_is_read_as_the_shipped_network_is(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = manifest.with_name("landmarks.onnx")
    monkeypatch.setattr(landmarks, "seen", Manifest.landmarks)
    monkeypatch.setattr(sys, "argv", ["landmarks", str(out), str(manifest), "--epochs=2", "--batch=6"])
    landmarks.main()
    assert "epoch 1: mean distance on validation" in capsys.readouterr().out
    shapes = []
    for path in (out, NETWORK):
        net = cv2.dnn.readNetFromONNX(str(path))
        net.setInput(np.zeros((1, 1, 64, 64), np.float32))
        shapes.append(net.forward().shape)
    assert shapes == [(1, 10)] * 2
    assert sum(parameter.numel() for parameter in landmarks.Landmarks().parameters()) < 300_000


def test_faces_that_yunet_does_not_see_are_left_out(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(rows: Manifest) -> Array:
        return np.where(np.arange(len(rows))[:, None, None] % 2, rows.landmarks(), np.nan)

    monkeypatch.setattr(landmarks, "seen", half)
    faces = landmarks.Faces(manifest, "train")
    assert len(faces) == 9
    image, points = faces[0]
    assert image.shape == (1, 64, 64)
    assert points.shape == (5, 2)


def test_yunet_looks_at_grey_crops(yunet_named: None, tmp_path: Path) -> None:
    rows = [
        Row(encode_png(image), name, "train", "fear")
        for name, image in (("a", astronaut()), ("b", np.full((64, 64, 3), 128, np.uint8)))
    ]
    write_manifest(tmp_path / "m.parquet", Reading(("fear",), rows), "drawn")
    face, grey = landmarks.seen(Manifest.read(tmp_path / "m.parquet").split("train"))
    assert np.abs(face - [(203, 101.5), (247, 103.5), (223, 126.5), (202, 140), (244, 140)]).max() < 8
    assert np.isnan(grey).all()


def test_a_cut_image_keeps_its_landmarks_on_the_face() -> None:
    sizes = set()
    for seed in range(40):
        image, points = landmarks.cut(IMAGE, POINTS, seed)
        height, width = image.shape[:2]
        sizes.add((height, width))
        assert min(height, width) >= 38
        left, top = (POINTS - points)[0]
        assert (image == IMAGE[int(top) : int(top) + height, int(left) : int(left) + width]).all()
    assert 2 < len(sizes) < 20
