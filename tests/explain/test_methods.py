import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.explain.attribution import explain
from fer_vit.explain.methods import METHODS
from fer_vit.explain.trace import attention_views, trace
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import noise_faces, small_model, tokens_of_regions


def build(**change: object) -> RegionViT:
    return small_model(
        classifier=("weight", "bias"), **{"depth": 3, "regions": ("right_eye", "mouth"), **change}
    )


def faces() -> tuple[Tensor, Tensor, Tensor]:
    boxes = torch.tensor([[2.0, 2.0, 14.0, 14.0], [10.0, 18.0, 26.0, 30.0]])
    image, boxes, valid = noise_faces(
        boxes, torch.tensor([[True, True], [True, False], [False] * 2])
    )
    boxes[1, 1] = torch.nan
    return image, boxes, valid


@pytest.mark.parametrize("method", METHODS)
def test_impossible_classes_leave_the_explanations_of_possible_ones(method: str) -> None:
    net = build()
    expected = explain(net, *faces(), method)
    label = int(expected.probabilities[0].argmax())
    net.change_prior(None, [index == label for index in range(len(net.settings.labels))])
    result = explain(net, *faces(), method)
    for name in ("scores", "heat", "shares"):
        assert torch.allclose(getattr(result, name)[0], getattr(expected, name)[0], atol=1e-6)
        assert torch.isfinite(getattr(result, name)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "change",
    [
        {"tokens": "patch"},
        {"tokens": "region", "pool": "avg"},
        {"pool": "query"},
        {"attention": "gaussian"},
        {"block": "post_norm"},
        {"keep_rate": (1, 0.5, 0.5)},
        {"stem": "conv", "region_source": "stem"},
        {"reg_tokens": 2},
    ],
)
def test_every_method_with_every_mechanism(change: dict[str, object], method: str) -> None:
    net = build(**change)
    net.settings.temperature = 3.0
    image, boxes, valid = faces()
    result = explain(net, image, boxes, valid, method)
    assert torch.allclose(
        result.probabilities, (net.logits(image, boxes, valid) / 3).softmax(-1), atol=1e-5
    )
    assert torch.isfinite(result.scores).all()
    for values in (result.scores, result.heat.flatten(1), result.shares):
        total = values.abs().sum(1)
        assert torch.allclose(total, (total > 0.5).float(), atol=1e-5)
    assert (result.shares[~valid] == 0).all()
    assert (result.shares[valid] != 0).all()
    # patches cover every pixel once; the heat of regions is in their boxes
    if net.config.tokens == "patch" and method != "regions":
        cells = F.avg_pool2d(result.heat, 8)
        cells = F.normalize(cells.flatten(1), p=1).view_as(cells)
        assert torch.allclose(cells, net.layout.patch_map(result.scores), atol=1e-5)
    if net.config.tokens == "region" and method != "ablation":
        region_scores = result.scores[:, net.layout.regions].view(3, 2, 4).sum(-1)
        assert torch.allclose(
            result.shares * region_scores.abs().sum(1, keepdim=True), region_scores, atol=1e-6
        )


@pytest.mark.parametrize("method", METHODS)
def test_without_regions_there_are_no_shares(method: str) -> None:
    net = build(tokens="patch", regions=())
    image, boxes, valid = faces()
    result = explain(net, image, boxes[:, :0], valid[:, :0], method)
    assert result.shares.shape == (3, 0)
    assert (result.heat.abs().sum() > 0) == (method not in ("ablation", "regions"))


