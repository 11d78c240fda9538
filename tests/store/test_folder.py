import copy
import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
import torch
from huggingface_hub import CommitInfo, HfApi, ModelCard, RepoUrl
from huggingface_hub.errors import DryRunError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load, load_file, save_file

from fer_vit import RegionViT, build_model
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.config import RegionViTConfig
from fer_vit.store.average import average_networks
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.config_files import find_config, shipped_configs
from fer_vit.store.hub import DEFAULT_MODEL, push
from fer_vit.store.model_folder import build_network, load_network, read_model, save_network

NETWORK = RegionViTConfig(
    img_size=32,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=2,
    regions=("mouth", "nose"),
    keep_rate=(1.0, 0.5),
)
THRESHOLDS = {"90": [0.4, 0.3, 0.2, 0.1], "95": [0.2, 0.1, 0.05, 0.0]}
TEMPLATE = ((0.3, 0.4), (0.7, 0.4), (0.5, 0.6), (0.35, 0.8), (0.65, 0.8))
CROP = CropSpec(NETWORK.img_size, NETWORK.regions, "crop", TEMPLATE)


@pytest.fixture
def net() -> RegionViT:
    torch.manual_seed(0)
    net = build_model(NETWORK, ["sadness", "fear", "anger"], crop=CROP, temperature=1.5).eval()
    use_fused_attention(net, fused=False)
    return net


def logits(net: RegionViT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return net.logits(
        torch.rand(2, 3, 32, 32, generator=generator),
        torch.tensor([[4.0, 4.0, 20.0, 20.0]]).expand(2, 2, 4),
    )


def test_a_folder_brings_the_whole_model_back(net: RegionViT, tmp_path: Path) -> None:
    net.settings.thresholds = THRESHOLDS
    save_network(net, tmp_path / "model")
    again = load_network(tmp_path / "model")
    assert not again.training
    assert again.config == NETWORK
    assert again.settings == net.settings
    assert torch.equal(logits(again), logits(net))
    assert ModelCard.load(tmp_path / "model" / "README.md").data.library_name == "fer-vit"


def test_a_stored_model_has_typed_settings_that_its_networks_do_not_change(
    net: RegionViT, tmp_path: Path
) -> None:
    save_network(net, tmp_path / "model")
    stored = read_model(tmp_path / "model")
    assert stored.name == tmp_path / "model"
    assert stored.config == NETWORK
    assert stored.settings == net.settings
    assert stored.state.keys() == net.state_dict().keys()

    built = build_network(stored)
    built.adjust([0.2, 0.3, 0.5], 1.0)
    built.settings.labels.reverse()
    assert stored.settings == net.settings


def test_a_folder_brings_every_head_back(tmp_path: Path) -> None:
    outputs = {"movements": ["jawOpen", "mouthSmileLeft"], "affect": ["valence"]}
    saved = build_model(NETWORK, ["sadness", "fear", "anger"], outputs=outputs).eval()
    save_network(saved, tmp_path / "model")
    again = load_network(tmp_path / "model")
    assert again.settings.outputs.plain == outputs
    face = torch.rand(2, 3, 32, 32), torch.tensor([[4.0, 4.0, 20.0, 20.0]]).expand(2, 2, 4)
    raw = again(*face)
    assert [*raw] == ["expression", "movements", "affect"]
    for head, values in saved(*face).items():
        assert torch.allclose(raw[head], values, atol=1e-6)


def test_half_precision_is_read_into_float32(net: RegionViT, tmp_path: Path) -> None:
    save_network(copy.deepcopy(net).half(), tmp_path)
    assert {str(value.dtype) for value in load_file(tmp_path / "model.safetensors").values()} == {
        "torch.float16"
    }
    again = load_network(tmp_path)
    assert {value.dtype for value in again.state_dict().values()} == {torch.float32}
    assert torch.allclose(logits(again), logits(net), atol=5e-3)


def test_an_average_is_that_of_a_loop_and_counters_stay(tmp_path: Path) -> None:
    names = [str(tmp_path / str(seed)) for seed in range(3)]
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        # the average takes `standardize` from the first model
        network = replace(NETWORK, stem="conv", standardize=seed == 0)
        part = build_model(network, "abc", temperature=2.0, thresholds=THRESHOLDS)
        for value in part.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value))  # positive: the models count as related
            else:
                value.fill_(7 + seed)
        save_network(part, Path(name))
    soup = average_networks(names)
    states = [load_file(f"{name}/model.safetensors") for name in names]
    assert (soup.settings.temperature, soup.settings.thresholds, soup.training) == (1.0, {}, False)
    assert soup.config.standardize
    average = soup.state_dict()
    assert sum(key.endswith("num_batches_tracked") for key in average) > 0
    assert any(key.endswith("running_var") for key in average)
    for key, value in average.items():
        flat = [state[key].double().flatten().tolist() for state in states]
        expected = [
            math.fsum(parts) / 3 if value.is_floating_point() else 7
            for parts in zip(*flat, strict=True)
        ]
        assert np.array_equal(value.flatten().numpy(), np.array(expected, value.numpy().dtype))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("config", {"config": replace(NETWORK, pool="avg")}),
        ("labels", {"labels": ["fear", "sadness", "anger"]}),
        ("crop", {"crop": replace(CROP, align="landmarks")}),
        ("crop", {"crop": replace(CROP, template=TEMPLATE[::-1])}),
    ],
)
def test_models_that_cannot_be_averaged(
    what: str, change: dict[str, Any], net: RegionViT, tmp_path: Path
) -> None:
    save_network(net, tmp_path / "one")
    settings = {"config": NETWORK, "labels": net.settings.labels, "crop": CROP}
    save_network(build_model(**{**settings, **change}), tmp_path / "other")
    first = str(tmp_path / "one")
    second = str(tmp_path / "other")
    assert average_networks([first, first]).settings.labels == net.settings.labels
    with pytest.raises(FerVitError, match=f"^{second} .*{what} .*{first}"):
        average_networks([first, second])


