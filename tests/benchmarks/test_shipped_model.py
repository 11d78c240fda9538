import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import shipped_model
from tests.helpers.commands import parse_fit


class FerVit:
    """Stands in for the program: writes what its commands would, and fails or stops where it is told to."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.fails_at = ""

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        words = command[1:] if command[1] == "-m" else command[2:]
        self.ran.append(words)
        save_dir = [Path(word.partition("=")[2]) for word in words if "save_dir=" in word]
        if words[0] == "fit":
            checkpoint = save_dir[0] / "run" / "last.ckpt"
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write_text("an epoch")
        if self.fails_at and self.fails_at in " ".join(words):
            raise subprocess.CalledProcessError(1, command)
        if words[0] == "validate":
            (save_dir[0] / "val.json").write_text(json.dumps({"accuracy": 0.8 + ("finish-1" in str(save_dir[0]))}))
        elif words[0] not in ("fit", "-m"):
            last = words.index("--unlabelled") - 1 if words[0] == "distill" else 0
            Path(words[{"prepare": 3, "distill": last, "export": 1}[words[0]]]).write_text("made")
        return subprocess.CompletedProcess(command, 0, stdout="first\nlast line\n")


@pytest.fixture
def fer_vit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FerVit:
    stand_in = FerVit()
    monkeypatch.setattr(subprocess, "run", stand_in)
    monkeypatch.setattr(sys, "argv", ["shipped_model", "ferplus.zip", "fairface.zip", str(tmp_path), "--seeds", "2"])
    return stand_in


def test_the_chain_runs_from_the_data_to_the_model_and_only_once(fer_vit: FerVit, tmp_path: Path) -> None:
    shipped_model.main()
    prepared, votes, student, _, *finished, export, card, doubts = fer_vit.ran[1:]
    verbs = [words[0] for words in fer_vit.ran]
    assert verbs == ["prepare", "prepare", "distill", *["fit", "validate"] * 3, "export", "-m", "-m"]
    faces, model = str(tmp_path / "ferplus.parquet"), str(tmp_path / shipped_model.NAME)
    assert prepared[2:] == ["fairface.zip", str(tmp_path / "fairface.parquet")]
    assert votes[1:4] == ["ferplus-small", "ferplus-fairface-small", faces]
    assert not any("model.init" in word for word in student)
    assert parse_fit(*student[1:]).trainer.devices == "2"
    last = [tmp_path / name / "run" / "last.ckpt" for name in ("student", "finish-0", "finish-1")]
    assert f"--model.init={last[0]}" in finished[0]
    assert f"--model.init={last[0]}" in finished[2]
    assert export[1:4] == [model, f"--checkpoint={last[1]}", f"--checkpoint={last[2]}"]
    assert export[4:] == ["--calibrate", faces, "--logit_adjust", "0.15", "--half"]
    assert card[2:4] == [faces, model]
    assert doubts[2:5] == [faces, "ferplus.zip", model]
    settings = parse_fit(*finished[0][1:])  # the second training: what it changes, over the first
    assert (settings.trainer.max_epochs, settings.trainer.devices, settings.data.batch_size) == (14, "auto", 64)
    assert settings.model.network.standardize
    notes = json.loads((tmp_path / "stages.json").read_text())
    assert len(notes) == 9
    assert (tmp_path / "card.md").read_text() == "first\nlast line\n"
    assert notes["prepare FERPlus"]["result"] == "last line"
    assert json.loads(notes["train finish-1"]["result"])["accuracy"] == 1.8
    fer_vit.ran.clear()
    shipped_model.main()
    assert not fer_vit.ran


def test_it_goes_on_where_it_stopped(fer_vit: FerVit, tmp_path: Path) -> None:
    fer_vit.fails_at = "finish-0"
    with pytest.raises(SystemExit, match=r"train finish-0 failed .* the same command goes on"):
        shipped_model.main()
    assert json.loads((tmp_path / "stages.json").read_text())["train finish-0"]["result"] is None
    fer_vit.fails_at = ""
    fer_vit.ran.clear()
    shipped_model.main()
    assert fer_vit.ran[0][0] == "fit"
    assert fer_vit.ran[0][-1] == f"--ckpt_path={tmp_path / 'finish-0' / 'run' / 'last.ckpt'}"
    assert "--ckpt_path" not in " ".join(fer_vit.ran[2])  # the other is new
    assert fer_vit.ran[-1][1] == "benchmarks.unsure"
