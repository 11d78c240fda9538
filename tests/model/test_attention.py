import pytest
import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from fer_vit.model.attention import (
    POOLS,
    AdditiveAttention,
    AveragePool,
    DecoderBlock,
    DotAttention,
    ExpressionLinear,
    GaussianAttention,
    PostNormBlock,
    class_attention,
    fused_is_faster,
    located_tokens,
    masked_softmax,
    split_heads,
)
from fer_vit.model.tokens import Tokens
from tests.helpers.models import copy_weights, shake

BATCH, TOKENS, DIM, HEADS, PREFIX, CLASSES = 2, 7, 12, 3, 2, 3
MASK = torch.tensor([[True] * 7, [True, False, True, True, False, True, True]])
VALID = torch.tensor(
    [[True] * 7, [True, True, True, False, True, False, True], [True, True] + [False] * 5]
)


def tokens(valid: Tensor | None = MASK) -> Tokens:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH, TOKENS, DIM, generator=generator)
    return Tokens(x, valid, 48 * torch.rand(BATCH, TOKENS, 2, generator=generator))


def build(kind: type[DotAttention]) -> DotAttention:
    torch.manual_seed(0)
    return kind(DIM, HEADS, qkv_bias=True).eval()


def test_masked_softmax_against_its_formula() -> None:
    scores = torch.randn(4, 6, dtype=torch.float64) * 5
    mask = torch.rand(4, 6) < 0.6
    mask[0] = True
    mask[1] = False
    powers = scores.exp() * mask
    expected = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    assert torch.allclose(masked_softmax(scores, mask), expected, rtol=1e-12)
    assert expected.sum(-1).tolist() == pytest.approx([1.0, 0.0, 1.0, 1.0])
    assert torch.equal(masked_softmax(scores), scores.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_softmax_is_defined_for_rows_without_anything(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, -60000.0]], dtype=dtype, requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[False, False], [True, True]]))
    weights[:, 0].square().sum().backward()
    assert weights.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert scores.grad.isfinite().all()
    assert (scores.grad[0] == 0).all()


@pytest.mark.parametrize("fused", [False, True])
def test_dot_is_timms_and_torchs(fused: bool) -> None:
    layer = build(DotAttention)
    batch = tokens()
    layer.fused_attn = fused
    pairs = layer.pairs(batch)
    result = layer(batch.x, attn_mask=pairs)
    reference = Attention(DIM, HEADS, qkv_bias=True).eval()
    reference.load_state_dict(layer.state_dict())
    reference.fused_attn = fused
    assert torch.equal(result, reference(batch.x, attn_mask=pairs))
    assert torch.allclose(layer.attend(batch.x, pairs), result, atol=1e-6)
    multihead = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    copy_weights(multihead, [layer.qkv], layer.proj)
    expected, weights = multihead(
        batch.x, batch.x, batch.x, key_padding_mask=~MASK, average_attn_weights=False
    )
    assert torch.allclose(result, expected, atol=1e-6)
    assert torch.allclose(layer.weights(batch.x, pairs), weights, atol=1e-6)


def reference(weights: Tensor, values: Tensor, proj: nn.Linear) -> Tensor:
    """Averages values (B, H, T, d) by unnormalised weights (B, H, T, T) of the tokens in MASK,
    and projects them.
    """
    weights = weights * MASK[:, None, None]
    averaged = weights / weights.sum(-1, keepdim=True) @ values
    return F.linear(averaged.transpose(1, 2).flatten(2), proj.weight.double(), proj.bias.double())


def test_additive_against_bahdanaus_formula_in_float64() -> None:
    layer = build(AdditiveAttention)
    batch = tokens()
    packed = F.linear(batch.x.double(), layer.qkv.weight.double(), layer.qkv.bias.double())
    q, k, values = (split_heads(part, HEADS) for part in packed.chunk(3, -1))
    summed = (q[:, :, :, None] + k[:, :, None]).tanh()  # (B, H, T, T, d)
    score = torch.einsum("bhqkd,hd->bhqk", summed, layer.v[..., 0].double())
    output = layer(batch.x, attn_mask=layer.pairs(batch)).double()
    assert torch.allclose(output, reference(score.exp(), values, layer.proj), atol=1e-6)


