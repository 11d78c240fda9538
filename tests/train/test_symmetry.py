from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fer_vit.errors import FerVitError
from fer_vit.face.crop import REGIONS, region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.train.module import Symmetry, asymmetry, make_symmetric, mirror_image

SWAPPED = [1, 0, 3, 2, 4, 5, 7, 6, 8, 9, 10]
"""Whose place each region has in a mirror image."""
CONFIG = RegionViTConfig(
    img_size=25,
    in_chans=1,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=4,
    stem="conv",
    standardize=True,
    tokens="region",
    regions=tuple(REGIONS),
    region_grid=1,
    region_source="stem",
    pos_embed="none",
    pool="avg",
)

NEW: Any = SimpleNamespace(ckpt_path=None)


def network(**changes: Any) -> RegionViT:
    """A network none of whose weights or statistics is what it starts as."""
    torch.manual_seed(0)
    net = build_model(replace(CONFIG, **changes), ["a", "b", "c"])
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.randn_like(value).abs() if value.ndim == 1 else torch.randn_like(value) / 4)
    return net.eval()


def faces(number: int, size: int) -> tuple[Tensor, Tensor]:
    """Random images and boxes of their regions."""
    rng = np.random.default_rng(0)
    landmarks = size * (np.array(TEMPLATE) + rng.normal(0, 0.03, (number, 5, 2)))
    boxes = np.stack([region_boxes(points, tuple(REGIONS)) for points in landmarks])
    return torch.from_numpy(rng.random((number, 3, size, size), np.float32)), torch.from_numpy(boxes)


def mirrored(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    left, top, right, bottom = boxes[:, SWAPPED].unbind(-1)
    width = image.shape[3]
    return image.flip(3), torch.stack([width - right, top, width - left, bottom], dim=-1)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"in_chans": 3, "img_size": 49, "standardize": False},
        {"stem_convs": 1, "pool": "token", "reg_tokens": 3, "block": "post_norm"},
        {"attention": "gaussian"},
        {"stem": "patch", "region_source": "image", "img_size": 30},
    ],
)
def test_a_face_and_its_mirror_image_have_the_same_logits(change: dict[str, Any]) -> None:
    net = network(**change)
    face = faces(4, net.config.img_size)
    assert (net(*face) - net(*mirrored(*face))).abs().max() > 0.01
    make_symmetric(net.state_dict())
    logits = net(*face)
    assert torch.allclose(logits, net(*mirrored(*face)), atol=1e-5)
    assert logits.std() > 0.1
    assert asymmetry(net.config) < 5e-6


def test_training_keeps_the_weights_symmetric() -> None:
    net = network().train()
    module: Any = nn.Module()
    module.net, callback, nothing = net, Symmetry(), SimpleNamespace()
    callback.on_fit_start(NEW, module)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    image, boxes = faces(8, net.config.img_size)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    for batch in range(5):
        F.cross_entropy(net(image, boxes), torch.arange(8) % 3).backward()
        callback.on_after_backward(nothing, module)
        if batch % 2:  # the run ends amid the third group
            optimizer.step()
            optimizer.zero_grad()
    state = net.state_dict()
    assert all(torch.equal(value, mirror_image(name, state)) for name, value in state.items() if value.ndim)
    assert not any(torch.equal(value, start[name]) for name, value in state.items() if value.ndim)
    net.eval()
    assert torch.allclose(net(image, boxes), net(*mirrored(image, boxes)), atol=1e-5)


def test_a_run_that_began_without_it_cannot_resume_with_it() -> None:
    module: Any = nn.Module()
    module.net = network()
    with pytest.raises(FerVitError, match="cannot resume with it"):
        Symmetry().on_fit_start(SimpleNamespace(ckpt_path="last.ckpt"), module)
    make_symmetric(module.net.state_dict())
    Symmetry().on_fit_start(SimpleNamespace(ckpt_path="last.ckpt"), module)


@pytest.mark.parametrize(
    "change",
    [
        {"img_size": 24},
        {"num_heads": 3, "embed_dim": 24},
        {"pos_embed": "sincos_2d"},
        {"region_grid": 2},
        {"regions": ("right_eye", "mouth")},
        {"tokens": "both", "img_size": 24},
        {"attention": "additive"},
    ],
)
def test_other_networks_are_refused(change: dict[str, Any]) -> None:
    module: Any = nn.Module()
    module.net = build_model(replace(CONFIG, **change), ["a", "b", "c"])
    with pytest.raises(FerVitError, match="cannot be symmetric"):
        Symmetry().on_fit_start(NEW, module)
