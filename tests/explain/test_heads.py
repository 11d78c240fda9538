import math

import pytest
import torch

from fer_vit.explain.heads import head_roles
from fer_vit.explain.trace import record_attention, trace
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import noise_faces, small_model

BOXES = torch.tensor([[2.0, 2.0, 14.0, 14.0], [10.0, 18.0, 26.0, 30.0]])
VALID = torch.tensor([[True, True], [True, False], [False, False]])


def build(**change: object) -> RegionViT:
    return small_model(regions=("right_eye", "mouth"), region_grid=1, **change)


def faces() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return noise_faces(BOXES, VALID)


@pytest.mark.parametrize("change", [{}, {"pool": "avg"}, {"tokens": "region"}, {"attention": "additive"}])
def test_maps_and_distances_against_loops(change: dict[str, object]) -> None:
    net = build(**change)
    roles = head_roles(trace(net, *faces()))
    tokens = net.tokenize(*faces())
    with record_attention(net) as attention:
        encoded = net.forward_features(tokens)
    pool = net.pool(encoded).weights[:, 0, 0].detach().double()
    for face in range(3):
        places = [t for t in range(1, net.layout.num_tokens) if tokens.valid[face, t]]
        for block in range(2):
            for head in range(2):
                weights = attention[block][face, head].detach().double()
                looked = [sum(pool[face, i] * weights[i, j] for i in range(len(weights))) for j in places]
                expected = torch.zeros(len(weights), dtype=torch.float64)
                expected[places] = torch.tensor([one / max(sum(looked), 1e-12) for one in looked]).double()
                assert torch.allclose(roles.maps[face, block, head].double(), expected, atol=1e-5)
                means = []
                for i in places:
                    far = [
                        math.dist(tokens.centres[face, i].tolist(), tokens.centres[face, j].tolist()) for j in places
                    ]
                    row = [weights[i, j].item() for j in places]
                    means.append(sum(f * w for f, w in zip(far, row, strict=True)) / sum(row))
                mean = sum(means) / max(len(means), 1)
                assert roles.distance[face, block, head].item() == pytest.approx(mean, abs=1e-4)
    assert roles.expressions.shape == (3, 0, net.layout.num_tokens)


def test_a_kernel_says_how_far_its_head_looks() -> None:
    net = build(attention="gaussian", num_heads=4, tokens="patch")
    with torch.no_grad():
        net.vit.blocks[0].attn.log_width.copy_(torch.tensor([0.5, 4.0, 16.0, 1e4]).log())
    distance = head_roles(trace(net, *faces())).distance[0, 0]
    assert distance[0] < 0.01
    assert distance.tolist() == sorted(distance.tolist())
    # Infinitely wide: the mean distance of two of the 4 x 4 patches.
    places = [(8 * x + 4, 8 * y + 4) for x in range(4) for y in range(4)]
    assert distance[3].item() == pytest.approx(sum(math.dist(a, b) for a in places for b in places) / 256, abs=1e-3)


def test_each_expression_has_a_map() -> None:
    net = build(pool="query")
    roles = head_roles(trace(net, *faces()))
    assert roles.expressions.shape == (3, 4, net.layout.num_tokens)
    assert torch.allclose(roles.expressions.sum(-1), torch.ones(3, 4), atol=1e-5)
    regions = net.layout.region_scores(roles.expressions)
    assert (regions[~VALID[:, None].expand(-1, 4, -1)] == 0).all()
    assert (regions[VALID[:, None].expand(-1, 4, -1)] > 0).all()
    assert not torch.allclose(roles.expressions[:, 0], roles.expressions[:, 1], atol=1e-6)


def test_tokens_that_hard_attention_took_out_do_not_look() -> None:
    net = build(keep_rate=(1.0, 0.25), pool="avg")
    roles = head_roles(trace(net, *faces()))
    patches = net.layout.patch_map(roles.maps)
    assert ((patches > 0).flatten(-2).sum(-1) == torch.tensor([[16, 16], [4, 4]])).all()
    assert net.drop_by_mask is False
