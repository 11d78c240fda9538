"""The training of the face detector."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import detector, detector_data
from benchmarks.machine import run_main
from fer_vit.face.detect import BUILTIN, FaceDetector
from fer_vit.sources.drawn import draw_face


@pytest.mark.slow
def test_training_resumes_writes_a_detector_and_scores_it(
    yunet_named: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crops, points = zip(*[draw_face("fear", seed, detector_data.CROP, colour=True) for seed in range(24)], strict=True)
    np.save(tmp_path / "crops.npy", crops)
    np.save(tmp_path / "points.npy", [np.vstack([[(20, 10), (92, 100)], five]) for five in points])
    (tmp_path / "plain").mkdir()
    for place in range(3):
        cv2.imwrite(str(tmp_path / "plain" / f"{place}.jpg"), np.full((120, 90, 3), 80 * place, np.uint8))
    folders = [f"--faces={tmp_path}", f"--backgrounds={tmp_path / 'plain'}", f"--cache={tmp_path}", "--batch=2"]
    path = tmp_path / "d.onnx"
    for steps in (2, 3):
        path.unlink(missing_ok=True)
        run_main(detector.main, [str(path), *folders, f"--steps={steps}", "--photos=1"])
    printed = capsys.readouterr().out
    assert printed.count("step 0: loss") == 1
    assert printed.count("composed, faces >= 24 px: YuNet") == 2
    assert FaceDetector(path, 0.99)(crops[0]) == []
    assert sum(parameter.numel() for parameter in detector.Network().parameters()) < 300_000
    assert BUILTIN.stat().st_size < 2**20


def test_a_turned_face_keeps_its_landmarks_in_its_box() -> None:
    points = np.array([(20, 10), (92, 100), (40, 45), (72, 45), (56, 65), (44, 82), (68, 82)], float)
    to_canvas = detector_data.matrix(points, 60, np.pi / 2, np.array([100.0, 90]))
    mapped = detector_data.transform(points, to_canvas)
    np.testing.assert_allclose(mapped[:2].mean(0), (100, 90))
    np.testing.assert_allclose(mapped[1] - mapped[0], (60 * np.sqrt(90 / 72), 60 * np.sqrt(72 / 90)))
    labels, faces = detector.assign(mapped[None])
    centres = detector.CORNERS[labels == 1] + detector.STRIDE[labels == 1, None] / 2
    assert np.abs(centres - (100, 90)).max() < 20
    np.testing.assert_allclose(faces[labels == 1], np.broadcast_to(mapped, faces[labels == 1].shape), atol=1e-4)
