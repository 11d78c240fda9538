"""Models that predict the augmented faces on which another model is trained.

B images, C classes, K outputs of a head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError
from fer_vit.heads import HeadOutputs
from fer_vit.losses import decode
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.model_folder import build_network, load_network
from fer_vit.store.stored_model import StoredModel
from fer_vit.train.log import log_once


class Teachers:
    """Models that predict the expression of augmented training faces.

    Teachers are not part of a checkpoint.
    """

    def __init__(self, names: Sequence[str], student: RegionViT) -> None:
        self.names = list(names)
        self.networks = [load_network(name) for name in names]
        for name, network in zip(names, self.networks, strict=True):
            check_teacher(name, network, student)
            network.offset = None  # a student that learns adjusted logits would be adjusted twice

    @torch.no_grad()
    def teach(self, batch: Batch) -> Tensor:
        """Returns the targets of a batch (B, C), the mean of votes and predictions.

        Without votes, the target is the prediction; without both, it is NaN.
        """
        assert batch.target is not None
        if not self.networks:
            return batch.target
        predicted = []
        for net in self.networks:
            image, boxes, valid = _view(net, batch)
            predicted.append(net.logits(image, boxes, valid).float().softmax(-1))
        preds = torch.stack(predicted).mean(0)
        known = batch.target.isfinite()
        mean = (batch.target.nan_to_num() + preds) / 2
        return torch.where(known, mean, preds)


class StartTeacher:
    """The model from which a training starts: it teaches outputs that are not trained with targets.

    This model predicts each augmented training face, so that these outputs do not drift while the
    encoder learns: learning without forgetting (Li & Hoiem 2016, arXiv:1606.09282). The teacher is
    not part of a checkpoint.
    """

    def __init__(self, network: RegionViT, sources: dict[str, list[int]]) -> None:
        """Stores by head the index of each of the student's outputs in the start model.

        An index of -1 stands for an output that is not taught.
        """
        self.network = network
        self.sources = sources

    @torch.no_grad()
    def teach(self, batch: Batch) -> dict[str, Tensor]:
        """Returns the targets (B, K) of a batch by head, in the order of the student's outputs.

        Targets of outputs that are not taught are NaN.
        """
        image, boxes, valid = _view(self.network, batch)
        raw = self.network(image, boxes, valid)
        targets = {}
        for head, sources in self.sources.items():
            values = decode(head, raw[head].float())[:, sources]
            unknown = torch.tensor(sources, device=values.device) < 0
            targets[head] = values.masked_fill(unknown, torch.nan)
        return targets


def check_teacher(name: str, teacher: RegionViT, student: RegionViT) -> None:
    """Raises FerVitError for a teacher that has other labels, or needs other crops or regions."""
    difference = find_difference(teacher, student)
    if list(teacher.settings.labels) != list(student.settings.labels):
        difference = Difference("labels", student.settings.labels, teacher.settings.labels)
    if difference:
        raise FerVitError(
            f"Expected a teacher with the {difference.name} of the student, "
            f"{_plain(difference.expected)}, but {name} has {_plain(difference.actual)}. Leave it "
            "out of `--model.teachers`, or change the student."
        )


class Difference(NamedTuple):
    """A setting in which a teacher differs from the student."""

    name: str
    expected: object
    actual: object


def find_difference(teacher: RegionViT, student: RegionViT) -> Difference | None:
    """Returns the first setting by which a teacher needs other crops or regions, if any.

    A list and a tuple with the same elements are equal.
    """
    crop = student.settings.crop
    given = teacher.settings.crop
    pairs = [Difference("align", crop.align, given.align)]
    if crop.align == "landmarks":
        pairs.append(Difference("template", crop.template, given.template))
    if teacher.layout.num_regions:  # boxes come in the student's order
        pairs.append(Difference("regions", student.config.regions, teacher.config.regions))
    for pair in pairs:
        if _plain(pair.expected) != _plain(pair.actual):
            return pair
    return None


def _plain(setting: object) -> str:
    """Returns a setting as text that does not depend on the kind of a sequence."""
    if isinstance(setting, str):
        return setting
    return ", ".join(str(part) for part in np.asarray(setting).tolist()) or "none"


def _view(net: RegionViT, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Returns images (B, 3, S, S), boxes (B, R, 4) and visible regions (B, R) in a model's size.

    The model is moved to the device of the batch. A reduction averages pixels, as `face.crop.warp`
    does: otherwise noise would be aliased.
    """
    net.to(batch.image.device)
    image = batch.image
    given = image.shape[-1]
    size = net.config.img_size
    if size != given:
        image = F.interpolate(
            image, size=size, mode="bilinear", align_corners=False, antialias=size < given
        )
    return image, batch.boxes * (size / given), batch.valid


def create_start_teacher(
    net: RegionViT, start: StoredModel, trained: HeadOutputs
) -> StartTeacher | None:
    """Returns the model from which a training starts, if it teaches outputs of further heads.

    Args:
        net: The network that is trained.
        start: The model from which the training starts.
        trained: The outputs that are trained with targets of the data.
    """
    if not start.settings.outputs:
        return None
    network = build_network(start)
    wanted = net.settings.outputs
    difference = find_difference(network, net)
    if difference:
        if set(wanted.by_head) - set(trained.by_head):
            log_once(
                f"{start.name} does not teach the heads without targets: its {difference.name} is "
                "another. Their values drift."
            )
        return None

    sources = {}
    for head, of_head in wanted.by_head.items():
        start_names = list(start.settings.outputs.of_head(head).names)
        learned = trained.of_head(head).names
        places = []
        for name in of_head.names:
            is_taught = name in start_names and name not in learned
            places.append(start_names.index(name) if is_taught else -1)
        if max(places) >= 0:
            sources[head] = places
    if not sources:
        return None
    log_once(f"{start.name} teaches the heads without targets: {', '.join(sources)}.")
    return StartTeacher(network, sources)
