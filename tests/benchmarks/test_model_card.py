import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from huggingface_hub import ModelCard

from benchmarks import model_card
from benchmarks.model_card import calibration, main
from fer_vit import intervals
from fer_vit.data.manifest import Manifest
from tests.helpers.commands import main as fer_vit


def test_calibration_is_better_with_the_right_temperature() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4000, 3) * 2
    target = torch.distributions.Categorical(logits=logits).sample()
    raw, fitted, crossed = calibration(3 * logits, target, 3.0)
    assert raw > 0.1
    assert fitted < 0.03
    assert crossed < 0.03


@pytest.mark.slow
def test_the_card_is_written_and_rewritten(
    drawn: Path, checkpoint: Path, tmp_path: Path, yunet_named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"
    fer_vit(["export", str(folder), "--checkpoint", str(checkpoint), "--calibrate", str(drawn / "faces.parquet")])
    card = folder / "README.md"
    card.write_text(
        card.read_text() + "\nWhat it is.\n\n<!-- measured: begin -->\nstale\n<!-- measured: end -->\n\nThe end.\n"
    )
    monkeypatch.setattr(intervals, "RESAMPLES", 100)
    faces = Manifest.read(drawn / "faces.parquet")
    place, marks = faces.table.schema.get_field_index("twin"), [split == "val" for split in faces.column("split")]
    table = faces.table.set_column(place, "twin", pa.array([mark and row % 2 == 0 for row, mark in enumerate(marks)]))
    Manifest(faces.path, table, faces.names).write(tmp_path / "faces.parquet")
    words = ["model_card", str(tmp_path / "faces.parquet"), str(folder), "--write"]
    monkeypatch.setattr("sys.argv", [*words, "--fairface", str(drawn / "faces.parquet")])
    main()
    text, data = card.read_text(), ModelCard.load(card).data
    assert "stale" not in text
    assert f"| the model, without {sum(marks[::2])} images that had a twin in train | " in text
    assert text.index("What it is.") < text.index("| expression | faces | recall |") < text.index("The end.")
    assert "| half the contrast | " in text
    assert data.model_name == "tiny"
    assert {result.metric_name for result in data.eval_results} == {"accuracy", "macro F1", "UAR"}
    shutil.copy(card, tmp_path / "once.md")
    monkeypatch.setattr(model_card, "seconds_per_face", lambda model: [0.001])
    main()
    lines = [line for line in card.read_text().splitlines() if "One face on" not in line]
    assert lines == [line for line in (tmp_path / "once.md").read_text().splitlines() if "One face on" not in line]
