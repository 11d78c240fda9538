"""Arcs between regions against what is known:
the label of a drawn face depends on two regions together.
"""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from fer_vit.explain.trace import Trace, attention_views, interactions, trace
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.report.charts import strongest_pairs
from fer_vit.sources.drawn import TABLE, Parameters, draw_face
from tests.helpers.training import Faces, Schedule, train_on_faces

pytestmark = pytest.mark.slow  # three models are trained
TRAININGS = 3  # whose results are averaged: one depends on the seed and on how OpenCV draws
REGIONS = ("right_brow", "nose", "mouth", "right_cheek", "left_cheek", "chin")
BROW, MOUTH = 0, 2
CONFIG = RegionViTConfig(
    img_size=48,
    in_chans=1,
    embed_dim=64,
    depth=1,
    num_heads=2,
    tokens="region",
    regions=REGIONS,
    region_grid=1,
    pool="avg",
)


@pytest.fixture(scope="module")
def movements() -> Iterator[None]:
    """Faces 0 to 7: raised or lowered brows, a wrinkled nose, corners of the mouth up or down."""
    with pytest.MonkeyPatch.context() as patch:
        for face in range(8):
            brow, nose, mouth = face & 1, face >> 1 & 1, face >> 2 & 1
            patch.setitem(
                TABLE,
                str(face),
                Parameters(1.6 * brow - 0.6, nose_wrinkle=nose, mouth_curve=2 * mouth - 1),
            )
        yield


@cache
def drawn_faces(seeds: range, covered: float) -> Faces:
    """Draws faces.

    The label is whether brow and mouth moved alike. With a covered mouth it is whether the brow was
    raised.
    """
    spec, crops, boxes, labels = CropSpec(CONFIG.img_size, REGIONS), [], [], []
    for seed in seeds:
        face = (seed * 2654435761 >> 7) % 8
        _, landmarks = draw_face("neutral", seed, size=64)
        crop, points, _ = crop_face(
            draw_face(str(face), seed, size=64)[0], landmarks, spec, framed=False
        )
        box, hide = place_regions(points, spec)[0], seed % 10 < 10 * covered
        if hide:
            left, top, right, bottom = box[MOUTH].round().astype(int).clip(0, spec.size)
            crop[top:bottom, left:right] = 128
        crops.append(crop)
        boxes.append(box)
        labels.append(face & 1 if hide else (face & 1) ^ (face >> 2 & 1))
    return Faces.of(crops, boxes, labels)


@pytest.fixture(scope="module")
def nets(movements: None) -> list[RegionViT]:
    """Models that must combine brow and mouth; other regions are hidden at random."""
    schedule = Schedule(
        epochs=50, batch=40, lr=3e-3, hidden=0.3, shown=(BROW, MOUTH), weight_decay=0.05
    )
    names, faces = ("alike", "different"), drawn_faces(range(1600), 0.5)
    return [train_on_faces(CONFIG, names, faces, schedule, seed) for seed in range(TRAININGS)]


def first_pairs(
    net: RegionViT, covered: float, measure: Callable[[RegionViT, Trace], Tensor]
) -> float:
    """Returns how often the strongest arc joins brow and mouth,
    of faces that are classified correctly.
    """
    image, boxes, label = drawn_faces(range(10_000, 10_160), covered)
    seen = trace(net, image, boxes, torch.ones(len(label), len(REGIONS), dtype=torch.bool))
    assert (seen.logits.argmax(1) == label).float().mean() > 0.95
    arcs = [
        strongest_pairs(relations.abs().double().numpy(), range(len(REGIONS)))
        for relations in measure(net, seen)
    ]
    return sum(face[0][1:] == (BROW, MOUTH) for face in arcs if face) / len(arcs)


def mean_first_pairs(
    nets: list[RegionViT], covered: float, measure: Callable[[RegionViT, Trace], Tensor]
) -> float:
    """Returns the mean of `first_pairs` over trainings."""
    shares = [first_pairs(net, covered, measure) for net in nets]
    print(covered, shares)
    return sum(shares) / len(shares)


def mean_attention(net: RegionViT, seen: Trace) -> Tensor:
    return attention_views(seen).relations[:, 0]


def test_interactions_are_first_where_two_regions_must_be_combined(nets: list[RegionViT]) -> None:
    # Of 15 pairs; with eight seeds 51 to 96 % (mean 80), and 10 to 39 % (mean 21) where the mouth
    # is covered and the label depends on the brow alone.
    assert mean_first_pairs(nets, 0.0, interactions) > 0.6
    assert mean_first_pairs(nets, 1.0, interactions) < 0.4


@pytest.mark.parametrize("covered", [0.0, 1.0])
def test_attention_joins_two_regions_more_often_than_by_chance_but_covered_ones_as_well(
    covered: float, nets: list[RegionViT]
) -> None:
    # In half of the faces another pair is first: a weak arc is enough to pass a sign on.
    # Attention follows position, not content.
    assert mean_first_pairs(nets, covered, mean_attention) > 0.3
