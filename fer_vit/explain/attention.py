"""The encoder's attention traced to the prediction: pure functions of recorded weights (see `trace`).

Each takes the `attention` weights (B, H, T, T) of every block, and in `pool` how much each token counts in what is
classified. B images, H heads, T tokens, Q vectors per face (see `model.pooling`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def no_autocast(values: Tensor) -> torch.autocast:
    """Keeps products in float32, which a caller's autocast would round to bfloat16."""
    return torch.autocast(values.device.type, enabled=False)


def raw(attention: Sequence[Tensor], pool: Tensor) -> Tensor:
    """Attention of the last block, averaged over heads and over the tokens that are classified (B, T): (B, T)."""
    with no_autocast(pool):
        return (pool[:, None].float() @ attention[-1].float().mean(1))[:, 0]


def rollout(attention: Sequence[Tensor], pool: Tensor) -> Tensor:
    """Attention rollout: attention as a flow through all blocks and their residual paths to `pool` (B, T): (B, T).

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020): each block's mean over heads, averaged
    with the identity for the residual path, multiplied from the last block to the first.
    """
    flow = pool[:, None].float()  # (B, 1, T)
    with no_autocast(pool):
        for weights in reversed(attention):
            flow = (flow @ weights.float().mean(1) + flow) / 2
    return flow[:, 0]


def relevance(
    attention: Sequence[Tensor], gradients: Sequence[Tensor], pool: Tensor, pool_gradient: Tensor | None = None
) -> Tensor:
    """Gradient times attention, accumulated over blocks: evidence for a class less evidence against it: (B, T).

    Chefer, Gur & Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
    Transformers" (ICCV 2021), equations 5 and 6 for the encoder; for a decoder's cross-attention equation 10, without
    the normalisation of 8 and 9 and the queries' self-attention, as queries are the same for every face. The paper
    keeps what speaks for a class; here the same rules for the negated score give what speaks against it. What reaches
    the pool only by residual paths, without any attention, has no gradient here and is not seen.

    Args:
        attention: One (B, H, T, T) per block.
        gradients: Gradients of a score with respect to them.
        pool: (B, H', Q, T).
        pool_gradient: Gradient of the score with respect to it; None takes the weights as they are.
    """

    def flow(sign: float) -> Tensor:
        start = pool.float() if pool_gradient is None else (sign * pool_gradient.float() * pool.float()).clamp(min=0)
        row = start.mean(1).sum(1, keepdim=True)  # (B, 1, T)
        for weights, gradient in zip(reversed(attention), reversed(gradients), strict=True):
            row = row + row @ (sign * gradient.float() * weights.float()).clamp(min=0).mean(1)
        return row[:, 0]

    with no_autocast(pool):
        return flow(1.0) - flow(-1.0)
