import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fer_vit.model.pooling import (
    POOLS,
    AveragePool,
    DecoderBlock,
    ExpressionLinear,
    located_tokens,
)
from fer_vit.model.tokens import Tokens
from tests.helpers.models import copy_weights, shake

PREFIX, DIM, CLASSES, HEADS = 2, 8, 3, 2
VALID = torch.tensor([[True] * 7, [True, True, True, False, True, False, True], [True, True] + [False] * 5])


def tokens() -> Tokens:
    x = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(1))
    return Tokens(x, VALID, x[..., :2])


def pools() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {name: pool(PREFIX, DIM, CLASSES, 2, causal=False) for name, pool in POOLS.items()}
    for pool in made.values():
        shake(pool)
    return made


@pytest.mark.parametrize(("dim", "given", "heads"), [(32, None, 1), (200, None, 2), (192, 4, 4)])
def test_a_decoder_has_heads_of_64_dimensions_or_more(dim: int, given: int | None, heads: int) -> None:
    pool = POOLS["query"](PREFIX, dim, 100, given, False)
    assert pool.decoder.cross_attn.num_heads == pool.decoder.self_attn.num_heads == heads
    assert pool.query.std().item() == pytest.approx(0.02, rel=0.1)


def test_additive_pooling_against_the_formula_in_float64() -> None:
    pool, batch = pools()["additive"], tokens()
    pooled, weights = pool(batch)
    w, u, v = (p.double() for p in (pool.hidden.weight, pool.hidden.bias, pool.v.weight[0]))
    powers = ((batch.x.double() @ w.T + u).tanh() @ v).exp() * located_tokens(batch, PREFIX)
    expected = powers / powers.sum(1, keepdim=True).clamp(min=1e-300)
    assert torch.allclose(weights[:, 0, 0].double(), expected, atol=1e-6)
    assert torch.allclose(pooled.double(), (expected[..., None] * batch.x.double()).sum(1), atol=1e-6)
    assert "v.bias" not in pool.state_dict()  # it would have no effect


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_average_is_over_located_tokens(dtype: torch.dtype) -> None:
    valid = torch.cat([VALID, torch.tensor([[True, True, False, False, False, True, False]])])
    x = torch.randn(4, 7, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
    batch, pool = Tokens(x, valid, x[..., :2]), AveragePool(PREFIX, DIM, CLASSES, None, False)
    close = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]
    pooled = pool(batch).x
    assert pooled.dtype == dtype
    for face, there in enumerate(([2, 3, 4, 5, 6], [2, 4, 6], [], [5])):
        expected = x[face, there].double().sum(0) / max(1, len(there))
        assert torch.allclose(pooled[face].double(), expected, rtol=0, atol=close)
    assert torch.allclose(pool(batch._replace(valid=None)).x[2], x[2, 2:].mean(0), rtol=0, atol=close)


@pytest.mark.parametrize("name", POOLS)
def test_weights_sum_to_one_and_leave_out_what_is_missing(name: str) -> None:
    pool, batch = pools()[name], tokens()
    weights = pool(batch).weights
    assert weights.shape == ((3, 2, CLASSES, 7) if name == "query" else (3, 1, 1, 7))
    expected = torch.ones(weights.shape[:-1])
    if name == "token":
        assert torch.equal(pool(batch).x, batch.x[:, 0])
    else:
        expected[2] = 0.0  # nothing there: defined, and 0
        assert (weights[..., :PREFIX] == 0).all()
    assert torch.allclose(weights.sum(-1), expected, atol=1e-6)
    assert (weights.movedim(3, 1)[~VALID] == 0).all()
    x = batch.x.clone().requires_grad_()
    pool(batch._replace(x=x)).x.sum().backward()
    assert x.grad.isfinite().all()


def test_each_expression_has_a_separate_classifier() -> None:
    linear, x = ExpressionLinear(DIM, CLASSES), torch.randn(4, CLASSES, DIM)
    for c in range(CLASSES):
        expected = F.linear(x[:, c], linear.weight, linear.bias)[:, c]
        assert torch.allclose(linear(x)[:, c], expected, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_decoder_is_torchs(causal: bool) -> None:
    torch.manual_seed(0)
    block = DecoderBlock(DIM, HEADS, causal).eval()
    shake(block)
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True).eval()
    copy_weights(layer.self_attn, [block.self_attn.qkv], block.self_attn.proj)
    copy_weights(layer.multihead_attn, [block.cross_attn.q, block.cross_attn.kv], block.cross_attn.proj)
    layer.linear1, layer.linear2 = block.mlp.fc1, block.mlp.fc2
    layer.norm1, layer.norm2, layer.norm3 = block.norm1, block.norm2, block.norm3
    queries, memory, valid = torch.randn(2, 3, DIM), torch.randn(2, 7, DIM), VALID[:2]
    mask = nn.Transformer.generate_square_subsequent_mask(3) if causal else None
    expected = layer(queries, memory, tgt_mask=mask, memory_key_padding_mask=~valid, tgt_is_causal=causal)
    result, weights = block(queries, memory, valid)
    assert torch.allclose(result, expected, atol=1e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, 3), atol=1e-6)