def test_gaussian_against_nadaraya_and_watsons_formula_in_float64() -> None:
    layer = build(GaussianAttention)
    batch = tokens()
    values = split_heads(
        F.linear(batch.x.double(), layer.value.weight.double(), layer.value.bias.double()), HEADS
    )
    distance = torch.cdist(batch.centres.double(), batch.centres.double())[:, None]  # (B, 1, T, T)
    kernel = (-((distance / layer.log_width.double().exp()[:, None, None]) ** 2) / 2).exp()
    output = layer(batch.x, attn_mask=layer.pairs(batch)).double()
    assert torch.allclose(output, reference(kernel, values, layer.proj), atol=1e-5)


def test_gaussian_widths_are_pixels_and_learn() -> None:
    layer = build(GaussianAttention)
    batch = tokens()
    assert layer.log_width.exp().tolist() == pytest.approx([4, 4 * 32**0.5, 128])
    layer(batch.x, attn_mask=layer.pairs(batch)).square().sum().backward()
    assert layer.log_width.grad.isfinite().all()  # infinite distances stay out of it
    assert (layer.log_width.grad != 0).all()


def test_distances_are_no_infinities_in_half_precision() -> None:
    far = Tokens(torch.zeros(1, 2, DIM), None, torch.tensor([[[0.0, 0.0], [448.0, 448.0]]]).half())
    assert GaussianAttention.pairs(far)[0, 0, 0, 1] == 2 * 448.0**2


@pytest.mark.parametrize("kind", [PostNormBlock, Block])
@pytest.mark.parametrize("valid", [None, MASK])
def test_encoder_blocks_are_torchs(kind: type[Block], valid: Tensor | None) -> None:
    torch.manual_seed(0)
    block = kind(DIM, HEADS, qkv_bias=True, attn_layer=DotAttention, norm_layer=nn.LayerNorm).eval()
    shake(block)
    how = {"activation": "gelu", "norm_first": True} if kind is Block else {"activation": "relu"}
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.0, batch_first=True, **how).eval()
    copy_weights(layer.self_attn, [block.attn.qkv], block.attn.proj)
    layer.linear1 = block.mlp.fc1
    layer.linear2 = block.mlp.fc2
    layer.norm1 = block.norm1
    layer.norm2 = block.norm2
    batch = tokens(valid)
    absent = None if valid is None else ~valid
    expected = layer(batch.x, src_key_padding_mask=absent)
    present = torch.ones_like(MASK) if valid is None else valid  # torch may leave the others at 0
    output = block(batch.x, attn_mask=DotAttention.pairs(batch))
    assert torch.allclose(output[present], expected[present], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attention", "qk_norm"),
    [
        (Block, DotAttention, True),
        (PostNormBlock, DotAttention, False),
        (Block, AdditiveAttention, False),
        (PostNormBlock, GaussianAttention, False),
    ],
)
def test_class_attention_is_what_the_block_computes(
    kind: type, attention: type[DotAttention], qk_norm: bool
) -> None:
    torch.manual_seed(0)
    block = kind(DIM, HEADS, qkv_bias=True, qk_norm=qk_norm, attn_layer=attention).eval()
    shake(block)
    block.attn.fused_attn = False
    seen = []
    block.attn.attn_drop.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    x = tokens().x
    pairs = attention.pairs(tokens())
    block(x, attn_mask=pairs)
    assert torch.allclose(class_attention(block, x, pairs), seen[0].mean(1)[:, 0], atol=1e-6)


def test_the_faster_attention() -> None:
    cpu = torch.device("cpu")
    cases = {(68, False): False, (229, False): True, (229, True): False}
    assert {case: fused_is_faster(cpu, *case) for case in cases} == cases
    assert fused_is_faster(torch.device("cuda"), 68, True)


def encoded() -> Tokens:
    x = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(1))
    return Tokens(x, VALID, x[..., :2])


