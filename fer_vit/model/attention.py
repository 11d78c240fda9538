"""Attention layers and a post-norm block for timm's encoder, and pooling.

Attention scores are dot products, additive or a Gaussian kernel. Pooling computes the vectors that
are classified, and the weight of each token.

B images, H attention heads of the encoder or the decoder (1 without attention), T tokens, D width,
d = D / H the width of an attention head, C classes, Q vectors per face: 1, or C, one per
expression. The `num_prefix` class and register tokens come first; all other tokens have a position
in the face. `pairs` holds what a layer needs to know about pairs of tokens: a mask, or squared
distances. timm passes `pairs` as `attn_mask`.
"""

import math
from typing import Literal, NamedTuple

import torch
from timm.layers import Attention, Mlp
from timm.models.vision_transformer import Block, init_weights_vit_timm
from torch import Tensor, nn
from torch.nn import functional as F

from fer_vit.model.tokens import Tokens

ALL_TOKENS = slice(None)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the softmax of scores (..., T) where a broadcastable mask is True, and 0 elsewhere.

    A row without any True gets only zeros.
    """
    if mask is None:
        return scores.softmax(-1)
    # The lowest number instead of minus infinity: a row of minus infinities would give NaN, also in
    # the gradient.
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, lowest).softmax(-1)
    return weights.masked_fill(~mask, 0.0)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Splits channels between attention heads: (B, T, D) -> (B, H, T, d)."""
    batch, tokens = x.shape[:2]
    return x.reshape(batch, tokens, num_heads, -1).transpose(1, 2)


class DotAttention(Attention):
    """Scaled dot-product attention (Vaswani et al. 2017), bit for bit timm's layer.

    Attributes:
        vector_pairs: Whether each pair of tokens needs a vector (D,) in memory, rather than one
            number for each attention head.
    """

    vector_pairs = False

    @staticmethod
    def pairs(tokens: Tokens) -> Tensor | None:
        """Computes timm's `attn_mask` (B, 1, 1, T): True for present tokens; None: all present."""
        return None if tokens.valid is None else tokens.valid[:, None, None, :]

    def project(self, x: Tensor, part: Literal["q", "k", "v"]) -> Tensor:
        """Computes queries, keys or values of tokens: (B, T, D) -> (B, H, T, d)."""
        index = "qkv".index(part)
        rows = slice(index * self.attn_dim, (index + 1) * self.attn_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return split_heads(F.linear(x, self.qkv.weight[rows], bias), self.num_heads)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores keys for each query: (B, H, Q, d), (B, H, T, d) -> (B, H, Q, T)."""
        return self.scale * q @ k.transpose(-2, -1)  # type: ignore[no-any-return]

    def weights(self, x: Tensor, pairs: Tensor | None, queries: slice = ALL_TOKENS) -> Tensor:
        """Computes the attention (B, H, Q, T) of queries to all tokens, without `attn_drop`.

        The weights of a query sum to 1.
        """
        q = self.q_norm(self.project(x[:, queries], "q"))  # (B, H, Q, d)
        k = self.k_norm(self.project(x, "k"))  # (B, H, T, d)
        return masked_softmax(self.score(q, k), pairs)

    def values(self, x: Tensor) -> Tensor:
        """Computes the values of tokens: (B, T, D) -> (B, H, T, d)."""
        return self.project(x, "v")

    def attend(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """The forward pass: (B, T, D) -> (B, T, D); `attn_mask` is the layer's `pairs`."""
        values = self.values(x)  # (B, H, T, d)
        weights = self.attn_drop(self.weights(x, attn_mask)).to(values.dtype)  # (B, H, T, T)
        x = (weights @ values).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(self.norm(x)))  # type: ignore[no-any-return]


class AdditiveAttention(DotAttention):
    """Additive attention: query q and key k score v . tanh(q + k), with a v per attention head.

    Bahdanau, Cho & Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate"
    (ICLR 2015).
    """

    vector_pairs = True

    def __init__(self, dim: int, num_heads: int = 8, **options: object) -> None:
        super().__init__(dim, num_heads, **options)
        self.v = nn.Parameter(torch.empty(num_heads, self.head_dim, 1))
        nn.init.normal_(self.v, std=1 / math.sqrt(self.head_dim))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """As for `DotAttention`."""
        # Head by head: (B, Q, T, d) is the largest tensor in the model, and all heads at once are
        # slower on a CPU.
        scores = []
        for q_head, k_head, v in zip(q.unbind(1), k.unbind(1), self.v, strict=True):
            sums = q_head[:, :, None] + k_head[:, None]  # (B, Q, T, d)
            scores.append(sums.tanh() @ v)  # (B, Q, T, 1)
        return torch.cat(scores, dim=-1).movedim(-1, 1)

    forward = DotAttention.attend  # no encoder is causal


