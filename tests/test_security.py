"""Nobody is let in: no code out of files, no network unasked."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fer_vit import load
from fer_vit.cli import main
from fer_vit.errors import FerVitError

QUIET = """
import socket, sys

def refuse(event, args):
    # Processes of one machine speak by AF_UNIX
    if event == "socket.getaddrinfo" or (event == "socket.connect" and args[0].family != socket.AF_UNIX):
        raise AssertionError(f"the network is asked: {event} {args}")

sys.addaudithook(refuse)
"""


class Payload:
    """What a stranger puts into a checkpoint: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("verb", ["load", "predict", "export", "fit", "validate"])
def test_a_checkpoint_with_code_is_refused(
    verb: str, checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm = tmp_path / "harm"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "callbacks": Payload(harm)}, tmp_path / "bad.ckpt")
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    words = {
        "predict": [str(drawn), "--checkpoint", str(tmp_path / "bad.ckpt"), "--output", str(tmp_path / "t.csv")],
        "export": [str(tmp_path / "model"), "--checkpoint", str(tmp_path / "bad.ckpt")],
        "fit": [f"--ckpt_path={tmp_path / 'bad.ckpt'}", manifest],
        "validate": [f"--ckpt_path={tmp_path / 'bad.ckpt'}", manifest],
    }
    if verb == "load":
        with pytest.raises(FerVitError, match=r"bad\.ckpt"):
            load(tmp_path / "bad.ckpt")
    else:
        with pytest.raises(SystemExit):
            main([verb, *words[verb]])
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fer-vit: error: ")]
        assert "bad.ckpt" in line
    assert not harm.exists()
    pickle.loads(pickle.dumps(Payload(harm)))
    assert harm.is_dir()  # it would have worked


def test_nothing_asks_the_network_unasked(drawn: Path, tmp_path: Path) -> None:
    words = ["predict", str(drawn / "faces"), "--face=crop", "--detector=none", f"--output={tmp_path / 't.csv'}"]
    modules = "fer_vit, fer_vit.recognizer, fer_vit.commands.train, fer_vit.data.stream, fer_vit.commands.visualize"
    program = f"{QUIET}\nimport {modules}\nfrom fer_vit.cli import main\nmain({words!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.csv").exists()
    asks = f"{QUIET}\nimport urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False, timeout=120)
    assert "AssertionError: the network is asked: socket." in done.stderr  # it would have been seen
