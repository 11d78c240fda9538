from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fer_vit.data.dataset import Cropping
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import SPLITS, Reading, Row, Split, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import Cropped, CropSpec, crop_face
from fer_vit.face.image import encode_png
from fer_vit.geometry import Array, Image
from fer_vit.heads import HeadOutputs
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.task import FERTask

TINY_NETWORK = RegionViTConfig(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
IMAGE = encode_png(np.zeros((8, 8), np.uint8))


@pytest.mark.parametrize("size", [0, 1.5, 10**30])
def test_a_batch_has_a_whole_number_of_faces(size: Any, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match="batch_size"):
        FaceDataModule(tmp_path / "faces.parquet", size)


def build(manifest: Path, batch_size: int = 50, **change: Any) -> FaceDataModule:
    return FaceDataModule(manifest, batch_size, 0, spec=CropSpec(8), **change)


def made(folder: Path, names: str, rows: list[Row]) -> Path:
    """A manifest of rows, whose labels are single letters."""
    write_manifest(folder / "m.parquet", Reading(tuple(names), rows), "made")
    return folder / "m.parquet"


def test_splits_and_batches(drawn: Path) -> None:
    data = build(drawn / "faces.parquet")
    assert data.labels == list(EXPRESSIONS)
    sizes = [len(data.dataset(split)) for split in ("train", "val", "test")]
    assert sum(sizes) == 170
    assert [len(batch.path) for batch in data.train_dataloader()] == [50] * (sizes[0] // 50)
    assert sum(len(batch.path) for batch in data.test_dataloader()) == sizes[2]
    batch = next(iter(data.val_dataloader()))
    assert batch.image.dtype == torch.uint8
    ready = data.on_after_batch_transfer(batch, 0)
    assert torch.equal((ready.image * 255).round().byte(), batch.image)


def test_outputs_of_one_side_alone_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["mouthSmileLeft", "browDownLeft", "browDownRight"]
    targets = {f"move_{name}": 0.2 for name in names}
    rows = [Row(IMAGE, label, "train", label, targets=targets) for label in ("x", "y")]
    path = tmp_path / "m.parquet"
    outputs = HeadOutputs.among(targets)
    write_manifest(path, Reading(("x", "y"), rows, outputs=outputs), "made")
    data = build(path)
    caplog.set_level("INFO", logger="fer_vit")
    data.setup("validate")
    assert caplog.messages == []
    data.setup("fit")
    (line,) = caplog.messages
    assert "mouthSmileLeft" in line
    assert "browDown" not in line


def test_targets_of_heads_that_a_task_does_not_know_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [Row(IMAGE, label, "train", label, targets={"yaw": 3.0}) for label in ("x", "y")]
    path = tmp_path / "m.parquet"
    write_manifest(path, Reading(("x", "y"), rows, outputs=HeadOutputs.among(["yaw"])), "made")
    data = FaceDataModule(path, 2, 0)
    options = {"network": TINY_NETWORK, "labels": data.labels}
    tasks = [
        FERTask(**options, outputs=data.outputs),
        FERTask(**options, outputs=data.outputs, head_weights={"pose": 0.0}),
    ]
    for task in tasks:
        data.trainer = SimpleNamespace(lightning_module=task)
        data.setup("fit")
    assert caplog.messages == []
    data.trainer = SimpleNamespace(lightning_module=FERTask(**options))
    data.setup("fit")
    (line,) = caplog.messages
    assert "pose" in line
    assert "outputs=data.outputs" in line


def test_class_counts_count_votes_by_their_share(tmp_path: Path) -> None:
    rows = [Row(IMAGE, "a", "train", "x", (3.0, 1.0)), Row(IMAGE, "b", "train", "y")]
    assert build(made(tmp_path, "xy", rows)).class_counts().tolist() == [0.75, 1.25]


def test_balanced_sampling_draws_every_class_equally_often(tmp_path: Path) -> None:
    labels = ["y", *["x"] * 9] * 40
    rows = [Row(IMAGE, str(i), "train", label) for i, label in enumerate(labels)]
    (batch,) = build(made(tmp_path, "xy", rows), 400, balanced=True).train_dataloader()
    assert 0.4 < batch.target[:, 1].mean() < 0.6


@pytest.mark.parametrize(("rows", "sizes"), [(3, [1]), (9, [4]), (17, [4, 4])])
def test_the_last_batch_of_several_processes_is_left_out_unless_it_is_the_only_one(
    rows: int, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(f"torch.distributed.{name}", lambda value=value: value)
    data = build(made(tmp_path, "x", [Row(IMAGE, "a", "train", "x")] * rows), 4)
    assert [len(batch.path) for batch in data.train_dataloader()] == sizes


def test_a_fold_is_left_out_of_training_alone(drawn: Path) -> None:
    def rows(fold: str | None) -> dict[str, list[str]]:
        data = build(drawn / "faces.parquet", 1, fold=fold)
        counts = data.class_counts().sum().item()
        split_rows = {
            split: [name(data, split, i) for i in range(len(data.dataset(split)))]
            for split in SPLITS
        }
        assert counts == len(split_rows["train"]) == len(data.train_dataloader())
        return split_rows

    def name(data: FaceDataModule, split: Split, row: int) -> str:
        return data.dataset(split).manifest.name(row)

    whole, first, second = (rows(fold) for fold in (None, "0/2", "1/2"))
    assert whole["val"] == first["val"] == second["val"]
    assert whole["test"] == first["test"] == second["test"]
    assert sorted(first["train"] + second["train"]) == sorted(whole["train"])
    manifest = Manifest.read(drawn / "faces.parquet")
    held_out = [manifest.name(row) for row in np.flatnonzero(in_fold(manifest, "0/2"))]
    assert held_out == second["train"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(
            ({name: value}, f"{name} {value}.* now")
            for name, value in (
                ("batch_size", 25),
                ("seed_everything", 7),
                ("balanced", True),
                ("world_size", 2),
            )
        ),
        *(
            (change, "Resume from another")
            for change in ({"epoch": "x"}, {"batches": 10**30}, {"epoch": -5})
        ),
        (
            {"fold": "0/3", "batches": 0},
            "`fold` 0/3.* None",
        ),
    ],
)
def test_positions_at_which_no_run_can_resume(
    change: dict[str, object], words: str, drawn: Path
) -> None:
    data = build(drawn / "faces.parquet")
    data.load_state_dict({"epoch": 1, "batches": 1, **data._order(), **change})
    with pytest.raises(FerVitError, match=words):
        data.train_dataloader()


def test_a_position_counts_once(drawn: Path) -> None:
    data = build(drawn / "faces.parquet", 25)
    first = [batch.row.tolist() for batch in data.train_dataloader()]
    data.load_state_dict({"epoch": 0, "batches": 3, **data._order()})
    assert [batch.row.tolist() for batch in data.train_dataloader()] == first[3:]
    assert [batch.row.tolist() for batch in data.train_dataloader()] == first
    # the end of an epoch
    data.load_state_dict({"epoch": 1, "batches": 0, **data._order(), "batch_size": 50})
    assert len(list(data.train_dataloader())) == len(first)


def test_a_split_without_rows_or_labels(tmp_path: Path) -> None:
    data = build(made(tmp_path, "x", [Row(IMAGE, "a", "train")]))
    with pytest.raises(FerVitError, match=r"m\.parquet .*train.*label"):
        data.train_dataloader()
    with pytest.raises(FerVitError, match=r"m.parquet .*val"):
        data.val_dataloader()


@pytest.mark.parametrize(("cores", "devices", "workers"), [(1, 2, 1), (64, 4, 8), (12, 4, 3)])
def test_workers_by_cores(
    cores: int, devices: int, workers: int, drawn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores), raising=False)
    data = FaceDataModule(drawn / "faces.parquet", spec=CropSpec(8))
    data.trainer = SimpleNamespace(num_devices=devices)  # type: ignore[assignment]
    assert data.val_dataloader().num_workers == workers


def test_a_subclass_replaces_how_training_faces_are_cropped(drawn: Path) -> None:
    def black(image: Image, landmarks: Array | None, spec: CropSpec, seed: int) -> Cropped:
        crop, points, to_crop, _ = crop_face(image, landmarks, spec, True)
        return Cropped(np.zeros_like(crop), points, to_crop)

    class BlackData(FaceDataModule):
        def cropping(self) -> Cropping:
            return black

    data = BlackData(drawn / "faces.parquet", 50, 0, spec=CropSpec(8))
    assert not next(iter(data.train_dataloader())).image.any()
    assert next(iter(data.val_dataloader())).image.any()
