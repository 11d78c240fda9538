"""Fine-tuning: copied weights and frozen parts."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.face.image import encode_png
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.sources.cartoon import draw_face
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.model_folder import load_network, save_network
from fer_vit.train.task import FERTask
from tests.helpers.commands import TINY, fit
from tests.train.test_task import NETWORK, with_trainer

Start = Callable[[RegionViT, RegionViT], str]


def build(labels: str = "abc", seed: int = 0, **change: object) -> RegionViT:
    torch.manual_seed(seed)
    return build_model(replace(NETWORK, **change), list(labels))


@pytest.fixture
def start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Start:
    """Gives a network the weights of a task like it that starts from another network;
    returns what is printed.
    """

    def start_from(net: RegionViT, started_from: RegionViT) -> str:
        save_network(started_from, tmp_path / "other")
        caplog.clear()
        caplog.set_level("INFO", "fer_vit")
        torch.manual_seed(0)
        task = FERTask(net.config, list(net.settings.labels), init=str(tmp_path / "other"))
        net.load_state_dict(task.net.state_dict())
        return caplog.messages[-1].replace(str(tmp_path / "other"), "other")

    return start_from


@pytest.mark.parametrize("pool", ["token", "additive", "query"])
def test_classes_of_the_same_name_keep_their_rows(pool: str, start: Start) -> None:
    started_from = build("abc", 1, pool=pool)
    net = build("cxa", pool=pool)
    fresh = {name: value.clone() for name, value in net.state_dict().items()}
    total = len(encoder(net))
    line = f"Started from other: {total} of {total} tensors of the encoder; kept c, a; new x."
    assert start(net, started_from) == line
    before = started_from.state_dict()
    after = net.state_dict()
    copied = ["vit.head.weight", "vit.head.bias"]
    if pool == "query":
        copied.append("pool.query")
    for name in copied:
        assert torch.equal(after[name][[0, 2]], before[name][[2, 0]])
        assert torch.equal(after[name][1], fresh[name][1])
    rows = ("vit.head.weight", "vit.head.bias", "pool.query")
    assert all(
        torch.equal(value, before[name]) for name, value in after.items() if name not in rows
    )


def encoder(net: RegionViT) -> list[str]:
    fixed = {name for name, value in net.named_parameters() if not value.requires_grad}
    return [
        name
        for name in net.state_dict()
        if not name.startswith(("pool.", "vit.head.")) and name not in fixed
    ]


def test_a_head_of_another_kind_or_other_classes_start_fresh(start: Start) -> None:
    for started_from, net in (
        (build(seed=1, pool="query"), build(pool="avg")),
        (build("xyz", 1, pool="additive"), build(pool="additive")),
    ):
        fresh = {name: value.clone() for name, value in net.state_dict().items()}
        assert "; new a, b, c" in start(net, started_from)
        assert all(
            torch.equal(net.state_dict()[name], fresh[name])
            for name in fresh
            if name not in encoder(net)
        )
        assert torch.equal(
            net.vit.blocks[0].attn.qkv.weight, started_from.vit.blocks[0].attn.qkv.weight
        )


def test_differences_are_listed(start: Start) -> None:
    net = build(regions=("mouth", "chin"), dropout=0.1, pos_embed="sincos_2d")
    started_from = build(seed=1)
    positions = net.vit.pos_embed.clone()
    line = start(net, started_from)
    assert torch.equal(net.vit.pos_embed, positions)  # computed
    total = len(encoder(net))
    assert line == (
        f"Started from other: {total - 1} of {total} tensors of the encoder; kept a, b, c; not "
        "copied: region_embed.name_embed.chin (missing there, float (4, 32) here), "
        "region_embed.name_embed.nose (float "
        "(4, 32) there, missing here); different settings: regions, pos_embed, dropout."
    )
    several = build(regions=("mouth", "chin", "left_eye", "right_eye"))
    assert "float (4, 32) here) and 1 more" in start(several, started_from)


def test_learned_positions_are_resampled_for_another_image_size(start: Start) -> None:
    started_from = build(img_size=32)
    net = build(img_size=64)
    assert started_from.vit.num_prefix_tokens == 1
    plane = torch.arange(4.0)[:, None] + 10 * torch.arange(4.0)  # linear over the grid of patches
    with torch.no_grad():
        started_from.vit.pos_embed[0, 1:] = plane.reshape(16, 1)
    line = start(net, started_from)
    assert "resampled: vit.pos_embed; different settings: img_size." in line
    assert "not copied" not in line
    assert torch.equal(
        net.vit.pos_embed[:, 0], started_from.vit.pos_embed[:, 0]
    )  # the class token's

    # cubic interpolation keeps a plane, apart from its edges
    places = torch.arange(8) / 2 - 0.25
    expected = places[:, None] + 10 * places
    grid = net.vit.pos_embed[0, 1:, 5].reshape(8, 8)
    torch.testing.assert_close(grid[4, 4], expected[4, 4], atol=1e-4, rtol=0)
    torch.testing.assert_close(grid[3, 4], expected[3, 4], atol=1e-4, rtol=0)


def test_patch_kernels_are_resampled_for_another_patch_size(start: Start) -> None:
    change = {"stem": "patch", "depth": 5, "tokens": "both", "img_size": 64}
    started_from = build(patch_size=8, **change)
    net = build(patch_size=16, **change)
    with torch.no_grad():
        for embed in (started_from.vit.patch_embed, started_from.region_embed.patch_embed):
            embed.proj.weight.fill_(1 / 64)  # the mean of a patch
    assert "not copied" not in start(net, started_from)
    for embed in (net.vit.patch_embed, net.region_embed.patch_embed):
        embedded = embed.proj(torch.full((1, 3, 16, 16), 0.5)) - embed.proj.bias[:, None, None]
        torch.testing.assert_close(embedded, torch.full_like(embedded, 1.5), atol=1e-4, rtol=0)


def test_positions_of_other_prefix_tokens_are_not_copied(start: Start) -> None:
    net = build(img_size=64, reg_tokens=2)
    before = net.vit.pos_embed.clone()
    assert "not copied: vit.reg_token" in start(net, build())
    assert torch.equal(net.vit.pos_embed, before)


@pytest.mark.parametrize("change", [{"embed_dim": 64}, {"depth": 5}, {"stem": "patch"}])
def test_less_than_nine_tenths_is_refused(change: dict[str, object], start: Start) -> None:
    with pytest.raises(FerVitError, match=rf"nine tenths .*settings: {next(iter(change))}\."):
        start(build(**change), build())


def test_weights_that_are_not_finite_are_refused(start: Start) -> None:
    started_from = build(seed=1)
    started_from.vit.norm.weight.data[3] = torch.nan
    with pytest.raises(FerVitError, match=r"other .*`vit.norm.weight`"):
        start(build(), started_from)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest with two known classes and a new one."""
    folder = tmp_path_factory.mktemp("mine")
    names = {"calm": "neutral", "happiness": "happiness", "anger": "anger"}
    rows = []
    for name, drawn in names.items():
        for seed in range(16):
            image = encode_png(draw_face(drawn, seed, 48)[0])
            split = "val" if seed % 4 == 3 else "train"
            rows.append(Row(image, f"{name}-{seed}", split, name))
    write_manifest(folder / "mine.parquet", Reading(tuple(names), rows), "drawn")
    return folder / "mine.parquet"


