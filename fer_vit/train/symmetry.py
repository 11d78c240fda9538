"""Training of a network that gives a face and its mirror image the same answer, by its weights."""

import copy
from collections.abc import Mapping

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fer_vit.errors import FerVitError
from fer_vit.face.crop import mirror
from fer_vit.face.regions import region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.model.region_vit import RegionViT

SIDES = {".right_": ".left_", ".left_": ".right_"}
FIRST = "vit.patch_embed.early.0.0.weight"


class Symmetry(L.Callback):
    """Keeps a network's weights such that a face and its mirror image have the same logits.

    Channels and attention heads come in pairs, one in each half: what one sees in a face, the other sees in its mirror
    image. So every weight equals another one, and half of them are free. Cohen & Welling, "Group Equivariant
    Convolutional Networks" (ICML 2016), for the group of mirror images. Prediction needs nothing of this.

    When training starts the weights are made symmetric, by which a model that was not so would lose what it knows.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Makes the weights symmetric; raises FerVitError when the network's answers are not so even then."""
        net = network(pl_module)
        if (difference := asymmetry(net)) > 1e-5:  # rounding makes about 1e-6
            raise FerVitError(
                f"This network cannot be symmetric: mirroring a face changes its logits by {difference:.0e} of their "
                "deviation. Needed are tokens: region, region_source: stem, region_grid: 1, the regions of both sides, "
                "attention: dot or gaussian, pos_embed: none, a head other than query, an even num_heads, an embed_dim "
                "that is a multiple of the patch size, and an img_size one above a multiple of half of it."
            )
        make_symmetric(net.state_dict())

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Makes the gradients symmetric, after which AdamW keeps the weights so, and the statistics of batch norms."""
        net = network(pl_module)
        make_symmetric({name: value.grad for name, value in net.named_parameters() if value.grad is not None})
        make_symmetric({name: value for name, value in net.named_buffers() if ".running_" in name})


def network(module: L.LightningModule) -> RegionViT:
    """The network that a module trains."""
    return module.net  # type: ignore[return-value]


@torch.no_grad()
def make_symmetric(tensors: Mapping[str, Tensor]) -> None:
    """Replaces tensors, under their names in a RegionViT, by the means of themselves and their mirror images."""
    images = {name: mirror_image(name, tensors) for name, value in tensors.items() if value.is_floating_point()}
    for name, image in images.items():
        tensors[name].add_(image).div_(2)


def mirror_image(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """What a tensor would have to be in a mirror: kernels are flipped, pairs of channels and sides change places."""
    side = next((side for side in SIDES if side in name), "")
    x = tensors.get(name.replace(side, SIDES.get(side, "")), tensors[name])
    if ".qkv." in name:
        return swap_halves(x.reshape(3, len(x) // 3, *x.shape[1:]), range(1, x.ndim + 1)).flatten(0, 1)
    if x.ndim == 4:
        return swap_halves(x.flip(3), range(1 if name == FIRST else 2))
    return swap_halves(x, range(name.startswith("vit.head."), x.ndim))  # not its classes


def swap_halves(x: Tensor, axes: range) -> Tensor:
    """Exchanges the first and second half of a tensor along axes; those of size 1 stay."""
    for axis in axes:
        x = x.roll(x.shape[axis] // 2, axis)
    return x


@torch.no_grad()
def asymmetry(net: RegionViT) -> float:
    """How much mirroring a random face changes its logits, in units of their deviation, with symmetric random weights.

    Weights as they are before training would not do: their attention, for one, is about even.
    """
    net, size, rng = copy.deepcopy(net).cpu().eval(), net.config.img_size, np.random.default_rng(0)
    for value in (state := net.state_dict()).values():
        value.copy_(torch.from_numpy(rng.normal(0, 0.25, value.shape) if value.ndim > 1 else rng.random(value.shape)))
    make_symmetric(state)
    image, landmarks = rng.integers(256, size=(size, size, 3), dtype=np.uint8), rng.normal(TEMPLATE, 0.02) * size
    views = (image, landmarks), mirror(image, landmarks)
    images = torch.from_numpy(np.stack([face for face, _ in views])).permute(0, 3, 1, 2) / 255
    boxes = torch.from_numpy(np.stack([region_boxes(points, net.config.regions) for _, points in views]))
    logits = net(images, boxes)
    return float((logits[0] - logits[1]).abs().max() / logits.std())
