import json
from pathlib import Path

import pytest
from PIL import Image

from fer_vit import load
from tests.helpers.commands import fails, main

ROWS = ["pixels", "relevance", "ablation", "attention", "random", "centre"]


def test_a_manifest_and_photos(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["--checkpoint", str(checkpoint), "--max_faces", "3"]
    main(["faithfulness", str(drawn / "faces.parquet"), *words, "--output", str(tmp_path / "a")])
    found = json.loads((tmp_path / "a" / "faithfulness.json").read_text())
    assert found["model"] == str(checkpoint)
    assert list(found["methods"]) == ROWS
    assert found["methods"]["relevance"]["deletion"]["faces"] == 3
    assert found["methods"]["ablation"]["region agreement"]["mean"] == pytest.approx(1)
    assert list(found["differences"]) == [row for row in ROWS if row != "random"]
    for measure, one in found["differences"]["relevance"].items():
        if one["faces"] == 3:  # of the same faces, one by one
            both = [found["methods"][method][measure]["mean"] for method in ("relevance", "random")]
            assert one["mean"] == pytest.approx(both[0] - both[1], abs=1e-6)
    assert list(found["shuffled"]["relevance"]) == [
        "classifier",
        "block 1",
        "block 0",
        "embeddings",
    ]
    assert "| `random` itself |" in (tmp_path / "a" / "faithfulness.md").read_text()
    assert "| `random` itself |" in capsys.readouterr().out
    measured = tmp_path / "a" / "faithfulness.json"
    main(
        [
            "export",
            str(tmp_path / "model"),
            "--checkpoint",
            str(checkpoint),
            "--faithfulness",
            str(measured),
        ]
    )
    gains = load(tmp_path / "model").net.settings.faithfulness
    for method, row in found["differences"].items():
        kept = [
            one for one in list(row["pixel insertion, blurred"].values())[:3] if one is not None
        ]
        assert gains.get(method, []) == pytest.approx(kept, abs=6e-4)
    crops = [str(drawn / "faces" / "test"), "--face", "crop", "--detector", "none"]
    main(
        [
            "faithfulness",
            *crops,
            *words,
            "--batch-size",
            "2",
            "--workers",
            "0",
            "--output",
            str(tmp_path / "b"),
        ]
    )
    assert (
        json.loads((tmp_path / "b" / "faithfulness.json").read_text())["methods"]["relevance"][
            "saco"
        ]["faces"]
        == 3
    )
    Image.new("RGB", (64, 64)).save(tmp_path / "black.png")
    assert "No face was found" in fails(
        capsys, "faithfulness", tmp_path / "black.png", "--output", tmp_path / "c"
    )