@pytest.mark.parametrize("noise", [0.5, 0.9])
def test_relatives_are_averaged(noise: float, net: RegionViT, tmp_path: Path) -> None:
    save_network(net, tmp_path / "one")
    for value in net.state_dict().values():
        if value.is_floating_point():
            value += noise * value.std(correction=0) * torch.randn_like(value)
    save_network(net, tmp_path / "other")
    average_networks([str(tmp_path / "one"), str(tmp_path / "other")])


@pytest.mark.parametrize("initial", [True, False])
def test_separate_trainings_are_not_averaged(initial: bool, tmp_path: Path) -> None:
    names = []
    for seed in range(2):
        torch.manual_seed(seed)
        part = build_model(NETWORK, "abc")
        for value in part.state_dict().values():
            if not initial and value.is_floating_point():
                value.copy_(torch.randn_like(value))
        names.append(str(tmp_path / str(seed)))
        save_network(part, Path(names[-1]))
    with pytest.raises(FerVitError, match=f"{names[1]} and {names[0]} .*init"):
        average_networks(names)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A hub with the signatures of huggingface_hub's methods that stores nothing."""
    api = create_autospec(HfApi)
    monkeypatch.setattr("huggingface_hub.HfApi", api)
    return api


def test_pushes_a_whole_folder(net: RegionViT, tmp_path: Path, hub: Mock) -> None:
    commit = "https://huggingface.co/somebody/model/commit/0123"
    hub.return_value.create_repo.return_value = RepoUrl("https://huggingface.co/somebody/model")
    hub.return_value.upload_folder.return_value = CommitInfo(commit, "message", "", "0123")
    save_network(net, tmp_path / "model")
    assert push(str(tmp_path / "model"), "somebody/model", private=True, token="hf_x") == commit
    hub.assert_called_once_with(token="hf_x")
    hub.return_value.create_repo.assert_called_once_with(
        "somebody/model", private=True, exist_ok=True
    )
    sent = hub.return_value.upload_folder.call_args.kwargs
    assert sent["repo_id"] == "somebody/model"
    assert Path(sent["folder_path"]) == tmp_path / "model"
    (tmp_path / "model" / "notes.txt").write_text("mine")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    pushed = set(filter_repo_objects(files, allow_patterns=sent["allow_patterns"]))
    assert pushed == files - {"notes.txt"} == {"config.json", "model.safetensors", "README.md"}


