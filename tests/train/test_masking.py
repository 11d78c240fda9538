"""Hidden pixels stay hidden, and only they are predicted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.train.task import encode_hidden, hide, pixel_loss

CONFIG = RegionViTConfig(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, regions=("mouth", "nose"), region_grid=1
)
MODELS = {
    "patch": {"tokens": "patch"},
    "region": {"tokens": "region"},
    "both": {},
    "grey": {"in_chans": 1},
    "grid": {"region_grid": 2},
    "standardised": {"standardize": True, "stem": "conv"},
    "conv, regions of the image": {"stem": "conv", "tokens": "region"},
    "conv, regions of the stem": {"stem": "conv", "region_source": "stem"},
    "conv, regions of the stem alone": {"stem": "conv", "region_source": "stem", "tokens": "region", "in_chans": 1},
    "no class token": {"backbone": "vit_medium_patch16_gap_256", "pool": "avg"},
    "computed positions": {"pos_embed": "sincos_2d", "pool": "query", "causal": True},
}
BOXES = torch.tensor([[8.0, 8.0, 24.0, 24.0], [3.3, 1.2, 17.9, 15.8]])


def build(**change: object) -> RegionViT:
    torch.manual_seed(0)
    return build_model(replace(CONFIG, **change), [])


def faces(size: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, boxes, which regions are present, and the noise that hides patches."""
    torch.manual_seed(1)
    valid = torch.ones(size, 2, dtype=torch.bool)
    valid[-1, 1] = False
    boxes = BOXES.repeat(size, 1, 1).masked_fill(~valid[..., None], 0)
    return torch.rand(size, 3, 32, 32), boxes, valid, torch.rand(size, 16)


def covered(seen: Tensor, image: Tensor) -> Tensor:
    """Which pixels of faces (B, 3, S, S) are hidden (B, 1, S, S)."""
    return (seen != image).any(1, keepdim=True)


def encode(net: RegionViT, image: Tensor, noise: Tensor, token: Tensor) -> Tensor:
    _, boxes, valid, _ = faces(len(image))
    return encode_hidden(net, boxes, valid, hide(net, image, boxes, valid, noise, 0.6), token)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_hidden_reaches_the_encoder(name: str, training: bool) -> None:
    net = build(**MODELS[name]).train(training)
    image, boxes, valid, noise = faces()
    pixels = covered(hide(net, image, boxes, valid, noise, 0.6).seen, image)
    token = torch.rand(net.vit.embed_dim)
    before = encode(net, image, noise, token)
    assert torch.equal(encode(net, torch.where(pixels, torch.rand(image.shape) * 9 - 4, image), noise, token), before)
    assert not torch.equal(encode(net, torch.where(pixels, image, 1 - image**2), noise, token), before)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_tokens_keep_their_positions_and_nothing_else(name: str) -> None:
    net = build(**MODELS[name]).eval()
    image, boxes, valid, noise = faces(2)
    hidden = hide(net, image, boxes, valid, noise, 0.6)
    hidden = hidden._replace(tokens=torch.ones_like(hidden.tokens))
    token = torch.rand(net.vit.embed_dim)
    out = encode_hidden(net, boxes, valid, hidden, token)
    other = encode_hidden(net, boxes, valid, hidden._replace(seen=torch.rand(image.shape)), token)
    assert torch.equal(out, other)
    assert not torch.allclose(out[:, 0], out[:, -1])
    assert not torch.allclose(out, encode_hidden(net, boxes, valid, hidden, -token))


@pytest.mark.parametrize(("ratio", "number"), [(0.6, 10), (0.05, 1), (0.95, 15)])
def test_the_patches_with_the_least_noise_get_the_mean_of_the_others(ratio: float, number: int) -> None:
    image, boxes, valid, noise = faces()
    hidden = hide(build(), image, boxes, valid, noise, ratio)
    expected = image.clone()
    for face in range(3):
        chosen = np.argsort(noise[face].numpy())[:number]
        assert hidden.tokens[face, :16].nonzero().flatten().tolist() == sorted(chosen)
        gone = torch.zeros(4, 4, dtype=torch.bool)
        gone.view(-1)[chosen] = True
        gone = gone.repeat_interleave(8, 0).repeat_interleave(8, 1)
        for channel in range(3):
            expected[face, channel][gone] = image[face, channel][~gone].mean()
    assert torch.allclose(hidden.seen, expected, atol=1e-6)
    assert torch.equal(covered(hidden.seen, image), covered(expected, image))


