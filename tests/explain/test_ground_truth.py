"""Explanations against what is known: drawn faces differ in the regions that `differing_regions` names."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fer_vit.explain.methods import CONTROLS, METHODS, explain_each
from fer_vit.explain.trace import trace
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.sources.drawn import differing_regions, draw_face

pytestmark = pytest.mark.slow  # a model is trained
CONFIG = RegionViTConfig(
    img_size=48,
    in_chans=1,
    embed_dim=64,
    depth=2,
    num_heads=4,
    tokens="region",
    # Without eyes: brows move in their boxes too, so attributions to them would be ambiguous.
    regions=("right_brow", "left_brow", "nose", "mouth", "right_cheek", "left_cheek"),
    region_grid=1,
    pool="avg",
)
TRAINING, NEW = range(1600), range(10_000, 10_160)
"""Seeds of the faces: training faces and faces of other people."""
CLASSES = len(EXPRESSIONS)
Faces = tuple[Tensor, Tensor, Tensor]


def drawn_faces(seeds: Sequence[int], config: RegionViTConfig) -> Faces:
    """Draws crops (B, 3, S, S), boxes (B, R, 4) and labels (B,), each of another person.

    The landmarks of the neutral face define the crop, so that a moving mouth does not turn or scale the face.
    """
    spec = CropSpec(config.img_size, config.regions)
    crops, boxes = [], []
    for seed in seeds:
        image, _ = draw_face(EXPRESSIONS[seed % CLASSES], seed, size=64)
        _, landmarks = draw_face("neutral", seed, size=64)
        crop, points, _ = crop_face(image, landmarks, spec, framed=False)
        crops.append(crop)
        boxes.append(place_regions(points, spec)[0])
    image = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255
    return image, torch.from_numpy(np.stack(boxes)), torch.tensor([seed % CLASSES for seed in seeds])


def train_on_drawn_faces(config: RegionViTConfig, seed: int, epochs: int, lr: float) -> RegionViT:
    """Trains a model on drawn faces, with regions hidden at random."""
    torch.manual_seed(seed)
    net = build_model(config, EXPRESSIONS)
    image, boxes, label = drawn_faces(TRAINING, config)
    batch = 40
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(label) // batch)
    for _ in range(epochs):
        for rows in torch.randperm(len(label)).split(batch):
            valid = torch.rand(batch, boxes.shape[1]) > 0.2
            loss = nn.functional.cross_entropy(net(image[rows], boxes[rows], valid), label[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return net.eval()


def truth_first(net: RegionViT, method: str, faces: Faces) -> dict[str, float]:
    """Returns how often the region with the largest attribution for a contrast of two labels is one that differs.

    "all" covers all pairs of labels, "mouth" and "eyes and brows" those that differ in these regions alone.
    """
    image, boxes, label = faces
    seen = trace(net, image, boxes, torch.ones(boxes.shape[:2], dtype=torch.bool))
    one_hot = torch.eye(CLASSES)
    contrasts = torch.stack([one_hot[label] - one_hot[other] for other in range(CLASSES)])
    hits: dict[str, list[bool]] = {"all": [], "mouth": [], "eyes and brows": []}
    for other, found in zip(EXPRESSIONS, explain_each(net, seen, method, contrasts), strict=True):
        for number, first in zip(label.tolist(), found.shares.argmax(1).tolist(), strict=True):
            true = differing_regions(EXPRESSIONS[number], other) & set(net.config.regions)
            part = "mouth" if true == {"mouth"} else "eyes and brows" if true and not true & {"mouth", "nose"} else ""
            for name in {"all", part} & hits.keys() if true else ():
                hits[name].append(net.config.regions[first] in true)
    return {name: sum(each) / len(each) for name, each in hits.items()}


@pytest.fixture(scope="module")
def nets() -> list[RegionViT]:
    """Small models of regions that see them from the image alone, trained with regions hidden at random.

    Three, since attention depends on the seed and on the processor's rounding.
    """
    return [train_on_drawn_faces(CONFIG, seed, 30, 2e-3) for seed in range(3)]


@pytest.fixture(scope="module")
def new() -> Faces:
    """Faces of people that the model has not seen."""
    return drawn_faces(NEW, CONFIG)


def agreement(nets: list[RegionViT], method: str, new: Faces) -> float:
    """How often the truth is first: the mean for pairs that differ in the mouth alone and in the brows alone."""
    image, boxes, label = new
    with torch.no_grad():
        assert all((net(image, boxes).argmax(-1) == label).float().mean() > 0.95 for net in nets)
    found = [truth_first(net, method, new) for net in nets]
    return float(np.mean([[one["mouth"], one["eyes and brows"]] for one in found]))


@pytest.mark.parametrize("method", [*METHODS, *CONTROLS])
def test_methods_find_the_region_that_differs_and_controls_do_not(
    nets: list[RegionViT], method: str, new: Faces
) -> None:
    found = agreement(nets, method, new)
    assert found >= 0.9 if method in METHODS else found < 0.85
