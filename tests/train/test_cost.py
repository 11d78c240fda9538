from dataclasses import replace

import pytest
import torch

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.train.run import has_bf16, multiply_adds

SMALL = RegionViTConfig(
    img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, regions=("nose", "mouth"), region_grid=2
)
D, N, R = 32, 16, 2 * 4


def block(tokens: int) -> int:
    """Multiply-adds of a ViT block by hand: qkv 3, projection 1, feed-forward 8 times D^2; scores and sums T^2 D."""
    return 12 * tokens * D * D + 2 * tokens * tokens * D


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (N, R, 3 * block(1 + N + R), D * 5)),
        ({"tokens": "patch"}, (N, 0, 3 * block(1 + N), D * 5)),
        ({"tokens": "region"}, (0, R, 3 * block(1 + R), D * 5)),
        ({"attention": "additive"}, (N, R, 3 * block(1 + N + R), D * 5)),
        ({"pool": "additive"}, (N, R, 3 * block(1 + N + R), D * 5 + 25 * (D * D + D))),
    ],
)
def test_against_the_formula(change: dict[str, object], expected: tuple[int, int, int, int]) -> None:
    parts = multiply_adds(build_model(replace(SMALL, **change), "abcde"))
    patch = 3 * 8 * 8 * D  # of one token's embedding
    assert parts["patches"] == expected[0] * patch
    assert parts["regions"] == expected[1] * patch
    assert parts["encoder"] == expected[2]
    assert parts["head"] == expected[3]


def test_hard_attention_saves_what_it_leaves_out() -> None:
    parts = multiply_adds(build_model(replace(SMALL, keep_rate=(1.0, 0.5, 0.5)), "abcde"))
    full, half, quarter = (1 + n + R for n in (16, 8, 4))
    # Choosing costs a query and every token's key and score.
    choosing = sum(D * D + tokens * D * D + tokens * D for tokens in (full, half))
    assert parts["encoder"] == block(full) + block(half) + block(quarter) + choosing


def test_counting_leaves_the_model_as_it_was() -> None:
    net = build_model(replace(SMALL, stem="conv"), "abcde").train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    multiply_adds(net)
    assert net.training
    assert all(block.attn.fused_attn for block in net.vit.blocks)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, False),  # bfloat16 would be emulated
        ({"avx512_bf16": False, "amx_tile": True, "amx_bf16": True}, True),
        ({"neon": True, "bf16": True}, True),
    ],
)
def test_a_cpu_computes_in_bf16_by_its_instructions(
    capabilities: dict[str, bool], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert [has_bf16(accelerator) for accelerator in ("auto", "cpu")] == [has, has]
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_bf16("auto")


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_computes_in_bf16_unless_the_cpu_is_wanted(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": not native})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert [has_bf16(name) for name in ("auto", "gpu", "cuda", "cpu")] == [native, native, native, not native]
