"""From encoded tokens to the vectors that are classified, and how much each token counts in them.

B images, T tokens, D width, C classes, H heads of the decoder or 1, Q vectors a face: 1, or C, one for each expression.
`num_prefix` class and register tokens come first; the others lie at a place in the face.
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
        x: A vector for each face (B, D), or for each of its expressions (B, C, D).
        weights: How much each token counts in it (B, H, Q, T); rows sum to 1, or to 0 where there are no places.
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
    """Takes the mean of the patch and region tokens that are there; 0 where there are none."""

    def __init__(self, num_prefix: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        weights = places(tokens, self.num_prefix).to(tokens.x.dtype)
        return weighted_mean(tokens, weights / weights.sum(1, keepdim=True).clamp(min=1.0))


class AdditivePool(nn.Module):
    """Takes a mean of the patch and region tokens whose weights it learns: softmax of v . tanh(W x + u).

    Additive attention (Bahdanau et al. 2015) of one query, the same for every face, that is part of u. Its weights
    say how much of each region is in what is classified.
    """

    def __init__(self, num_prefix: int, dim: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.hidden = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        scores = self.v(self.hidden(tokens.x).tanh()).squeeze(-1)  # (B, T)
        return weighted_mean(tokens, masked_softmax(scores, places(tokens, self.num_prefix)))


class QueryPool(nn.Module):
    """Lets a query for each expression look for itself among the patch and region tokens: a Transformer decoder.

    Vaswani et al. (2017) for the layer; learned queries as in Carion et al., "End-to-End Object Detection with
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
        x, weights = self.decoder(query, tokens.x, places(tokens, self.num_prefix))
        return Pooled(self.norm(x), weights)


class ExpressionLinear(nn.Linear):
    """A linear classifier that gives each class its own vector to judge."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) -> logits (B, C)."""
        return (x * self.weight).sum(-1) + self.bias


def weighted_mean(tokens: Tokens, weights: Tensor) -> Pooled:
    """Takes the mean of the tokens with weights (B, T)."""
    return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


def places(tokens: Tokens, num_prefix: int) -> Tensor:
    """Tells which tokens lie somewhere in the face and are there (B, T)."""
    there = tokens.x.new_ones(tokens.x.shape[:2], dtype=torch.bool) if tokens.valid is None else tokens.valid.clone()
    there[:, :num_prefix] = False
    return there
