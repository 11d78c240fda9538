"""No code from files is run, and no network is used without a request."""

import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.store.folder import load_checkpoint
from fer_vit.train.cli import train
from tests.helpers.commands import TINY, fails, main


class Payload:
    """The content of a hostile checkpoint: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_code_is_refused(
    checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, harm = tmp_path / "bad.ckpt", tmp_path / "harm"
    torch.save({**torch.load(checkpoint, weights_only=True), "callbacks": Payload(harm)}, bad)
    with pytest.raises(FerVitError, match=r"bad\.ckpt"):
        load(bad)
    for words in ([f"--ckpt_path={bad}"], [f"--model.init={bad}"]):
        assert "bad.ckpt" in fails(capsys, "fit", *words, f"--data.manifest={drawn / 'faces.parquet'}")
    assert not harm.exists()
    pickle.loads(pickle.dumps(Payload(harm)))
    assert harm.is_dir()  # it would have worked


def test_a_backbone_with_code_is_refused(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": Payload(tmp_path / "harm")}, tmp_path / "bad.pth")
    words = [f"--model.network.pretrained={tmp_path / 'bad.pth'}", f"--data.manifest={drawn / 'faces.parquet'}"]
    line = fails(capsys, "fit", *words, "--model.network.backbone=vit_tiny_patch16_224")
    assert "Cannot build the backbone" in line
    assert not (tmp_path / "harm").exists()


MODULE = {"class_path": "harmful.Network", "init_args": {}}
"""Looking up this class runs the module."""


@pytest.mark.parametrize(
    "change",
    [
        {"network": MODULE},
        {"network": "harmful.yaml"},
        {"class_path": "harmful.Network"},
        {"_class_path": "harmful.Network", "_instantiator": "harmful.Network"},
        {"align": MODULE},
        {"config": "harmful.yaml"},
    ],
    ids=json.dumps,
)
def test_settings_in_a_checkpoint_cannot_name_code(
    change: dict[str, object],
    checkpoint: Path,
    drawn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "harmful.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\nclass Network: pass\n")
    (tmp_path / "harmful.yaml").write_text(json.dumps(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "hyper_parameters": state["hyper_parameters"] | change}, "bad.ckpt")
    assert fails(capsys, "fit", "--ckpt_path=bad.ckpt", f"--data.manifest={drawn / 'faces.parquet'}")
    assert not (tmp_path / "harm").exists()


def test_a_resumed_run_keeps_the_best_checkpoint_of_the_previous_run(
    checkpoint: Path, drawn: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    state = torch.load(checkpoint, weights_only=True)
    name = min(name for name in state["callbacks"] if "Checkpoint" in name)
    notes = {**state["callbacks"][name], "best_model_score": torch.tensor(-1.0), "kth_value": torch.tensor(-1.0)}
    notes |= {"best_k_models": {}, "kth_best_model_path": "", "best_model_path": str(precious)}
    torch.save({**state, "callbacks": state["callbacks"] | {name: notes}}, tmp_path / "bad.ckpt")
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    more = [f"--ckpt_path={tmp_path / 'bad.ckpt'}", f"--trainer.logger.init_args.save_dir={tmp_path}"]
    main(["fit", *TINY, manifest, *more, "--trainer.max_epochs=2"])
    assert precious.is_dir()


@pytest.mark.parametrize("note", ["best_k_models", "kth_best_model_path", "last_model_path", "best_model_path"])
@pytest.mark.parametrize("place", ["local://{}", "{}", "{}/../x.ckpt", "simplecache::{}"])
def test_a_resumed_run_removes_no_foreign_files(note: str, place: str, checkpoint: Path, tmp_path: Path) -> None:
    """Lightning removes what a checkpoint notes as older ones, folders as well."""
    precious = tmp_path / "precious"
    precious.mkdir()
    where, worst = place.format(precious), torch.tensor(-1.0)
    state = torch.load(checkpoint, weights_only=True)
    name = min(name for name in state["callbacks"] if "Checkpoint" in name)
    for dirpath in (state["callbacks"][name]["dirpath"], None):
        notes = {key: value for key, value in state["callbacks"][name].items() if key != "dirpath" or dirpath}
        notes |= {"best_model_score": worst, "kth_value": worst, "best_k_models": {}, "kth_best_model_path": ""}
        notes |= {note: {where: worst} if note == "best_k_models" else where}
        torch.save({**state, "callbacks": state["callbacks"] | {name: notes}}, tmp_path / "bad.ckpt")
        if note == "best_model_path" and place == "{}":
            load_checkpoint(tmp_path / "bad.ckpt")  # perhaps of the previous run; Lightning keeps it
        else:
            with pytest.raises(FerVitError, match="which is not in the run's folder and could be lost"):
                load_checkpoint(tmp_path / "bad.ckpt")


@pytest.mark.parametrize(
    "change",
    [
        {"callbacks": [1]},
        {"callbacks": [{}]},
        {"callbacks": {"x": "y"}},
        {"loops": {"fit_loop": 3}},
        {"optimizer_states": [3]},
    ],
)
def test_a_checkpoint_with_broken_parts_is_refused(change: dict[str, object], checkpoint: Path, tmp_path: Path) -> None:
    torch.save({**torch.load(checkpoint, weights_only=True), **change}, tmp_path / "bad.ckpt")
    with pytest.raises(FerVitError, match=f"its {min(change)} are damaged"):
        load_checkpoint(tmp_path / "bad.ckpt")


def changed(checkpoint: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    state = torch.load(checkpoint, weights_only=True)
    change(state)
    torch.save(state, path)
    return path


def one_short_line(text: str) -> None:
    assert "\n" not in text
    assert len(text) < 500


def expanding(state: dict[str, Any]) -> None:
    """Settings of a few bytes that hold the same list 2^60 times."""
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    state["hyper_parameters"]["align"] = shared


def larger(state: dict[str, Any]) -> None:
    """Weights for 200 blocks that share their bytes in the file, and settings for such a network."""
    network, weights = state["hyper_parameters"]["network"], state["state_dict"]
    for name in [name for name in weights if ".blocks.0." in name]:
        for block in range(2, 200):
            weights[name.replace(".blocks.0.", f".blocks.{block}.")] = weights[name]
    network["depth"] = 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state["hyper_parameters"]["network"].update(embed_dim=10**9), "from 1 to 16384"),
        (lambda state: state["hyper_parameters"]["network"].update(embed_dim=16_384), "of another version"),
        (lambda state: state["hyper_parameters"]["network"].update(img_size=10**400), "from 1 to 2048"),
        (lambda state: state["hyper_parameters"]["network"].update(img_size=2048, patch_size=1), "of another version"),
        (lambda state: state["hyper_parameters"].update(labels=["a\x1b[2J", "b"]), "printable characters"),
        (larger, "claims more weights than it contains"),
        (expanding, "not a checkpoint that can be read safely"),
        (lambda state: state["state_dict"].update({"net.vit.norm.bias": torch.zeros(1).expand(10**9)}), "claims more"),
        (lambda state: state["state_dict"].update({"net.vit.norm.bias": 1}), "claims more"),
        (lambda state: state["state_dict"].update({3: torch.zeros(1)}), "not a checkpoint of fer-vit"),
        (lambda state: state["state_dict"]["net.vit.norm.bias"].fill_(torch.nan), "not finite"),
        (lambda state: state.update(hyper_parameters=[1]), "not a checkpoint of fer-vit"),
        (lambda state: state.update(state_dict=None), "not a checkpoint of fer-vit"),
    ],
)
def test_what_a_checkpoint_claims_is_checked_before_it_takes_memory(
    change: Callable[[dict[str, Any]], object], words: str, checkpoint: Path, tmp_path: Path
) -> None:
    bad = changed(checkpoint, tmp_path / "bad.ckpt", change)
    with pytest.raises(FerVitError, match=words) as error:
        load(bad)
    one_short_line(str(error.value))
    with pytest.raises(FerVitError, match=words):
        train(["validate", f"--ckpt_path={bad}"])


def test_a_compressed_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(checkpoint) as whole,
        zipfile.ZipFile(tmp_path / "x.ckpt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert torch.load(tmp_path / "x.ckpt", weights_only=True)  # torch would read it
    with pytest.raises(FerVitError, match="not a checkpoint that can be read safely"):
        load_checkpoint(tmp_path / "x.ckpt")


REQUESTS = {
    "an address": "import socket; socket.create_connection(('192.0.2.1', 9), timeout=1)",
    "the hub": "import huggingface_hub; huggingface_hub.hf_hub_download('no-user/no-model', 'x')",
}


@pytest.mark.parametrize("program", REQUESTS.values(), ids=REQUESTS)
def test_no_test_uses_the_network(program: str) -> None:
    with pytest.raises(BaseException, match=r"^socket\.") as error:
        exec(program)
    assert error.typename == "NetworkAskedError"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "NetworkAskedError: " in done.stderr
    assert done.returncode


def test_every_dependency_has_bounds_that_the_pinned_version_keeps() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (root / "constraints.txt").read_text().split()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    needed = [Requirement(line) for line in sum(project["optional-dependencies"].values(), project["dependencies"])]
    for one in (one for one in needed if one.name != project["name"]):
        assert {"<", ">="} <= {part.operator for part in one.specifier} or "==" in str(one.specifier), one
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), one
    (lightning,) = (one.specifier for one in needed if one.name == "lightning")
    assert not lightning.contains("2.6.2")
    assert not lightning.contains("2.6.3")
