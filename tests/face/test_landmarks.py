"""Landmarks of turned, moved and drawn faces, against OpenCV's results, and of crowds;
the second look.
"""

import hashlib
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.finder import Archive, held_back
from fer_vit.face import landmarks as module
from fer_vit.face.crop import mirror, warp
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import SURE_SCORE, YuNet
from fer_vit.face.landmarks import (
    FACE_OUTPUT,
    LANDMARKS_FILE,
    MIN_FACE_LOGIT,
    Look,
    confirm_faces,
    detect_landmarks,
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
from fer_vit.predict.frames import read_frames
from fer_vit.sources.cartoon import draw_face
from tests.helpers.photos import ASTRONAUT, error

BEFORE = "c10c01316df1e5b654354b4d148d736e73fd0579ef1404f1d75076ea2c6722d5"
"""The sha256 of the landmark network of 0.1."""
EYES = np.linalg.norm(ASTRONAUT[1] - ASTRONAUT[0])
FRAME = crop_matrix(ASTRONAUT, module.INPUT_SIDE)


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
    assert error(detect_landmarks(image, [FRAME])[0], apply(change, ASTRONAUT)) < 0.17


def test_landmarks_of_drawn_faces_beat_the_template() -> None:
    """Drawn faces, which were not in its training data."""
    errors = []
    usual = []
    for seed in range(40):
        image, landmarks = draw_face(EXPRESSIONS[seed % 8], seed, 96)[:2]
        to_cut = fit_matrix(image, module.INPUT_SIDE)
        errors.append(error(detect_landmarks(image, [to_cut])[0], landmarks))
        usual.append(error(np.array(TEMPLATE) * 96, landmarks))
    assert np.median(errors) < 0.8 * np.median(usual)


def test_opencv_agrees(astronaut: Image) -> None:
    """Both passes, each with the mirror image, by another program."""
    network = cv2.dnn.readNetFromONNX(str(module.LANDMARKS_FILE))

    def predict(image: Image, to_cut: Array) -> Array:
        network.setInput(module.network_input(warp(image, to_cut, module.INPUT_SIDE))[None])
        return apply(invert(to_cut), network.forward("linear").reshape(5, 2) * module.INPUT_SIDE)

    def both(to_cut: Array) -> Array:
        mirrored = warp(astronaut, to_cut, module.INPUT_SIDE)[:, ::-1]
        points = predict(mirrored, np.eye(2, 3))[list(MIRRORED)] * [-1, 1] + [module.INPUT_SIDE, 0]
        return (predict(astronaut, to_cut) + apply(invert(to_cut), points)) / 2

    first = compose(about_the_nose(0), FRAME)
    expected = both(crop_matrix(both(first), module.INPUT_SIDE))
    np.testing.assert_allclose(detect_landmarks(astronaut, [first])[0], expected, atol=1e-2)


@pytest.mark.parametrize("count", [0, 1, module.MAX_FACES_AT_ONCE, module.MAX_FACES_AT_ONCE + 1])
def test_faces_of_a_crowd_do_not_depend_on_each_other(astronaut: Image, count: int) -> None:
    rng = np.random.default_rng(0)
    cuts = [
        compose(FRAME, about_the_nose(degrees, right=right))
        for degrees, right in zip(
            rng.uniform(-30, 30, count), rng.uniform(-1, 1, count), strict=True
        )
    ]
    together = detect_landmarks(astronaut, cuts)
    assert together.shape == (count, 5, 2)
    for landmarks, cut in zip(together, cuts, strict=True):
        np.testing.assert_allclose(landmarks, detect_landmarks(astronaut, [cut])[0], atol=1e-3)


def test_a_mirrored_face_has_mirrored_landmarks(astronaut: Image) -> None:
    image, landmarks = mirror(astronaut, detect_landmarks(astronaut, [FRAME])[0])
    frame = crop_matrix(mirror(astronaut, ASTRONAUT)[1], module.INPUT_SIDE)
    np.testing.assert_allclose(detect_landmarks(image, [frame])[0], landmarks, atol=0.05)


UNCERTAIN = SURE_SCORE - 0.05
CERTAIN = SURE_SCORE


@pytest.mark.parametrize(
    ("score", "logit", "kept"),
    [
        (UNCERTAIN, MIN_FACE_LOGIT - 0.1, False),
        (UNCERTAIN, MIN_FACE_LOGIT, True),
        (CERTAIN, MIN_FACE_LOGIT - 9, True),
        (0.0, MIN_FACE_LOGIT - 9, True),  # a full image without a face
        (np.nan, MIN_FACE_LOGIT - 9, True),  # without a detector
    ],
)
def test_only_uncertain_faces_are_left_out_by_the_second_look(
    score: float, logit: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Look(ASTRONAUT[None], np.array([logit]))
    monkeypatch.setattr("fer_vit.face.landmarks.look", lambda image, cuts: seen)
    face = Detection(np.array([0.0, 0.0, 9.0, 9.0]), np.zeros((5, 2)), score)
    black = np.zeros((9, 9, 3), np.uint8)
    faces = confirm_faces(black, [face], SURE_SCORE)
    assert len(faces) == kept
    assert all((face.landmarks == ASTRONAUT).all() for face in faces)
    assert len(confirm_faces(black, [face], None)) == 1


def test_the_second_look_leaves_the_landmark_network_equal() -> None:
    """Without the last output, the file is the one of 0.1 to the bit."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(LANDMARKS_FILE)
    for items in (model.graph.node, model.graph.initializer, model.graph.output):
        for item in [item for item in items if item.name.startswith(FACE_OUTPUT)]:
            items.remove(item)
    assert hashlib.sha256(model.SerializeToString()).hexdigest() == BEFORE


@pytest.mark.slow
def test_the_second_look_removes_half_of_the_false_faces_on_clothes(
    yunet: Path, data_sets: Path
) -> None:
    """Pictures that the second look has not learned from."""
    detector = YuNet(yunet, 0.6)
    archive = Archive(data_sets / "clothes_hard.zip")
    before = after = 0
    for name in filter(held_back, archive.names):
        image = archive.read(name)
        faces = [face for face in detector.find(image) if face.score < SURE_SCORE]
        before += len(faces)
        after += len(confirm_faces(image, faces, SURE_SCORE))
    assert before > 10
    assert 2 * after <= before


@pytest.mark.slow
def test_faces_of_real_people_pass_the_second_look(yunet: Path, clips: Path) -> None:
    detector = YuNet(yunet)
    for clip in clips.glob("*.mp4"):
        for frame in islice(read_frames(clip), 0, None, 12):
            faces = detector.find(frame.image)
            assert len(confirm_faces(frame.image, faces, SURE_SCORE)) == len(faces)
