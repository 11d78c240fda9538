"""From encoded tokens to the vectors that are classified, and how much each token counts in them.

B images, T tokens, D width, C classes, H heads of the decoder or 1, Q vectors per face: 1, or C, one per expression.
`num_prefix` class and register tokens come first; the others have a position in the face.
"""

from typing import NamedTuple

import torch
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from fer_vit.model.attention import masked_softmax
from fer_vit.model.blocks import DecoderBlock
from fer_vit.model.tokens import Tokens


class Pooled(NamedTuple):
    """What is classified.

    Attributes:
        x: A vector per face (B, D), or per expression (B, C, D).
        weights: How much each token counts in it (B, H, Q, T); rows sum to 1, or to 0 if no token is present.
    """

    x: Tensor
    weights: Tensor


class TokenPool(nn.Module):
    """Takes the class token (Dosovitskiy et al. 2021)."""

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        weights = tokens.x.new_zeros(tokens.x.shape[0], 1, 1, tokens.x.shape[1])
        weights[..., 0] = 1.0
        return Pooled(tokens.x[:, 0], weights)


class AveragePool(nn.Module):
    """Takes the mean of the patch and region tokens that are present; 0 if there are none."""

    def __init__(self, num_prefix: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        weights = located_tokens(tokens, self.num_prefix).to(tokens.x.dtype)
        return weighted_mean(tokens, weights / weights.sum(1, keepdim=True).clamp(min=1.0))


class AdditivePool(nn.Module):
    """Takes a mean of the patch and region tokens with learned weights: softmax of v . tanh(W x + u).

    Additive attention (Bahdanau et al. 2015) with one query for all faces, absorbed in u. The weights say how much
    of each region is classified.
    """

    def __init__(self, num_prefix: int, dim: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.hidden = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        scores = self.v(self.hidden(tokens.x).tanh()).squeeze(-1)  # (B, T)
        return weighted_mean(tokens, masked_softmax(scores, located_tokens(tokens, self.num_prefix)))


class QueryPool(nn.Module):
    """Lets a query per expression attend to the patch and region tokens: a Transformer decoder.

    The layer is from Vaswani et al. (2017), the learned queries from Carion et al., "End-to-End Object Detection with
    Transformers" (ECCV 2020).
    """

    def __init__(self, num_prefix: int, dim: int, num_heads: int, num_classes: int, causal: bool) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.query = nn.Parameter(torch.empty(num_classes, dim))
        self.decoder = DecoderBlock(dim, num_heads, causal)
        self.norm = nn.LayerNorm(dim)
        self.apply(init_weights_vit_timm)
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools; the weights are those of cross-attention."""
        query = self.query.expand(tokens.x.shape[0], -1, -1)
        x, weights = self.decoder(query, tokens.x, located_tokens(tokens, self.num_prefix))
        return Pooled(self.norm(x), weights)


class ExpressionLinear(nn.Linear):
    """A linear classifier in which each class scores its own vector."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) -> logits (B, C)."""
        return (x * self.weight).sum(-1) + self.bias


def weighted_mean(tokens: Tokens, weights: Tensor) -> Pooled:
    """Takes the mean of the tokens, weighted by (B, T)."""
    return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


def located_tokens(tokens: Tokens, num_prefix: int) -> Tensor:
    """Tells which tokens have a position in the face and are present (B, T)."""
    there = tokens.x.new_ones(tokens.x.shape[:2], dtype=torch.bool) if tokens.valid is None else tokens.valid.clone()
    there[:, :num_prefix] = False
    return there
