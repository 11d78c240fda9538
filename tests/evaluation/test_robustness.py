from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import scipy.stats

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.evaluation import robustness as module
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, altered_rows
from fer_vit.face.crop import CropSpec, cover_regions
from fer_vit.face.detectors import LandmarksOnly
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import encode_png
from fer_vit.face.landmarks import full_image_face
from fer_vit.face.pose import head_pose
from fer_vit.geometry import TEMPLATE
from fer_vit.heads import HeadOutputs
from fer_vit.labels import merge_names
from fer_vit.sources.cartoon import draw_face
from fer_vit.stats import results

IMAGE, LANDMARKS = draw_face("happiness", 3, 96)


def crop(
    folder: Path, change: module.Change | None = None, shift: float = 0.0
) -> module.CorruptedCrops:
    """A manifest of one crop without landmarks."""
    write_manifest(
        folder / "m.parquet",
        Reading(("a", "b"), [Row(encode_png(IMAGE), "a.png", "val", "a")]),
        "drawn",
    )
    rows = Manifest.read(folder / "m.parquet")
    finder = FaceFinder(CropSpec(48), "crop", LandmarksOnly())
    return module.CorruptedCrops(rows, rows.landmarks(), finder, change, shift)


def test_a_turn_goes_about_the_middle() -> None:
    image = np.zeros((65, 65, 3), np.uint8)
    image[28:37, 48:57] = 255  # to the right of the middle
    rows, columns = np.nonzero(module.turn_image(image, LANDMARKS, 90)[..., 0] > 128)
    # above it: counter-clockwise
    assert (rows.mean(), columns.mean()) == pytest.approx((12, 32), abs=0.5)


def test_blur_and_shrink_keep_the_mean() -> None:
    assert module.shrink_image(IMAGE[:48], LANDMARKS, 24).shape == (12, 24, 3)
    for changed in (
        module.blur_image(IMAGE, LANDMARKS, 1.5),
        module.shrink_image(IMAGE, LANDMARKS, 24),
    ):
        assert changed.mean() == pytest.approx(IMAGE.mean(), abs=1)
        assert changed.std() < IMAGE.std()
    large = np.repeat(np.repeat(IMAGE, 2, 0), 2, 1)  # the blur is relative to the size
    halved = module.blur_image(large, LANDMARKS, 1.5)[::2, ::2].astype(float)
    assert np.abs(halved - module.blur_image(IMAGE, LANDMARKS, 1.5)).mean() < 2


def test_shifted_landmarks_are_wrong_by_the_distance(tmp_path: Path) -> None:
    shifted = crop(tmp_path, shift=0.05)
    landmarks = full_image_face(IMAGE).landmarks
    (faces,) = shifted.read_faces(0)
    (again,) = shifted.read_faces(0)
    assert np.linalg.norm(faces.landmarks[0] - landmarks, axis=1) == pytest.approx(
        np.full(5, 0.05 * 96)
    )
    assert (again.landmarks == faces.landmarks).all()


def test_turns_go_both_ways() -> None:
    variants = module.corruptions(LandmarksOnly())["turned by 30 degrees"].variants
    left, right = (variant.change(IMAGE, LANDMARKS) for variant in variants)
    assert (
        np.abs(
            left[:, ::-1].astype(float) - module.turn_image(IMAGE[:, ::-1], LANDMARKS, -30)
        ).mean()
        < 0.1
    )
    assert (right == module.turn_image(IMAGE, LANDMARKS, -30)).all()
    assert (left != right).any()


def test_the_angle_of_a_turn_is_the_change_of_the_roll() -> None:
    before = head_pose(LANDMARKS).roll
    for variant in module.corruptions(LandmarksOnly())["turned by 15 degrees"].variants:
        marks = []
        for x, y in LANDMARKS:
            dot = np.zeros((96, 96, 3), np.uint8)
            dot[round(y), round(x)] = 255
            rows, columns = np.nonzero(variant.change(cv2.dilate(dot, None), LANDMARKS)[..., 0])
            marks.append((columns.mean(), rows.mean()))
        after = head_pose(np.array(marks)).roll
        assert after - before == pytest.approx(variant.turned, abs=1.5)


def test_values_of_turned_images_are_turned_back() -> None:
    names = {"movements": ["a"], "pose": ["roll", "yaw"], "affect": ["valence"]}
    values = np.array([[0.1, 20.0, 30.0, -0.5], [0.2, -5.0, 40.0, 0.5]])
    turned = HeadOutputs.of_names(names, "model").in_photo(values, np.full(2, 15.0))
    np.testing.assert_array_equal(turned, values - [0, 15, 0, 0])


def by_name(rows: list[results.Row]) -> dict[tuple[str, str], results.Row]:
    """The rows by alteration and measure."""
    return {(row.group, row.measure): row for row in rows}


