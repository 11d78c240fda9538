"""torch's fused attention against explicit matrix products, by number of tokens: forward, and forward and backward.

python -m benchmarks.attention

A block of timm (width 192, 3 heads) with a mask for missing regions, on the GPU if there is one.
"""

from collections.abc import Callable

import torch
from timm.models.vision_transformer import Block

from benchmarks.machine import in_turns, machine, ratios, spread
from fer_vit.model.attention import use_fused_attention

TOKENS = (16, 32, 64, 128, 256, 512, 1024)
WIDTH, HEADS = 192, 3
LARGEST = 64 * 1024
"""Tokens of a batch."""


def work(tokens: int, fused: bool, masked: bool, learning: bool, bf16: bool) -> Callable[[], None]:
    """A pass through a block."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    block = Block(WIDTH, HEADS, qkv_bias=True).to(device)
    use_fused_attention(block, fused)
    x = torch.randn(max(1, min(64, LARGEST // tokens // 4)), tokens, WIDTH, device=device)
    mask = torch.ones(len(x), 1, 1, tokens, dtype=torch.bool, device=device) if masked else None

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16), torch.set_grad_enabled(learning):
            out = block(x, attn_mask=mask)
        if learning:
            out.float().square().mean().backward()

    return step


def main() -> None:
    """The command line."""
    print(f"{machine()}\n\nTime of explicit attention as a part of the fused one's, a whole block:\n")
    print(
        "| tokens | forward | forward, masked | step | step, masked | step, masked, float32 |\n" + "| ---: " * 6 + "|"
    )
    kinds = [(False, False, True), (True, False, True), (False, True, True), (True, True, True), (True, True, False)]
    for tokens in TOKENS:
        cells = []
        for kind in kinds:
            works = {fused: work(tokens, fused, *kind) for fused in (True, False)}
            cells.append(spread(ratios(in_turns(works, 5, 0.2), True)[False]))
        print(f"| {tokens} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
