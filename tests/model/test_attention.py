import math
from itertools import product

import pytest
import torch
from timm.layers import Attention
from torch import Tensor
from torch.nn import functional as F

from fer_vit.model.attention import (
    AdditiveAttention,
    DotAttention,
    GaussianAttention,
    fused_is_faster,
    masked_softmax,
)
from fer_vit.model.tokens import Tokens

BATCH, TOKENS, DIM, HEADS = 2, 7, 12, 3
MASK = torch.tensor([[True] * 7, [True, False, True, True, False, True, True]])


def tokens(valid: Tensor | None = MASK) -> Tokens:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH, TOKENS, DIM, generator=generator)
    return Tokens(x, valid, 48 * torch.rand(BATCH, TOKENS, 2, generator=generator))


def build(kind: type[DotAttention]) -> DotAttention:
    torch.manual_seed(0)
    return kind(DIM, HEADS, qkv_bias=True).eval()


def test_masked_softmax_against_the_explicit_sum() -> None:
    scores = torch.randn(4, 6, dtype=torch.float64) * 5
    mask = torch.rand(4, 6) < 0.6
    mask[0], mask[1] = True, False
    weights = masked_softmax(scores, mask)
    for row in range(4):
        total = sum(math.exp(s) for s, there in zip(scores[row].tolist(), mask[row], strict=True) if there)
        for column in range(6):
            expected = math.exp(scores[row, column]) / total if mask[row, column] else 0.0
            assert weights[row, column].item() == pytest.approx(expected, rel=1e-12)
    assert weights.sum(-1).tolist() == pytest.approx([1.0, 0.0, 1.0, 1.0])
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
    layer, batch = build(DotAttention), tokens()
    layer.fused_attn = fused
    relation = layer.relation(batch)
    result = layer(batch.x, attn_mask=relation)
    reference = Attention(DIM, HEADS, qkv_bias=True).eval()
    reference.load_state_dict(layer.state_dict())
    reference.fused_attn = fused
    assert torch.equal(result, reference(batch.x, attn_mask=relation))
    # `weights` equals the weights inside the forward pass.
    assert torch.allclose(layer.attend(batch.x, relation), result, atol=1e-6)
    q, k, v = layer.qkv(batch.x).view(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=relation)
    assert torch.allclose(layer.weights(batch.x, relation) @ v, attended, atol=1e-6)
    multihead = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    multihead.in_proj_weight.data, multihead.in_proj_bias.data = layer.qkv.weight.data, layer.qkv.bias.data
    multihead.out_proj.load_state_dict(layer.proj.state_dict())
    expected, weights = multihead(batch.x, batch.x, batch.x, key_padding_mask=~MASK, average_attn_weights=False)
    assert torch.allclose(result, expected, atol=1e-6)
    assert torch.allclose(layer.weights(batch.x, relation), weights, atol=1e-6)


def reference_weights(score: list[list[float]], valid: list[bool]) -> Tensor:
    """Softmax by loops, over the valid tokens."""
    rows = []
    for row in score:
        powers = [math.exp(s) if there else 0.0 for s, there in zip(row, valid, strict=True)]
        rows.append([power / sum(powers) for power in powers])
    return torch.tensor(rows, dtype=torch.float64)


def test_additive_against_bahdanaus_formula_in_float64() -> None:
    layer, batch = build(AdditiveAttention), tokens()
    width = DIM // HEADS
    weight, bias, v = (p.double() for p in (layer.qkv.weight, layer.qkv.bias, layer.v))
    result = torch.zeros(BATCH, TOKENS, DIM, dtype=torch.float64)
    for b, h in product(range(BATCH), range(HEADS)):
        x = batch.x[b].double()
        rows = slice(h * width, (h + 1) * width)
        q, k, value = (x @ weight[i * DIM :][rows].T + bias[i * DIM :][rows] for i in range(3))
        score = [
            [sum(v[h, e, 0] * math.tanh(q[i, e] + k[j, e]) for e in range(width)) for j in range(TOKENS)]
            for i in range(TOKENS)
        ]
        weights = reference_weights(score, MASK[b].tolist())
        assert torch.allclose(layer.weights(batch.x, layer.relation(batch))[b, h].double(), weights, atol=1e-6)
        result[b, :, rows] = weights @ value
    expected = F.linear(result, layer.proj.weight.double(), layer.proj.bias.double())
    assert torch.allclose(layer(batch.x, attn_mask=layer.relation(batch)).double(), expected, atol=1e-6)


