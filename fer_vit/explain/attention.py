"""What the encoder attended to: attention recorded from outside, and its flow to the prediction.

B images, H heads, T tokens, R regions, C classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT

Method = Literal["rollout", "raw"]


class Explanation(NamedTuple):
    """Where a prediction came from. Patches and regions of a face together have 1.

    Attributes:
        probabilities: (B, C).
        heat: Share of every patch (B, rows, columns); (B, 0, 0) without patch tokens.
        shares: Share of every region (B, R); 0 for a missing one.
    """

    probabilities: Tensor
    heat: Tensor
    shares: Tensor


@contextmanager
def record_attention(model: RegionViT) -> Iterator[list[Tensor]]:
    """Records the attention weights of every block in a list, one (B, H, T, T) each, rows summing to 1.

    timm's attention computes its weights only when it is not fused, and then passes them through `attn_drop`: that is
    where they are seen. Hard attention masks instead of taking tokens out. The model is left as it was found.

    Raises:
        RuntimeError: A forward pass ran, or none did, and nothing was recorded.
    """
    recorded: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        recorded.append(inputs[0])

    blocks, by_mask = model.vit.blocks, model.drop_by_mask
    before = use_fused_attention(blocks, fused=False)
    model.drop_by_mask = True
    hooks = [blocks.get_submodule(f"{name}.attn_drop").register_forward_hook(keep) for name in before]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
        model.drop_by_mask = by_mask
        for name, fused in before.items():
            blocks.get_submodule(name).fused_attn = fused
    if not recorded:
        raise RuntimeError("No attention was recorded: run the model's forward pass inside `record_attention`.")


def raw(attention: Sequence[Tensor], pool: Tensor) -> Tensor:
    """Attention of the last block, averaged over heads and over the tokens that are classified: (B, T).

    Args:
        attention: Weights (B, H, T, T) of every block.
        pool: How much each token counts in what is classified (B, T).
    """
    return (pool[:, None] @ attention[-1].float().mean(1))[:, 0]


def rollout(attention: Sequence[Tensor], pool: Tensor) -> Tensor:
    """Attention rollout: attention as a flow through all blocks and their residual paths: (B, T).

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020): each block's mean over heads, half of it
    the identity for the residual path, multiplied from the last block to the first.

    Args:
        attention: Weights (B, H, T, T) of every block.
        pool: How much each token counts in what is classified (B, T).
    """
    flow = pool[:, None]  # (B, 1, T)
    for weights in reversed(attention):
        flow = (flow @ weights.float().mean(1) + flow) / 2
    return flow[:, 0]


@torch.inference_mode()
def explain(net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: Method = "rollout") -> Explanation:
    """Classifies faces and says which patches and regions the prediction came from.

    Args:
        net: The model, in evaluation mode.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are there (B, R).
        method: "rollout" through all blocks, or the "raw" attention of the last one.
    """
    layout = net.layout
    tokens = net.tokenize(image, boxes, valid)
    with record_attention(net) as attention:
        tokens = net.forward_features(tokens)
    probabilities = net.probabilities(net.forward_head(tokens))
    weights = net.pool.weights(tokens).float()  # (B, 1 or C, T)
    # With a query for each expression: where that of the predicted one looked; else the one there is.
    every = weights.expand(-1, probabilities.shape[1], -1)  # (B, C, T)
    pool = every[torch.arange(len(every)), probabilities.argmax(-1)]
    scores = (rollout if method == "rollout" else raw)(attention, pool)
    scores[:, : layout.num_prefix] = 0.0  # class and register tokens lie nowhere in the face
    scores = scores / scores.sum(1, keepdim=True).clamp(min=1e-12)
    return Explanation(probabilities, layout.patch_map(scores), layout.region_scores(scores))
