import pytest
import torch

from fer_vit.explain.trace import evaluating, record_attention
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import noise_faces, small_model

BOXES = torch.tensor([[2.0, 2.0, 14.0, 14.0], [10.0, 18.0, 26.0, 30.0]])
VALID = torch.tensor([[True, True], [True, False], [False, False]])


def build() -> RegionViT:
    return small_model(depth=3, regions=("right_eye", "mouth"))


@pytest.mark.parametrize("fused", [False, True])
def test_recording_sees_the_weights_and_leaves_the_model_as_it_was(fused: bool) -> None:
    net = build()
    use_fused_attention(net, fused)
    image, boxes, valid = noise_faces(BOXES, VALID)
    before = net(image, boxes, valid)
    with record_attention(net) as attention:
        recorded = net(image, boxes, valid)
    assert torch.allclose(recorded, before, atol=1e-5)
    assert [a.shape for a in attention] == [(3, 2, 25, 25)] * 3
    assert torch.allclose(torch.stack(attention).sum(-1), torch.ones(3, 3, 2, 25), atol=1e-5)
    assert all(block.attn.fused_attn is fused for block in net.vit.blocks)
    assert not any(block.attn.attn_drop._forward_hooks for block in net.vit.blocks)
    assert torch.equal(net(image, boxes, valid), before)


def test_the_first_blocks_weights_are_softmax_of_queries_and_keys() -> None:
    net = build()
    image, boxes, valid = noise_faces(BOXES, VALID)
    with record_attention(net) as attention:
        net(image, boxes, valid)
    tokens = net.tokenize(image, boxes, valid)
    block = net.vit.blocks[0]
    q, k, _ = block.attn.qkv(block.norm1(tokens.x)).double().view(3, 25, 3, 2, 16).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / 4
    expected = scores.masked_fill(~tokens.valid[:, None, None], -torch.inf).softmax(-1)
    assert torch.allclose(attention[0].double(), expected, atol=1e-6)


def test_an_error_inside_still_restores() -> None:
    net = build().train()
    with pytest.raises(ZeroDivisionError), evaluating(net), record_attention(net):
        _ = 1 / 0
    assert all(module.training for module in net.modules())
    assert all(block.attn.fused_attn for block in net.vit.blocks)
    assert not any(block.attn.attn_drop._forward_hooks for block in net.vit.blocks)
