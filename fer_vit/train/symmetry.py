"""Weights with which a crop and its mirror image have the same outputs.

K outputs of a head, N patches, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.face.crop import mirror, region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.model.tokens import TokenLayout

SIDES = {".right_": ".left_", ".left_": ".right_"}


class Symmetry(L.Callback):
    """Keeps a network's weights such that a crop and its mirror image have the same logits.

    Channels and attention heads come in pairs, one in each half: one computes for a face the values
    of the other for its mirror image. So every weight equals another one, and half of them are
    free. Cohen & Welling, "Group Equivariant Convolutional Networks" (ICML 2016), for the group of
    mirror images. Prediction needs no special code.

    The weights are made symmetric when training starts, which ruins a trained model that is not
    symmetric.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Makes the weights symmetric; raises FerVitError if the network or run cannot be so."""
        net: Any = pl_module.net
        difference = asymmetry(net.config, net.settings.outputs)
        if not difference < 2e-5:  # rounding makes up to 3e-6
            raise FerVitError(
                "This network cannot be symmetric: mirroring a crop changes its outputs by "
                f"{difference:.0e} of their size. It would be with region_source: stem, "
                "region_grid: 1, the regions of both sides, attention: dot, pos_embed: none or "
                "mirror, pool: avg, an even num_heads, an embed_dim that is a multiple of the "
                "patch size, and an img_size one above a multiple of it (with tokens: region, of "
                "half of it)."
            )
        state = net.state_dict()
        if trainer.ckpt_path:
            for name, value in state.items():
                if not torch.equal(value, mirror_image(name, state, net)):
                    raise FerVitError(
                        "A run without Symmetry cannot resume with it: leave it out, or start a "
                        "new run."
                    )
        make_symmetric(state, net)

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps AdamW's steps and the batch norms symmetric, also where a run may end."""
        net: Any = pl_module.net
        gradients = {}
        for name, value in net.named_parameters():
            if value.grad is not None:
                gradients[name] = value.grad
        make_symmetric(gradients, net)
        statistics = {name: value for name, value in net.named_buffers() if ".running_" in name}
        make_symmetric(statistics, net)


@torch.no_grad()
def make_symmetric(tensors: Mapping[str, Tensor], net: RegionViT) -> None:
    """Replaces each tensor, named as in a RegionViT, by the mean of itself and its mirror image."""
    images = {}
    for name, value in tensors.items():
        if value.is_floating_point():
            images[name] = mirror_image(name, tensors, net)
    for name, image in images.items():
        tensors[name].add_(image).div_(2)


def mirror_image(name: str, tensors: Mapping[str, Tensor], net: RegionViT) -> Tensor:
    """Returns a tensor of the mirrored network: kernels flipped, channels and sides swapped."""
    x = tensors.get(opposite_name(name), tensors[name])
    if ".qkv." in name:
        parts = x.reshape(3, len(x) // 3, *x.shape[1:])
        return swap_halves(parts, range(1, parts.ndim)).flatten(0, 1)
    if x.ndim == 4:
        reads_image = x.shape[1] <= 3  # its channels have no pairs
        return swap_halves(x.flip(3), range(1 if reads_image else 2))
    if name.startswith("heads."):
        return mirror_head(name, x, net.settings.outputs)
    if name.endswith("pos_embed"):
        x = swap_columns(x, net.layout)
    if x.ndim == 3:
        return swap_halves(x, range(2, 3))  # of class, register and position tokens
    first = 1 if name.startswith("vit.head.") else 0  # classes have no pairs
    return swap_halves(x, range(first, x.ndim))


def opposite_name(name: str) -> str:
    """Returns the name of the tensor of the region on the other side, or the same name."""
    for side, opposite in SIDES.items():
        if side in name:
            return name.replace(side, opposite)
    return name


def mirror_head(name: str, x: Tensor, outputs: Mapping[str, Sequence[str]]) -> Tensor:
    """Returns a parameter (..., D, K) or (K,) of a head with channels and outputs mirrored."""
    head = name.split(".")[1]
    source, sign = HEADS[head].mirror(outputs[head])
    if x.ndim > 1:
        x = swap_halves(x, range(x.ndim - 2, x.ndim - 1))
    return x[..., source] * x.new_tensor(sign)


def swap_columns(x: Tensor, layout: TokenLayout) -> Tensor:
    """Mirrors the grid of patches in their positions (1, N, D) or (1, prefix + N, D)."""
    if not layout.num_patches:
        return x
    prefix, patches = x.tensor_split([x.shape[1] - layout.num_patches], 1)
    rows = patches.view(1, *layout.grid, patches.shape[2])  # (1, rows, columns, D)
    mirrored = rows.flip(2).flatten(1, 2)  # (1, N, D)
    return torch.cat([prefix, mirrored], 1)


def swap_halves(x: Tensor, axes: range) -> Tensor:
    """Exchanges the first and second half of a tensor along axes; axes of size 1 stay."""
    for axis in axes:
        x = x.roll(x.shape[axis] // 2, axis)
    return x


@torch.no_grad()
def asymmetry(config: RegionViTConfig, outputs: Mapping[str, Sequence[str]] | None = None) -> float:
    """Returns the largest change of outputs when a random crop is mirrored.

    It is in units of their root mean square. The raw values of further heads count as well: left
    and right are swapped, yaw and roll negated. Measured on one block with large random symmetric
    weights; near-uniform attention would mask an asymmetry.
    """
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        small = replace(config, depth=1, keep_rate=(), pretrained=False)
        net = build_model(small, "abc", outputs=dict(outputs or {})).eval()
    state = net.state_dict()
    for value in state.values():
        numbers = rng.normal(0, 0.25, value.shape) if value.ndim > 1 else rng.random(value.shape)
        value.copy_(torch.from_numpy(numbers))
    make_symmetric(state, net)

    # a crop and its mirror image
    size = config.img_size
    crop = rng.integers(256, size=(size, size, 3), dtype=np.uint8)
    points = rng.normal(TEMPLATE, 0.02) * size
    mirrored_crop, mirrored_points = mirror(crop, points)
    images = torch.from_numpy(np.stack([crop, mirrored_crop])).permute(0, 3, 1, 2) / 255
    region_box = region_boxes(points, config.regions)  # (R, 4)
    mirrored_box = region_boxes(mirrored_points, config.regions)
    boxes = torch.from_numpy(np.stack([region_box, mirrored_box]))

    changes = []
    for head, values in net(images, boxes).items():
        face, mirrored = values.unbind()
        expected = mirrored
        if head != EXPRESSION:
            source, sign = HEADS[head].mirror(net.settings.outputs[head])
            expected = mirrored[source] * mirrored.new_tensor(sign)
        scale = torch.stack([face, mirrored]).square().mean().sqrt()
        changes.append(float((face - expected).abs().max() / scale))
    return max(changes)