def test_hub_models_come_out_of_its_cache(
    net: RegionViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, object] = {}

    def snapshot(
        repo: str, dry_run: bool = False, **options: object
    ) -> str | list[SimpleNamespace]:
        if dry_run:
            raise DryRunError("the hub does not answer")
        sent.update(options, repo=repo)
        return str(tmp_path)

    save_network(net, tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    again = load_network("somebody/model", revision="v1")
    assert torch.equal(logits(again), logits(net))
    assert sent["repo"] == "somebody/model"
    assert sent["revision"] == "v1"
    networks = ["model.safetensors", "model.onnx", "model.int8.onnx"]
    assert sent["allow_patterns"] == ["config.json", *networks, "README.md"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            RuntimeError("403 Forbidden\nfrom a proxy"),
            r"somebody/model .*\(403 Forbidden\)\.$",
        ),
        (
            [6_000_000_000, None, 6_000_000_000],
            "10,000,000,000 bytes .*somebody/model .* 12,000,000,",
        ),
    ],
)
def test_errors_of_a_download_are_one_line(
    answer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(*_: object, dry_run: bool = False, **__: object) -> list[SimpleNamespace]:
        assert dry_run, "it is fetched"
        if isinstance(answer, Exception):  # the error class depends on the HTTP client
            raise answer
        return [SimpleNamespace(file_size=size) for size in answer]

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(FerVitError, match=message):
        read_model("somebody/model")


def test_the_hub_is_sent_over_https_alone(
    net: RegionViT, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://mirror.example")
    save_network(net, tmp_path / "model")
    with pytest.raises(FerVitError, match="HF_ENDPOINT"):
        push(tmp_path / "model", "somebody/model")
    with pytest.raises(FerVitError, match=r"HF_ENDPOINT .*http://mirror.example"):
        read_model("somebody/model")
    with pytest.raises(FerVitError, match="cannot get somebody/model"):  # no request
        read_model("somebody/model", local_files_only=True, cache_dir=tmp_path)


def test_weights_of_the_hub_have_its_sha256(
    net: RegionViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the hub's cache lays them out: a link to a file that has the sha256 as its name."""
    save_network(net, tmp_path / "snapshot")
    weights = tmp_path / "snapshot" / "model.safetensors"
    blob = tmp_path / hashlib.sha256(weights.read_bytes()).hexdigest()
    weights.replace(blob)
    weights.symlink_to(blob)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: tmp_path / "snapshot")
    read_model("somebody/model", local_files_only=True)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(FerVitError, match=f"sha256 {blob.name}.*Remove"):
        read_model("somebody/model", local_files_only=True)


@pytest.mark.parametrize("name", ["", "no-such-model", "a/b/c", "no-user/no-model", "bad name!/x"])
def test_missing_models(name: str, tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match=rf"{DEFAULT_MODEL}.* hub"):
        load_network(name, local_files_only=True, cache_dir=tmp_path)


def test_a_checkpoint_alone_brings_the_model_back(checkpoint: Path) -> None:
    saved = load_checkpoint(checkpoint)
    net = load_network(checkpoint)
    assert not net.training
    assert asdict(net.config) == saved["hyper_parameters"]["network"]
    assert net.settings.labels == saved["hyper_parameters"]["labels"]
    assert net.settings.crop.template == saved["hyper_parameters"]["template"]
    assert all(
        torch.equal(saved["state_dict"][f"net.{name}"], value)
        for name, value in net.state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": ["a", "a", "b"]}, "labels that differ"),
        (
            {"labels": ["a", "b"]},
            r"`vit.head.weight`: .*\(3, 32\).*\(2, 32\)",
        ),
        ({"config": {"unheard_of": 1}}, "'unheard_of' is not accepted"),
        ({"template": [[1, float("nan")]] * 5}, "five points"),
        ({"config": {"regions": ["a.b"], "tokens": "both"}}, "from another version"),
        ({"faithfulness": {"pixels": ["<b>"]}}, "faithfulness: <b>"),
        ({"faithfulness": {"pixels": [0.1, 0.2]}}, "faithfulness"),
        ({"r": {"pose": {"yaw": 0.5}}}, "expected r to be from -1 to 1"),  # no such output
        ({"r": {"pose": 0.5}}, "expected r to be from -1 to 1"),
        ({"outputs": {"pose": ["yaw"]}, "r": {"pose": {"yaw": "<b>"}}}, "expected r to be"),
        ({"thresholds": {"90": THRESHOLDS["90"]}}, "thresholds .*0 to 1"),
        (
            {"thresholds": {**THRESHOLDS, "95": [0.2]}},
            "thresholds .*0 to 1",
        ),  # one for each label
        (
            {"thresholds": {**THRESHOLDS, "95": [0.2, 0.1, 0.1, float("nan")]}},
            "thresholds .*0 to 1",
        ),
        ({"outputs": {"gaze": ["x"]}}, "a head of .*gaze"),
        ({"outputs": {"pose": ["tilt"]}}, " pose .*tilt"),
        ({"outputs": {"movements": ["<b>"] * 2}}, "outputs of movements that differ"),
        ({"outputs": {"movements": ["jawOpen"]}}, "not in the file|missing|heads.movements"),
        ({"outputs": {"movements": "jawOpen"}}, "list of names"),
        ({"outputs": []}, "list of names"),
        ({"r": []}, "expected r to be"),
        ({"temperature": 0}, "temperature to be from 0.001"),
        ({"temperature": 10**400}, "this version"),
        ({"prior": [0.5, 0.5]}, "prior"),
        ({"adjustment": 0.5}, "adjustment"),
    ],
)
def test_invalid_settings(
    change: dict[str, object], words: str, net: RegionViT, tmp_path: Path
) -> None:
    save_network(net, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(FerVitError, match=words):
        load_network(tmp_path)


def test_damaged_files(net: RegionViT, tmp_path: Path) -> None:
    save_network(net, tmp_path)
    weights = tmp_path / "model.safetensors"
    settings = tmp_path / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(FerVitError, match="cannot be read"):
        read_model(tmp_path)
    save_file({name: value for name, value in load(whole).items() if "head" not in name}, weights)
    with pytest.raises(FerVitError, match=r"`vit.head.weight`: missing, but"):
        load_network(tmp_path)
    for text, message in (
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (f'{{"labels": ["{"a" * 1_000_000}"]}}', r"config.json of at most 1,000,000 bytes"),
    ):
        settings.write_text(text)
        with pytest.raises(FerVitError, match=message):
            read_model(tmp_path)
    weights.unlink()
    with pytest.raises(FerVitError, match=r"has no model.safetensors"):
        read_model(tmp_path)
    settings.unlink()
    with pytest.raises(FerVitError, match=r"has no config.json"):
        read_model(tmp_path)


def test_a_folder_cannot_ask_for_other_weights(net: RegionViT, tmp_path: Path) -> None:
    save_network(net, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["config"]["pretrained"] = str(tmp_path / "elsewhere.pth")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert load_network(tmp_path).config.pretrained is False


def test_invalid_checkpoints(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "text.ckpt").write_text("text")
    saved = load_checkpoint(checkpoint)
    network = saved["hyper_parameters"]["network"]
    # keys in an untrusted file may have any type
    for name, key in (
        ("newer", "unheard_of"),
        ("odd", 1),
    ):
        saved["hyper_parameters"]["network"] = network | {key: 1}
        torch.save(saved, tmp_path / f"{name}.ckpt")
    for name, message in (
        ("gone", "No checkpoint at"),
        ("text", "cannot be read safely"),
        ("newer", "'unheard_of' is not accepted"),
        ("odd", "'1' is not accepted"),
    ):
        with pytest.raises(FerVitError, match=message):
            load_network(tmp_path / f"{name}.ckpt")


CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_package_has_the_configs_of_the_checkout() -> None:
    names = {name: path.read_bytes() for name, path in shipped_configs().items()}
    files = {path.name: path.read_bytes() for path in CONFIGS.glob("*.yaml")}
    assert {f"{name}.yaml": text for name, text in names.items()} == files


@pytest.mark.parametrize(
    "text",
    [
        "model: {x: 2026-99-99}",
        "a: 2026-11-22",
        "lr: 1e-3",
        '{"a": 1}',
        "model:",
        "a: " + "[" * 99 + "]" * 99,
    ],
)
def test_a_config_that_jsonargparse_reads_is_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert find_config(str(path)) == str(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no settings"),
        ("# later\n", "has no settings"),
        ("a: {b: ", "line"),
        ("a: " + "9" * 5000, "has other text"),
        ("[" * 100_000, "more than 100 levels"),
        ("a: !!timestamp foo", "has other text"),
        ("a: !!bool abc", "has other text"),
        ("a: !!int ''", "has other text"),
    ],
    ids=["empty", "comments", "unfinished", "number", "deep", "timestamp", "bool", "int"],
)
def test_a_config_without_settings_is_one_line(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(FerVitError, match=reason) as raised:
        find_config(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "a: {b: ", "a: !!bool abc", "a:b"])
def test_a_config_in_the_command_is_checked_like_a_file(text: str) -> None:
    with pytest.raises(FerVitError, match="the text has"):
        find_config(text)


def test_a_file_is_taken_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("ddp").endswith("configs/ddp.yaml")
    Path("drawn").mkdir()  # a folder is no config
    assert find_config("drawn") == str(shipped_configs()["drawn"])
    Path("drawn").rmdir()
    Path("drawn").write_text("seed_everything: 1")
    assert find_config("drawn") == "drawn"
    assert find_config("{model: {lr: 0.1}}") == "{model: {lr: 0.1}}"
    with pytest.raises(FerVitError, match=r"\(ablation, .*pretrained_vit\).* gone\."):
        find_config("gone")
