import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import shipped_model
from tests.helpers.commands import parse_fit

STAGES = [("student", 0), ("student", 1), ("finish", 0), ("finish", 1)]


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
            (save_dir[0] / "val.json").write_text(json.dumps({"accuracy": 0.8 + ("student-1" in str(save_dir[0]))}))
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
    verbs = [words[0] for words in fer_vit.ran]
    train = ["fit", "validate"] * 2
    generation = ["distill", *train, "export", *train, "export"]
    assert verbs == ["prepare", "prepare", *generation, *generation, "-m", "-m"]
    first, second = (tmp_path / f"generation-{number}" for number in (1, 2))
    models = ["ferplus-small", str(first / shipped_model.NAME)]
    assert fer_vit.ran[2][1:2] == models[:1]
    assert fer_vit.ran[13][1:3] == models
    last = [f"--checkpoint={second / f'{stage}-{seed}' / 'run' / 'last.ckpt'}" for stage, seed in STAGES]
    assert f"--model.init={models[0]}" in fer_vit.ran[3]
    assert f"--model.init={models[1]}" in fer_vit.ran[14]
    assert fer_vit.ran[18][2:5] == [*last[:2], f"--checkpoint={models[1]}"]
    assert f"--model.init={second / 'average'}" in fer_vit.ran[19]
    assert fer_vit.ran[-3][2:4] == last[2:]
    assert fer_vit.ran[-2][3] == str(second / shipped_model.NAME)
    settings = parse_fit(*fer_vit.ran[19][1:])  # the second training: what it changes, over the first
    assert (settings.trainer.max_epochs, settings.data.augment.degrees) == (5, 20)
    assert settings.model.network.standardize
    notes = json.loads((tmp_path / "stages.json").read_text())
    assert len(notes) == 18
    assert (tmp_path / "card.md").read_text() == "first\nlast line\n"
    assert notes["prepare FERPlus"]["result"] == "last line"
    assert json.loads(notes["train generation-2/student-1"]["result"])["accuracy"] == 1.8
    fer_vit.ran.clear()
    shipped_model.main()
    assert not fer_vit.ran


def test_it_goes_on_where_it_stopped(fer_vit: FerVit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fer_vit.fails_at = "student-0"
    with pytest.raises(SystemExit, match=r"train generation-1/student-0 failed .* the same command goes on"):
        shipped_model.main()
    assert json.loads((tmp_path / "stages.json").read_text())["train generation-1/student-0"]["result"] is None
    fer_vit.fails_at = ""
    fer_vit.ran.clear()
    shipped_model.main()
    assert fer_vit.ran[0][0] == "fit"
    assert fer_vit.ran[0][-1] == f"--ckpt_path={tmp_path / 'generation-1' / 'student-0' / 'run' / 'last.ckpt'}"
    assert "--ckpt_path" not in " ".join(fer_vit.ran[2])  # student 1 is new
    assert fer_vit.ran[-1][1] == "benchmarks.unsure"
