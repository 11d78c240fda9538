"""Loaded models: faces and their values, and priors."""

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as Pil
from scipy.stats import entropy
from skimage.data import astronaut

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.exporting.calibration import labelled_batches
from fer_vit.face.crop import crop_face, place_regions
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, Detector
from fer_vit.face.image import decode_image, encode_png
from fer_vit.faces import UNCERTAIN
from fer_vit.fields import face_fields
from fer_vit.geometry import LANDMARKS, Image
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.face_results import FaceResults
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.store.model_folder import save_network
from tests.helpers.commands import CROPS, predict, run
from tests.helpers.crops import as_tensors, noise_crops, probabilities
from tests.helpers.logits import labelled_logits
from tests.helpers.photos import ASTRONAUT

TRAINED = [0.4, 0.3, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]
SOME = ["neutral", "anger"]


@pytest.fixture
def model(checkpoint: Path) -> Recognizer:
    return load(checkpoint)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photos" / "woman.png"
    path.parent.mkdir()
    path.write_bytes(encode_png(astronaut()))
    return path


def test_a_photo_in_any_form_gives_the_same_face(model: Recognizer, photo: Path) -> None:
    pixels = astronaut()
    forms = [
        photo,
        str(photo),
        photo.parent,
        f"{photo.parent}/*.png",
        pixels,
        Pil.fromarray(pixels),
        [photo],
    ]
    forms += [np.dstack([pixels, pixels[..., :1]]), Pil.fromarray(pixels).convert("RGBA")]
    expected, *others = map(model.predict, forms)
    (face,) = expected
    assert sum(face.probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert face.confidence == max(face.probabilities.values()) == face.probabilities[face.label]
    assert list(face.probabilities) == model.labels
    assert tuple(face.landmarks) == LANDMARKS
    assert abs(face.landmarks["right_eye"][0] - 203) < 8  # read off the picture
    assert face.box[0] < face.landmarks["nose"][0] < face.box[2]
    assert 0.6 < face.score <= 1
    assert face.path == str(photo)
    assert face.face == 0
    for faces in others:
        assert [same.probabilities for same in faces] == [face.probabilities]


def test_images_in_memory_and_files_in_order(model: Recognizer, photo: Path) -> None:
    both = np.hstack([astronaut(), astronaut()])
    empty = np.full((64, 64, 3), 128, np.uint8)
    faces = model.predict([both, empty, photo], batch_size=2, workers=1)
    assert [(face.path, face.face) for face in faces] == [
        ("image 0", 0),
        ("image 0", 1),
        (str(photo), 0),
    ]
    assert len(model.predict(empty)) == len(model.predict([])) == 0


def test_crops_without_a_face(model: Recognizer, monkeypatch: pytest.MonkeyPatch) -> None:
    crop = np.full((48, 48), 128, np.uint8)  # grey
    (face,) = model.predict(crop, face="crop")
    monkeypatch.setitem(DETECTORS, "yunet", None)  # must not be used
    (same,) = model.predict(crop, face="crop", detector="landmarks")
    assert face.box.tolist() == [0, 0, 48, 48]  # taken whole
    assert face.score == 0
    assert same.score is None
    assert face.landmarks == same.landmarks
    assert face.probabilities == same.probabilities
    (framed,) = model.predict(crop, face="crop", detector="none")
    assert framed.box is None
    assert framed.landmarks is None
    assert framed.score is None
    assert set(framed.regions) == set(model.crop_spec.regions)  # where an average face has them


def test_prediction_sets(model: Recognizer, photo: Path) -> None:
    (face,) = model.predict(photo)
    assert (face.prediction_set(), face.ambiguous) == (None, None)  # not calibrated
    assert face.entropy == pytest.approx(entropy(list(face.probabilities.values())))
    ranked = sorted(face.probabilities.values())
    each = [1.0 if name == face.label else 0.0 for name in model.labels]
    model.net.settings.thresholds = {"90": [ranked[-1], *each], "95": [ranked[-3], *each]}
    (face,) = model.predict(photo)
    assert (face.prediction_set(), face.ambiguous) == ([face.label], False)
    among = face.prediction_set(95)
    assert [face.probabilities[name] >= ranked[-3] for name in model.labels] == [
        name in among for name in model.labels
    ]
    assert face.prediction_set(95, by_class=True) == [
        name for name in model.labels if name != face.label
    ]
    model.net.settings.thresholds = {"90": [1.0, *each], "95": [0.0, *each]}
    (face,) = model.predict(photo)
    assert (face.prediction_set(), face.prediction_set(95), face.ambiguous) == (
        [],
        model.labels,
        True,
    )
    with pytest.raises(FerVitError, match=r"90 or 95 .* 80"):
        face.prediction_set(80)


def test_an_upright_face_has_no_warning(model: Recognizer) -> None:
    (face,) = model.predict(astronaut())
    assert face.pose is not None
    assert max(map(abs, face.pose)) < 10
    assert face.warnings == []


@pytest.fixture
def turned(model: Recognizer) -> FaceResults:
    """One small face that is turned clockwise by 90 degrees."""
    landmarks = (ASTRONAUT[:, ::-1] * [-1, 1] * 0.2) + [60, 0]

    class Exact(Detector):
        def detect(self, image: Image) -> list[Detection]:
            box = np.concatenate([landmarks.min(0) - 3, landmarks.max(0) + 3])
            return [Detection(box, landmarks, 0.9)]

        def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
            return list(faces)

    return model.predict(np.zeros((99, 99, 3), np.uint8), detector=Exact(), workers=0)


def test_a_turned_face_has_its_pose_and_warnings(model: Recognizer, turned: FaceResults) -> None:
    (face,) = turned
    assert face.pose is not None
    assert 80 < face.pose.roll < 100
    assert face.warnings == ["small face", "turned head"]
    (row,) = turned.rows(face_fields(model.labels))
    assert (row["yaw"], row["pitch"], row["roll"]) == face.pose
    assert row["warning"] == "small face; turned head"


@pytest.mark.parametrize("detector", ["yunet", "none"])
def test_a_face_without_landmarks_or_score_has_no_pose(model: Recognizer, detector: str) -> None:
    grey = np.full((24, 24, 3), 128, np.uint8)
    faces = model.predict(grey, face="crop", detector=detector)
    assert faces.not_found.tolist() == [detector == "yunet"]
    (row,) = faces.rows(face_fields(model.labels))
    assert row["yaw"] is None
    assert row["warning"] == "small face"


def test_a_face_below_the_least_confidence_is_ambiguous(
    model: Recognizer, turned: FaceResults
) -> None:
    label = turned[0].label
    for least, expected, ambiguous in ((0.0, label, None), (0.01, label, False), (1.0, None, True)):
        (row,) = turned.rows(face_fields(model.labels), min_confidence=least)
        assert row["label"] == expected
        assert row["prediction_set"] is None
        assert row["ambiguous"] == ambiguous


def test_only_a_detector_with_a_known_scale_is_uncertain_of_a_face(model: Recognizer) -> None:
    class Modest:
        """Has lower scores than YuNet."""

        def find(self, image: Image) -> list[Detection]:
            return [face._replace(score=0.4) for face in DETECTORS["yunet"].find(image)]

    class Known(Detector):
        sure_score = 0.5

        def detect(self, image: Image) -> list[Detection]:
            return Modest().find(image)

    for detector, expected in ((Modest(), []), (Known(), [UNCERTAIN])):
        (face,) = model.predict(astronaut(), detector=detector, workers=0)
        assert face.score == 0.4
        assert face.warnings == expected


def test_images_that_cannot_be_read(model: Recognizer, photo: Path) -> None:
    broken = photo.parent / "broken.jpg"
    broken.write_bytes(b"text")
    with pytest.raises(FerVitError, match=r"broken.jpg: not an image"):
        model.predict(broken)
    with pytest.warns(UserWarning, match=r"1 of 2 images .*broken.jpg"):
        assert len(model.predict(photo.parent)) == 1
    with pytest.raises(FerVitError, match="No image"):
        model.predict(photo.parent / "gone.png")
    (face,) = model.predict(photo)
    photo.unlink()
    with pytest.raises(FerVitError, match=r"woman.png: No such file"):
        face.plot()


@pytest.mark.parametrize(
    "thing",
    [
        np.zeros((8, 8, 3), np.float32),
        np.zeros((8, 8, 2), np.uint8),
        7,
        torch.zeros(8, 8, 3).byte(),
    ],
)
def test_wrong_inputs(model: Recognizer, thing: object) -> None:
    with pytest.raises(FerVitError, match=r"uint8|numpy"):
        model.predict(thing)


def test_open_files_without_content_to_read(model: Recognizer, photo: Path) -> None:
    with photo.open("rb") as file:
        assert len(model.predict(file, workers=0)) == 1
        with pytest.raises(FerVitError, match="seek"):
            model.predict(file)
    with pytest.raises(FerVitError, match="closed"):
        model.predict(file)
    with photo.open() as text, pytest.raises(FerVitError, match='"rb"'):
        model.predict(text)
    with pytest.raises(FerVitError, match='""'):
        model.predict("")


def test_predict_and_stream_have_the_options_of_photo_options(model: Recognizer) -> None:
    expected = {each.name: each.default for each in fields(PhotoOptions)}
    for method in (model.predict, model.stream):
        given = signature(method).parameters
        options = {name: each.default for name, each in given.items() if name != "images"}
        assert options == expected
        with pytest.raises(TypeError, match=rf"{method.__name__}.* 'every_n'"):
            method("a.jpg", every_n=2)
    with pytest.raises(FerVitError, match="every"):
        model.stream(np.zeros((9, 9, 3), np.uint8), every=0)


def test_predictions_are_never_random(checkpoint: Path, photo: Path) -> None:
    model = load(checkpoint)
    expected = model.predict(photo).probabilities
    model.net.train()
    np.testing.assert_array_equal(model.predict(photo).probabilities, expected)


def test_one_class_is_a_list_of_one(checkpoint: Path) -> None:
    model = load(checkpoint, classes="anger")
    assert (
        model.conditions == load(checkpoint, classes=["anger"]).conditions == {"classes": "anger"}
    )


def test_pil_images_are_read_as_files_are(model: Recognizer, tmp_path: Path) -> None:
    sideways = Pil.fromarray(astronaut()).rotate(90, expand=True)
    exif = Pil.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    sideways.save(tmp_path / "turned.png", exif=exif)
    deep = (np.asarray(Pil.fromarray(astronaut()).convert("L"), np.uint16) << 8) + 7
    Pil.fromarray(deep).save(tmp_path / "deep.png")
    for name in ("turned.png", "deep.png"):
        (by_path,) = model.predict(tmp_path / name)
        (by_image,) = model.predict(Pil.open(tmp_path / name))
        assert by_image.probabilities == pytest.approx(by_path.probabilities, abs=1e-5)


@pytest.mark.parametrize("mirrored", [False, True])
def test_logits_of_a_manifest_are_those_of_its_images(
    model: Recognizer, drawn: Path, mirrored: bool
) -> None:
    logits, target = labelled_logits(model, drawn / "faces.parquet", "test", mirrored)
    manifest = Manifest.read(drawn / "faces.parquet").split("test")
    assert logits.shape == target.shape == (len(manifest), 8)
    assert torch.equal(target, torch.from_numpy(manifest.targets()).float())
    image = decode_image(manifest.image_bytes(3))
    landmarks = manifest.landmarks()[3]
    crop, points, *_ = crop_face(image, landmarks, model.crop_spec, framed=True)
    if mirrored:
        crop = crop[:, ::-1]
        points = (points * [-1, 1] + [32, 0])[[1, 0, 2, 4, 3]]
    boxes, valid = place_regions(points, model.crop_spec)
    pixels = torch.from_numpy(crop.copy()).permute(2, 0, 1)[None] / 255
    expected = model.net.logits(
        pixels, torch.from_numpy(boxes)[None], torch.from_numpy(valid)[None]
    )
    assert torch.allclose(logits[3], expected[0], atol=1e-5)


@pytest.fixture
def with_prior(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = RegionViTConfig(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, tokens="patch"
    )
    thresholds = {"90": [0.1] * 9, "95": [0.1] * 9}
    net = build_model(
        config, EXPRESSIONS, temperature=1.5, thresholds=thresholds, prior=TRAINED, adjustment=0.2
    )
    torch.nn.init.normal_(net.vit.head.weight)
    save_network(net, tmp_path / "model")
    return str(tmp_path / "model")


def read(model: Recognizer) -> np.ndarray:
    """The probabilities of three crops of noise, as both prediction and explanations have them."""
    crops = noise_crops(model.crop_spec, 3)
    predicted = model.read(crops).probabilities
    explained = probabilities(model.net, *as_tensors(crops)).numpy()
    np.testing.assert_allclose(predicted, explained, atol=1e-6)
    return predicted


def test_probabilities_are_divided_by_the_old_prior_and_multiplied_by_the_new(
    with_prior: str, tmp_path: Path
) -> None:
    model = load(with_prior, "cpu")
    net = model.net
    net.offset = None
    inputs = as_tensors(noise_crops(model.crop_spec, 3))
    plain = torch.softmax(net.logits(*inputs).double() / 1.5, 1).detach().numpy()

    def expected(ratio: np.ndarray) -> np.ndarray:
        return plain * ratio / (plain * ratio).sum(1, keepdims=True)

    trained = np.array(TRAINED)
    member = np.array([1, 0, 0, 0, 1, 0, 0, 0])
    (tmp_path / "prior.json").write_text(json.dumps({"anger": 3, "neutral": 1}))
    for options, ratio in (
        ({}, trained ** (-0.2 / 1.5)),
        ({"prior": "even"}, 1 / trained),
        ({"classes": SOME}, member * trained ** (-0.2 / 1.5)),
        ({"classes": SOME, "prior": "even"}, member / trained),
        (
            {"classes": SOME, "prior": tmp_path / "prior.json"},
            member * [1, 0, 0, 0, 3, 0, 0, 0] / trained,
        ),
    ):
        changed = load(with_prior, "cpu", **options)
        assert np.allclose(read(changed), expected(ratio), atol=1e-6)
        assert bool(changed.thresholds) == (not options)
        changed.change_prior("even", ["happiness", "fear"])
        changed.change_prior(options.get("prior"), options.get("classes", ()))
        assert np.allclose(read(changed), expected(ratio), atol=1e-6)
        changed.change_prior(None)
        assert np.allclose(read(changed), expected(trained ** (-0.2 / 1.5)), atol=1e-6)
        assert changed.thresholds
        assert not changed.conditions


def test_classes_without_a_common_one_follow_each_other(with_prior: str) -> None:
    model = load(with_prior, "cpu")
    model.change_prior(None, ["neutral"])
    model.change_prior(None, ["anger"])
    assert read(model)[:, model.labels.index("anger")].tolist() == [1, 1, 1]


def test_a_prior_changes_one_recognizer_of_a_network(with_prior: str) -> None:
    first = load(with_prior, "cpu")
    second = load(first.net, "cpu")
    before = read(second)
    first.change_prior("even")
    assert not np.array_equal(read(first), before)
    assert np.array_equal(read(second), before)
    assert second.thresholds
    shared = zip(first.net.parameters(), second.net.parameters(), strict=True)
    assert all(one_of_first is one_of_second for one_of_first, one_of_second in shared)


def test_a_refused_prior_changes_nothing(with_prior: str) -> None:
    model = load(with_prior, "cpu", classes=SOME)
    before = read(model)
    with pytest.raises(FerVitError):
        model.change_prior({"neutral": 1}, ["neutral", "fear"])
    assert np.array_equal(read(model), before)
    assert model.conditions == {"classes": "neutral, anger"}


def test_invalid_priors(with_prior: str) -> None:
    for options, message in (
        ({"classes": ["joy"]}, "classes among neutral, .* but got joy"),
        ({"prior": {"neutral": 1}}, "neutral, happiness"),
    ):
        with pytest.raises(FerVitError, match=message):
            load(with_prior, **options)
    recognizer = load(with_prior)
    recognizer.settings.prior = ()
    with pytest.raises(FerVitError, match="training faces"):
        recognizer.change_prior("even")


def test_tables_and_pages_record_the_prior(with_prior: str, drawn: Path, tmp_path: Path) -> None:
    words = ["--checkpoint", with_prior, "--prior", "even", "--classes", "neutral", "anger"]
    table = tmp_path / "faces.parquet"
    rows = predict(drawn / "faces" / "val", with_prior, table, *CROPS, *words[2:])
    assert {row["label"] for row in rows} <= set(SOME)
    assert all(
        row["p_fear"] == 0 and row["prediction_set"] is None and row["ambiguous"] is None
        for row in rows
    )
    facts = {"classes": "neutral, anger", "prior": "neutral 0.5, anger 0.5"}
    for source, more in ((table, []), (drawn / "faces.parquet", words)):
        run("evaluate", source, *more, "--output", tmp_path / "evaluation", "--overwrite")
        results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
        assert facts.items() <= results.items()
        assert "neutral 0.5, anger 0.5" in (tmp_path / "evaluation" / "index.html").read_text()
    assert np.array(results["confusion"])[[1, 2, 3, 5, 6, 7]].sum() == 0


def test_size_blur_and_regions_outside(model: Recognizer) -> None:
    pixels = astronaut()
    (whole,) = model.predict(pixels)
    assert whole.outside == ()
    left, top, right, bottom = whole.box
    assert 0.7 * (right - left) < whole.size < 1.3 * (bottom - top)
    (half,) = model.predict(cv2.resize(pixels, (256, 256), interpolation=cv2.INTER_AREA))
    assert half.size == pytest.approx(whole.size / 2, rel=0.1)
    # the brows are missing
    (cut,) = model.predict(pixels[int(whole.landmarks["right_eye"][1]) - 6 :])
    brows = {"right_brow", "left_brow"}
    assert brows <= set(cut.outside) <= {*brows, "right_eye", "left_eye"}
    # what is right of the nose is missing
    (cut,) = model.predict(pixels[:, : int(whole.landmarks["nose"][0]) + 8])
    left = {"left_eye", "left_brow", "left_cheek"}
    assert left <= set(cut.outside) <= {*left, "mouth"}
    (blurred,) = model.predict(cv2.GaussianBlur(pixels, (0, 0), whole.size / 24))
    assert blurred.blur > whole.blur + 1


def test_wrong_devices_and_labels(checkpoint: Path, seven: Path) -> None:
    with pytest.raises(FerVitError, match="Expected an available device"):
        load(checkpoint, "toaster")
    net = load(checkpoint, "cpu").net
    with pytest.raises(FerVitError, match=r"Expected an available device.*meta"):
        load(net, "meta")
    assert next(net.parameters()).device.type == "cpu", "the weights of the caller are kept"
    with pytest.raises(FerVitError, match=r"neutral, happiness.* surprise, fear"):
        labelled_batches(load(checkpoint), Manifest.read(seven))


def blur_by_loops(grey: np.ndarray) -> float:
    edges = [
        grey[y, x - 1] + grey[y, x + 1] + grey[y - 1, x] + grey[y + 1, x] - 4 * grey[y, x]
        for y in range(1, 47)
        for x in range(1, 47)
    ]
    return (np.var(grey, ddof=1) / np.var(edges, ddof=1)) ** 0.25


@cache
def recognizer(size: int) -> Recognizer:
    """A model for crops of this size."""
    shape = {"img_size": size, "patch_size": size // 2, "embed_dim": 8, "depth": 1, "num_heads": 1}
    return load(build_model(RegionViTConfig(**shape, regions=("mouth",)), ["a", "b"]), "cpu")


def blur(grey: np.ndarray) -> float | None:
    """The blur of a grey crop (S, S), up to 255, which a model takes as it is."""
    image = np.repeat(np.round(grey).astype(np.uint8)[..., None], 3, 2)
    (face,) = recognizer(len(grey)).predict(image, face="crop", detector="none")
    assert np.array_equal(face.to_crop, np.eye(2, 3))
    return face.blur


def grey_face(side: int) -> np.ndarray:
    """A face (side, side), reduced by torch."""
    face = torch.from_numpy(astronaut()[64:208, 160:304]).float().mean(2)[None, None]
    return resize(face, side)


def resize(face: torch.Tensor, side: int) -> np.ndarray:
    small = torch.nn.functional.interpolate(face, (side, side), mode="bilinear", antialias=True)
    return small[0, 0].numpy()


def test_blur_equals_loops_at_any_contrast_and_size() -> None:
    face = grey_face(48).round()
    expected = blur(face)
    assert expected == pytest.approx(blur_by_loops(face.astype(float)), rel=1e-4)
    assert blur(80 + 0.4 * face) == pytest.approx(expected, rel=0.02)
    large = grey_face(112).round()
    reduced = resize(torch.from_numpy(large)[None, None], 48)
    assert blur(large) == pytest.approx(blur_by_loops(reduced.astype(float)), rel=1e-3)


@pytest.mark.parametrize("side", [48, 112])
def test_crops_without_edges_have_no_blur_and_that_of_a_wave_is_its_length(side: int) -> None:
    assert blur(np.full((side, side), 77.0)) is None
    ramp = np.tile(np.linspace(20, 230, side), (side, 1))
    assert np.isfinite(blur(ramp))  # the steps of 8 bits are edges
    place = np.tile(np.arange(side) * 16 / side, (side, 1))
    wave = 128 + 100 * np.sin(place)
    assert blur(wave) == pytest.approx(48 / 16, rel=0.02)  # over two pi


def test_another_adjustment_ends_a_changed_prior(with_prior: str) -> None:
    adjusted = load(with_prior, "cpu")
    adjusted.net.adjust(TRAINED, 0.5)
    changed = load(with_prior, "cpu", prior="even", classes=SOME)
    changed.net.adjust(TRAINED, 0.5)
    inputs = as_tensors(noise_crops(adjusted.crop_spec, 3))
    assert torch.equal(changed.net.logits(*inputs), adjusted.net.logits(*inputs))
