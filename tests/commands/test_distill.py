from pathlib import Path

import numpy as np
import pytest

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.data.writing import write_manifest
from fer_vit.evaluate.labelled import evaluate_logits
from fer_vit.sources.drawn import read
from tests.helpers.commands import main


def test_training_votes_are_mixed_with_what_teachers_say(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = tmp_path / "faces.parquet", tmp_path / "distilled.parquet"
    write_manifest(given, read(tmp_path / "faces", count=24, size=64), "drawn")
    words = ["distill", str(checkpoint), "ferplus-small", str(given), str(output), "--weight", "0.25"]
    main(words)
    before, after = Manifest.read(given), Manifest.read(output)
    assert after.table.drop_columns("votes").equals(before.table.drop_columns("votes"))
    for split in ("val", "test"):
        assert after.split(split).table["votes"].equals(before.split(split).table["votes"])
    votes, old, row = after.split("train").targets(), before.split("train").targets(), 5
    said = []
    for teacher in (checkpoint, None):
        model = load(teacher)
        model.net.temperature = 1.0
        for mirrored in (False, True):
            logits, _ = evaluate_logits(model, given, "train", mirrored)
            said.append(model.net.probabilities(logits)[row].numpy())
    assert np.allclose(votes[row], 0.75 * old[row] + 0.25 * np.mean(said, axis=0), atol=1e-5)
    assert np.allclose(votes.sum(1), 1, atol=1e-5)
    assert f"{len(before):,} rows" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(words)
    assert "exists already" in capsys.readouterr().err
    main([*words, "--overwrite"])


def test_what_cannot_be_distilled_is_said(
    drawn: Path, seven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, reason in (
        ([str(drawn / "faces.parquet"), str(tmp_path / "new.parquet"), "--weight=2"], "weight"),
        ([str(seven), str(tmp_path / "new.parquet")], "Expected labels"),
        ([str(tmp_path / "none.parquet"), str(tmp_path / "new.parquet")], "No manifest"),
        ([str(seven), str(seven), "--overwrite"], "would replace the manifest"),
    ):
        with pytest.raises(SystemExit):
            main(["distill", "ferplus-small", *words])
        assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
