"""Pretrained weights of anyone: what a state dict needs is read, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from fer_vit.errors import FerVitError
from fer_vit.model.backbone import create_backbone
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.pretrained import read_weights
from tests.helpers.pickles import HEX, PROTOCOL, packed

WEIGHTS = {"a": torch.arange(3.0), "b.c": torch.ones(2, 2, dtype=torch.bfloat16)}


def assert_weights(path: Path) -> None:
    read = read_weights(str(path))
    assert read.keys() == WEIGHTS.keys()
    assert all(torch.equal(read[name], value) for name, value in WEIGHTS.items())


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        {"epoch": 3, "model": WEIGHTS},
        {"model": {}, "state_dict": WEIGHTS},
        {"state_dict": {}, "state_dict_ema": WEIGHTS, "model_ema": None},
        {"state_dict": {f"module.{name}": value for name, value in WEIGHTS.items()}},
    ],
)
def test_weights_are_found_where_timm_finds_them(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    assert_weights(tmp_path / "weights.pth")
    expected = timm.models.load_state_dict(str(tmp_path / "weights.pth"))
    assert expected.keys() == WEIGHTS.keys()


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "weights.safetensors")
    assert_weights(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    "content", [{}, [], 3, {"model": {}}, {"state_dict": [1]}, {"a": 1}, {1: torch.zeros(1)}]
)
def test_a_file_without_weights_loads_no_others(content: Any, tmp_path: Path) -> None:
    """timm downloads the usual weights for an empty state dict."""
    torch.save(content, tmp_path / "weights.pth")
    config = RegionViTConfig(pretrained=str(tmp_path / "weights.pth"), depth=1, tokens="patch")
    with pytest.raises(FerVitError, match="weights"):
        create_backbone(config, 2)


def old_format(path: Path) -> None:
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=False)


def not_a_zip(path: Path) -> None:
    path.write_bytes(b"weights")


def many_calls(path: Path) -> None:
    packed(path, PROTOCOL + HEX + b".")


def shared_numbers(path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(10**9)}, path)


@pytest.mark.parametrize("write", [old_format, not_a_zip, many_calls, shared_numbers])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_other_files_are_one_line(
    write: Callable[[Path], None], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"weights{suffix}"
    write(path)
    with pytest.raises(FerVitError, match="cannot be read safely") as error:
        read_weights(str(path))
    assert "\n" not in str(error.value)


def test_no_second_copy_of_the_weights_stays_with_the_backbone(tmp_path: Path) -> None:
    weights = timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    config = RegionViTConfig(pretrained=str(tmp_path / "weights.pth"), depth=1, tokens="patch")
    vit = create_backbone(config, 2)
    assert torch.equal(vit.blocks[0].attn.qkv.weight, weights["blocks.0.attn.qkv.weight"])
    assert vit.pretrained_cfg["state_dict"] is None