def test_results_are_paired_with_the_unaltered_faces() -> None:
    rng = np.random.default_rng(0)
    clean = (rng.random(400) < 0.9).astype(float)
    hard = np.where(np.arange(400) < 40, 0.0, clean)  # the same faces, a tenth of them lost
    few = np.where(np.arange(400) < 50, clean, np.nan)
    values = {UNALTERED: clean, "covered": hard, MOST_TURNED: few}
    summary = by_name(altered_rows("expression", "accuracy", values))
    assert summary[MOST_TURNED, "accuracy"].estimate.n == 50
    assert (MOST_TURNED, "difference") not in summary
    assert summary["covered", "accuracy"].estimate.mean == pytest.approx(hard.mean())
    difference = summary["covered", "difference"].estimate
    assert difference.mean == pytest.approx((hard - clean).mean())
    width = 2 * 1.96 * (hard - clean).std() / 20
    assert difference.high - difference.low == pytest.approx(width, rel=0.1)


def test_robustness_is_paired_with_the_other_model() -> None:
    rng = np.random.default_rng(0)
    clean = (rng.random(400) < 0.9).astype(float)
    worse = np.where(np.arange(400) < 9, 0.0, clean)
    hits = {UNALTERED: clean, "covered": worse}
    others = {UNALTERED: clean, "covered": clean}
    compared = by_name(altered_rows("expression", "accuracy", hits, others=others))
    assert compared[UNALTERED, "difference from it"].estimate.mean == 0
    assert compared[UNALTERED, "difference from it"].p == 1
    assert compared["covered", "the other model"].estimate.mean == pytest.approx(clean.mean())
    covered = compared["covered", "difference from it"]
    assert covered.estimate.mean == pytest.approx((worse - clean).mean())
    lost = int((worse != clean).sum())
    sign_test = scipy.stats.binomtest(lost, lost).pvalue
    t_test = scipy.stats.ttest_rel(worse, clean).pvalue
    assert covered.p == pytest.approx(2 * max(sign_test, t_test))  # times two tests
    assert sign_test > t_test


@pytest.mark.slow
def test_every_trial_counts_every_face(drawn: Path, checkpoint: Path) -> None:
    model = load(checkpoint, "cpu")
    rows = Manifest.read(drawn / "faces.parquet").split("test")
    targets = rows.targets()
    assert targets is not None
    every = np.ones(len(rows), bool)
    hits = module.read_altered(model, rows).hits(targets.argmax(1), every)
    assert [name for name in hits if name != MOST_TURNED] == list(
        module.corruptions(LandmarksOnly())
    )
    assert all(np.isfinite(hit).all() for name, hit in hits.items() if name != MOST_TURNED)
    turned = np.isfinite(hits[MOST_TURNED])
    yaw = np.array([abs(head_pose(points).yaw) for points in rows.landmarks()])
    assert 0 < turned.sum() <= len(rows) // 5
    assert yaw[turned].min() > yaw[~turned].max()
    # Without landmarks the model sees the whole image and no region, as `predict --face crop` does.
    files = [str(drawn / "faces" / rows.name(row)) for row in range(len(rows))]
    alone = [face.label for face in model.predict(files, face="crop", detector="none")]
    truth = [model.labels[index] for index in targets.argmax(1)]
    assert hits["no landmarks"].tolist() == [a == b for a, b in zip(alone, truth, strict=True)]


def test_robustness_of_merged_labels(drawn: Path, checkpoint: Path) -> None:
    model = load(checkpoint, "cpu")
    rows = Manifest.read(drawn / "faces.parquet").split("test")
    rows = rows.select(np.arange(len(rows)) < 6)
    merge = {name: "good" if name == "happiness" else "other" for name in model.labels}
    names = ["other", "good"]
    files = [str(drawn / "faces" / rows.name(row)) for row in range(len(rows))]
    shares = model.predict(files, face="crop", detector="none").probabilities  # (N, C)
    good = shares[:, model.labels.index("happiness")] > 0.5
    truth = np.ones(len(rows), np.int64)  # the index of "good"
    altered = module.read_altered(model, rows, ["no landmarks"], merge)
    hits = altered.hits(truth, np.ones(len(rows), bool))
    assert list(merge_names(model.labels, merge)[0]) == names
    assert hits["no landmarks"].tolist() == good.tolist()

    # A second model may have its labels in another order than the truth.
    altered = module.read_altered(model, rows, ["no landmarks"], merge, labels=["good", "other"])
    hits = altered.hits(1 - truth, np.ones(len(rows), bool))
    assert hits["no landmarks"].tolist() == good.tolist()


def test_a_manifest_without_landmarks_is_changed_where_most_faces_have_them(tmp_path: Path) -> None:
    cover = partial(cover_regions, regions=module.EYE_REGIONS)
    covered = crop(tmp_path, cover).changed_image(0)
    assert (covered == cover_regions(IMAGE, np.array(TEMPLATE) * 96, module.EYE_REGIONS)).all()
    assert (crop(tmp_path).changed_image(0) == IMAGE).all()
