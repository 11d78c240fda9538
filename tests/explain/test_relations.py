import numpy as np
import pytest
import torch
from torch import Tensor

from fer_vit.explain.heads import head_relations, relations
from fer_vit.explain.trace import record_attention, trace
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import noise_faces, small_model


def build(**change: object) -> RegionViT:
    return small_model(depth=3, regions=("right_eye", "left_eye", "mouth"), **change)


def faces() -> tuple[Tensor, Tensor, Tensor]:
    boxes = torch.tensor([[2.0, 2, 14, 14], [16, 2, 28, 14], [8, 18, 24, 30]])
    image, boxes, valid = noise_faces(boxes, torch.tensor([[True] * 3, [True, False, True]]))
    boxes[1, 1] = torch.nan
    return image, boxes, valid


@pytest.mark.parametrize("tokens", ["patch", "region", "both"])
def test_rows_sum_to_one_and_missing_regions_have_no_relations(tokens: str) -> None:
    image, boxes, valid = faces()
    flow = relations(trace(build(tokens=tokens), image, boxes, valid))
    assert torch.allclose(flow.sum(-1), valid.float(), atol=1e-5)
    assert (flow.mT[~valid] == 0).all()


def test_a_large_region_does_not_win_by_its_size() -> None:
    net = build(tokens="region", region_grid=1)
    for block in net.vit.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)  # everybody attends to everybody
    image, boxes, valid = faces()
    boxes[0, 2] = torch.tensor([0.0, 0.0, 32.0, 32.0])
    flow = relations(trace(net, image[:1], boxes[:1], valid[:1]))[0]
    apart = flow[~torch.eye(3, dtype=torch.bool)]
    assert torch.allclose(apart, apart[0].expand(6), atol=1e-6)


def test_regions_are_the_mean_of_their_tokens_and_patches() -> None:
    net = build(region_grid=1, reg_tokens=1)
    image, boxes, valid = faces()
    flow = relations(trace(net, image[:1], boxes[:1], valid[:1]))[0]
    with record_attention(net) as attention:
        net(image[:1], boxes[:1], valid[:1])
    rollout = np.eye(21)
    for weights in attention:
        rollout = (0.5 * weights[0].detach().double().numpy().mean(0) + 0.5 * np.eye(21)) @ rollout
    parts = np.zeros((3, 21))
    parts[range(3), range(18, 21)] = 1
    for r, (left, top, right, bottom) in enumerate(boxes[0].int().tolist()):
        covered = np.zeros((32, 32))
        covered[top:bottom, left:right] = 1
        parts[r, 2:18] = covered.reshape(4, 8, 4, 8).mean((1, 3)).ravel()
    parts /= parts.sum(1, keepdims=True)
    taken = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            taken[a, b] = sum(parts[a, i] * rollout[i, j] * parts[b, j] for i in range(21) for j in range(21))
    assert np.allclose(flow, taken / taken.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("tokens", ["patch", "region", "both"])
def test_relations_of_a_head_are_its_attention_from_region_to_region(tokens: str) -> None:
    net = build(tokens=tokens, region_grid=2)
    image, boxes, valid = faces()
    seen = trace(net, image, boxes, valid)
    found = head_relations(seen)
    assert found.shape == (2, 3, 2, 3, 3)
    for face, block, head in np.ndindex(2, 3, 2):
        weights = seen.attention[block][face, head].detach().double().numpy()
        parts = seen.membership[face].double().numpy()
        for a in range(3):
            taken = np.zeros(3)
            for b in range(3):
                if valid[face, a] and valid[face, b]:
                    pairs = [(i, j) for i in range(len(weights)) for j in range(len(weights))]
                    taken[b] = sum(parts[a, i] * weights[i, j] * parts[b, j] for i, j in pairs) / parts[b].sum()
            expected = taken / max(taken.sum(), 1e-12)
            assert np.allclose(found[face, block, head, a], expected, atol=1e-5)
