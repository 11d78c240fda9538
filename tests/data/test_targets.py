"""Targets of heads beside the expression: in a manifest, and in a crop."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.data.dataset import FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.face.image import encode_png
from fer_vit.geometry import rotation
from fer_vit.heads import HeadOutputs
from fer_vit.sources.cartoon import draw_face
from tests.helpers.logits import crop_mirrored

OUTPUTS = {
    "movements": ["mouthSmileLeft", "mouthSmileRight"],
    "pose": ["yaw", "pitch", "roll"],
    "affect": ["valence"],
}
TARGETS = [
    {"move_mouthSmileLeft": 0.25, "move_mouthSmileRight": 0.75},
    {"yaw": 10.0, "pitch": -5.0, "roll": 3.0, "valence": -0.5},
    {},
]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for seed, targets in enumerate(TARGETS):
        image, landmarks = draw_face("happiness", seed + 4, 64)
        label = "happiness" if seed else None
        row = Row(encode_png(image), f"{seed}.png", "train", label, landmarks=landmarks)
        row.targets = targets
        rows.append(row)
    path = tmp_path / "faces.parquet"
    outputs = HeadOutputs.of_names(OUTPUTS, "drawn")
    write_manifest(path, Reading(("neutral", "happiness"), rows, outputs=outputs), "drawn")
    return path


def test_manifest_returns_the_targets_of_each_head(manifest: Path) -> None:
    faces = Manifest.read(manifest)
    assert faces.outputs.plain == OUTPUTS
    targets = faces.head_targets()
    nan = np.nan
    expected = {
        "movements": [[0.25, 0.75], [nan, nan], [nan, nan]],
        "pose": [[nan] * 3, [10, -5, 3], [nan] * 3],
        "affect": [[nan], [-0.5], [nan]],
    }
    for head, values in expected.items():
        np.testing.assert_array_equal(targets[head], np.array(values, np.float32))


def test_manifest_without_heads_has_no_outputs(tmp_path: Path) -> None:
    image, _ = draw_face("neutral", 0, 32)
    rows = [Row(encode_png(image), "a.png", "train", "neutral")]
    write_manifest(tmp_path / "faces.parquet", Reading(("neutral", "anger"), rows), "drawn")
    faces = Manifest.read(tmp_path / "faces.parquet")
    assert not faces.outputs
    assert faces.head_targets() == {}


def test_targets_without_a_label_are_nan_if_partial(manifest: Path) -> None:
    faces = Manifest.read(manifest)
    assert faces.targets() is None
    np.testing.assert_array_equal(faces.targets(partial=True), [[np.nan] * 2, [0, 1], [0, 1]])


def test_roll_is_that_of_the_crop_and_mirroring_swaps_targets(manifest: Path) -> None:
    spec = CropSpec(48)
    plain = FaceDataset(Manifest.read(manifest), spec, partial=True)
    mirrored = FaceDataset(Manifest.read(manifest), spec, crop_mirrored, partial=True)
    turned = rotation(plain[1].to_crop)
    assert abs(turned) > 1
    np.testing.assert_allclose(plain[1].targets["pose"], [10, -5, 3 + turned], rtol=1e-6)
    np.testing.assert_allclose(mirrored[1].targets["pose"], [-10, -5, -3 - turned], rtol=1e-6)
    np.testing.assert_allclose(mirrored[0].targets["movements"], [0.75, 0.25])
    batch = collate([plain[index] for index in range(3)])
    assert {head: tuple(values.shape) for head, values in batch.targets.items()} == {
        "movements": (3, 2),
        "pose": (3, 3),
        "affect": (3, 1),
    }
    assert batch.targets["movements"][2].isnan().all()


def change(path: Path, name: str, values: pa.Array | None) -> None:
    """Replaces a column of a manifest, or removes it."""
    table = pq.read_table(path)
    index = table.schema.get_field_index(name)
    changed = table.remove_column(index)
    if values is not None:
        changed = changed.append_column(name, values)
    pq.write_table(changed, path)


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("move_mouthSmileLeft", pa.array([0.5, 1.5, None], pa.float32()), "row 1.*1.5"),
        ("valence", pa.array([0.5, -2, None], pa.float32()), "row 1.*-2"),
        ("yaw", pa.array([0.5, float("nan"), 0], pa.float32()), "row 1.*nan"),
        ("yaw", pa.array([0.5, float("inf"), 0], pa.float32()), "row 1.*inf"),
        ("roll", pa.array(["a", "b", "c"]), "roll.*float"),
        ("pitch", None, "pitch.*missing"),
    ],
)
def test_wrong_targets_are_named(
    name: str, values: pa.Array | None, named: str, manifest: Path
) -> None:
    change(manifest, name, values)
    with pytest.raises(FerVitError, match=named):
        Manifest.read(manifest)


@pytest.mark.parametrize(
    "outputs",
    [
        {"gaze": ["x"]},
        ["pose"],
        {"pose": "yaw"},
        {"pose": ["tilt"]},
        {"movements": ["a", "a"]},
        {"movements": ["a", "A"]},
    ],
)
def test_wrong_outputs_in_the_metadata_are_one_line(outputs: object, manifest: Path) -> None:
    table = pq.read_table(manifest)
    meta = json.loads(table.schema.metadata[b"fer_vit"]) | {"outputs": outputs}
    table = table.replace_schema_metadata({"fer_vit": json.dumps(meta)})
    pq.write_table(table, manifest)
    with pytest.raises(FerVitError):
        Manifest.read(manifest)