def test_a_region_is_hidden_when_more_than_half_of_it_is() -> None:
    net = build(tokens="region")
    boxes = BOXES[:1].repeat(1, 2, 1)  # the four patches in the middle: 5, 6, 9, 10
    for first, expected in (((5,), False), ((5, 6), False), ((5, 6, 9), True), ((0, 1, 2, 3), False)):
        noise = torch.ones(1, 16)
        noise[0, list(first)] = 0
        hidden = hide(net, torch.rand(1, 3, 32, 32), boxes, torch.ones(1, 2, dtype=torch.bool), noise, len(first) / 16)
        assert hidden.tokens.tolist() == [[expected] * 2]
        # The 16 x 16 pixels of the box become 8 x 8.
        assert hidden.weights.sum() == len({5, 6, 9, 10} & set(first)) * 16 * 3 * 2


@pytest.mark.parametrize("name", ["both", "grid", "grey", "patch", "conv, regions of the stem alone"])
def test_targets_and_loss_by_a_loop_in_float64(name: str) -> None:
    net = build(**MODELS[name])
    image, boxes, valid, noise = faces()
    boxes = torch.tensor([[8.0, 4.0, 24.0, 20.0], [0.0, 12.0, 16.0, 28.0]]).repeat(3, 1, 1)
    if net.config.region_grid == 2:
        boxes[:] = torch.tensor([0.0, 0.0, 32.0, 32.0])  # two pixels become one: a mean of four
    hidden = hide(net, image, boxes, valid, noise, 0.6)
    preds = torch.rand(hidden.target.shape)
    pixels, seen = image.double().numpy(), ~covered(hidden.seen, image)[:, 0].numpy()
    if net.config.in_chans == 1:  # luma, which the network reads
        pixels = (0.299 * pixels[:, 0] + 0.587 * pixels[:, 1] + 0.114 * pixels[:, 2])[:, None]
    total, count = 0.0, 0
    for face in range(3):
        token = 0
        for patch in range(net.layout.num_patches):
            row, column = 8 * (patch // 4), 8 * (patch % 4)
            part = pixels[face][:, row : row + 8, column : column + 8]
            off = seen[face][row : row + 8, column : column + 8]
            total, count = add_errors(total, count, part, ~off, preds[face, token])
            token += 1
        for region in range(net.layout.num_regions):
            left, top = (int(value) for value in boxes[face, region, :2])
            for cell in range(net.config.region_grid**2):
                row, column = top + 16 * (cell // net.config.region_grid), left + 16 * (cell % net.config.region_grid)
                part = pixels[face][:, row : row + 16, column : column + 16]
                part = part.reshape(len(part), 8, 2, 8, 2).mean((2, 4))
                off = seen[face][row : row + 16, column : column + 16].reshape(8, 2, 8, 2).any((1, 3))
                if valid[face, region]:
                    total, count = add_errors(total, count, part, ~off, preds[face, token])
                token += 1
    assert hidden.weights.sum() == count
    assert pixel_loss(preds, hidden).item() == pytest.approx(total / count, rel=1e-4)


def add_errors(total: float, count: int, part: np.ndarray, gone: np.ndarray, preds: Tensor) -> tuple[float, int]:
    """Adds the squared errors of a token's hidden pixels: its pixels (C, 8, 8), which are hidden (8, 8)."""
    normal = (part - part.mean()) / np.sqrt(part.var() + 1e-6)
    errors = (preds.double().numpy().reshape(part.shape) - normal) ** 2
    return total + float(errors[:, gone].sum()), count + int(gone.sum()) * len(part)


def test_patches_at_the_edges_may_be_cut_off() -> None:
    name, (image, boxes, valid, noise) = "conv, regions of the stem alone", faces()
    whole = hide(build(**MODELS[name]), image, boxes, valid, noise, 0.6).seen
    seen = hide(build(**MODELS[name], img_size=29), image[..., :29, :29], boxes, valid, noise, 0.6).seen
    assert torch.equal(covered(seen, image[..., :29, :29]), covered(whole, image)[..., :29, :29])
