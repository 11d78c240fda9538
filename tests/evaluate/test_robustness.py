from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.evaluate.robustness import (
    EYES,
    MOST_TURNED,
    UNALTERED,
    Change,
    CorruptedPhotos,
    blur,
    corruptions,
    measure_robustness,
    shrink,
    summarize_robustness,
    turn,
)
from fer_vit.face.crop import CropSpec, cover_regions
from fer_vit.face.detect import NoDetector, full_image_face, head_pose
from fer_vit.face.image import encode_png
from fer_vit.geometry import TEMPLATE
from fer_vit.sources.drawn import draw_face

IMAGE, LANDMARKS = draw_face("happiness", 3, 96)


def crop(folder: Path, change: Change | None = None, shift: float = 0.0) -> CorruptedPhotos:
    """A manifest of one crop without landmarks."""
    write_manifest(folder / "m.parquet", Reading(("a", "b"), [Row(encode_png(IMAGE), "a.png", "val", "a")]), "drawn")
    rows = Manifest.read(folder / "m.parquet")
    return CorruptedPhotos([0], CropSpec(48), "crop", NoDetector(), rows, rows.landmarks(), change, shift)


def test_a_turn_goes_about_the_middle() -> None:
    image = np.zeros((65, 65, 3), np.uint8)
    image[28:37, 48:57] = 255  # to the right of the middle
    rows, columns = np.nonzero(turn(image, LANDMARKS, 90)[..., 0] > 128)
    assert (rows.mean(), columns.mean()) == pytest.approx((12, 32), abs=0.5)  # above it: counter-clockwise


def test_blur_and_shrink_keep_the_mean() -> None:
    assert shrink(IMAGE[:48], LANDMARKS, 24).shape == (12, 24, 3)
    for changed in (blur(IMAGE, LANDMARKS, 1.5), shrink(IMAGE, LANDMARKS, 24)):
        assert changed.mean() == pytest.approx(IMAGE.mean(), abs=1)
        assert changed.std() < IMAGE.std()
    large = np.repeat(np.repeat(IMAGE, 2, 0), 2, 1)  # the blur is relative to the size
    halved = blur(large, LANDMARKS, 1.5)[::2, ::2].astype(float)
    assert np.abs(halved - blur(IMAGE, LANDMARKS, 1.5)).mean() < 2


def test_shifted_landmarks_are_wrong_by_the_distance(tmp_path: Path) -> None:
    shifted, landmarks = crop(tmp_path, shift=0.05), full_image_face(IMAGE).landmarks
    (face,), (again,) = shifted[0][0].faces, shifted[0][0].faces
    assert np.linalg.norm(face.landmarks - landmarks, axis=1) == pytest.approx(np.full(5, 0.05 * 96))
    assert (again.landmarks == face.landmarks).all()


def test_turns_go_both_ways() -> None:
    one, other = (change(IMAGE, LANDMARKS) for change in corruptions(NoDetector())["turned by 30 degrees"].changes)
    assert np.abs(one[:, ::-1].astype(float) - turn(IMAGE[:, ::-1], LANDMARKS, -30)).mean() < 0.1
    assert (other == turn(IMAGE, LANDMARKS, -30)).all()
    assert (one != other).any()


def test_results_are_paired_with_the_unaltered_faces() -> None:
    rng = np.random.default_rng(0)
    clean = (rng.random(400) < 0.9).astype(float)
    hard = np.where(np.arange(400) < 40, 0.0, clean)  # the same faces, a tenth of them lost
    few = np.where(np.arange(400) < 50, clean, np.nan)
    found = summarize_robustness({UNALTERED: clean, "covered": hard, MOST_TURNED: few})
    assert found[MOST_TURNED]["faces"] == 50
    assert "difference" not in found[MOST_TURNED]
    assert found["covered"]["accuracy"]["mean"] == pytest.approx(hard.mean())
    difference = found["covered"]["difference"]
    assert difference["mean"] == pytest.approx((hard - clean).mean())
    width = 2 * 1.96 * (hard - clean).std() / 20
    assert difference["high"] - difference["low"] == pytest.approx(width, rel=0.1)


@pytest.mark.slow
def test_every_trial_counts_every_face(drawn: Path, checkpoint: Path, yunet_named: None) -> None:
    model, rows = load(checkpoint, "cpu"), Manifest.read(drawn / "faces.parquet").split("test")
    targets = rows.targets()
    assert targets is not None
    hits = measure_robustness(model, rows, targets.argmax(1))
    assert [name for name in hits if name != MOST_TURNED] == list(corruptions(NoDetector()))
    assert all(np.isfinite(hit).all() for name, hit in hits.items() if name != MOST_TURNED)
    turned, yaw = np.isfinite(hits[MOST_TURNED]), np.array([abs(head_pose(points).yaw) for points in rows.landmarks()])
    assert 0 < turned.sum() <= len(rows) // 5
    assert yaw[turned].min() > yaw[~turned].max()
    # Without landmarks the model sees the whole image and no region, as `predict --face crop` does.
    files = [str(drawn / "faces" / rows.name(row)) for row in range(len(rows))]
    alone = [face.label for face in model.predict(files, face="crop", detector="none")]
    truth = [model.labels[index] for index in targets.argmax(1)]
    assert hits["no landmarks"].tolist() == [a == b for a, b in zip(alone, truth, strict=True)]


def test_a_manifest_without_landmarks_is_changed_where_most_faces_have_them(tmp_path: Path) -> None:
    covered, _, _ = crop(tmp_path, partial(cover_regions, regions=EYES)).read(0)
    assert (covered == cover_regions(IMAGE, np.array(TEMPLATE) * 96, EYES)).all()
    assert (crop(tmp_path).read(0)[0] == IMAGE).all()
