"""Models that predict the augmented faces of another model's training.

B images, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError
from fer_vit.geometry import TEMPLATE
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import load_network


class Teachers:
    """Models that predict the expression of augmented training faces. They are not part
    of a checkpoint.
    """

    def __init__(self, names: Sequence[str], student: RegionViT) -> None:
        self.names = list(names)
        self.networks = [load_network(name) for name in names]
        for name, network in zip(names, self.networks, strict=True):
            check_teacher(name, network, student)
            network.offset = None  # a student of adjusted logits would be adjusted twice

    @torch.no_grad()
    def teach(self, batch: Batch) -> Tensor:
        """Returns the targets of a batch (B, C): the mean of votes and predictions;
        NaN without both.
        """
        assert batch.target is not None
        if not self.networks:
            return batch.target
        preds = torch.stack([_predict_view(net, batch) for net in self.networks]).mean(0)
        known = batch.target.isfinite()
        return torch.where(known, (batch.target.nan_to_num() + preds) / 2, preds)


def check_teacher(name: str, teacher: RegionViT, student: RegionViT) -> None:
    """Raises FerVitError for a teacher with other labels, or that needs other crops or regions."""
    here, there = student.settings, teacher.settings
    pairs: list[tuple[str, object, object]] = [
        ("labels", here.labels, there.labels),
        ("align", here.align, there.align),
    ]
    if here.align == "landmarks":
        pairs.append(("template", here.template or TEMPLATE, there.template or TEMPLATE))
    if teacher.layout.num_regions:  # boxes come in the student's order
        pairs.append(("regions", student.config.regions, teacher.config.regions))

    for what, expected, came in pairs:
        if _plain(expected) != _plain(came):
            raise FerVitError(
                f"Expected a teacher with the {what} of the student, {_plain(expected)}, but "
                f"{name} has {_plain(came)}. Leave it out of `--model.teachers`, or change the "
                "student."
            )


def _plain(setting: object) -> str:
    """Returns a setting as text that does not depend on the kind of a sequence."""
    if isinstance(setting, str):
        return setting
    return ", ".join(str(part) for part in np.asarray(setting).tolist()) or "none"


def _predict_view(net: RegionViT, batch: Batch) -> Tensor:
    """Returns the probabilities (B, C) of a model for a batch of crops,
    which are resized to its size.
    """
    net.to(batch.image.device)
    size, given = net.config.img_size, batch.image.shape[-1]
    image = batch.image
    if size != given:
        image = F.interpolate(image, size=size, mode="bilinear", align_corners=False)
    return net.logits(image, batch.boxes * (size / given), batch.valid).float().softmax(-1)
