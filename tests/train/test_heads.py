"""Training and validation of heads from the command line: what is kept, measured,
written and refused.
"""

import csv
import json
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from fer_vit.data.dataset import Batch, FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, write_manifest
from fer_vit.geometry import rotation
from fer_vit.heads import HEADS, HeadOutputs
from fer_vit.predict.recognizer import load
from fer_vit.sources import drawn, movements
from fer_vit.stats.output_measures import measure
from fer_vit.store.model_folder import load_network
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, fit, main
from tests.helpers.marks import slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def reading(folder: Path) -> Reading:
    return drawn.read(folder / "faces", count=60, size=32, heads=True)


@pytest.fixture(scope="module")
def trained(folder: Path, reading: Reading) -> Path:
    """A checkpoint of all heads."""
    write_manifest(folder / "all.parquet", reading, "drawn")
    return fit(folder / "all.parquet", folder / "runs", *TINY)


def write(folder: Path, reading: Reading, heads: Sequence[str], label: bool = True) -> Path:
    """Writes a manifest with the targets of some heads, with labels or without.

    Without a head, faces without a label would have nothing.
    """
    outputs = movements.DRAWN_OUTPUTS.of_head(*heads)
    rows = []
    for row in reading.rows:
        if heads or row.label:
            targets = {name: row.targets[name] for name in outputs.columns if name in row.targets}
            rows.append(replace(row, targets=targets))
    if not label:
        rows = [replace(row, label=None) for row in rows]
    path = folder / f"{'_'.join(heads) or 'none'}_{label}.parquet"
    if not path.exists():
        write_manifest(path, replace(reading, rows=rows, outputs=outputs), "drawn")
    return path


def refusal(manifest: Path, folder: Path, *more: str) -> str:
    """The error of a `fit` that stops at its start."""
    logger = f"--trainer.logger.init_args.save_dir={folder}"
    with pytest.raises(SystemExit), redirect_stderr(StringIO()) as printed:
        main(["fit", f"--data.manifest={manifest}", logger, *TINY, *more])
    assert not [*folder.rglob("*.ckpt")]
    return printed.getvalue()


