"""What a model costs to run, and whether the machine computes in bfloat16."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT

BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU features for bfloat16 products, by torch's names: two of x86, one of ARM."""


@torch.inference_mode()
def multiply_adds(net: RegionViT) -> dict[str, int]:
    """Counts the multiply-adds of matrix products and convolutions for one face, by torch's own counter.

    Other operations are not counted, though the tanh of additive attention takes longer than its products.

    Returns:
        "patches" and "regions" (embedding them), "encoder" and "head"; they add up to the whole model.
    """
    net = copy.deepcopy(net).cpu().eval()
    use_fused_attention(net, fused=False)
    image = torch.zeros(1, 3, net.config.img_size, net.config.img_size)
    boxes = torch.zeros(1, net.layout.num_regions, 4)
    tokens, embedding = _count(net.tokenize, image, boxes)
    regions = 0
    if net.region_embed is not None:
        _, source = net.embed_patches(net.normalize(image))
        _, regions = _count(net.region_embed, source, boxes)
    encoded, encoder = _count(net.forward_features, tokens)
    _, head = _count(net.forward_head, encoded)
    return {"patches": embedding - regions, "regions": regions, "encoder": encoder, "head": head}


def describe(net: RegionViT) -> str:
    """Describes in one line how large a model is and what a face costs."""
    parts = multiply_adds(net)
    listed = ", ".join(f"{name} {_short(number)}" for name, number in parts.items())
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return (
        f"{_short(parameters)} parameters, {net.layout.num_tokens} tokens; "
        f"{_short(sum(parts.values()))} multiply-adds a face ({listed})"
    )


def _short(number: float) -> str:
    """Three digits and a unit: 21358080 -> "21.4 M"."""
    for unit in ("", " k", " M"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} G"


def _count(run: Callable[..., Any], *args: object) -> tuple[Any, int]:
    """Returns a function's result and its multiply-adds."""
    with FlopCounterMode(display=False) as counter:
        result = run(*args)
    return result, counter.get_total_flops() // 2


def has_bf16(accelerator: str) -> bool:
    """Whether the GPU, if one is used, or else the CPU has bfloat16 instructions."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return torch.backends.mkldnn.is_available() and any(has.get(name) for name in BF16)  # type: ignore[no-untyped-call]
