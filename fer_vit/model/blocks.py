"""Residual blocks of the encoder (timm's `block_fn`), and the decoder's.

B images, T tokens, Q queries, D width.
"""

from timm.layers import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from fer_vit.model.attention import DotAttention, masked_softmax, split_heads


class PreNormBlock(Block):
    """timm's block, to the last bit: normalisation before attention and feed-forward (ViT)."""

    def class_attention(self, x: Tensor, relation: Tensor | None) -> Tensor:
        """Attention of the class token to each token (B, T), averaged over heads, for the block's input x (B, T, D)."""
        return self.attn.weights(self.norm1(x), relation, slice(0, 1)).mean(1)[:, 0]  # type: ignore[no-any-return]


class PostNormBlock(Block):
    """The block of "Attention Is All You Need": normalisation after each residual sum, ReLU in the feed-forward."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "act_layer": nn.ReLU})

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = self.norm1(x + self.drop_path1(self.ls1(self.attn(x, attn_mask=attn_mask, is_causal=is_causal))))
        return self.norm2(x + self.drop_path2(self.ls2(self.mlp(x))))  # type: ignore[no-any-return]

    def class_attention(self, x: Tensor, relation: Tensor | None) -> Tensor:
        """Attention of the class token to each token (B, T), averaged over heads, for the block's input x (B, T, D)."""
        return self.attn.weights(x, relation, slice(0, 1)).mean(1)[:, 0]  # type: ignore[no-any-return]


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
        """Queries (B, Q, D) attend to the tokens of the memory (B, T, D) that are present (B, T).

        Returns:
            The new queries (B, Q, D), and their weights over the memory (B, H, Q, T). With no token present they are 0.
        """
        q, k, v = (split_heads(part, self.num_heads) for part in (self.q(x), *self.kv(memory).chunk(2, dim=-1)))
        weights = masked_softmax(self.scale * q @ k.transpose(-2, -1), valid[:, None, None])
        return self.proj((weights @ v).transpose(1, 2).flatten(2)), weights


class DecoderBlock(nn.Module):
    """A Transformer decoder layer: self-attention, cross-attention and feed-forward, each with normalisation before.

    `causal`: each query sees itself and those before it, not those after it.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = DotAttention(dim, num_heads, qkv_bias=True)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, num_heads)
        self.norm3 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, x: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Queries attend to one another and then to the memory; arguments and results as for `CrossAttention`."""
        x = x + self.self_attn(self.norm1(x), is_causal=self.causal)
        found, weights = self.cross_attn(self.norm2(x), memory, valid)
        x = x + found
        return x + self.mlp(self.norm3(x)), weights
