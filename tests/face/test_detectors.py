"""Detection on real photos, in crops and in crowds of threads."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.exporting.formats import find_format
from fer_vit.face.crop import CropSpec, mirror
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, MIN_SIDE, Detector, find_detector
from fer_vit.face.finder import FaceFinder
from fer_vit.geometry import TEMPLATE, Image, crop_matrix
from tests.helpers.photos import ASTRONAUT, error, resized

YUNET = DETECTORS["yunet"]


@pytest.mark.parametrize("scale", [0.15, 1.0, 3.5])
@pytest.mark.parametrize("mirrored", [False, True])
def test_finds_the_one_face_of_a_photo(astronaut: Image, scale: float, mirrored: bool) -> None:
    """77 to 1,792 pixels: enlarged, unchanged and reduced. The person's right comes first."""
    image = resized(astronaut, scale)
    landmarks = ASTRONAUT * scale
    if mirrored:
        image, landmarks = mirror(image, landmarks)
    (face,) = YUNET.find(image)
    assert error(face.landmarks, landmarks) < (0.1 if scale == 1 else 0.2)
    if scale == 1:
        assert face.score > 0.85
    assert (face.box[:2] < landmarks.min(0)).all()
    assert (landmarks.max(0) < face.box[2:]).all()


def test_two_faces_far_apart_in_a_large_photo(astronaut: Image) -> None:
    canvas = np.full((3000, 4000, 3), 127, np.uint8)
    for scale, x, y in ((1.0, 3000, 2000), (0.5, 200, 300)):
        small = resized(astronaut, scale)
        canvas[y : y + len(small), x : x + len(small)] = small
    faces = YUNET.find(canvas)
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)
    assert len(faces) == 2
    left, right = sorted(faces, key=lambda face: float(face.box[0]))
    assert error(left.landmarks, ASTRONAUT / 2 + np.array([200, 300])) < 0.2
    assert error(right.landmarks, ASTRONAUT + np.array([3000, 2000])) < 0.15


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (7, 3)])
def test_images_without_a_face_of_any_shape(
    shape: tuple[int, int], rng: np.random.Generator
) -> None:
    for image in (np.full((*shape, 3), 90, np.uint8), rng.integers(0, 255, (*shape, 3), np.uint8)):
        assert YUNET.find(image) == []
        for face in YUNET.load(0.05).find(image):
            assert np.isfinite(face.box).all()
        faces = crop_finder(YUNET).find(image)
        assert faces.score.tolist() == [0]
        assert faces.box.tolist() == [[0, 0, *shape[::-1]]]
        assert np.isfinite(faces.landmarks).all()


def test_a_used_detector_can_be_pickled_with_its_minimum_score(astronaut: Image) -> None:
    detector = YUNET.load(0.5)
    (before,) = detector.find(astronaut)
    again = pickle.loads(pickle.dumps(detector))
    (after,) = again.find(astronaut)
    np.testing.assert_array_equal(before.landmarks, after.landmarks)
    assert again.min_score == 0.5
    assert YUNET.load(0.99).find(astronaut) == []


def test_threads_may_share_a_detector(astronaut: Image) -> None:
    images = [np.ascontiguousarray(astronaut[:side, :side]) for side in (200, 300, 400)]
    alone = [YUNET.find(image) for image in images]
    with ThreadPoolExecutor(4) as threads:
        for faces, image in zip(threads.map(YUNET.find, images * 5), alone * 5, strict=True):
            assert [(*face.box, face.score) for face in faces] == [
                (*face.box, face.score) for face in image
            ]


# Crops, with a detector of fixed results


class Fixed(Detector):
    """Returns the given faces, in fractions of the image; records the images' shapes."""

    photo_score = 0.7

    def __init__(self, *answers: list[tuple[float, float, float, float, float]]) -> None:
        self.answers = list(answers)
        self.shapes = list[tuple[int, ...]]()

    def detect(self, image: Image) -> list[Detection]:
        self.shapes.append(image.shape)
        full = np.tile(image.shape[1::-1], 2)
        return [
            Detection(face[:4] * full, np.zeros((5, 2)), face[4]) for face in self.answers.pop(0)
        ]