def pools() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {name: pool(PREFIX, DIM, CLASSES, HEADS, causal=False) for name, pool in POOLS.items()}
    for pool in made.values():
        shake(pool)
    return made


@pytest.mark.parametrize(("dim", "given", "heads"), [(32, None, 1), (200, None, 2), (192, 4, 4)])
def test_a_decoder_has_heads_of_64_dimensions_or_more(
    dim: int, given: int | None, heads: int
) -> None:
    pool = POOLS["query"](PREFIX, dim, 100, given, False)
    assert pool.decoder.cross_attn.num_heads == pool.decoder.self_attn.num_heads == heads
    assert pool.query.std().item() == pytest.approx(0.02, rel=0.1)


def test_additive_pooling_against_the_formula_in_float64() -> None:
    pool = pools()["additive"]
    batch = encoded()
    pooled, weights = pool(batch)
    w, u, v = (p.double() for p in (pool.hidden.weight, pool.hidden.bias, pool.v.weight[0]))
    powers = ((batch.x.double() @ w.T + u).tanh() @ v).exp() * located_tokens(batch, PREFIX)
    expected = powers / powers.sum(1, keepdim=True).clamp(min=1e-300)
    assert torch.allclose(weights[:, 0, 0].double(), expected, atol=1e-6)
    assert torch.allclose(
        pooled.double(), (expected[..., None] * batch.x.double()).sum(1), atol=1e-6
    )
    assert "v.bias" not in pool.state_dict()  # it would have no effect


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_average_is_over_located_tokens(dtype: torch.dtype) -> None:
    valid = torch.cat([VALID, torch.tensor([[True, True, False, False, False, True, False]])])
    x = torch.randn(4, 7, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
    batch = Tokens(x, valid, x[..., :2])
    pool = AveragePool(PREFIX, DIM, CLASSES, None, False)
    close = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]
    pooled = pool(batch).x
    assert pooled.dtype == dtype
    for face, located in enumerate(([2, 3, 4, 5, 6], [2, 4, 6], [], [5])):
        expected = x[face, located].double().sum(0) / max(1, len(located))
        assert torch.allclose(pooled[face].double(), expected, rtol=0, atol=close)
    assert torch.allclose(
        pool(batch._replace(valid=None)).x[2], x[2, 2:].mean(0), rtol=0, atol=close
    )


@pytest.mark.parametrize("name", POOLS)
def test_weights_sum_to_one_and_leave_out_what_is_missing(name: str) -> None:
    pool = pools()[name]
    batch = encoded()
    weights = pool(batch).weights
    assert weights.shape == ((3, HEADS, CLASSES, 7) if pool.per_expression else (3, 1, 1, 7))
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
    linear = ExpressionLinear(DIM, CLASSES)
    x = torch.randn(4, CLASSES, DIM)
    for c in range(CLASSES):
        expected = F.linear(x[:, c], linear.weight, linear.bias)[:, c]
        assert torch.allclose(linear(x)[:, c], expected, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_decoder_is_torchs(causal: bool) -> None:
    torch.manual_seed(0)
    block = DecoderBlock(DIM, HEADS, causal).eval()
    shake(block)
    layer = nn.TransformerDecoderLayer(
        DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True
    ).eval()
    copy_weights(layer.self_attn, [block.self_attn.qkv], block.self_attn.proj)
    copy_weights(
        layer.multihead_attn, [block.cross_attn.q, block.cross_attn.kv], block.cross_attn.proj
    )
    layer.linear1 = block.mlp.fc1
    layer.linear2 = block.mlp.fc2
    layer.norm1 = block.norm1
    layer.norm2 = block.norm2
    layer.norm3 = block.norm3
    queries = torch.randn(2, 3, DIM)
    memory = torch.randn(2, 7, DIM)
    valid = VALID[:2]
    mask = nn.Transformer.generate_square_subsequent_mask(3) if causal else None
    expected = layer(
        queries, memory, tgt_mask=mask, memory_key_padding_mask=~valid, tgt_is_causal=causal
    )
    result, weights = block(queries, memory, valid)
    assert torch.allclose(result, expected, atol=1e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, HEADS, 3), atol=1e-6)
