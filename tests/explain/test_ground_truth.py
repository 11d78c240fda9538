"""Explanations against what is known: drawn faces differ in the regions that `differing_regions` names."""

import numpy as np
import pytest
import torch

from benchmarks.truth import NEW, Faces, drawn_faces, trained, truth_first
from fer_vit.explain.methods import Control, Method
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT

pytestmark = pytest.mark.slow  # a model is trained
CONFIG = RegionViTConfig(
    img_size=48,
    in_chans=1,
    embed_dim=64,
    depth=2,
    num_heads=4,
    tokens="region",
    # Without eyes, in whose boxes the brows move too: what a model reads there could not be told from the brows.
    regions=("right_brow", "left_brow", "nose", "mouth", "right_cheek", "left_cheek"),
    region_grid=1,
    head="avg",
)


@pytest.fixture(scope="module")
def nets() -> list[RegionViT]:
    """Small models of regions that see them from the image alone, trained with regions hidden at random.

    Three: what a single one attends to depends on its seed, and on the processor's rounding.
    """
    return [trained(CONFIG, seed, 30, 2e-3) for seed in range(3)]


@pytest.fixture(scope="module")
def new() -> Faces:
    """Faces of people that the model has not seen."""
    return drawn_faces(NEW, CONFIG)


def agreement(nets: list[RegionViT], method: Method | Control, new: Faces) -> float:
    """How often the truth is first, over pairs that the mouth alone tells, and as many that the brows alone tell."""
    image, boxes, label = new
    with torch.no_grad():
        assert all((net(image, boxes).argmax(-1) == label).float().mean() > 0.95 for net in nets)
    found = [truth_first(net, method, new) for net in nets]
    return float(np.mean([[one["mouth"], one["eyes and brows"]] for one in found]))


@pytest.mark.parametrize("method", ["pixels", "relevance", "ablation"])
def test_the_region_that_speaks_most_for_one_expression_and_not_another_is_one_that_differs(
    nets: list[RegionViT], method: Method, new: Faces
) -> None:
    assert agreement(nets, method, new) >= 0.9


@pytest.mark.parametrize("method", ["rollout", "raw", "random", "centre"])
def test_methods_that_do_not_know_the_expression_cannot_tell(
    nets: list[RegionViT], method: Method | Control, new: Faces
) -> None:
    assert agreement(nets, method, new) < 0.85
