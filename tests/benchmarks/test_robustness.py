from pathlib import Path

import numpy as np
import pytest

from benchmarks.robustness import EYES, Shifted, blur, cover, markdown, robustness, shrink, trials, turn, yaw
from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.face.detect import Face
from fer_vit.face.regions import region_boxes
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawing import draw_face

IMAGE, LANDMARKS = draw_face("happiness", 3, 96)


def test_covered_eyes_are_gone_and_nothing_else() -> None:
    covered = cover(IMAGE, LANDMARKS, EYES)
    boxes = region_boxes(LANDMARKS, EYES)
    left, top = np.floor(boxes[:, :2].min(0)).astype(int)
    right, bottom = np.ceil(boxes[:, 2:].max(0)).astype(int)
    inside = np.zeros(IMAGE.shape[:2], bool)
    inside[top:bottom, left:right] = True
    assert (covered[~inside] == IMAGE[~inside]).all()
    assert len(np.unique(covered[inside], axis=0)) == 1
    assert inside[LANDMARKS[:2, 1].astype(int), LANDMARKS[:2, 0].astype(int)].all()


def test_a_turn_goes_about_the_middle() -> None:
    image = np.zeros((65, 65, 3), np.uint8)
    image[28:37, 48:57] = 255  # to the right of the middle
    rows, columns = np.nonzero(turn(image, 90)[..., 0] > 128)
    assert (rows.mean(), columns.mean()) == pytest.approx((12, 32), abs=0.5)  # above it: counter-clockwise


def test_blur_and_shrink_keep_the_mean() -> None:
    assert shrink(IMAGE, 24).shape == (24, 24, 3)
    for changed in (blur(IMAGE, 1.5), shrink(IMAGE, 24)):
        assert changed.mean() == pytest.approx(IMAGE.mean(), abs=1)
        assert changed.std() < IMAGE.std()


def test_shifted_landmarks_are_wrong_by_the_distance_asked_for() -> None:
    def found(image: np.ndarray) -> list[Face]:
        return [Face(np.zeros(4), LANDMARKS, 1.0)]

    (face,) = Shifted(found, 0.05)(IMAGE)
    assert np.linalg.norm(face.landmarks - LANDMARKS, axis=1) == pytest.approx(np.full(5, 0.05 * 96))
    assert (Shifted(found, 0.05)(IMAGE)[0].landmarks == face.landmarks).all()


def test_yaw_is_where_the_nose_is() -> None:
    frontal = np.array([[10.0, 10], [30, 10], [20, 20], [12, 30], [28, 30]])
    aside = frontal.copy()
    aside[2, 0] += 5
    turned = aside @ np.array([[0.0, 1], [-1, 0]])  # in the plane: no yaw
    assert yaw(np.stack([frontal, aside, turned])) == pytest.approx([0, 0.25, 0.25])


@pytest.mark.slow
def test_every_trial_counts_every_face(drawn: Path, checkpoint: Path, yunet_named: None) -> None:
    model = load(checkpoint, "cpu")
    found = robustness(model, drawn / "faces.parquet", "test")
    images = len(Manifest.read(drawn / "faces.parquet").split("test"))
    assert [name for name in found if name != "heads turned most"] == list(trials(lambda image: []))
    assert {number for name, (_, number) in found.items() if name != "heads turned most"} == {images}
    assert 0 < found["heads turned most"][1] <= images // 5
    assert markdown(found).count("\n") == len(found) + 2
    assert set(EXPRESSIONS) == set(model.labels)
    # Without landmarks the model sees the whole image and no region, as `predict --face crop` does.
    alone = model.predict([str(path) for path in sorted((drawn / "faces" / "test").rglob("*.png"))], face="crop")
    assert len(alone) == images
