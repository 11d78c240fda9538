"""Masked pretraining on faces without labels.

B images, S crop size, P patch size, C channels, R regions of k x k tokens, M patch and region
tokens, D width.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fer_vit.data.dataset import PADDING, Batch
from fer_vit.face.crop import crop_for
from fer_vit.geometry import TEMPLATE, Align
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import crop_image, to_grey
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.train.module import DEFAULT_NETWORK, RegionViTModule, check_loss


class Hidden(NamedTuple):
    """Partly hidden faces, and the hidden content."""

    seen: Tensor  # (B, 3, S, S), the faces with covered patches
    tokens: Tensor  # (B, M), True for tokens that are more than half hidden
    target: Tensor  # (B, M, C P^2), the normalised pixels of each token
    weights: Tensor  # (B, M, C P^2), 1 for hidden pixels of the target, else 0


class MaskedPretraining(RegionViTModule):
    """Learns to predict hidden pixels from the rest of a face, by a linear layer on the tokens.

    Complete patches of the image are hidden from the model (Xie et al., "SimMIM", CVPR 2022), so
    that nothing leaks through a stem's field of view or an overlapping region. The targets are
    the normalised pixels of each token (He et al., "Masked Autoencoders Are Scalable Vision
    Learners", CVPR 2022), so a constant prediction has a loss of 1. `FERTask` can start from a
    checkpoint of this class (`init`). The network's head is not trained here.

    Args:
        network: The network.
        align: How faces are cropped: "landmarks" moves the landmarks onto the template, "crop"
            keeps the frame of the images.
        template: Positions (x, y) of the five landmarks in the crop, as fractions of its side.
        mask_ratio: Share of the patches that are hidden.
        **optimization: Arguments of `RegionViTModule`: lr, weight_decay, layer_decay, warmup,
            min_lr and compile.
    """

    def __init__(
        self,
        network: RegionViTConfig = DEFAULT_NETWORK,
        align: Align = "landmarks",
        template: tuple[tuple[float, float], ...] = TEMPLATE,
        mask_ratio: float = 0.6,
        **optimization: Any,
    ) -> None:
        super().__init__(**optimization)
        if isinstance(network, dict):  # as a checkpoint has it
            network = RegionViTConfig(**network)
        self.store_settings(network)
        # All tokens are kept, because each token is predicted.
        crop = crop_for(network.img_size, network.regions, align, template)
        self.net = build_model(replace(network, keep_rate=()), [], crop=crop)
        width = self.net.vit.embed_dim
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.Linear(width, network.in_chans * self.net.patch_size**2)
        self.val_loss: Any = MeanMetric()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch with random patches hidden."""
        noise = torch.rand(len(batch.path), self.num_patches, device=self.device)
        preds, hidden = self.predict_hidden(batch, noise)
        return self.check_and_log(pixel_loss(preds, hidden), preds.flatten(1), batch.path)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the loss on the val split; a face always has the same mask."""
        noise = []
        for row in batch.row.tolist():
            generator = torch.Generator().manual_seed(row)
            noise.append(torch.rand(self.num_patches, generator=generator))
        preds, hidden = self.predict_hidden(batch, torch.stack(noise).to(self.device))
        is_real = batch.row != PADDING  # (B,), False for repeats that fill a rank's share
        hidden = hidden._replace(weights=hidden.weights * is_real[:, None, None])
        self.val_loss.update(pixel_loss(preds, hidden), weight=hidden.weights.sum())

    def on_validation_epoch_end(self) -> None:
        """Logs the loss on the val split over all processes; 1 is a constant prediction."""
        loss = self.val_loss.compute()
        check_loss(loss, "val")  # before a checkpoint is saved
        self.log("val/loss", loss, prog_bar=True)
        self.val_loss.reset()

    def predict_hidden(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Hidden]:
        """Hides patches with the least noise (B, ceil(S / P)^2); predicts pixels (B, M, C P^2)."""
        ratio = self.hparams["mask_ratio"]
        hidden = hide(self.net, batch.image, batch.boxes, batch.valid, noise, ratio)
        encoded = encode_hidden(self.net, batch.boxes, batch.valid, hidden, self.mask_token)
        return self.decoder(encoded), hidden

    @property
    def num_patches(self) -> int:
        """Number of patches that can be hidden, also without patch tokens."""
        return math.ceil(self.net.config.img_size / self.net.patch_size) ** 2


def hide(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, noise: Tensor, ratio: float
) -> Hidden:
    """Hides the share `ratio` of the patches of faces, where noise (B, ceil(S / P)^2) is least.

    `image`, `boxes` and `valid` are as for `RegionViT.forward`; regions that are not `valid` have
    no target. The edge may cut off the first or last patches of a row or column.
    """
    size = net.config.img_size
    side = math.isqrt(noise.shape[1])  # side of the grid in patches
    before = pixels_before(net)

    # which pixels are hidden
    first = noise.argsort(1)[:, : round(ratio * side**2)]
    patches = torch.zeros_like(noise, dtype=torch.bool).scatter(1, first, True)
    patches = patches.view(-1, 1, side, side)
    pixels = patches.repeat_interleave(net.patch_size, 2).repeat_interleave(net.patch_size, 3)
    inside = slice(before, before + size)
    pixels = pixels[..., inside, inside]  # (B, 1, S, S)

    # The pixels of each token that are predicted. A pixel of a region is a mean over several image
    # pixels: all of these must be hidden.
    shares = cut_tokens(net, pixels.float(), boxes)  # (B, M, P^2)
    present = valid[:, : net.layout.num_regions].repeat_interleave(net.layout.tokens_per_region, 1)
    present = F.pad(present, (net.layout.num_patches, 0), value=True)  # (B, M)
    is_target = (shares > 0.999) & present[..., None]  # (B, M, P^2)
    weights = is_target.float().repeat(1, 1, net.config.in_chans)

    # the normalised content of each token
    content = image if net.config.in_chans == 3 else to_grey(image)
    target = cut_tokens(net, content, boxes)  # (B, M, C P^2)
    variance, mean = torch.var_mean(target, -1, correction=0, keepdim=True)
    target = (target - mean) / (variance + 1e-6).sqrt()

    # hidden pixels have the mean visible colour of their face
    visible = (~pixels).sum((2, 3), keepdim=True).clamp(min=1)  # (B, 1, 1, 1)
    colour = image.masked_fill(pixels, 0).sum((2, 3), keepdim=True) / visible  # (B, 3, 1, 1)
    return Hidden(
        seen=torch.where(pixels, colour, image),
        tokens=shares.mean(-1) > 0.5,
        target=target,
        weights=weights,
    )


def encode_hidden(
    net: RegionViT, boxes: Tensor, valid: Tensor, hidden: Hidden, token: Tensor
) -> Tensor:
    """Returns encoded tokens (B, M, D) of the visible part; `token` (D,) replaces hidden tokens."""
    boxes, valid = net.fill_regions(hidden.seen, boxes, valid)
    patches, regions = net.embed(hidden.seen, boxes, valid)
    contents = torch.cat([patches, regions], 1)  # (B, M, D)
    contents = torch.where(hidden.tokens[..., None], token.to(contents.dtype), contents)
    patches, regions = contents.tensor_split([patches.shape[1]], 1)
    tokens = net.place(patches, regions, boxes, valid)
    return net.encode(tokens).x[:, net.layout.num_prefix :]


def pixels_before(net: RegionViT) -> int:
    """Returns how many columns of the first patch lie left of the crop; also how many rows above.

    In a crop of n P + 1 pixels, patches are centred on pixels 0, P, 2 P and so on. In other crops,
    patches lie side by side from pixel 0.
    """
    return math.ceil(-net.patch_origin) if net.layout.num_patches else 0


def cut_tokens(net: RegionViT, image: Tensor, boxes: Tensor) -> Tensor:
    """Cuts images (B, C, S, S) into the pixels of tokens (B, M, C P^2): patches, then regions.

    Beyond the edge, patches repeat the pixels at the edge. The regions in `boxes` (B, R, 4) are
    resampled to k P x k P pixels.
    """
    layout = net.layout
    parts = []
    if layout.num_patches:
        before = pixels_before(net)
        after = max(0, before - 1)  # a crop of n P + 1 pixels needs one column less after it
        padded = F.pad(image, (before, after, before, after), mode="replicate")
        parts.append(cut_grid(padded, net.patch_size))
    if layout.num_regions:
        regions = crop_image(image, boxes, layout.region_grid * net.patch_size)
        tokens = cut_grid(regions, net.patch_size)  # (B R, k^2, C P^2)
        parts.append(tokens.reshape(len(image), layout.num_regions * layout.tokens_per_region, -1))
    return torch.cat(parts, 1)


def cut_grid(image: Tensor, patch_size: int) -> Tensor:
    """Cuts images (B, C, n P, m P) into the pixels of patches (B, n m, C P^2), row by row."""
    return F.unfold(image, patch_size, stride=patch_size).transpose(1, 2)


def pixel_loss(preds: Tensor, hidden: Hidden) -> Tensor:
    """Returns the mean squared error of predictions (B, M, C P^2) over hidden pixels, or 0."""
    errors = (preds.float() - hidden.target).square() * hidden.weights
    return errors.sum() / hidden.weights.sum().clamp(min=1)
