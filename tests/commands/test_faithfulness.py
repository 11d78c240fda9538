import errno
import json
import os
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.helpers.commands import main

ROWS = ["pixels", "relevance", "ablation", "rollout", "raw", "random", "centre"]


def test_a_manifest_and_photos_are_scored(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", str(checkpoint), "--max_faces", "3"]
    main(["faithfulness", str(drawn / "faces.parquet"), *words, "--output", str(tmp_path / "a")])
    found = json.loads((tmp_path / "a" / "faithfulness.json").read_text())
    assert found["model"] == str(checkpoint)
    assert list(found["methods"]) == ROWS
    assert found["methods"]["relevance"]["deletion"]["faces"] == 3
    assert found["methods"]["ablation"]["region agreement"]["mean"] == pytest.approx(1)
    assert list(found["differences"]) == [row for row in ROWS if row != "random"]
    for measure, one in found["differences"]["raw"].items():
        if one["faces"] == 3:  # of the same faces, one by one
            both = [found["methods"][method][measure]["mean"] for method in ("raw", "random")]
            assert one["mean"] == pytest.approx(both[0] - both[1], abs=1e-6)
    assert list(found["shuffled"]["rollout"]) == ["classifier", "block 1", "block 0", "embeddings"]
    assert found["shuffled"]["rollout"]["classifier"]["mean"] == pytest.approx(1)  # it does not ask the classifier
    assert "| `random` itself |" in (tmp_path / "a" / "faithfulness.md").read_text()
    assert "| `random` itself |" in capsys.readouterr().out
    with Image.open(tmp_path / "a" / "faithfulness.png") as picture:
        assert picture.width > 1000
    crops = [str(drawn / "faces" / "test"), "--face", "crop", "--detector", "none"]
    main(["faithfulness", *crops, *words, "--batch-size", "2", "--workers", "0", "--output", str(tmp_path / "b")])
    assert json.loads((tmp_path / "b" / "faithfulness.json").read_text())["methods"]["raw"]["saco"]["faces"] == 3


def test_what_cannot_be_scored_is_said(
    drawn: Path, checkpoint: Path, seven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "faithfulness.md").touch()
    crops = [str(drawn / "faces" / "test" / "anger"), "--face", "crop", "--detector", "none"]
    for words, reason in (
        ([*crops, "--output", str(tmp_path / "old")], "exists already"),
        ([*crops, "--output", str(tmp_path / "new"), "--max-faces", "0"], "max_faces"),
        ([str(seven), "--output", str(tmp_path / "new")], "Expected labels"),
        ([*crops, "--output", str(drawn / "faces.parquet")], "Cannot write"),
    ):
        with pytest.raises(SystemExit):
            main(["faithfulness", *words, "--checkpoint", str(checkpoint)])
        assert reason in capsys.readouterr().err


def test_results_are_replaced_whole_and_nothing_else(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    words = [str(drawn / "faces.parquet"), "--checkpoint", str(checkpoint), "--max-faces", "2"]
    main(["faithfulness", *words, "--output", str(tmp_path)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(path.name for path in before) == [
        "faithfulness.json",
        "faithfulness.md",
        "faithfulness.png",
        "mine.txt",
    ]

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", fail)  # the last of the three files
        with pytest.raises(SystemExit):
            main(["faithfulness", *words[:-1], "3", "--output", str(tmp_path), "--overwrite"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    main(["faithfulness", *words[:-1], "3", "--output", str(tmp_path), "--overwrite"])
    found = json.loads((tmp_path / "faithfulness.json").read_text())
    assert found["methods"]["raw"]["deletion"]["faces"] == 3
    assert (tmp_path / "mine.txt").read_text() == "mine"