class GaussianAttention(DotAttention):
    """Nadaraya-Watson regression as attention: tokens at a distance r score -r^2 / (2 w^2).

    The width w in pixels of each attention head is learned as a logarithm. There are no queries and
    keys, since scores do not depend on the contents of tokens. Nadaraya, "On Estimating
    Regression", and Watson, "Smooth Regression Analysis" (both 1964).
    """

    def __init__(
        self, dim: int, num_heads: int = 8, qkv_bias: bool = False, **options: object
    ) -> None:
        super().__init__(dim, num_heads, **options)
        del self.qkv, self.q_norm, self.k_norm
        self.value = nn.Linear(dim, self.attn_dim, bias=qkv_bias)
        # From less than a patch to more than a small crop, so that attention heads start different.
        self.log_width = nn.Parameter(torch.linspace(math.log(4.0), math.log(128.0), num_heads))

    @staticmethod
    def pairs(tokens: Tokens) -> Tensor:
        """Computes squared distances (B, 1, T, T) in pixels; infinite to missing tokens."""
        centres = tokens.centres.float()  # squared distances are too large for float16
        squared = (centres[:, :, None] - centres[:, None]).square().sum(-1)  # (B, T, T)
        if tokens.valid is not None:
            squared = squared.masked_fill(~tokens.valid[:, None], torch.inf)
        return squared[:, None]

    def weights(self, x: Tensor, pairs: Tensor | None, queries: slice = ALL_TOKENS) -> Tensor:
        """As for `DotAttention`."""
        assert pairs is not None
        squared = pairs[:, :, queries]  # (B, 1, Q, T)
        present = squared.isfinite()
        width = self.log_width.float().exp()[:, None, None]  # (H, 1, 1)
        scores = squared.masked_fill(~present, 0.0) / (-2 * width.square())
        return masked_softmax(scores, present)

    def values(self, x: Tensor) -> Tensor:
        """As for `DotAttention`."""
        return split_heads(self.value(x), self.num_heads)

    forward = DotAttention.attend


ATTENTION: dict[str, type[DotAttention]] = {
    "dot": DotAttention,
    "additive": AdditiveAttention,
    "gaussian": GaussianAttention,
}


class PostNormBlock(Block):
    """The block of "Attention Is All You Need": norms after the residual sums, and ReLU."""

    def __init__(self, *args: object, **options: object) -> None:
        options["act_layer"] = nn.ReLU
        super().__init__(*args, **options)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The forward pass: (B, T, D) -> (B, T, D)."""
        change = self.attn(x, attn_mask=attn_mask, is_causal=is_causal)
        x = self.norm1(x + self.drop_path1(self.ls1(change)))
        change = self.mlp(x)
        return self.norm2(x + self.drop_path2(self.ls2(change)))  # type: ignore[no-any-return]


def class_attention(block: Block, x: Tensor, pairs: Tensor | None) -> Tensor:
    """Returns the class token's attention (B, T) in a block, averaged over attention heads.

    `x` (B, T, D) is the input of the block.
    """
    if not isinstance(block, PostNormBlock):
        x = block.norm1(x)
    weights: Tensor = block.attn.weights(x, pairs, slice(0, 1))  # (B, H, 1, T)
    return weights.mean(1)[:, 0]


def use_fused_attention(model: nn.Module, fused: bool) -> dict[str, bool]:
    """Switches torch's fused attention on or off; returns the previous setting by module name.

    Fused attention does not expose attention weights.
    """
    before = {}
    for name, module in model.named_modules():
        if hasattr(module, "fused_attn"):
            before[name] = bool(module.fused_attn)
            setattr(module, "fused_attn", fused)  # noqa: B010 - mypy takes a module's attributes for tensors
    return before


def fused_is_faster(device: torch.device, tokens: int, trains_in_bf16: bool = False) -> bool:
    """Returns whether torch's fused attention is faster (measured: docs/results/benchmarks.md)."""
    return device.type != "cpu" or (tokens >= 200 and not trains_in_bf16)


def has_bf16(accelerator: str) -> bool:
    """Returns whether the device of an accelerator, GPU or CPU, has bfloat16 instructions."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    names = ("avx512_bf16", "amx_bf16", "bf16")  # x86, x86 and ARM
    return torch.backends.mkldnn.is_available() and any(map(capabilities.get, names))  # type: ignore[no-untyped-call]


class Pooled(NamedTuple):
    """The result of a pooling."""

    x: Tensor  # (B, D), a vector per face, or (B, C, D), a vector per expression
    weights: Tensor  # (B, H, Q, T), the weights of tokens in each vector; the sum is 1, or 0


class Pool(nn.Module):
    """A pooling, one of `POOLS`; all poolings take the same arguments.

    `forward` returns `Pooled` for the tokens. Tokens that are missing, or have no position in the
    face (see `located_tokens`), have the weight 0; only `TokenPool` weights the class token. For a
    face without located tokens, "avg" and "additive" return the vector 0.

    Attributes:
        meaning: What is classified, for the help.
        per_expression: Whether each expression has a separate vector.
        needs_class_token: Whether the backbone must have a class token.
        can_be_causal: Whether the setting `causal` applies.
        label_rows: Names of parameters with a row for each label. These parameters have no weight
            decay. A start from another model copies the rows of the labels that both models have.
    """

    meaning: str
    per_expression = False
    needs_class_token = False
    can_be_causal = False
    label_rows: tuple[str, ...] = ()

    def __init__(
        self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool
    ) -> None:
        super().__init__()
        self.num_prefix = num_prefix


class TokenPool(Pool):
    """Takes the class token (Dosovitskiy et al. 2021)."""

    meaning = "the class token"
    needs_class_token = True

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools encoded tokens."""
        weights = tokens.x.new_zeros(tokens.x.shape[0], 1, 1, tokens.x.shape[1])
        weights[..., 0] = 1.0
        return Pooled(tokens.x[:, 0], weights)