@pytest.mark.slow
def test_a_start_from_a_folder_and_resuming_alone(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    network = replace(NETWORK, regions=("mouth", "nose", "chin"))
    started_from = build_model(
        network,
        EXPRESSIONS,
        crop=CropSpec(network.img_size, network.regions, "crop", ((0.5, 0.5),) * 5),
    )
    save_network(started_from, tmp_path / "other")
    words = [
        f"--model.init={tmp_path / 'other'}",
        "--model.network.dropout=0.1",
        "--model.freeze=encoder",
    ]
    first = fit(mine, tmp_path / "first", *TINY[5:], *words)
    out = capsys.readouterr().out
    assert re.search(r"happiness, anger; new calm; .*: dropout\.", out)
    net = load_network(first)
    assert net.config == replace(started_from.config, dropout=0.1)
    assert net.settings == replace(started_from.settings, labels=["calm", "happiness", "anger"])
    assert torch.equal(net.vit.norm.weight, started_from.vit.norm.weight)
    assert load_checkpoint(first)["hyper_parameters"]["init"] is None
    (tmp_path / "other" / "model.safetensors").unlink()
    again = fit(
        mine,
        tmp_path / "again",
        *TINY[5:],
        *words,
        "--trainer.max_epochs=2",
        f"--ckpt_path={first}",
    )
    assert load_checkpoint(again)["epoch"] == 1
    assert "Started from" not in capsys.readouterr().out
    FERTask.load_from_checkpoint(again, weights_only=True)


def test_python_starts_from_the_shipped_model() -> None:
    shipped = load_network("ferplus-fairface-small")
    task = FERTask(labels=["fear", "calm"], init="ferplus-fairface-small", freeze="stem")
    assert task.net.config == shipped.config
    assert task.net.settings.crop.template == shipped.settings.crop.template
    assert torch.equal(task.net.vit.head.weight[0], shipped.vit.head.weight[6])
    assert torch.equal(
        task.net.vit.patch_embed.early[0][0].weight, shipped.vit.patch_embed.early[0][0].weight
    )
    assert task.hparams["init"] is None
    again = FERTask(**task.hparams)
    saved = {"state_dict": task.state_dict()}
    assert again.hparams == task.hparams
    assert again.net.config == task.net.config
    with_trainer(task, datamodule=None).on_save_checkpoint(saved)
    again.on_load_checkpoint(saved)


def test_a_frozen_stem_stays_bit_for_bit(mine: Path, tmp_path: Path) -> None:
    task = FERTask(NETWORK, list(EXPRESSIONS))
    save_network(task.net, tmp_path / "other")
    before = task.net.state_dict()
    words = [
        "--model.layer_decay=0.5",
        "--trainer.callbacks+=fer_vit.callbacks.EMA",
        "--trainer.max_epochs=2",
    ]
    words += [f"--model.init={tmp_path / 'other'}", "--model.freeze=stem"]
    last = fit(mine, tmp_path / "run", *TINY[5:], *words)
    saved = load_checkpoint(last)
    for part in ("state_dict", "current_model_state"):
        after = {name.removeprefix("net."): value for name, value in saved[part].items()}
        for name, value in before.items():
            if name.startswith(("vit.head", "pool")):
                continue
            assert torch.equal(after[name], value) == ("patch_embed" in name), name
    learned = sum(len(group["params"]) for group in saved["optimizer_states"][0]["param_groups"])
    expected = [name for name, _ in task.net.named_parameters() if "patch_embed" not in name]
    assert learned == len(saved["optimizer_states"][0]["state"]) == len(expected)


def test_frozen_parts_evaluate() -> None:
    for freeze, stem, block in (
        ("none", True, True),
        ("stem", False, True),
        ("encoder", False, False),
    ):
        task = FERTask(NETWORK, ["a", "b"], freeze=freeze)
        for _ in range(2):
            assert task.net.vit.patch_embed.early[0][1].training == stem
            assert task.net.vit.blocks[1].training == block
            assert task.net.region_embed is not None
            assert task.net.region_embed.patch_embed.early[0][1].training == stem
            assert task.net.vit.head.training
            task.eval()
            assert not any(module.training for module in task.modules())
            task.train()
