"""Masked pretraining of a RegionViT on faces without labels.

B images, S crop size, P patch size, C channels, M patch and region tokens.
"""

import math
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fer_vit.data.sample import Batch
from fer_vit.errors import check_number
from fer_vit.face.regions import DEFAULT_REGIONS, check_regions
from fer_vit.geometry import TEMPLATE, Align
from fer_vit.model.config import RegionViTConfig, drop_retired
from fer_vit.model.masking import Hidden, encode_hidden, hide, pixel_loss, reconstruct
from fer_vit.model.region_vit import RegionViT
from fer_vit.train.module import RegionViTModule, check_loss

SHOWN = 8
"""Faces in the picture of reconstructions."""


class MaskedPretraining(RegionViTModule):
    """Learns to predict hidden pixels from the rest of a face, with a linear layer on the encoder's tokens.

    `FERTask` starts from its checkpoint (`init`), with the network's head, which is not trained here.

    Args:
        network: The model.
        align: How faces are cropped: "landmarks" onto the template, "crop" as the images are framed.
        template: Where the five landmarks belong in the crop, as fractions of its side.
        mask_ratio: Share of the patches that are hidden.
        lr: Peak learning rate of AdamW.
        weight_decay: Decay of the encoder's weight matrices; biases, norms, positions and learned tokens have none.
        warmup: Share of all steps in which the learning rate rises; then it falls along a cosine.
        min_lr: Learning rate at the end as a share of `lr`.
        compile: Compile the encoder with `torch.compile`.

    Attributes:
        net: The model, without a head.
        pictures: Faces of the last validation: as they are, masked, reconstructed (3, n, 3, S, S).
    """

    def __init__(
        self,
        network: RegionViTConfig = RegionViTConfig(regions=DEFAULT_REGIONS),  # noqa: B008 - frozen
        align: Align = "landmarks",
        template: tuple[tuple[float, float], ...] = TEMPLATE,
        mask_ratio: float = 0.6,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
        min_lr: float = 0.01,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(network, dict):  # as a checkpoint has it
            network = RegionViTConfig(**drop_retired(network))
        check_regions(network.regions)
        self.save_hyperparameters()
        self.save_hyperparameters({"network": asdict(replace(network, pretrained=False))})
        for name, low, high in (("mask_ratio", 0.05, 0.95), ("warmup", 0, 1), ("min_lr", 0, 1)):
            check_number(f"model.{name}", self.hparams[name], low, high)
        for name in ("lr", "weight_decay"):
            check_number(f"model.{name}", self.hparams[name], 0)
        # Every token is predicted, so all are kept.
        self.net = RegionViT(replace(network, keep_rate=()), [], align, template)
        width, channels = self.net.vit.embed_dim, network.in_chans
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.decoder = nn.Linear(width, channels * self.net.patch_size**2)
        self.loss: Any = MeanMetric()
        self.pictures: Tensor | None = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch of which random patches are hidden."""
        preds, hidden = self.predict_hidden(batch, torch.rand(len(batch.path), self.num_patches, device=self.device))
        return self.finished(pixel_loss(preds, hidden), preds.flatten(1), batch.path)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the loss on the val split; a face is masked in the same way every time."""
        seeds = [torch.Generator().manual_seed(row) for row in batch.row.tolist()]
        noise = torch.stack([torch.rand(self.num_patches, generator=seed) for seed in seeds])
        preds, hidden = self.predict_hidden(batch, noise.to(self.device))
        once = batch.row >= 0  # negative: a repeat that pads a rank's share
        hidden = hidden._replace(weights=hidden.weights * once[:, None, None])
        self.loss.update(pixel_loss(preds, hidden), weight=hidden.weights.sum())
        if batch_idx == 0:
            filled = reconstruct(self.net, batch.boxes, hidden, preds)
            self.pictures = torch.stack([batch.image, hidden.seen, filled])[:, :SHOWN].float().cpu()

    def on_validation_epoch_end(self) -> None:
        """Logs the loss on the val split, over all processes."""
        loss = self.loss.compute()
        check_loss(loss, "val")  # before a checkpoint is saved
        self.log("val/loss", loss, prog_bar=True)
        self.loss.reset()

    def predict_hidden(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Hidden]:
        """Hides the patches with the least noise (B, ceil(S / P)^2) and predicts all tokens' pixels (B, M, C P^2)."""
        image, boxes, valid = batch.image, batch.boxes, batch.valid
        hidden = hide(self.net, image, boxes, valid, noise, self.hparams["mask_ratio"])
        return self.decoder(encode_hidden(self.net, boxes, valid, hidden, self.mask_token)), hidden

    @property
    def num_patches(self) -> int:
        """Number of patches that can be hidden, also without patch tokens."""
        return math.ceil(self.net.config.img_size / self.net.patch_size) ** 2
