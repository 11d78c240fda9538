"""No code from files is run, and no network is used without a request."""

import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.store.checkpoint import load_checkpoint
from tests.helpers.commands import TINY, exit_code, fails, main
from tests.helpers.killed import leave_remains
from tests.helpers.processes import PATIENCE


class Payload:
    """The content of a hostile checkpoint: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def faces(drawn: Path) -> str:
    """The option of `fit` that names a manifest."""
    return f"--data.manifest={drawn / 'faces.parquet'}"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return tmp_path / "bad.ckpt"


@pytest.fixture
def state(checkpoint: Path) -> dict[str, Any]:
    """The content of a checkpoint, to be changed and saved."""
    return torch.load(checkpoint, weights_only=True)


def test_a_checkpoint_with_code_is_refused(
    state: dict[str, Any], bad: Path, faces: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    harm = tmp_path / "harm"
    torch.save({**state, "callbacks": Payload(harm)}, bad)
    with pytest.raises(FerVitError, match=r"bad\.ckpt"):
        load(bad)
    for words in (f"--ckpt_path={bad}", f"--model.init={bad}"):
        assert "bad.ckpt" in fails(capsys, "fit", words, faces)
    torch.save({"model": Payload(harm)}, tmp_path / "bad.pth")
    words = [
        f"--model.network.pretrained={tmp_path / 'bad.pth'}",
        "--model.network.backbone=vit_tiny_patch16_224",
    ]
    assert "bad.pth (`--model.network.pretrained`)" in fails(capsys, "fit", *words, faces)
    assert not harm.exists()
    pickle.loads(pickle.dumps(Payload(harm)))
    assert harm.is_dir()  # the payload works


MODULE = {"class_path": "harmful.Network", "init_args": {}}
"""Looking up this class runs the module."""


NAMED = [
    {"network": MODULE},
    {"align": MODULE},
    {"config": "harmful.yaml"},
]
NAMED += [{"class_path": "harmful.Network"}]


@pytest.fixture
def harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that exists once the module `harmful` has run."""
    (tmp_path / "harmful.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\nclass Network: pass\n"
    )
    (tmp_path / "harmful.yaml").write_text(json.dumps(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "harm"


@pytest.mark.parametrize("change", NAMED, ids=json.dumps)
def test_settings_in_a_checkpoint_cannot_name_code(
    change: dict[str, object],
    state: dict[str, Any],
    faces: str,
    harm: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    torch.save(updated(state, {"hyper_parameters": change}), "bad.ckpt")
    assert fails(capsys, "fit", "--ckpt_path=bad.ckpt", faces)
    assert not harm.exists()


def test_private_settings_of_lightning_in_a_checkpoint_are_not_read(
    state: dict[str, Any], faces: str, harm: Path
) -> None:
    private = {"_class_path": "harmful.Network", "_instantiator": "harmful.Network"}
    torch.save(updated(state, {"hyper_parameters": private}), "bad.ckpt")
    assert exit_code("fit", "--ckpt_path=bad.ckpt", faces, "--trainer.fast_dev_run=true") == 0
    assert not harm.exists()


WORST = torch.tensor(-1.0)


@pytest.fixture
def notes(state: dict[str, Any]) -> dict[str, Any]:
    """What Lightning's callback notes in `state`:
    it removes the noted files or folders that are worse.
    """
    values = state["callbacks"][min(name for name in state["callbacks"] if "Checkpoint" in name)]
    values |= {
        "best_model_score": WORST,
        "kth_value": WORST,
        "best_k_models": {},
        "kth_best_model_path": "",
    }
    return values


def test_a_resumed_run_keeps_the_best_checkpoint_of_the_previous_run(
    state: dict[str, Any], notes: dict[str, Any], bad: Path, faces: str, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    notes["best_model_path"] = str(precious)
    torch.save(state, bad)
    remains = leave_remains(tmp_path / "last.ckpt")
    more = [
        f"--ckpt_path={bad}",
        f"--trainer.logger.init_args.save_dir={tmp_path}",
        "--trainer.max_epochs=2",
    ]
    main(["fit", *TINY, faces, *more])
    assert precious.is_dir()
    assert not remains.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"callbacks": [{}]},
        {"callbacks": {"x": "y"}},
        {"loops": {"fit_loop": 3}},
        {"optimizer_states": [3]},
        {"optimizer_states": [{"param_groups": []}]},
    ],
)
def test_a_checkpoint_with_broken_parts_is_refused(
    change: dict[str, object], state: dict[str, Any], bad: Path
) -> None:
    torch.save(state | change, bad)
    with pytest.raises(FerVitError, match=f"its {min(change)} are damaged"):
        load_checkpoint(bad)


@pytest.mark.parametrize(
    "place",
    [
        "callbacks",
        "global_step",
        "loops",
        "loops fit_loop",
        "loops fit_loop epoch_progress",
        "lr_schedulers",
        "lr_schedulers 0 lr_lambdas",
        "optimizer_states",
        "optimizer_states 0 state",
        "optimizer_states 0 param_groups",
        "pytorch-lightning_version",
    ],
)
def test_a_checkpoint_that_lacks_one_key_ends_a_resumed_run_with_one_line(
    place: str,
    state: dict[str, Any],
    bad: Path,
    faces: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    *above, key = place.split()
    part: Any = state
    for name in above:
        part = part[int(name) if isinstance(part, list) else name]
    del part[key]
    torch.save(state, bad)
    logs = f"--trainer.logger.init_args.save_dir={tmp_path}"
    line = fails(capsys, "fit", f"--ckpt_path={bad}", faces, logs, "--trainer.max_epochs=2")
    assert str(bad) in line
    assert "Choose a checkpoint that `fer-vit fit` wrote" in line


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("loops fit_loop epoch_loop.batch_progress total ready", None),
        ("optimizer_states 0 state 0 exp_avg", torch.zeros(1)),
        ("optimizer_states 0 state 1 exp_avg_sq", "remove"),
        ("lr_schedulers 0 last_epoch", 10**400),
        ("lr_schedulers 0 _last_lr 0", {}),
    ],
)
def test_a_damaged_value_is_named_before_a_run_resumes(
    place: str,
    value: object,
    state: dict[str, Any],
    bad: Path,
    faces: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    *above, key = (int(name) if name.isdigit() else name for name in place.split())
    part: Any = state
    for name in above:
        part = part[name]
    if value == "remove":
        del part[key]
    else:
        part[key] = value
    torch.save(state, bad)
    logs = tmp_path / "runs"
    options = [f"--trainer.logger.init_args.save_dir={logs}", "--trainer.max_epochs=2"]
    line = fails(capsys, "fit", f"--ckpt_path={bad}", faces, *options)
    assert f"{bad} is damaged: expected " in line
    assert f".{key} to be" in line or f".{key}." in line
    assert not logs.exists()


def updated(old: Any, change: Any) -> Any:
    """Returns a tree with some of its leaves replaced or added."""
    both = isinstance(old, dict) and isinstance(change, dict)
    return (
        dict(old) | {name: updated(old.get(name), part) for name, part in change.items()}
        if both
        else change
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hyper_parameters": {"network": {"embed_dim": 10**9}}}, "from 1 to 16384"),
        ({"hyper_parameters": {"network": {"embed_dim": 16_384}}}, "from another version"),
        (
            {"hyper_parameters": {"network": {"img_size": 2048, "patch_size": 1}}},
            "from another version",
        ),
        ({"hyper_parameters": {"labels": ["a\x1b[2J", "b"]}}, "printable characters"),
        ({"state_dict": {"net.vit.norm.bias": torch.zeros(1).expand(10**9)}}, "claims more"),
        ({"state_dict": {"net.vit.norm.bias": 1}}, "claims more"),
        ({"state_dict": {"net.vit.norm.bias": torch.full((32,), torch.nan)}}, "not finite"),
        ({"state_dict": None}, "not a fer-vit checkpoint"),
        ({"hyper_parameters": [1]}, "not a fer-vit checkpoint"),
        ("200 blocks", "claims more"),
    ],
)
def test_claims_are_checked_before_they_take_memory(
    change: Any,
    words: str,
    state: dict[str, Any],
    bad: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    if change == "200 blocks":  # the blocks share their bytes in the file
        weights = state["state_dict"]
        change = {"hyper_parameters": {"network": {"depth": 200}}}
        for name in [name for name in weights if ".blocks.0." in name]:
            weights |= {
                name.replace(".blocks.0.", f".blocks.{block}."): weights[name]
                for block in range(2, 200)
            }
    torch.save(updated(state, change), bad)
    with pytest.raises(FerVitError, match=words) as error:
        load(bad)
    line = fails(capsys, "validate", f"--ckpt_path={bad}")
    assert re.search(words.removeprefix("^"), line)
    for message in (str(error.value), line):
        assert "\n" not in message
        assert len(message) < 520


def test_a_compressed_checkpoint_is_refused(checkpoint: Path, bad: Path) -> None:
    with (
        zipfile.ZipFile(checkpoint) as whole,
        zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert torch.load(bad, weights_only=True)  # torch alone reads this file
    with pytest.raises(FerVitError, match="it is compressed"):
        load_checkpoint(bad)


REQUESTS = {
    "an address": "import socket; socket.create_connection(('192.0.2.1', 9), timeout=1)",
    "the hub": "import huggingface_hub; huggingface_hub.hf_hub_download('no-user/no-model', 'x')",
}


@pytest.mark.parametrize("program", REQUESTS.values(), ids=REQUESTS)
def test_no_test_uses_the_network(program: str) -> None:
    with pytest.raises(BaseException, match=r"^socket\.") as error:
        exec(program)
    # a BaseException, which no `except Exception` hides
    assert error.typename == "NetworkAskedError"
    # `tests/offline/sitecustomize.py` blocks the network in child processes, too
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert "NetworkAskedError: " in done.stderr
    assert done.returncode


KNOWN_PROBLEMS = {
    "lightning": ("2.6.2", "2.6.3"),  # published by an attacker
    "python-multipart": ("0.0.18", "0.0.20"),  # no limit for the head of a part
    "h11": ("0.14.0",),  # CVE-2025-43859
    "pillow": ("11.3.0", "12.0.0"),  # CVE-2026-25990
}
"""Releases that may not be installed."""


def test_every_dependency_has_bounds_that_the_pinned_version_keeps() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (root / "constraints.txt").read_text().split()
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines)
    }
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    needed = [
        Requirement(line)
        for line in sum(project["optional-dependencies"].values(), project["dependencies"])
    ]
    for requirement in needed:
        if requirement.name == project["name"]:
            continue
        operators = {part.operator for part in requirement.specifier}
        assert operators >= {"<", ">="} or "==" in operators, requirement
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), requirement
    for requirement in needed:
        for release in KNOWN_PROBLEMS.get(requirement.name, ()):
            assert not requirement.specifier.contains(release), requirement
    assert {*KNOWN_PROBLEMS} <= {requirement.name for requirement in needed}
