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
        """Makes the weights symmetric; raises FerVitError if the network, or the resumed run,
        cannot be symmetric.
        """
        net: Any = pl_module.net
        if (
            not (difference := asymmetry(net.config, net.settings.outputs)) < 2e-5
        ):  # rounding makes up to 3e-6
            raise FerVitError(
                "This network cannot be symmetric: mirroring a crop changes its outputs by "
                f"{difference:.0e} of their size. It would be with region_source: stem, "
                "region_grid: 1, the regions of both "
                "sides, attention: dot, pos_embed: none or mirror, pool: avg, an even num_heads, "
                "an embed_dim that is a multiple of the patch size, and an img_size one above a "
                "multiple of it (with tokens: region, of half "
                "of it)."
            )
        state = net.state_dict()
        if trainer.ckpt_path and any(
            not torch.equal(state[name], mirror_image(name, state, net)) for name in state
        ):
            raise FerVitError(
                "A run without Symmetry cannot resume with it: leave it out, or start a new run."
            )
        make_symmetric(state, net)

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps AdamW's steps and the batch norms symmetric, also amid a group of batches:
        a run may end there.
        """
        net: Any = pl_module.net
        learned = net.named_parameters()
        gradients = {name: value.grad for name, value in learned if value.grad is not None}
        make_symmetric(gradients, net)
        statistics = {name: value for name, value in net.named_buffers() if ".running_" in name}
        make_symmetric(statistics, net)


@torch.no_grad()
def make_symmetric(tensors: Mapping[str, Tensor], net: RegionViT) -> None:
    """Replaces each tensor, named as in a RegionViT, by the mean of itself and its mirror image."""
    images = {
        name: mirror_image(name, tensors, net)
        for name, value in tensors.items()
        if value.is_floating_point()
    }
    for name, image in images.items():
        tensors[name].add_(image).div_(2)


def mirror_image(name: str, tensors: Mapping[str, Tensor], net: RegionViT) -> Tensor:
    """Returns a tensor of the mirrored network: kernels are flipped,
    pairs of channels and sides swapped.
    """
    side = next((side for side in SIDES if side in name), "")
    x = tensors.get(name.replace(side, SIDES.get(side, "")), tensors[name])
    if ".qkv." in name:
        return swap_halves(x.reshape(3, len(x) // 3, *x.shape[1:]), range(1, x.ndim + 1)).flatten(
            0, 1
        )
    if x.ndim == 4:
        return swap_halves(
            x.flip(3), range(1 + (x.shape[1] > 3))
        )  # an image has up to three channels
    if name.startswith("heads."):
        return mirror_head(name, x, net.settings.outputs)
    if name.endswith("pos_embed"):
        x = swap_columns(x, net.layout)
    if x.ndim == 3:
        return swap_halves(x, range(2, 3))  # of class, register and position tokens
    return swap_halves(x, range(name.startswith("vit.head."), x.ndim))  # not the classes


def mirror_head(name: str, x: Tensor, outputs: Mapping[str, Sequence[str]]) -> Tensor:
    """Returns a parameter of an `AdditiveHead` (..., D, K) or (K,) with its channels
    and outputs mirrored.
    """
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
    """Returns the largest change of outputs when a random crop is mirrored, in units of their root
    mean square.

    The raw values of further heads count as well: left and right are swapped, yaw and roll negated.
    Measured on one block with large random symmetric weights; near-uniform attention would mask an
    asymmetry.
    """
    rng, size = np.random.default_rng(0), config.img_size
    with torch.random.fork_rng(devices=[]):
        small = replace(config, depth=1, keep_rate=(), pretrained=False)
        net = build_model(small, "abc", outputs=dict(outputs or {})).eval()
    for value in (state := net.state_dict()).values():
        value.copy_(
            torch.from_numpy(
                rng.normal(0, 0.25, value.shape) if value.ndim > 1 else rng.random(value.shape)
            )
        )
    make_symmetric(state, net)
    crop = (
        rng.integers(256, size=(size, size, 3), dtype=np.uint8),
        rng.normal(TEMPLATE, 0.02) * size,
    )
    views = crop, mirror(*crop)
    images = torch.from_numpy(np.stack([image for image, _ in views])).permute(0, 3, 1, 2) / 255
    boxes = torch.from_numpy(
        np.stack([region_boxes(points, config.regions) for _, points in views])
    )
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
