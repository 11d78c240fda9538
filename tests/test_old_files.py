"""Files that version 0.1.0 wrote: each is read today, and says what it said then."""

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fer_vit.data.manifest import Manifest
from fer_vit.face.crop import CropSpec
from fer_vit.labels import EXPRESSIONS
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.train.datamodule import FaceDataModule
from tests.helpers.commands import assert_same, main, read

OLD = Path(__file__).parent / "old_files"
PATCH = "runs/patch/version_0/checkpoints/best.ckpt"
CROPS = ["--face=crop", "--detector=none", "--workers=0"]


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables have their paths relative to this folder, and crops that alias: none was averaged then."""
    monkeypatch.chdir(OLD)
    monkeypatch.setattr("fer_vit.face.crop.SMALLER", 0.0)


@pytest.mark.parametrize("name", ["embedded.parquet", "beside.parquet", "shards"])
def test_manifests(name: str) -> None:
    manifest = Manifest.read(OLD / name)
    assert manifest.names == EXPRESSIONS
    assert np.isfinite(manifest.landmarks()).all()
    assert not manifest.twins("val").any()
    pictures = {path.name: path.read_bytes() for path in (OLD / "pictures").rglob("*.png")}
    assert {Path(manifest.name(row)).name: manifest.image_bytes(row) for row in range(len(manifest))} == pictures
    labels = [path.parent.name for path in (OLD / "pictures").rglob("*.png")]
    assert sorted(manifest.table["label"].to_pylist()) == sorted(labels)


def test_shards_are_streamed() -> None:
    data = FaceDataModule(OLD / "shards", batch_size=1, num_workers=0, spec=CropSpec(32))
    names = [Path(path).name for batch in data.train_dataloader() for path in batch.path]
    assert sorted(names) == sorted(path.name for path in (OLD / "pictures" / "train").rglob("*.png"))


@pytest.mark.parametrize(
    ("checkpoint", "table"),
    [
        (PATCH, "faces.csv"),
        (PATCH, "faces.parquet"),
        (PATCH, "faces.jsonl"),
        ("runs/conv/version_0/checkpoints/best.ckpt", "conv.csv"),
        ("exported", "exported.csv"),
        ("ferplus-small", "shipped.csv"),
    ],
)
def test_predictions(checkpoint: str, table: str, tmp_path: Path) -> None:
    main(["predict", "pictures", f"--output={tmp_path / table}", *CROPS, f"--checkpoint={checkpoint}"])
    rows, before = read(tmp_path / table), read(OLD / table)
    columns = list(before[0])
    assert list(rows[0])[: len(columns)] == columns  # newer ones follow
    assert_same([{name: row[name] for name in columns} for row in rows], before)


def test_a_prediction_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = Path(copytree(OLD / "parts", tmp_path / "parts"))
    move_plan(output / "_plan.parquet")
    kept = {path.name: path.read_bytes() for path in output.iterdir()}
    main(["predict", "pictures", f"--output={output}", "--part-size=6", f"--checkpoint={PATCH}", *CROPS])
    out = capsys.readouterr().out
    assert "12 photos: " in out
    assert "all 4 tables, all 24 files of the plan exactly once" in out
    assert kept == {name: (output / name).read_bytes() for name in kept}
    assert_same(pq.read_table(output).to_pylist(), read(OLD / "faces.parquet"))


def move_plan(path: Path) -> None:
    """Names the pictures where they are, not where they were."""
    plan = pq.ParquetFile(path)
    settings = json.loads(plan.schema_arrow.metadata[b"fer_vit"])
    settings["images"] = [str(OLD / "pictures")]
    schema = plan.schema_arrow.with_metadata({"fer_vit": json.dumps(settings)})
    groups = [plan.read_row_group(group).cast(schema) for group in range(plan.num_row_groups)]
    with pq.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(group)


def test_a_run_resumes(tmp_path: Path) -> None:
    last = OLD / "runs" / "patch" / "version_0" / "checkpoints" / "last.ckpt"
    words = [f"--ckpt_path={last}", f"--data.manifest={OLD / 'embedded.parquet'}", "--data.batch_size=16"]
    words += ["--data.num_workers=0", "--trainer.max_epochs=2", "--trainer.accelerator=cpu"]
    words += ["--trainer.enable_progress_bar=false", f"--trainer.logger.init_args.save_dir={tmp_path}"]
    main(["fit", *words])
    before, (path,) = load_checkpoint(last), tmp_path.rglob("last.ckpt")
    after = load_checkpoint(path)
    assert (before["epoch"], before["global_step"], after["epoch"], after["global_step"]) == (0, 1, 1, 2)
    first, second = (state["optimizer_states"][0]["state"][0]["step"] for state in (before, after))
    assert (first, second) == (1, 2)
    weight = "net.vit.blocks.0.attn.qkv.weight"
    assert not torch.equal(before["state_dict"][weight], after["state_dict"][weight])
