"""Terms of regions beside the effect of hiding a region."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fer_vit.explain.terms import agreement, region_effects
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from tests.helpers.models import noise_faces

BOXES = torch.tensor([[2.0, 2.0, 14.0, 14.0], [10.0, 18.0, 26.0, 30.0], [16.0, 2.0, 28.0, 14.0]])
REGIONS = ("right_eye", "mouth", "left_eye")


def build() -> RegionViT:
    """A model whose head reads regions alone, with random weights."""
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=REGIONS, region_grid=1)
    net = build_model(config, "ab", outputs={"movements": ["a", "b"]}).eval()
    torch.nn.init.normal_(net.heads["movements"].by_face, std=0.0)
    for value in net.heads["movements"].by_region.values():
        torch.nn.init.normal_(value)
    return net


def test_without_exchange_of_information_a_term_is_the_effect() -> None:
    net = build()
    for block in net.vit.blocks:
        torch.nn.init.zeros_(block.attn.proj.weight)
        torch.nn.init.zeros_(block.attn.proj.bias)
    valid = torch.tensor([[True] * 3, [True, False, True]])
    image, boxes, valid = noise_faces(BOXES, valid)
    effects = region_effects(net, image, boxes, valid)["movements"]
    assert torch.allclose(effects.masked, effects.terms, atol=1e-5)
    assert effects.terms[1, 1].abs().max() == effects.blurred[1, 1].abs().max() == 0
    agreed = agreement(effects.terms.numpy(), effects.masked.numpy())
    assert agreed.correlation == pytest.approx(np.ones((2, 2)))
    assert agreed.first == pytest.approx(np.ones((2, 2)))


def test_with_attention_effects_differ_and_blurring_has_one() -> None:
    net = build()
    image, boxes, valid = noise_faces(BOXES, torch.ones(4, 3, dtype=torch.bool))
    effects = region_effects(net, image, boxes, valid)["movements"]
    assert not torch.allclose(effects.masked, effects.terms, atol=1e-4)
    assert effects.blurred.abs().min() > 0


def test_agreement_of_opposite_and_of_random_order() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(2000, 5, 2))
    assert agreement(terms, -terms).correlation == pytest.approx(np.full((2000, 2), -1))
    assert agreement(terms, -terms).first == pytest.approx(np.ones((2000, 2)))
    random = agreement(terms, rng.normal(size=terms.shape))
    assert random.correlation.mean(0) == pytest.approx([0, 0], abs=0.05)
    assert random.first.mean(0) == pytest.approx([0.2, 0.2], abs=0.05)


def test_ranks_of_equal_terms_are_scipys_and_none_where_all_are_equal() -> None:
    rng = np.random.default_rng(0)
    terms = rng.integers(0, 3, (50, 5, 2)).astype(float)
    effects = rng.integers(0, 3, (50, 5, 2)).astype(float)
    terms[0, :, 0] = 0
    effects[1, :, 1] = 0.5
    agreed = agreement(terms, effects)
    for face, output in np.ndindex(50, 2):
        x = terms[face, :, output]
        y = effects[face, :, output]
        expected = np.nan
        if np.ptp(x) and np.ptp(y):
            expected = spearmanr(x, y).statistic
        assert agreed.correlation[face, output] == pytest.approx(expected, nan_ok=True)
    assert np.isnan(agreed.first[[0, 1], [0, 1]]).all()
