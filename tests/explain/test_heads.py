"""Recorded attention, and what heads and regions take from it."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from fer_vit.explain.trace import (
    attention_views,
    interactions,
    trace,
)
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import ROUNDING, noise_faces, small_model, tokens_of_regions

BOXES = torch.tensor([[2.0, 2.0, 14.0, 14.0], [10.0, 18.0, 26.0, 30.0], [16.0, 2.0, 28.0, 14.0]])
VALID = torch.tensor([[True] * 3, [True, False, True], [False] * 3])


def build(**change: object) -> RegionViT:
    return small_model(regions=("right_eye", "mouth", "left_eye"), region_grid=1, **change)


def faces(number: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    image, boxes, valid = noise_faces(BOXES, VALID[:number])
    boxes[~valid] = torch.nan
    return image, boxes, valid


@pytest.mark.parametrize("fused", [False, True])
def test_recording_returns_the_weights_and_restores_the_model(fused: bool) -> None:
    net = build()
    use_fused_attention(net, fused)
    before = net.logits(*faces())
    seen = trace(net.train(), *faces())
    assert torch.allclose(seen.logits, before, atol=1e-5)
    assert [a.shape for a in seen.attention] == [(3, 2, 20, 20)] * 2
    assert torch.allclose(torch.stack(seen.attention).sum(-1), torch.ones(2, 3, 2, 20), atol=1e-5)
    assert all(module.training for module in net.modules())
    assert all(block.attn.fused_attn is fused for block in net.vit.blocks)
    assert not any(block.attn.attn_drop._forward_hooks for block in net.vit.blocks)
    assert net.drop_by_mask is False
    assert torch.equal(net.eval().logits(*faces()), before)


def test_threads_that_trace_and_predict_with_one_model_do_not_disturb_each_other() -> None:
    net = build(attention="dot")
    use_fused_attention(net, True)
    image, *places = noise_faces(BOXES, VALID)
    inputs = [(image.roll(shift, 0) / (1 + shift), *places) for shift in range(4)]
    expected = [trace(net, *face) for face in inputs]
    plain = [net.logits(*face) for face in inputs]

    def work(number: int) -> bool:
        index = number % len(inputs)
        if number % 3 == 0:
            return torch.allclose(net.logits(*inputs[index]), plain[index], atol=ROUNDING)
        seen = trace(net, *inputs[index])
        same = (
            torch.allclose(a, b, atol=ROUNDING)
            for a, b in zip(seen.attention, expected[index].attention, strict=True)
        )
        return all(same) and torch.allclose(seen.logits, expected[index].logits, atol=ROUNDING)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(48)))
    assert net.drop_by_mask is False
    assert all(block.attn.fused_attn for block in net.vit.blocks)


@pytest.mark.parametrize(
    "change", [{}, {"pool": "avg"}, {"tokens": "region"}, {"attention": "additive"}]
)
def test_maps_and_distances_against_loops(change: dict[str, object]) -> None:
    net = build(**change)
    seen = trace(net, *faces())
    views = attention_views(seen)
    maps = views.patches[:, 1:5].unflatten(1, (2, 2))
    distance = views.distance.unflatten(1, (2, 2))
    pool = seen.pooled.weights[:, 0, 0].detach().double().numpy()
    centres = seen.tokens.centres.numpy()
    for face, block, head in np.ndindex(3, 2, 2):
        weights = seen.attention[block][face, head].detach().double().numpy()
        places = [t for t in range(1, net.layout.num_tokens) if seen.tokens.valid[face, t]]
        expected = np.zeros(len(weights))
        means = []
        for i in places:
            row = weights[i, places]
            means.append(
                sum(math.dist(centres[face, i], centres[face, j]) * weights[i, j] for j in places)
                / row.sum()
            )
        for j in places:
            expected[j] = sum(pool[face, i] * weights[i, j] for i in range(len(weights)))
        patches = net.layout.patch_map(torch.from_numpy(expected / max(expected.sum(), 1e-12)))
        assert np.allclose(maps[face, block, head], patches, atol=1e-5)
        assert distance[face, block, head].item() == pytest.approx(
            np.mean(means or [0.0]), abs=1e-4
        )


def test_patches_dropped_by_hard_attention_have_no_attention() -> None:
    net = build(keep_rate=(1.0, 0.25), pool="avg")
    patches = attention_views(trace(net, *faces())).patches[:, 1:]
    assert ((patches > 0).flatten(-2).sum(-1) == torch.tensor([16, 16, 4, 4])).all()


@pytest.mark.parametrize("tokens", ["patch", "region", "both"])
def test_relations_against_loops(tokens: str) -> None:
    net = build(tokens=tokens, reg_tokens=1)
    seen = trace(net, *faces(2))
    flow, *head_relations = attention_views(seen).relations.unbind(1)
    assert (flow.mT[~VALID[:2]] == 0).all()
    size = net.layout.num_tokens
    for face in range(2):
        parts = seen.membership[face].double().numpy()
        parts /= np.maximum(parts.sum(1, keepdims=True), 1e-12)
        attention = [weights[face].detach().double().numpy() for weights in seen.attention]
        rollout = np.eye(size)
        for weights in attention:
            rollout = (0.5 * weights.mean(0) + 0.5 * np.eye(size)) @ rollout
        pairs = [(flow[face], rollout)] + [
            (head_relations[2 * b + h][face], attention[b][h]) for b, h in np.ndindex(2, 2)
        ]
        for result, weights in pairs:
            taken = np.zeros((3, 3))
            for a, b in np.ndindex(3, 3):
                taken[a, b] = sum(
                    parts[a, i] * weights[i, j] * parts[b, j] for i, j in np.ndindex(size, size)
                )
            assert np.allclose(
                result, taken / np.maximum(taken.sum(1, keepdims=True), 1e-12), atol=1e-5
            )


@pytest.mark.parametrize(
    "change", [{}, {"pool": "avg"}, {"tokens": "region"}, {"pool": "query"}, {"tokens": "patch"}]
)
def test_views_are_the_encoder_then_heads_then_queries(change: dict[str, object]) -> None:
    net = build(**change)
    seen = trace(net, *faces())
    views = attention_views(seen)
    queries = 4 if "query" in change.values() else 0
    assert views.relations.shape == (3, 1 + 4 + queries, 3, 3)
    assert not views.relations[:, 5:].any()
    assert torch.allclose(
        views.output.sum(-1), VALID.any(1).float()[:, None].expand(3, 5 + queries), atol=1e-5
    )
    each_query = net.layout.patch_map(seen.pooled.weights.mean(1)[:, :queries])
    assert torch.allclose(views.patches[:, 5:], each_query, atol=1e-5)
    # Rollout by loops: half of each block's mean attention, half of the token by the residual path.
    flow = torch.eye(net.layout.num_tokens)
    for weights in seen.attention:
        flow = (weights[0].detach().mean(0) / 2 + torch.eye(len(flow)) / 2) @ flow
    output = seen.pooled.weights[0].detach().mean((0, 1)) @ flow
    output[: net.layout.num_prefix] = 0
    assert torch.allclose(
        views.patches[0, 0], net.layout.patch_map(output / output.sum()), atol=1e-5
    )
    parts = seen.membership[0] / seen.membership[0].sum(1, keepdim=True)
    assert torch.allclose(views.output[0, 0], (parts @ output) / (parts @ output).sum(), atol=1e-5)


@pytest.mark.parametrize("change", [{}, {"tokens": "region", "pool": "avg"}, {"tokens": "patch"}])
def test_interactions_against_loops(change: dict[str, object]) -> None:
    net = build(**change)
    seen = trace(net, *faces())
    pairs = interactions(net, seen)
    label = seen.logits.argmax(1)

    @torch.no_grad()
    def score(face: int, *regions: int) -> float:
        parts = tokens_of_regions(net, seen.membership[face])
        valid = torch.ones(3, net.layout.num_tokens, dtype=torch.bool)
        if seen.tokens.valid is not None:
            valid &= seen.tokens.valid
        valid[face] &= ~parts[list(regions)].any(0)
        tokens = seen.tokens._replace(valid=valid)
        return float(net.forward_head(net.encode(tokens))[face, label[face]])

    for face in range(3):
        whole = score(face)
        alone = [score(face, region) for region in range(3)]
        expected = np.zeros((3, 3))
        for a, b in [(0, 1), (0, 2), (1, 2)]:
            joint = alone[a] + alone[b] - whole - score(face, a, b)  # in logits
            if abs(joint) >= 0.25 * max(abs(whole - single) for single in alone):
                expected[a, b] = expected[b, a] = joint
        assert np.allclose(pairs[face], expected, atol=1e-4)
