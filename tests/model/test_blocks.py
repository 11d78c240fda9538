import pytest
import torch
from torch import Tensor, nn

from fer_vit.model.attention import DotAttention
from fer_vit.model.backbone import PostNormBlock, PreNormBlock
from fer_vit.model.pooling import CrossAttention, DecoderBlock

DIM, HEADS = 16, 4
VALID = torch.tensor([[True] * 6, [True, True, False, True, False, True]])


def copy_linear(to: nn.Module, weights: list[nn.Module]) -> None:
    """Puts several linear layers, one below the other, into the packed projection of nn.MultiheadAttention."""
    to.in_proj_weight.data = torch.cat([layer.weight.data for layer in weights])
    to.in_proj_bias.data = torch.cat([layer.bias.data for layer in weights])


def shake(module: nn.Module) -> None:
    """Moves every parameter away from its start, so that biases and norms have their part in what is compared."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def as_torch(block: PostNormBlock | PreNormBlock, norm_first: bool) -> nn.TransformerEncoderLayer:
    activation = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.0, activation, batch_first=True, norm_first=norm_first)
    copy_linear(layer.self_attn, [block.attn.qkv])
    for mine, other in (
        (block.attn.proj, layer.self_attn.out_proj),
        (block.mlp.fc1, layer.linear1),
        (block.mlp.fc2, layer.linear2),
        (block.norm1, layer.norm1),
        (block.norm2, layer.norm2),
    ):
        other.load_state_dict(mine.state_dict())
    return layer.eval()


@pytest.mark.parametrize(("kind", "norm_first"), [(PostNormBlock, False), (PreNormBlock, True)])
@pytest.mark.parametrize("valid", [None, VALID])
def test_encoder_blocks_are_torchs(kind: type, norm_first: bool, valid: Tensor | None) -> None:
    torch.manual_seed(0)
    block = kind(DIM, HEADS, qkv_bias=True, attn_layer=DotAttention, norm_layer=nn.LayerNorm).eval()
    shake(block)
    x = torch.randn(2, 6, DIM)
    relation = None if valid is None else valid[:, None, None]
    expected = as_torch(block, norm_first)(x, src_key_padding_mask=None if valid is None else ~valid)
    # torch may leave masked tokens themselves at 0; nobody reads them.
    there = torch.ones(2, 6, dtype=torch.bool) if valid is None else valid
    assert torch.allclose(block(x, attn_mask=relation)[there], expected[there], atol=1e-5)


@pytest.mark.parametrize("kind", [PreNormBlock, PostNormBlock])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_class_attention_is_what_the_block_computes(kind: type, qk_norm: bool) -> None:
    torch.manual_seed(0)
    block = kind(DIM, HEADS, qkv_bias=True, qk_norm=qk_norm, attn_layer=DotAttention).eval()
    shake(block)
    block.attn.fused_attn = False
    seen = []
    block.attn.attn_drop.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    x, relation = torch.randn(2, 6, DIM), VALID[:, None, None]
    block(x, attn_mask=relation)
    assert torch.allclose(block.class_attention(x, relation), seen[0].mean(1)[:, 0], atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("valid", [torch.ones_like(VALID), VALID])
def test_the_decoder_is_torchs(causal: bool, valid: Tensor) -> None:
    torch.manual_seed(0)
    block = DecoderBlock(DIM, HEADS, causal).eval()
    shake(block)
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True).eval()
    copy_linear(layer.self_attn, [block.self_attn.qkv])
    copy_linear(layer.multihead_attn, [block.cross_attn.q, block.cross_attn.kv])
    for mine, other in (
        (block.self_attn.proj, layer.self_attn.out_proj),
        (block.cross_attn.proj, layer.multihead_attn.out_proj),
        (block.mlp.fc1, layer.linear1),
        (block.mlp.fc2, layer.linear2),
        (block.norm1, layer.norm1),
        (block.norm2, layer.norm2),
        (block.norm3, layer.norm3),
    ):
        other.load_state_dict(mine.state_dict())
    queries, memory = torch.randn(2, 3, DIM), torch.randn(2, 6, DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(3) if causal else None
    expected = layer(queries, memory, tgt_mask=mask, memory_key_padding_mask=~valid, tgt_is_causal=causal)
    result, weights = block(queries, memory, valid)
    assert torch.allclose(result, expected, atol=1e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, 3), atol=1e-6)
    # A later query changes what earlier ones find only when they may see it.
    queries[:, 2] += 1
    changed = block(queries, memory, valid)[0]
    assert torch.equal(changed[:, :2], result[:, :2]) is causal


def test_cross_attention_without_any_memory_is_its_bias() -> None:
    torch.manual_seed(0)
    attention = CrossAttention(DIM, HEADS)
    shake(attention)
    memory = torch.randn(2, 6, DIM, requires_grad=True)
    found, weights = attention(torch.randn(2, 3, DIM), memory, torch.zeros(2, 6, dtype=torch.bool))
    found.sum().backward()
    assert (weights == 0).all()
    assert torch.allclose(found, attention.proj.bias.expand_as(found))
    assert all(p.grad.isfinite().all() for p in (memory, *attention.parameters()) if p.grad is not None)
