"""From encoded tokens to the vectors that are classified, and the weight of each token.

B images, T tokens, D width, C classes, H heads of the decoder or 1, Q vectors per face: 1, or C, one per expression.
`num_prefix` class and register tokens come first; the others have a position in the face.
"""

from typing import NamedTuple

import torch
from timm.layers import Mlp
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from fer_vit.model.attention import DotAttention, masked_softmax, split_heads
from fer_vit.model.tokens import Tokens


class Pooled(NamedTuple):
    """A vector per face or per expression, and the weights of the tokens in it, which sum to 1 or to 0 without any."""

    x: Tensor  # (B, D), or (B, C, D)
    weights: Tensor  # (B, H, Q, T)


class Pool(nn.Module):
    """A pooling, one of `POOLS`; all take the same arguments."""

    per_expression = False  # whether every expression has a separate vector
    needs_class_token = False

    def __init__(self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool) -> None:
        super().__init__()
        self.num_prefix = num_prefix


class TokenPool(Pool):
    """Takes the class token (Dosovitskiy et al. 2021)."""

    needs_class_token = True

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        weights = tokens.x.new_zeros(tokens.x.shape[0], 1, 1, tokens.x.shape[1])
        weights[..., 0] = 1.0
        return Pooled(tokens.x[:, 0], weights)


class AveragePool(Pool):
    """Takes the mean of the patch and region tokens that are present; 0 if there are none."""

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        weights = located_tokens(tokens, self.num_prefix).to(tokens.x.dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
        return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


class AdditivePool(Pool):
    """Takes a mean of the patch and region tokens with learned weights: softmax of v . tanh(W x + u).

    Additive attention (Bahdanau et al. 2015) with one query for all faces, absorbed in u.
    """

    def __init__(self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool) -> None:
        super().__init__(num_prefix, dim, num_classes, num_heads, causal)
        self.hidden = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools."""
        scores = self.v(self.hidden(tokens.x).tanh()).squeeze(-1)  # (B, T)
        weights = masked_softmax(scores, located_tokens(tokens, self.num_prefix))
        return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


class CrossAttention(nn.Module):
    """Attention of queries to the keys and values of other tokens."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, Q, D), tokens (B, T, D), which are present (B, T) -> new queries, their weights (B, H, Q, T)."""
        q, k, v = (split_heads(part, self.num_heads) for part in (self.q(x), *self.kv(memory).chunk(2, dim=-1)))
        weights = masked_softmax(self.scale * q @ k.transpose(-2, -1), valid[:, None, None])
        return self.proj((weights @ v).transpose(1, 2).flatten(2)), weights


class DecoderBlock(nn.Module):
    """A pre-norm Transformer decoder layer; if `causal`, each query sees only itself and earlier ones."""

    def __init__(self, dim: int, num_heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = DotAttention(dim, num_heads, qkv_bias=True)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, num_heads)
        self.norm3 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """As for `CrossAttention`."""
        x = x + self.self_attn(self.norm1(x), is_causal=self.causal)
        change, weights = self.cross_attn(self.norm2(x), memory, valid)
        x = x + change
        return x + self.mlp(self.norm3(x)), weights


class QueryPool(Pool):
    """Lets a query per expression attend to the patch and region tokens: a Transformer decoder.

    The layer is from Vaswani et al. (2017), the learned queries from Carion et al., "End-to-End Object Detection with
    Transformers" (ECCV 2020).
    """

    per_expression = True

    def __init__(self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool) -> None:
        super().__init__(num_prefix, dim, num_classes, num_heads, causal)
        most = max(1, dim // 64)  # heads as wide as in every ViT size, or wider
        num_heads = num_heads or next(heads for heads in range(most, 0, -1) if dim % heads == 0)
        self.query = nn.Parameter(torch.empty(num_classes, dim))
        self.decoder = DecoderBlock(dim, num_heads, causal)
        self.norm = nn.LayerNorm(dim)
        self.apply(init_weights_vit_timm)
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools; the weights are the cross-attention."""
        query = self.query.expand(tokens.x.shape[0], -1, -1)
        x, weights = self.decoder(query, tokens.x, located_tokens(tokens, self.num_prefix))
        return Pooled(self.norm(x), weights)


POOLS: dict[str, type[Pool]] = {"token": TokenPool, "avg": AveragePool, "additive": AdditivePool, "query": QueryPool}
"""By the name in a configuration. A new pooling is a class and an entry here."""


class ExpressionLinear(nn.Linear):
    """A linear classifier in which each class scores another vector."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, D) -> logits (B, C)."""
        return (x * self.weight).sum(-1) + self.bias


def located_tokens(tokens: Tokens, num_prefix: int) -> Tensor:
    """Returns which tokens have a position in the face and are present (B, T)."""
    located = tokens.x.new_ones(tokens.x.shape[:2], dtype=torch.bool) if tokens.valid is None else tokens.valid.clone()
    located[:, :num_prefix] = False
    return located
