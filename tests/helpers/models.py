"""Small models and faces for them, with random numbers that are always the same."""

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model

ROUNDING = 1e-5
"""The largest difference between two computations of a network's outputs, whose size is about 1.

Batches of another size, threads and processors add in another order. A sum of n products in float32
has an error of about sqrt(n) * 2**-24 of its size: 2e-6 for the up to 1,152 products here. Three
blocks add up to three such errors. Outputs are equal bit for bit only where the same operation has
the same shapes.
"""


def small_model(
    labels: str = "abcd", classifier: tuple[str, ...] = (), **config: object
) -> RegionViT:
    """A model of two blocks for crops of 32 pixels, unless the settings differ.

    `classifier` names the parameters of the classifier that are drawn anew: timm starts them near
    0.
    """
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    net = build_model(RegionViTConfig(**{**size, **config}), labels).eval()
    for name in classifier:
        torch.nn.init.normal_(getattr(net.vit.head, name))
    return net


def noise_faces(boxes: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Crops of noise with the same boxes (R, 4), and which regions are there (B, R)."""
    image = torch.rand(len(valid), 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return image, boxes.expand(len(valid), -1, -1).clone(), valid.clone()


def copy_weights(
    attention: nn.MultiheadAttention, packed: list[nn.Linear], proj: nn.Linear
) -> None:
    """Copies the weights of another attention; the queries',
    keys' and values' layers lie one below the other.
    """
    attention.in_proj_weight.data = torch.cat([layer.weight.data for layer in packed])
    attention.in_proj_bias.data = torch.cat([layer.bias.data for layer in packed])
    attention.out_proj.load_state_dict(proj.state_dict())


def shake(module: nn.Module) -> None:
    """Draws every parameter anew, so that biases and norms matter."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def blurred(image: Tensor) -> Tensor:
    """Blurs faces (B, 3, S, S) by a Gaussian of an eighth of the side, which ends at the border."""
    places = np.arange(image.shape[-1])
    weights = norm.pdf(np.subtract.outer(places, places), scale=len(places) / 8)
    across = torch.from_numpy(weights / weights.sum(1, keepdims=True))
    return (across @ image.double() @ across.T).to(image)


def tokens_of_regions(net: RegionViT, membership: Tensor) -> Tensor:
    """Returns which tokens (R, T) are of each region of a face: its own, and each patch that it
    covers by half, or the one that it covers most.
    """
    chosen = membership >= 1
    patches = range(net.layout.num_tokens)[net.layout.patches]
    for region, parts in enumerate(membership.tolist()):
        most = max((parts[patch] for patch in patches), default=0)
        for patch in patches:
            chosen[region, patch] = parts[patch] > 0 and parts[patch] >= min(most, 0.5)
    return chosen
