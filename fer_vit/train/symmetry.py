"""Keeps weights symmetric, so that a crop and its mirror image have the same outputs.

K outputs of a head, N patches, D width.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.face.crop import mirror, region_boxes
from fer_vit.geometry import TEMPLATE, Array
from fer_vit.heads import EXPRESSION, HEADS, NO_OUTPUTS, HeadOutputs, one_sided
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.model.tokens import TokenLayout
from fer_vit.wording import list_names

# Parts of the names of tensors of a region on one side, and of the region opposite it.
OPPOSITE_SIDES = {".right_": ".left_", ".left_": ".right_"}

# Largest `asymmetry` of a network that can be symmetric. Rounding in float32 causes 2.3e-5, if an
# output is small beside its terms; networks that cannot be symmetric have more than 1e-3.
TOLERANCE = 1e-4

IMAGE_CHANNELS = 3  # most input channels of a kernel that reads the image


class Symmetry(L.Callback):
    """Keeps a network's weights symmetric: a crop and its mirror image have the same logits.

    Channels and attention heads form pairs, with one partner in each half. One partner computes for
    a face what the other computes for the mirror image. So each weight equals another weight, and
    half of the weights are free. These are group-equivariant convolutions (Cohen & Welling, ICML
    2016) for the group of mirror images. Prediction needs no special code.

    The weights are made symmetric when training starts. This ruins a trained model that is not
    symmetric.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Makes the weights symmetric; raises FerVitError if the network or the run cannot be."""
        net: Any = pl_module.net
        outputs: HeadOutputs = net.settings.outputs
        for head, of_head in outputs.by_head.items():
            _check_sides(head, of_head.names)
        difference = asymmetry(net.config, outputs)
        if not difference < TOLERANCE:  # also NaN
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
        """Makes gradients and batch norms symmetric, so that the weights stay symmetric."""
        net: Any = pl_module.net
        gradients = {}
        for name, value in net.named_parameters():
            if value.grad is not None:
                gradients[name] = value.grad
        make_symmetric(gradients, net)
        statistics = {name: value for name, value in net.named_buffers() if ".running_" in name}
        make_symmetric(statistics, net)


def _check_sides(head: str, outputs: Sequence[str]) -> None:
    """Raises FerVitError when a head has outputs that are unknown for the mirrored face."""
    alone = one_sided(outputs)
    if alone:
        raise FerVitError(
            f"A symmetric network needs outputs of both sides, but {head} has "
            f"{list_names(alone, limit=6)} of one side alone. Add targets of the other side, or "
            "leave out Symmetry."
        )


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
    """Returns a tensor of the mirrored network: kernels flipped, channels and sides swapped.

    A tensor of a region is replaced by the tensor of the opposite region. If `tensors` lacks the
    opposite one, because the network has regions of one side only, the tensor itself is mirrored;
    `asymmetry` detects such a network.
    """
    opposite = opposite_name(name)
    source = opposite if opposite in tensors else name
    x = tensors[source]
    for rule in RULES:
        if rule.applies(name, x):
            return rule.mirror(name, x, net)
    return mirror_channels(x)


def opposite_name(name: str) -> str:
    """Returns the name of the tensor of the region on the other side, or the same name."""
    for side, opposite in OPPOSITE_SIDES.items():
        if side in name:
            return name.replace(side, opposite)
    return name


def mirror_channels(x: Tensor) -> Tensor:
    """Mirrors a matrix (outputs, inputs), or a vector of channels; all channels are in pairs."""
    return swap_halves(x, range(x.ndim))


def mirror_attention(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors queries, keys and values (3 D, D) or (3 D,) one by one."""
    qkv = x.reshape(3, len(x) // 3, *x.shape[1:])
    return swap_halves(qkv, range(1, qkv.ndim)).flatten(0, 1)


def mirror_image_kernel(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors a convolution (outputs, colours, h, w) of the image; colours have no pairs."""
    return swap_halves(x.flip(3), (0,))


def mirror_kernel(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors a convolution (outputs, inputs, h, w) of channels."""
    return swap_halves(x.flip(3), (0, 1))


def mirror_head(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors the channels and outputs of a parameter (..., D, K) or (K,) of a further head."""
    head = name.split(".")[1]
    source, sign = HEADS[head].mirror(net.settings.outputs.of_head(head).names)
    if x.ndim > 1:
        x = swap_halves(x, (-2,))
    return x[..., source] * x.new_tensor(sign)


def mirror_positions(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors the channels of positions (1, N, D) or (1, prefix + N, D), and their columns."""
    return mirror_tokens(name, swap_columns(x, net.layout), net)


def mirror_tokens(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors the channels of tokens (1, T, D)."""
    return swap_halves(x, (2,))


def mirror_classifier(name: str, x: Tensor, net: RegionViT) -> Tensor:
    """Mirrors a classifier (C, D) or (C,); classes have no pairs."""
    return swap_halves(x, range(1, x.ndim))


class Rule(NamedTuple):
    """How the tensors of one kind are mirrored."""

    applies: Callable[[str, Tensor], bool]  # whether a tensor, by name and shape, is of this kind
    mirror: Callable[[str, Tensor, RegionViT], Tensor]


RULES = (  # the first rule that applies counts; `mirror_channels` mirrors all other tensors
    # vit.blocks.0.attn.qkv.weight
    Rule(lambda name, x: ".qkv." in name, mirror_attention),
    # vit.patch_embed.proj.weight, or the first convolution of a stem
    Rule(lambda name, x: x.ndim == 4 and x.shape[1] <= IMAGE_CHANNELS, mirror_image_kernel),
    # a further convolution of a stem
    Rule(lambda name, x: x.ndim == 4, mirror_kernel),
    # heads.pose.by_face
    Rule(lambda name, x: name.startswith("heads."), mirror_head),
    # vit.pos_embed
    Rule(lambda name, x: name.endswith("pos_embed"), mirror_positions),
    # vit.cls_token
    Rule(lambda name, x: x.ndim == 3, mirror_tokens),
    # vit.head.weight
    Rule(lambda name, x: name.startswith("vit.head."), mirror_classifier),
)


def swap_columns(x: Tensor, layout: TokenLayout) -> Tensor:
    """Mirrors the grid of patches in their positions (1, N, D) or (1, prefix + N, D)."""
    if not layout.num_patches:
        return x
    prefix, patches = x.tensor_split([x.shape[1] - layout.num_patches], 1)
    rows = patches.view(1, *layout.grid, patches.shape[2])  # (1, rows, columns, D)
    mirrored = rows.flip(2).flatten(1, 2)  # (1, N, D)
    return torch.cat([prefix, mirrored], 1)


def swap_halves(x: Tensor, axes: Iterable[int]) -> Tensor:
    """Exchanges the first and second half of a tensor (...) along axes; axes of size 1 stay."""
    for axis in axes:
        x = x.roll(x.shape[axis] // 2, axis)
    return x


@torch.no_grad()
def asymmetry(config: RegionViTConfig, outputs: HeadOutputs = NO_OUTPUTS) -> float:
    """Returns the largest change of outputs when a random crop is mirrored.

    The unit is the root mean square of the outputs. Raw values of further heads count, too: left
    and right are swapped, yaw and roll negated. The network has one block with large random
    symmetric weights; with small weights, near-uniform attention would mask an asymmetry.
    """
    rng = np.random.default_rng(0)
    net = _random_symmetric_net(config, outputs, rng)
    images, boxes = _mirrored_pair(config, rng)

    changes = []
    for head, values in net(images, boxes).items():
        face, mirrored = values.unbind()
        expected = mirrored
        if head != EXPRESSION:
            source, sign = HEADS[head].mirror(outputs.of_head(head).names)
            expected = mirrored[source] * mirrored.new_tensor(sign)
        scale = torch.stack([face, mirrored]).square().mean().sqrt()
        changes.append(float((face - expected).abs().max() / scale))
    return max(changes)


def _random_symmetric_net(
    config: RegionViTConfig, outputs: HeadOutputs, rng: np.random.Generator
) -> RegionViT:
    """Builds a network of one block with large random weights, and makes them symmetric."""
    small = replace(config, depth=1, keep_rate=(), pretrained=False)
    with torch.random.fork_rng(devices=[]):
        net = build_model(small, ["a", "b", "c"], outputs=outputs.plain).eval()
    state = net.state_dict()
    for value in state.values():
        if value.ndim > 1:
            numbers: Array = rng.normal(0, 0.25, value.shape)
        else:
            numbers = np.asarray(rng.random(value.shape))
        value.copy_(torch.from_numpy(numbers))
    make_symmetric(state, net)
    return net


def _mirrored_pair(config: RegionViTConfig, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Returns a random crop and its mirror image (2, 3, S, S), and their regions (2, R, 4)."""
    size = config.img_size
    crop = rng.integers(256, size=(size, size, 3), dtype=np.uint8)
    points = rng.normal(TEMPLATE, 0.02) * size
    mirrored_crop, mirrored_points = mirror(crop, points)
    images = torch.from_numpy(np.stack([crop, mirrored_crop])).permute(0, 3, 1, 2) / 255

    region_box = region_boxes(points, config.regions)  # (R, 4)
    mirrored_box = region_boxes(mirrored_points, config.regions)
    boxes = torch.from_numpy(np.stack([region_box, mirrored_box]))
    return images, boxes