@pytest.mark.parametrize("side", [24, 900])
def test_a_crop_is_resized_and_its_face_is_in_its_pixels(side: int) -> None:
    detector = Fixed([(0.125, 0.0, 0.875, 1.0, 0.9)])
    image = np.zeros((side, 2 * side, 3), np.uint8)
    faces = crop_finder(detector).find(image)
    assert detector.shapes == [(MIN_SIDE // 2, MIN_SIDE, 3)]
    np.testing.assert_allclose(faces.box, np.array([[0.25, 0, 1.75, 1]]) * side)
    whole = crop_finder(DETECTORS["landmarks"]).find(image)
    np.testing.assert_array_equal(faces.landmarks, whole.landmarks)


def test_a_large_face_is_chosen_before_a_small_one_with_a_better_score() -> None:
    detector = Fixed(
        [(0.8, 0.8, 1.0, 1.0, 0.9), (0.1, 0.1, 0.8, 0.8, 0.6), (0.1, 0.1, 0.8, 0.8, 0.5)]
    )
    assert crop_finder(detector).find(np.zeros((48, 48, 3), np.uint8)).score == [0.6]


@pytest.mark.parametrize("first", [[], [(0.4, 0.4, 0.6, 0.6, 0.7)]])
def test_a_photo_is_searched_again_at_full_size(first: list[Any]) -> None:
    detector = Fixed(first, [(0.41, 0.4, 0.6, 0.6, 0.9)], [])
    faces = crop_finder(detector).find(np.zeros((600, 1000, 3), np.uint8))
    assert detector.shapes[1] == (600, 1000, 3)
    np.testing.assert_allclose(faces.box, [[410, 240, 600, 360]])


def test_landmarks_of_a_face_in_a_part_of_a_crop_are_searched_there(astronaut: Image) -> None:
    left, top = ASTRONAUT.mean(0) - 45
    box = np.array([left, top, left + 90, top + 90]) / 512
    faces = crop_finder(Fixed([(*box, 0.9)], [(*box, 0.9)])).find(astronaut)
    assert error(faces.landmarks[0], ASTRONAUT) < 0.1


def test_a_photos_size_hardly_changes_the_crop(astronaut: Image) -> None:
    refined = []
    plain = []
    for scale in (1.0, 0.5, 0.3, 0.2):
        image = resized(astronaut, scale)
        faces = YUNET.find(image)
        for powers, found in ((plain, faces), (refined, YUNET.confirm(image, faces))):
            matrix = crop_matrix(found[0].landmarks, 48)
            powers.append(scale * float(np.linalg.det(matrix[:, :2])) ** 0.5)
    assert max(refined) < 1.06 * min(refined)
    assert max(plain) > 1.1 * min(plain)


@pytest.mark.parametrize("name", ["auto", ""])
def test_an_unknown_detector_is_refused_with_the_default(name: Any) -> None:
    with pytest.raises(FerVitError, match="The default is yunet"):
        find_detector(name)
    with pytest.raises(FerVitError, match="the method `find`"):
        find_detector(3)  # type: ignore[arg-type]


def test_every_name_of_an_option_is_a_detector_that_finds_the_face_of_a_crop(
    astronaut: Image,
) -> None:
    for name, entry in DETECTORS.items():
        detector = entry.load(entry.min_score)
        assert find_detector(name) is entry
        assert isinstance(detector, type(entry))
        assert 0 <= detector.crop_score <= 1
        faces = FaceFinder(CropSpec(48), "crop", pickle.loads(pickle.dumps(detector))).find(
            astronaut
        )
        assert len(faces) == 1
        assert np.isfinite(faces.landmarks).all() == (name != "none")
        assert bool(detector.find(astronaut)) == (name != "none")
        strict = entry.load(0.99)
        assert not any(face.score < 0.99 for face in strict.find(astronaut))
    assert [name for name, entry in DETECTORS.items() if not entry.searches] == [
        "landmarks",
        "none",
    ]


def test_an_object_with_find_is_a_detector_whose_low_scores_are_left_out() -> None:
    class Two:
        def find(self, image: Image) -> list[Detection]:
            box = np.array([10.0, 10, 40, 40])
            return [
                Detection(box, box[:2] + np.array(TEMPLATE) * 30, score) for score in (0.9, 0.2)
            ]

    detector = find_detector(Two()).load(0.5)
    finder = FaceFinder(CropSpec(48), "detect", detector)
    assert finder.find(np.zeros((60, 60, 3), np.uint8)).score.tolist() == [0.9]
    assert len(find_detector(Two()).find(np.zeros((60, 60, 3), np.uint8))) == 2


class Returns:
    """A detector of a user that finds the same in each image."""

    def __init__(self, faces: Any) -> None:
        self.faces = faces

    def find(self, image: Image) -> Any:
        return self.faces


BOX = np.array([10.0, 10, 40, 40])
POINTS = BOX[:2] + np.array(TEMPLATE) * 30
BLACK = np.zeros((60, 60, 3), np.uint8)


def test_faces_of_an_object_are_sorted_by_score_and_may_be_lists_of_numbers() -> None:
    faces = [Detection(BOX, POINTS, 0.5), Detection(BOX.tolist(), POINTS.tolist(), 0.9)]
    sorted_faces = find_detector(Returns(faces)).find(BLACK)
    assert [face.score for face in sorted_faces] == [0.9, 0.5]
    assert all(isinstance(face.box, np.ndarray) for face in sorted_faces)


@pytest.mark.parametrize(
    ("faces", "actual"),
    [
        (None, "NoneType"),
        ([(BOX, POINTS, 0.9)], "tuple"),
        ([Detection(BOX * np.nan, POINTS, 0.9)], "nan"),
        ([Detection(BOX + 100, POINTS, 0.9)], "110"),
        ([Detection(BOX / 60, POINTS / 60, 0.9)], "0.16"),
        ([Detection(BOX, POINTS * np.nan, 0.9)], "nan"),
        ([Detection(BOX, np.zeros((68, 2)), 0.9)], r"\(5, 2\)"),
        ([Detection(BOX, POINTS, 97.0)], "97"),
        ([Detection(BOX, POINTS, 0.0)], "0"),
        ([Detection("left", POINTS, 0.9)], "left"),
        ([Detection(BOX, POINTS, 10**400)], r"Detection\(box="),
    ],
)
def test_faces_of_an_object_that_are_none_are_an_error(faces: Any, actual: str) -> None:
    with pytest.raises(FerVitError, match=rf"`Returns.find`.*{actual}"):
        find_detector(Returns(faces)).find(BLACK)


def test_a_class_is_no_detector() -> None:
    with pytest.raises(FerVitError, match=r"`Returns\(\)`"):
        find_detector(Returns)


SMALL = (0.1, 0.1, 0.3, 0.3, 0.9)
LARGE = (0.1, 0.1, 0.9, 0.9, 0.9)


@pytest.mark.parametrize(
    ("faces", "expected"),
    [
        ([], False),
        ([LARGE], False),
        ([SMALL], True),
        ([LARGE, LARGE], True),
        ([LARGE, (*SMALL[:4], 0.4)], False),
    ],
)
def test_a_photo_has_several_faces_or_a_small_one(faces: list[Any], expected: bool) -> None:
    finder = crop_finder(Fixed(faces))
    assert finder.shows_photo(np.zeros((600, 600, 3), np.uint8)) == expected


def test_a_crop_of_usual_size_is_not_searched_for_more_faces() -> None:
    assert not crop_finder(Fixed()).shows_photo(np.zeros((300, 384, 3), np.uint8))


@pytest.mark.parametrize(("photo_score", "expected"), [(0.4, True), (0.5, False)])
def test_faces_of_a_photo_are_counted_on_the_scale_of_their_detector(
    photo_score: float, expected: bool
) -> None:
    detector = Fixed([(*SMALL[:4], 0.4)])
    detector.photo_score = photo_score
    assert crop_finder(detector).shows_photo(np.zeros((600, 600, 3), np.uint8)) == expected


def test_a_package_offers_a_detector_and_a_format_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an installation of such a package leaves: a module, and its entry points."""
    (tmp_path / "mine_of_a_test.py").write_text(
        "import numpy as np\n"
        "from fer_vit.exporting.formats import FORMATS\n"
        "from fer_vit.face.detection import Detection\n"
        "class Corner:\n"
        "    def find(self, image):\n"
        "        box = np.array([0.0, 0.0, 90.0, 90.0])\n"
        "        points = box[:2] + 30 + 5 * np.arange(10.0).reshape(5, 2)\n"
        "        return [Detection(box, points, 0.9)]\n"
        "FORMAT = FORMATS['.onnx']\n"
    )
    facts = tmp_path / "mine_of_a_test-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine-of-a-test\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[fer_vit.detectors]\ncorner = mine_of_a_test:Corner\nbroken = mine_of_a_test.none:A\n"
        "[fer_vit.formats]\nmine = mine_of_a_test:FORMAT\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (face,) = find_detector("corner").load(0.0).find(np.zeros((100, 100, 3), np.uint8))
    assert face.box.tolist() == [0, 0, 90, 90]
    assert find_format(Path("model.mine")) is find_format(Path("model.onnx"))
    with pytest.raises(FerVitError, match="none, broken, corner, but got corners"):
        find_detector("corners")
    with pytest.raises(FerVitError, match=r"broken .* cannot be imported"):
        find_detector("broken")


def crop_finder(detector: Any) -> FaceFinder:
    return FaceFinder(CropSpec(48), "crop", detector)
