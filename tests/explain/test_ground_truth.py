"""Explanations against what is known: drawn faces differ in the regions that `differing_regions` names."""

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
def net() -> RegionViT:
    """A small model of regions that sees them from the image alone, trained with regions hidden at random."""
    return trained(CONFIG, 0, 30, 2e-3)


@pytest.fixture(scope="module")
def new() -> Faces:
    """Faces of people that the model has not seen."""
    return drawn_faces(NEW, CONFIG)


def agreement(net: RegionViT, method: Method | Control, new: Faces) -> float:
    """How often the truth is first, over pairs that the mouth alone tells, and as many that the brows alone tell."""
    image, boxes, label = new
    with torch.no_grad():
        assert (net(image, boxes).argmax(-1) == label).float().mean() > 0.95
    found = truth_first(net, method, new)
    return (found["mouth"] + found["eyes and brows"]) / 2


@pytest.mark.parametrize("method", ["pixels", "relevance", "ablation"])
def test_the_region_that_speaks_most_for_one_expression_and_not_another_is_one_that_differs(
    net: RegionViT, method: Method, new: Faces
) -> None:
    assert agreement(net, method, new) >= 0.9


@pytest.mark.parametrize("method", ["rollout", "raw", "random", "centre"])
def test_methods_that_do_not_know_the_expression_cannot_tell(
    net: RegionViT, method: Method | Control, new: Faces
) -> None:
    assert agreement(net, method, new) < 0.85