def test_gaussian_against_nadaraya_and_watsons_formula_in_float64() -> None:
    layer, batch = build(GaussianAttention), tokens()
    width = DIM // HEADS
    result = torch.zeros(BATCH, TOKENS, DIM, dtype=torch.float64)
    for b, h in product(range(BATCH), range(HEADS)):
        value = F.linear(batch.x[b].double(), layer.value.weight.double(), layer.value.bias.double())
        sigma = layer.log_width[h].double().exp().item()
        rows = slice(h * width, (h + 1) * width)
        for i in range(TOKENS):
            kernels = [
                math.exp(-(math.dist(batch.centres[b, i].tolist(), batch.centres[b, j].tolist()) ** 2) / (2 * sigma**2))
                if MASK[b, j]
                else 0.0
                for j in range(TOKENS)
            ]
            result[b, i, rows] = sum(k * value[j, rows] for j, k in enumerate(kernels)) / sum(kernels)
    expected = F.linear(result, layer.proj.weight.double(), layer.proj.bias.double())
    assert torch.allclose(layer(batch.x, attn_mask=layer.relation(batch)).double(), expected, atol=1e-5)


def test_gaussian_widths_are_pixels_and_learn() -> None:
    layer, batch = build(GaussianAttention), tokens()
    assert layer.log_width.exp().tolist() == pytest.approx([4, 4 * 32**0.5, 128])
    layer(batch.x, attn_mask=layer.relation(batch)).square().sum().backward()
    assert layer.log_width.grad.isfinite().all()  # infinite distances stay out of it
    assert (layer.log_width.grad != 0).all()
    with torch.no_grad():
        layer.log_width.copy_(torch.tensor([0.01, 10.0, 1e4]).log())
    weights = layer.weights(batch.x, layer.relation(batch))
    assert torch.allclose(weights[0, 0], torch.eye(TOKENS), atol=1e-5)  # nobody but itself
    assert torch.allclose(weights[0, 2], torch.full((TOKENS, TOKENS), 1 / TOKENS), atol=1e-4)  # all alike
    assert (weights[1, :, :, ~MASK[1]] == 0).all()


@pytest.mark.parametrize("kind", [DotAttention, AdditiveAttention, GaussianAttention])
def test_weights_of_some_queries_are_those_rows(kind: type[DotAttention]) -> None:
    layer, batch = build(kind), tokens()
    relation = layer.relation(batch)
    rows = layer.weights(batch.x, relation, slice(1, 3))
    assert torch.allclose(rows, layer.weights(batch.x, relation)[:, :, 1:3], atol=1e-7)
    assert torch.allclose(rows.sum(-1), torch.ones(BATCH, HEADS, 2), atol=1e-6)


@pytest.mark.parametrize("kind", [DotAttention, AdditiveAttention, GaussianAttention])
@pytest.mark.parametrize("valid", [None, MASK])
def test_gradients_against_finite_differences(kind: type[DotAttention], valid: Tensor | None) -> None:
    layer = build(kind).double()
    layer.fused_attn = False
    batch = tokens(valid)
    relation = layer.relation(batch)
    relation = relation.double() if kind is GaussianAttention else relation

    def run(x: Tensor) -> Tensor:
        return layer(x, attn_mask=relation)

    assert torch.autograd.gradcheck(run, batch.x[:, :, :].double().requires_grad_(), atol=1e-5)


def test_distances_are_no_infinities_in_half_precision() -> None:
    far = Tokens(torch.zeros(1, 2, DIM), None, torch.tensor([[[0.0, 0.0], [448.0, 448.0]]]).half())
    assert GaussianAttention.relation(far)[0, 0, 0, 1] == 2 * 448.0**2


@pytest.mark.parametrize(
    ("device", "tokens", "trains_in_bf16", "expected"),
    [
        ("cpu", 68, False, False),
        ("cpu", 229, False, True),
        ("cpu", 229, True, False),
        ("cuda", 68, True, True),
    ],
)
def test_the_faster_attention(device: str, tokens: int, trains_in_bf16: bool, expected: bool) -> None:
    assert fused_is_faster(torch.device(device), tokens, trains_in_bf16) is expected