def test_a_share_is_the_mean_score_of_a_regions_tokens_and_patches() -> None:
    net = build()
    image, boxes, valid = faces()
    result = explain(net, image[:1], boxes[:1], valid[:1], "relevance")
    token_scores = result.scores[0, 17:].view(2, 4)
    patches = net.layout.patch_map(result.scores[0])
    means = []
    for r, (left, top, right, bottom) in enumerate(boxes[0].int().tolist()):
        covered = np.zeros((32, 32))
        covered[top:bottom, left:right] = 1
        parts = torch.from_numpy(covered.reshape(4, 8, 4, 8).mean((1, 3)))
        means.append((token_scores[r].sum() + (parts * patches).sum()) / (4 + parts.sum()))
    expected = torch.stack(means) / torch.stack(means).abs().sum()
    assert torch.allclose(result.shares[0], expected.float(), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_unchanged(method: str) -> None:
    net = build(stem="conv", dropout=0.5).train()
    net.vit.blocks[1].eval()
    for parameter in net.vit.blocks[0].parameters():
        parameter.requires_grad_(False)
    modes = [module.training for module in net.modules()]
    expected = explain(build(stem="conv"), *faces(), method).scores
    wanted = [parameter.requires_grad for parameter in net.parameters()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    scores = explain(net, *faces(), method).scores
    assert torch.allclose(scores, expected, atol=1e-6)
    assert [module.training for module in net.modules()] == modes
    assert [parameter.requires_grad for parameter in net.parameters()] == wanted
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


def test_a_frozen_network_whose_weights_depend_on_no_token() -> None:
    free = build(attention="gaussian")
    frozen = build(attention="gaussian").requires_grad_(False)
    expected = explain(free, *faces(), "relevance").scores
    assert torch.allclose(explain(frozen, *faces(), "relevance").scores, expected, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_agrees_approximately(method: str) -> None:
    net = build()
    image, boxes, valid = faces()
    exact = explain(net, image, boxes, valid, method).scores
    with torch.autocast("cpu", torch.bfloat16):
        rough = explain(net, image, boxes, valid, method).scores
        assert attention_views(trace(net, image, boxes, valid)).relations.dtype == torch.float32
    assert rough.dtype == torch.float32
    assert torch.allclose(rough[:2].abs().sum(1), torch.ones(2), atol=1e-5)
    for a, b in zip(exact[:2], rough, strict=False):
        assert torch.corrcoef(torch.stack([a, b.float()]))[0, 1] > 0.95


@pytest.mark.parametrize("pool", ["token", "query"])
def test_relevance_against_the_papers_matrices_in_float64(pool: str) -> None:
    net = build(pool=pool)
    seen = trace(net, *faces())
    direction = torch.tensor([[1.0, 0.0, -1.0, 0.0]]).expand(3, 4)
    scores = explain(net, *faces(), "relevance", direction).scores
    used = [*seen.attention, *([seen.pooled.weights] if pool == "query" else [])]
    gradients = torch.autograd.grad(seen.logits, used, direction)
    for face in range(3):
        expected = np.zeros(net.layout.num_tokens)
        for sign in (1.0, -1.0):
            r = np.eye(len(expected))
            for weights, gradient in zip(seen.attention, gradients, strict=False):
                product = (gradient[face].double() * weights[face].double()).detach().numpy()
                r = r + np.maximum(sign * product, 0).mean(0) @ r
            top = seen.pooled.weights[face].detach().double().numpy()  # (H, Q, T)
            if pool == "query":
                top = np.maximum(sign * gradients[-1][face].double().numpy() * top, 0)
            expected += sign * (top.mean(0).sum(0) @ r)
        expected[~seen.tokens.valid[face].numpy()] = 0
        expected[0] = 0  # the class token has no place
        expected /= max(np.abs(expected).sum(), 1e-12)
        assert np.allclose(scores[face], expected, atol=1e-5)


@pytest.mark.parametrize("pool", ["token", "avg", "additive", "query"])
def test_relevance_changes_its_sign_with_the_score(pool: str) -> None:
    net = build(pool=pool)
    image, boxes, valid = faces()
    for wanted, unwanted in ((0, 1), (2, 3)):
        why = (torch.eye(4)[wanted] - torch.eye(4)[unwanted]).expand(3, 4)
        forward, back = (
            explain(net, image, boxes, valid, "relevance", d).scores for d in (why, -why)
        )
        assert torch.allclose(forward, -back, atol=1e-6)


def test_ablation_is_the_fall_of_the_logit_without_a_region() -> None:
    net = build(tokens="region", pool="avg")
    image, boxes, valid = faces()
    result = explain(net, image, boxes, valid, "ablation")
    whole = net.logits(image, boxes, valid)
    label = whole.argmax(-1)
    falls = []
    for r in range(2):
        without = valid.clone()
        without[:, r] = False
        fall = (whole - net.logits(image, boxes, without))[torch.arange(3), label]
        falls.append(fall)
    expected = torch.stack(falls, 1)
    expected = expected / expected.abs().sum(1, keepdim=True).clamp(min=1e-12)
    assert torch.allclose(result.shares, expected, atol=1e-4)


def test_every_token_of_a_region_has_its_fall_and_shared_patches_the_mean() -> None:
    net = build()
    image, boxes, valid = (value[:1] for value in faces())
    boxes[0, 1] = torch.tensor([9.0, 9.0, 13.0, 13.0])  # in patch (1, 1), as most of the first
    seen = trace(net, image, boxes, valid)
    result = explain(net, image, boxes, valid, "ablation")
    together = tokens_of_regions(net, seen.membership[0])
    label = int(result.probabilities.argmax())
    with torch.no_grad():
        left = [seen.tokens._replace(valid=seen.tokens.valid & ~unit) for unit in together]
        outputs = [net.forward_head(net.encode(tokens))[0, label] for tokens in left]
    falls = [seen.logits[0, label].item() - output for output in outputs]
    expected = torch.zeros(25)
    for token in range(25):
        mine = [falls[r] for r in range(2) if together[r, token]]
        expected[token] = sum(mine) / max(len(mine), 1)
    assert together[:, 1 + 5].all()
    assert torch.allclose(result.scores[0], expected / expected.abs().sum(), atol=1e-5)


def test_controls_of_methods_are_fixed_random_or_rollout() -> None:
    net = build()
    batch = faces()
    centre = net.layout.patch_map(explain(net, *batch, "centre").scores)[0]
    assert centre[1, 1] == centre.max()
    assert centre[0, 0] == centre.min()
    first = explain(net, *batch, "random").scores
    assert torch.equal(first, explain(net, *batch, "random").scores)
    assert not torch.equal(first, explain(net, batch[0].flip(0), *batch[1:], "random").scores)
    assert first.min() < 0 < first.max()
    reached = explain(net, *batch, "attention").scores
    flow = attention_views(trace(net, *batch)).patches[:, 0]
    assert torch.allclose(net.layout.patch_map(reached), flow, atol=1e-6)


def test_explain_refuses_unknown_methods_and_inference_mode() -> None:
    with pytest.raises(FerVitError, match=r"method .* pixels"):
        explain(build(), *faces(), "Relevance")
    with torch.inference_mode(), pytest.raises(FerVitError, match="outside torch"):
        explain(build(), *faces())
