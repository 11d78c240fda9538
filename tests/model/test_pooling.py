import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fer_vit.model.pooling import POOLS, AveragePool, ExpressionLinear, TokenPool, located_tokens
from fer_vit.model.tokens import Tokens

PREFIX, DIM, CLASSES = 2, 8, 3
VALID = torch.tensor([[True] * 7, [True, True, True, False, True, False, True], [True, True] + [False] * 5])


def tokens() -> Tokens:
    x = torch.randn(3, 7, DIM, generator=torch.Generator().manual_seed(1))
    return Tokens(x, VALID, x[..., :2])


def pools() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {name: pool(PREFIX, DIM, CLASSES, 2, causal=False) for name, pool in POOLS.items()}
    for pool in made.values():
        for parameter in pool.parameters():
            nn.init.normal_(parameter, std=0.5)
    return made


def test_the_class_token_is_the_first() -> None:
    batch = tokens()
    pooled, weights = TokenPool(PREFIX, DIM, CLASSES, None, False)(batch)
    assert torch.equal(pooled, batch.x[:, 0])
    assert weights.tolist() == [[[[1, 0, 0, 0, 0, 0, 0]]]] * 3


def test_places_are_what_is_there_behind_the_prefix() -> None:
    batch = tokens()
    assert located_tokens(batch, PREFIX).int().tolist() == [[0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0, 1], [0] * 7]
    assert located_tokens(batch._replace(valid=None), 0).all()
    assert torch.equal(batch.valid, torch.tensor(VALID.tolist()))  # the batch itself is left alone
    assert located_tokens(batch._replace(valid=None), PREFIX).dtype == torch.bool


def test_additive_pooling_against_the_formula_in_float64() -> None:
    pool, batch = pools()["additive"], tokens()
    pooled, weights = pool(batch)
    w, u, v = pool.hidden.weight.double(), pool.hidden.bias.double(), pool.v.weight[0].double()
    for face in range(2):
        x = batch.x[face].double()
        there = [t for t in range(PREFIX, 7) if VALID[face, t]]
        powers = {}
        for t in there:
            hidden = [math.tanh(sum(w[i, j] * x[t, j] for j in range(DIM)) + u[i]) for i in range(DIM)]
            powers[t] = math.exp(sum(v[i] * hidden[i] for i in range(DIM)))
        expected = torch.tensor([powers.get(t, 0.0) / sum(powers.values()) for t in range(7)], dtype=torch.float64)
        assert torch.allclose(weights[face, 0, 0].double(), expected, atol=1e-6)
        assert torch.allclose(pooled[face].double(), expected @ x, atol=1e-6)
    assert {name: tuple(value.shape) for name, value in pool.named_parameters()} == {
        "hidden.weight": (DIM, DIM),
        "hidden.bias": (DIM,),
        "v.weight": (1, DIM),  # a bias would do nothing
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_average_is_over_the_places_that_are_there(dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("name", ["token", "avg", "additive", "query"])
def test_weights_sum_to_one_and_leave_out_what_is_missing(name: str) -> None:
    pool, batch = pools()[name], tokens()
    weights = pool(batch).weights
    assert weights.shape == ((3, 2, CLASSES, 7) if name == "query" else (3, 1, 1, 7))
    expected = torch.ones(weights.shape[:-1])
    if name != "token":
        expected[2] = 0.0  # nothing there: defined, and 0
        assert (weights[..., :PREFIX] == 0).all()
    assert torch.allclose(weights.sum(-1), expected, atol=1e-6)
    assert (weights.movedim(3, 1)[~VALID] == 0).all()
    x = batch.x.clone().requires_grad_()
    pool(batch._replace(x=x)).x.sum().backward()
    assert x.grad.isfinite().all()


def test_nothing_that_is_missing_changes_what_a_query_finds() -> None:
    pool, batch = pools()["query"], tokens()
    x = torch.where(VALID[..., None], batch.x, 1e3)
    x[:, :PREFIX] = 7.0
    assert torch.equal(pool(batch).x, pool(batch._replace(x=x)).x)


def test_each_expression_has_a_classifier_of_its_own() -> None:
    linear, x = ExpressionLinear(DIM, CLASSES), torch.randn(4, CLASSES, DIM)
    for c in range(CLASSES):
        expected = F.linear(x[:, c], linear.weight, linear.bias)[:, c]
        assert torch.allclose(linear(x)[:, c], expected, atol=1e-6)