class AveragePool(Pool):
    """Takes the mean of the present patch and region tokens; 0 if no token is present."""

    meaning = "the mean of the patch and region tokens"

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools encoded tokens."""
        weights = located_tokens(tokens, self.num_prefix).to(tokens.x.dtype)  # (B, T)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
        return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


class AdditivePool(Pool):
    """Takes the mean of the patch and region tokens with the weights softmax(v . tanh(W x + u)).

    This is additive attention (Bahdanau et al. 2015) with one query for all faces, absorbed in u.
    """

    meaning = "the mean of the patch and region tokens with learned weights"

    def __init__(
        self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool
    ) -> None:
        super().__init__(num_prefix, dim, num_classes, num_heads, causal)
        self.hidden = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools encoded tokens."""
        scores = self.v(self.hidden(tokens.x).tanh()).squeeze(-1)  # (B, T)
        weights = masked_softmax(scores, located_tokens(tokens, self.num_prefix))
        return Pooled((weights[..., None] * tokens.x).sum(1), weights[:, None, None])


class CrossAttention(nn.Module):
    """Attention of queries to the keys and values of tokens."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Attends from queries (B, Q, D) to tokens `memory` (B, T, D) that are `valid` (B, T).

        Returns new queries (B, Q, D) and the attention weights (B, H, Q, T).
        """
        keys, values = self.kv(memory).chunk(2, dim=-1)
        q = split_heads(self.q(x), self.num_heads)  # (B, H, Q, d)
        k = split_heads(keys, self.num_heads)  # (B, H, T, d)
        v = split_heads(values, self.num_heads)  # (B, H, T, d)
        weights = masked_softmax(self.scale * q @ k.transpose(-2, -1), valid[:, None, None])
        x = (weights @ v).transpose(1, 2).flatten(2)  # (B, Q, D)
        return self.proj(x), weights


class DecoderBlock(nn.Module):
    """A pre-norm Transformer decoder layer; if `causal`, a query sees no later queries."""

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
        """Returns new queries (B, Q, D) and weights (B, H, Q, T), as `CrossAttention` does."""
        x = x + self.self_attn(self.norm1(x), is_causal=self.causal)
        change, weights = self.cross_attn(self.norm2(x), memory, valid)
        x = x + change
        return x + self.mlp(self.norm3(x)), weights


class QueryPool(Pool):
    """Attends from one query per expression to the patch and region tokens: a decoder layer.

    The layer is from Vaswani et al. (2017), the learned queries from Carion et al., "End-to-End
    Object Detection with Transformers" (ECCV 2020).
    """

    meaning = "a query per expression (Transformer decoder)"
    per_expression = True
    can_be_causal = True
    label_rows = ("query",)

    def __init__(
        self, num_prefix: int, dim: int, num_classes: int, num_heads: int | None, causal: bool
    ) -> None:
        super().__init__(num_prefix, dim, num_classes, num_heads, causal)
        if num_heads is None:
            num_heads = max(1, dim // 64)  # 64 channels per attention head, as in ViT, or more
            while dim % num_heads:
                num_heads -= 1
        self.query = nn.Parameter(torch.empty(num_classes, dim))
        self.decoder = DecoderBlock(dim, num_heads, causal)
        self.norm = nn.LayerNorm(dim)
        self.apply(init_weights_vit_timm)
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, tokens: Tokens) -> Pooled:
        """Pools encoded tokens; the weights are the cross-attention."""
        query = self.query.expand(tokens.x.shape[0], -1, -1)  # (B, C, D)
        located = located_tokens(tokens, self.num_prefix)  # (B, T)
        x, weights = self.decoder(query, tokens.x, located)
        return Pooled(self.norm(x), weights)


# The poolings by the name in a configuration. A new pooling is a class and an entry here.
POOLS: dict[str, type[Pool]] = {
    "token": TokenPool,
    "avg": AveragePool,
    "additive": AdditivePool,
    "query": QueryPool,
}


class ExpressionLinear(nn.Linear):
    """A linear classifier with a separate input vector for each class."""

    def forward(self, x: Tensor) -> Tensor:
        """Classifies one vector per class: (B, C, D) -> logits (B, C)."""
        return (x * self.weight).sum(-1) + self.bias


def located_tokens(tokens: Tokens, num_prefix: int) -> Tensor:
    """Returns a mask (B, T) of the present tokens that have a position in the face."""
    located = tokens.present()
    located[:, :num_prefix] = False
    return located
