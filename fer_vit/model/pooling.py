"""From encoded tokens to the vectors that are classified, and how much each token counts in them.

Class and register tokens come first; the others lie at a place in the face.
B images, T tokens, D width, C classes, Q vectors a face: 1, or C with a vector for each expression.
"""

import torch
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from fer_vit.model.attention import masked_softmax
from fer_vit.model.blocks import DecoderBlock
from fer_vit.model.tokens import Tokens


class TokenPool(nn.Module):
    """Takes the class token (Dosovitskiy et al. 2021)."""

    def weights(self, tokens: Tokens) -> Tensor:
        """How much each token counts (B, 1, T)."""
        weights = torch.zeros_like(tokens.x[:, None, :, 0])
        weights[..., 0] = 1.0
        return weights

    def forward(self, tokens: Tokens) -> Tensor:
        """-> (B, D)."""
        return tokens.x[:, 0]


class AveragePool(nn.Module):
    """Takes the mean of the patch and region tokens that are there; 0 where there are none.

    Args:
        num_prefix: Number of class and register tokens.
    """

    def __init__(self, num_prefix: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix

    def weights(self, tokens: Tokens) -> Tensor:
        """How much each token counts (B, 1, T); rows sum to 1, or to 0 where there are no places."""
        weights = places(tokens, self.num_prefix).to(tokens.x.dtype)
        return (weights / weights.sum(1, keepdim=True).clamp(min=1.0))[:, None]

    def forward(self, tokens: Tokens) -> Tensor:
        """-> (B, D)."""
        return (self.weights(tokens).transpose(1, 2) * tokens.x).sum(1)


class AdditivePool(nn.Module):
    """Takes a mean of the patch and region tokens whose weights it learns: softmax of v . tanh(W x + u).

    Additive attention (Bahdanau et al. 2015) of one query, the same for every face, that is part of u. Its weights
    say how much of each region is in what is classified.

    Args:
        num_prefix: Number of class and register tokens.
        dim: Width D.
    """

    def __init__(self, num_prefix: int, dim: int) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.hidden = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def weights(self, tokens: Tokens) -> Tensor:
        """How much each token counts (B, 1, T); rows sum to 1, or to 0 where there are no places."""
        scores = self.v(self.hidden(tokens.x).tanh())[..., 0]  # (B, T)
        return masked_softmax(scores, places(tokens, self.num_prefix))[:, None]

    def forward(self, tokens: Tokens) -> Tensor:
        """-> (B, D)."""
        return (self.weights(tokens).transpose(1, 2) * tokens.x).sum(1)


class QueryPool(nn.Module):
    """Lets a query for each expression look for itself among the patch and region tokens: a Transformer decoder.

    Vaswani et al. (2017) for the layer; learned queries as in Carion et al., "End-to-End Object Detection with
    Transformers" (ECCV 2020).

    Args:
        num_prefix: Number of class and register tokens.
        dim: Width D.
        num_heads: Heads of the decoder.
        num_classes: Number C of expressions.
        causal: Each expression's query sees itself and those before it in the list, not those behind it.
    """

    def __init__(self, num_prefix: int, dim: int, num_heads: int, num_classes: int, causal: bool) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.query = nn.Parameter(torch.empty(num_classes, dim))
        self.decoder = DecoderBlock(dim, num_heads, causal)
        self.norm = nn.LayerNorm(dim)
        self.apply(init_weights_vit_timm)
        nn.init.trunc_normal_(self.query, std=0.02)

    def decode(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """-> a vector for each expression (B, C, D), and the weights of cross-attention (B, H, C, places)."""
        start = self.num_prefix
        valid = None if tokens.valid is None else tokens.valid[:, start:]
        x, weights = self.decoder(self.query.expand(tokens.x.shape[0], -1, -1), tokens.x[:, start:], valid)
        return self.norm(x), weights

    def weights(self, tokens: Tokens) -> Tensor:
        """How much each expression's query attends to each token, mean over heads (B, C, T)."""
        return nn.functional.pad(self.decode(tokens)[1].mean(1), (self.num_prefix, 0))

    def forward(self, tokens: Tokens) -> Tensor:
        """-> (B, C, D)."""
        return self.decode(tokens)[0]


class ExpressionLinear(nn.Linear):
    """A linear classifier that gives each class its own vector to judge."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) -> logits (B, C)."""
        return (x * self.weight).sum(-1) + self.bias


def places(tokens: Tokens, num_prefix: int) -> Tensor:
    """Tells which tokens lie somewhere in the face and are there (B, T)."""
    there = torch.ones_like(tokens.x[..., 0], dtype=torch.bool) if tokens.valid is None else tokens.valid.clone()
    there[:, :num_prefix] = False
    return there