def validate(checkpoint: Path, manifest: Path, folder: Path) -> Path:
    """Runs `validate`; returns its folder of logs."""
    logger = json.dumps(
        {"class_path": "CSVLogger", "init_args": {"save_dir": str(folder), "name": "v"}}
    )
    words = ["validate", f"--ckpt_path={checkpoint}", f"--data.manifest={manifest}"]
    words += [f"--trainer.logger={logger}", "--trainer.limit_val_batches=1.0"]
    main(words)
    return max((folder / "v").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def validated(trained: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of `validate` with all heads."""
    return validate(trained, folder / "all.parquet", tmp_path_factory.mktemp("validated"))


def test_validate_writes_a_table_and_a_picture_of_each_head(
    trained: Path, validated: Path, folder: Path
) -> None:
    for head in ("expression", *movements.DRAWN_OUTPUTS.by_head):
        assert np.asarray(Pil.open(validated / f"val_{head}.png")).std() > 5
    rows = list(csv.DictReader((validated / "val_movements.csv").open()))
    assert [row["output"] for row in rows] == movements.DRAWN_OUTPUTS.of_head("movements").names
    assert [*rows[0]] == ["output", "faces", "r", "MAE"]

    faces = Manifest.read(folder / "all.parquet").split("val")
    predicted = load(trained, "cpu").predict(
        [faces.image(row) for row in range(len(faces))], face="crop", detector="none"
    )
    truth = faces.head_targets()["movements"][:, movements.DRAWN_MOVEMENTS.index("mouthOpen")]
    assert int(rows[7]["faces"]) == len(faces) == len(predicted)
    net = load_network(trained)
    assert net.settings.crop.align == "landmarks"  # so the crops differ, and so may the values
    value = np.array([face.outputs["move_mouthOpen"] for face in predicted])
    assert float(rows[7]["MAE"]) == pytest.approx(measure("MAE", value, truth), abs=0.05)


def test_another_spelling_of_a_former_output_is_an_error_at_the_start(
    trained: Path, reading: Reading, tmp_path: Path
) -> None:
    rows = [replace(row, targets={"move_EyeWide": 0.5}) for row in reading.rows]
    path = tmp_path / "faces.parquet"
    outputs = HeadOutputs.among(["move_EyeWide"])
    write_manifest(path, replace(reading, rows=rows, outputs=outputs), "drawn")
    text = refusal(path, tmp_path / "runs", f"--model.init={trained}")
    assert "eyeWide and EyeWide" in text


@pytest.mark.parametrize("taught", [True, *slow(False)])
def test_the_start_teacher_teaches_the_heads_without_targets(
    taught: bool,
    trained: Path,
    folder: Path,
    reading: Reading,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = []
    step = FERTask.training_step

    def note(task: FERTask, batch: Batch, index: int) -> torch.Tensor:
        loss = step(task, batch, index)
        teacher = task.start_teacher
        task.start_teacher = None
        steps.append((loss.item(), step(task, batch, index).item(), teacher))
        return loss

    monkeypatch.setattr(FERTask, "training_step", note)
    manifest = write(folder, reading, ["affect"] if taught else [*movements.DRAWN_OUTPUTS.by_head])
    last = fit(manifest, tmp_path, *TINY, f"--model.init={trained}")
    with_teacher, without, teacher = steps[0]
    if taught:
        assert [*teacher.sources] == ["movements", "pose"]
        assert with_teacher > without
    else:
        assert teacher is None
    assert load_network(last).settings.outputs == movements.DRAWN_OUTPUTS  # all are kept


@pytest.mark.slow
def test_validate_measures_what_model_and_data_share(
    trained: Path, folder: Path, reading: Reading, tmp_path: Path
) -> None:
    logs = validate(trained, write(folder, reading, ["pose"]), tmp_path)
    assert {path.stem for path in logs.glob("val_*.csv")} == {"val_expression", "val_pose"}


@pytest.mark.slow
def test_faces_without_labels_need_a_teacher_and_another_measure(
    trained: Path, folder: Path, reading: Reading, tmp_path: Path
) -> None:
    manifest = write(folder, reading, ["affect"], label=False)
    start = f"--model.init={trained}"
    assert "label" in refusal(manifest, tmp_path, start)
    taught = [start, f"--model.teachers=[{trained}]"]
    text = refusal(manifest, tmp_path, *taught)
    assert "val/accuracy does not exist" in text
    assert "val/affect_ccc" in text
    monitor = "--checkpoint.monitor=val/affect_ccc"
    best = fit(manifest, tmp_path, *TINY, *taught, monitor)
    assert load_network(best).settings.outputs == movements.DRAWN_OUTPUTS


def test_a_measure_of_a_head_that_is_not_trained_is_an_error(
    folder: Path, reading: Reading, tmp_path: Path
) -> None:
    manifest = write(folder, reading, ["pose"])
    text = refusal(manifest, tmp_path, "--checkpoint.monitor=val/movements_r")
    assert "val/movements_r" in text
    assert "expression, pose" in text


def test_a_head_without_training_targets_is_an_error(
    folder: Path, reading: Reading, tmp_path: Path
) -> None:
    rows = []
    for row in reading.rows:
        targets = {} if row.split == "train" else row.targets
        rows.append(replace(row, targets=targets))
    path = tmp_path / "faces.parquet"
    write_manifest(path, replace(reading, rows=rows), "drawn")
    assert "movements" in refusal(path, tmp_path / "runs")


def test_an_output_without_training_targets_is_an_error(
    folder: Path, reading: Reading, tmp_path: Path
) -> None:
    rows = []
    for row in reading.rows:
        targets = dict(row.targets)
        if row.split == "train":
            del targets["move_eyeWide"], targets["roll"]
        rows.append(replace(row, targets=targets))
    path = tmp_path / "faces.parquet"
    write_manifest(path, replace(reading, rows=rows), "drawn")
    text = refusal(path, tmp_path / "runs")
    assert "move_eyeWide" in text
    assert "move_mouthSmile" not in text
    weights = "--model.head_weights={movements: 0}"
    assert "none of roll" in refusal(path, tmp_path / "runs", weights)


def test_validate_measures_the_roll_in_the_picture(
    trained: Path, validated: Path, folder: Path
) -> None:
    _, row = csv.DictReader((validated / "val_pose.csv").open())
    assert row["output"] == "roll"

    net = load_network(trained)
    faces = Manifest.read(folder / "all.parquet").split("val")
    spec = net.settings.crop
    dataset = FaceDataset(faces, spec)
    batch = collate([dataset[index] for index in range(len(faces))]).ready(torch.device("cpu"))
    with torch.inference_mode():
        raw = net(batch.image, batch.boxes, batch.valid)["pose"][:, 1]
    turned = np.array([rotation(matrix) for matrix in batch.to_crop.numpy()])
    roll = HEADS["pose"].step * raw.double().numpy() - turned
    truth = faces.head_targets()["pose"][:, 1]
    assert np.ptp(turned) > 5
    assert float(row["r"]) == pytest.approx(measure("r", roll, truth), abs=1e-3)
    assert float(row["MAE"]) == pytest.approx(measure("MAE", roll, truth), abs=1e-2)
