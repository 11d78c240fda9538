"""Landmarks of turned, moved and drawn faces, against OpenCV's results, and of crowds;
the second look.
"""

import hashlib
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

import fer_vit
from benchmarks.finder import Archive, held_back
from fer_vit.face.crop import CropSpec, mirror, warp
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, SURE_SCORE, find_detector
from fer_vit.face.finder import FaceFinder
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
from fer_vit.predict.frames import read_frames
from fer_vit.sources.cartoon import draw_face
from tests.helpers.photos import ASTRONAUT, error

NETWORK = Path(fer_vit.__file__).parent / "face" / "landmarks.onnx"
BEFORE = "c10c01316df1e5b654354b4d148d736e73fd0579ef1404f1d75076ea2c6722d5"
"""The sha256 of the landmark network without its second look."""
SIDE = 64  # of the network's input
EYES = np.linalg.norm(ASTRONAUT[1] - ASTRONAUT[0])
FINDER = FaceFinder(CropSpec(48), "crop", DETECTORS["landmarks"])
YUNET = DETECTORS["yunet"]


def landmarks_of(crop: Image) -> Array:
    """The landmarks (5, 2) of a face that fills an image."""
    return np.asarray(FINDER.find(crop).landmarks[0])


def moved_face(degrees: float, scale: float, right: float) -> Array:
    """The matrix that cuts the astronaut's face out, turned and scaled about the nose, and shifted
    by so many distances of the eyes.
    """
    x, y = ASTRONAUT[2]
    matrix = np.asarray(cv2.getRotationMatrix2D((x, y), degrees, scale), float)
    matrix[0, 2] += right * EYES
    return compose(crop_matrix(ASTRONAUT, 3 * SIDE), matrix)


@pytest.mark.parametrize(
    ("degrees", "scale", "right"), [(-40, 1.3, -0.2), (0, 1.0, 0.0), (20, 0.7, 0.2), (40, 1.0, 0.0)]
)
def test_a_face_is_found_turned_and_moved_and_its_mirror_image_likewise(
    astronaut: Image, degrees: float, scale: float, right: float
) -> None:
    change = moved_face(degrees, scale, right)
    crop = warp(astronaut, change, 3 * SIDE)
    found = landmarks_of(crop)
    assert error(found, apply(change, ASTRONAUT)) < 0.17
    flipped, landmarks = mirror(crop, found)
    np.testing.assert_allclose(landmarks_of(flipped), landmarks, atol=0.1)


def test_landmarks_of_drawn_faces_beat_the_template() -> None:
    """Drawn faces, which were not in its training data."""
    errors = []
    usual = []
    for seed in range(24):
        image, landmarks = draw_face(EXPRESSIONS[seed % 8], seed, 96)[:2]
        errors.append(error(landmarks_of(image), landmarks))
        usual.append(error(np.array(TEMPLATE) * 96, landmarks))
    assert np.median(errors) < 0.8 * np.median(usual)


def test_opencv_agrees(astronaut: Image) -> None:
    """Both passes, each with the mirror image, by another program."""
    network = cv2.dnn.readNetFromONNX(str(NETWORK))
    crop = warp(astronaut, moved_face(10, 1.0, 0.0), 3 * SIDE)
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)

    def predict(cut: Array) -> Array:
        network.setInput(((cut - cut.mean()) / (cut.std() + 2))[None, None].astype(np.float32))
        return np.asarray(network.forward("linear").reshape(5, 2) * SIDE)

    def both(to_cut: Array) -> Array:
        cut = warp(np.dstack([grey] * 3), to_cut, SIDE)[..., 0].astype(float)
        mirrored = predict(cut[:, ::-1])[list(MIRRORED)] * [-1, 1] + [SIDE, 0]
        return apply(invert(to_cut), (predict(cut) + mirrored) / 2)

    expected = both(crop_matrix(both(fit_matrix(crop, SIDE)), SIDE))
    np.testing.assert_allclose(landmarks_of(crop), expected, atol=0.03)


class Boxes:
    """Finds the same boxes in each image."""

    def __init__(self, boxes: Array, score: float = 0.9) -> None:
        self.faces = [Detection(box, ASTRONAUT, score) for box in boxes]

    def find(self, image: Image) -> list[Detection]:
        return self.faces


def test_faces_of_a_crowd_do_not_depend_on_each_other(astronaut: Image) -> None:
    """Of 65 faces, the network gets 64 at once."""
    middle = ASTRONAUT.mean(0) + np.random.default_rng(0).uniform(-EYES, EYES, (65, 2))
    boxes = np.hstack([middle - EYES, middle + EYES])

    def landmarks(chosen: Array) -> Array:
        detector = find_detector(Boxes(chosen))
        return FaceFinder(CropSpec(48), "detect", detector).find(astronaut).landmarks

    together = landmarks(boxes)
    assert together.shape == (65, 5, 2)
    for row in (0, 63, 64):
        np.testing.assert_allclose(together[[row]], landmarks(boxes[[row]]), atol=1e-3)
    assert len(landmarks(boxes[:0])) == 0


@pytest.mark.parametrize(
    ("score", "is_face", "kept"),
    [
        (SURE_SCORE - 0.05, False, False),
        (SURE_SCORE - 0.05, True, True),
        (SURE_SCORE, False, True),
        (0.0, False, True),  # a full image without a face
        (np.nan, False, True),  # without a detector
    ],
)
def test_only_uncertain_faces_of_yunet_are_left_out_by_the_second_look(
    score: float, is_face: bool, kept: bool, astronaut: Image
) -> None:
    """The network of the second look learned from false faces of YuNet."""
    image = astronaut if is_face else np.zeros_like(astronaut)
    middle = ASTRONAUT.mean(0)
    box = np.concatenate([middle - EYES, middle + EYES])
    faces = YUNET.confirm(image, [Detection(box, np.zeros((5, 2)), score)])
    assert len(faces) == kept
    for face in faces:
        assert not is_face or error(face.landmarks, ASTRONAUT) < 0.17
    others = FaceFinder(CropSpec(48), "detect", find_detector(Boxes(box[None], 0.6)))
    assert len(others.find(image)) == 1


def test_the_second_look_leaves_the_landmark_network_equal() -> None:
    """Without its last output, the file is that of the landmarks alone, to the bit."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(NETWORK)
    for items in (model.graph.node, model.graph.initializer, model.graph.output):
        for item in [item for item in items if item.name.startswith("face")]:
            items.remove(item)
    assert hashlib.sha256(model.SerializeToString()).hexdigest() == BEFORE


@pytest.mark.slow
def test_the_second_look_removes_half_of_the_false_faces_on_clothes(data_sets: Path) -> None:
    """Pictures that the second look has not learned from."""
    detector = YUNET.load(0.6)
    archive = Archive(data_sets / "clothes_hard.zip")
    before = after = 0
    for name in filter(held_back, archive.names):
        image = archive.read(name)
        faces = [face for face in detector.find(image) if face.score < SURE_SCORE]
        before += len(faces)
        after += len(detector.confirm(image, faces))
    assert before > 10
    assert 2 * after <= before


@pytest.mark.slow
def test_faces_of_real_people_pass_the_second_look(clips: Path) -> None:
    for clip in clips.glob("*.mp4"):
        for frame in islice(read_frames(clip), 0, None, 12):
            faces = YUNET.find(frame.image)
            assert len(YUNET.confirm(frame.image, faces)) == len(faces)
