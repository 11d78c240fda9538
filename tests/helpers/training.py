"""Small models, trained without Lightning on faces in memory, and parts of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fer_vit.data.dataset import Batch
from fer_vit.geometry import Float32Array, Image
from fer_vit.model import embedding
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import crop_image
from fer_vit.model.region_vit import RegionViT, build_model


class Faces(NamedTuple):
    """Crops (B, 3, S, S) in [0, 1], boxes of their regions (B, R, 4) and labels (B,)."""

    image: Tensor
    boxes: Tensor
    label: Tensor

    @classmethod
    def of(
        cls, crops: Sequence[Image], boxes: Sequence[Float32Array], labels: Sequence[int]
    ) -> "Faces":
        """Stacks crops (S, S, 3) of bytes, boxes (R, 4) and labels."""
        image = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255
        return cls(image, torch.from_numpy(np.stack(boxes)), torch.tensor(labels))


@dataclass(frozen=True)
class Schedule:
    """How a small model is trained."""

    epochs: int
    batch: int
    lr: float
    hidden: float  # share of regions that are hidden at random
    shown: Sequence[int] = ()  # regions that are never hidden
    weight_decay: float = 0.01  # AdamW's own default


def train_on_faces(
    config: RegionViTConfig, names: Sequence[str], faces: Faces, schedule: Schedule, seed: int
) -> RegionViT:
    """Trains a model of regions that predicts `names`, with regions hidden at random.

    Each region is cut from each face once, not again in each step.
    """
    torch.manual_seed(seed)
    net = build_model(config, names)
    steps = schedule.epochs * len(faces.label) // schedule.batch
    parameters = list(net.parameters())
    decay = schedule.weight_decay
    optimizer = torch.optim.AdamW(parameters, schedule.lr, weight_decay=decay, fused=True)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.lr, total_steps=steps)

    source = net.normalize(faces.image)
    cut = crop_image(source, faces.boxes, net.region_embed.side)  # (B R, C, side, side)
    cut = cut.unflatten(0, faces.boxes.shape[:2])
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(schedule.epochs):
            for rows in torch.randperm(len(faces.label)).split(schedule.batch):
                regions = cut[rows].flatten(0, 1)
                patch.setattr(embedding, "crop_image", lambda *_, regions=regions: regions)
                valid = torch.rand(len(rows), faces.boxes.shape[1]) >= schedule.hidden
                valid[:, list(schedule.shown)] = True
                corner = faces.image[rows, :, :1, :1]  # not read: regions are cut already
                logits = net.logits(corner, faces.boxes[rows], valid)
                loss = nn.functional.cross_entropy(logits, faces.label[rows])

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                one_cycle.step()
    return net.eval()


def parts_of(batch: Batch, size: int) -> list[Batch]:
    """The faces of a batch in batches of at most `size` faces."""
    parts = []
    for start in range(0, len(batch.path), size):
        chunk = slice(start, start + size)
        targets = {head: values[chunk] for head, values in batch.targets.items()}
        part = Batch(
            image=batch.image[chunk],
            boxes=batch.boxes[chunk],
            valid=batch.valid[chunk],
            target=None if batch.target is None else batch.target[chunk],
            row=batch.row[chunk],
            path=batch.path[chunk],
            to_crop=batch.to_crop[chunk],
            targets=targets,
        )
        parts.append(part)
    return parts
