"""Explanations against what is known: drawn faces differ in the regions
that `differing_regions` names.
"""

from functools import cache

import numpy as np
import pytest
import torch

from fer_vit.explain.attribution import explain_each
from fer_vit.explain.methods import METHODS
from fer_vit.explain.trace import trace
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.movements import differing_regions
from tests.helpers.training import Faces, Schedule, train_on_faces

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
TRAINING = range(1600)
NEW = range(10_000, 10_160)
"""Seeds of the faces: training faces and faces of other people."""
CLASSES = len(EXPRESSIONS)


@cache
def drawn_faces(seeds: range) -> Faces:
    """Draws faces, each of another person.

    The landmarks of the neutral face define the crop, so that a moving mouth does not turn or scale
    the face.
    """
    spec = CropSpec(CONFIG.img_size, CONFIG.regions)
    crops = []
    boxes = []
    for seed in seeds:
        image, _ = draw_face(EXPRESSIONS[seed % CLASSES], seed, size=64)
        _, landmarks = draw_face("neutral", seed, size=64)
        crop, points, *_ = crop_face(image, landmarks, spec, framed=False)
        crops.append(crop)
        boxes.append(place_regions(points, spec)[0])
    return Faces.of(crops, boxes, [seed % CLASSES for seed in seeds])


def truth_first(net: RegionViT, method: str) -> tuple[float, float]:
    """Returns how often the region with the largest attribution for a contrast of two labels is one
    that differs.

    For pairs of labels that differ in the mouth alone, and for pairs that differ in eyes and brows
    alone.
    """
    image, boxes, label = drawn_faces(NEW)
    seen = trace(net, image, boxes, torch.ones(boxes.shape[:2], dtype=torch.bool))
    assert (seen.logits.argmax(-1) == label).float().mean() > 0.95
    contrasts = torch.stack(
        [torch.eye(CLASSES)[label] - torch.eye(CLASSES)[against] for against in range(CLASSES)]
    )
    mouth = list[bool]()
    brows = list[bool]()
    for against, explanation in zip(
        EXPRESSIONS, explain_each(net, seen, method, contrasts), strict=True
    ):
        for number, first in zip(
            label.tolist(), explanation.shares.argmax(1).tolist(), strict=True
        ):
            true = differing_regions(EXPRESSIONS[number], against) & set(CONFIG.regions)
            if true == {"mouth"}:
                mouth.append(CONFIG.regions[first] in true)
            elif true and not true & {"mouth", "nose"}:
                brows.append(CONFIG.regions[first] in true)
    return sum(mouth) / len(mouth), sum(brows) / len(brows)


@pytest.fixture(scope="module")
def nets() -> list[RegionViT]:
    """Two models, since attention depends on the seed and on the processor's rounding."""
    schedule = Schedule(epochs=30, batch=40, lr=2e-3, hidden=0.2)
    faces = drawn_faces(TRAINING)
    return [train_on_faces(CONFIG, EXPRESSIONS, faces, schedule, seed) for seed in range(2)]


@pytest.mark.parametrize("method", [*METHODS, "random", "centre"])
def test_methods_find_the_region_that_differs_and_controls_do_not(
    nets: list[RegionViT], method: str
) -> None:
    rate = np.mean([truth_first(net, method) for net in nets])
    if method in METHODS:
        assert rate >= 0.9
    else:
        assert rate < 0.85
