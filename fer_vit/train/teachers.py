"""Models that predict the augmented faces of another model's training.

B images, C classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import load_network


class Teachers:
    """Models that predict the expression of augmented training faces. They are not part of a checkpoint."""

    def __init__(self, names: Sequence[str], labels: Sequence[str]) -> None:
        self.names = list(names)
        self.networks = [load_network(name) for name in names]
        for name, network in zip(names, self.networks, strict=True):
            if network.settings.labels != list(labels):
                raise FerVitError(
                    f"Expected a teacher with the labels {', '.join(labels)}, but {name} has "
                    f"{', '.join(network.settings.labels)}."
                )
            network.offset = None  # a student of adjusted logits would be adjusted twice

    @torch.no_grad()
    def teach(self, batch: Batch) -> Tensor:
        """Returns the targets of a batch (B, C): the mean of votes and predictions; NaN without both."""
        assert batch.target is not None
        if not self.networks:
            return batch.target
        preds = torch.stack([_predict_view(net, batch) for net in self.networks]).mean(0)
        known = batch.target.isfinite()
        return torch.where(known, (batch.target.nan_to_num() + preds) / 2, preds)


def _predict_view(net: RegionViT, batch: Batch) -> Tensor:
    """Returns the probabilities (B, C) of a model for a batch of crops, which are resized to its size."""
    net.to(batch.image.device)
    size, given = net.config.img_size, batch.image.shape[-1]
    image = batch.image
    if size != given:
        image = F.interpolate(image, size=size, mode="bilinear", align_corners=False)
    return net.logits(image, batch.boxes * (size / given), batch.valid).float().softmax(-1)
