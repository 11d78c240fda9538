"""Networks by name, as `timm.create_model` creates them."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import fer_vit
from fer_vit import FerVitError, load
from fer_vit.face.crop import region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.model_folder import save_network

SMALL = "ferplus-fairface-small"


def faces(net: RegionViT) -> tuple[torch.Tensor, torch.Tensor]:
    """Two crops and the regions of an average face."""
    size = net.config.img_size
    boxes = region_boxes(torch.tensor(TEMPLATE).numpy() * size, net.config.regions)
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, size, size, generator=generator)
    return image, torch.from_numpy(boxes).float().expand(2, -1, -1)


def test_a_pretrained_model_has_its_logits() -> None:
    net = fer_vit.create_model(SMALL, pretrained=True).eval()
    expected = load(SMALL, "cpu").net
    image, boxes = faces(net)
    assert torch.allclose(net.logits(image, boxes), expected.logits(image, boxes), atol=1e-5)


def test_another_number_of_classes_keeps_the_encoder() -> None:
    net = fer_vit.create_model(SMALL, pretrained=True, num_classes=3).eval()
    image, boxes = faces(net)
    tokens = net.forward_features(image, boxes)
    expected = load(SMALL, "cpu").net.forward_features(image, boxes)
    assert torch.allclose(tokens.x, expected.x, atol=1e-5)
    assert net.forward_head(tokens).shape == (2, 3)
    assert net(image, boxes)["expression"].shape == (2, 3)
    assert net.settings.temperature == 1.0


def test_forward_features_encodes_the_tokens_of_crops() -> None:
    net = fer_vit.create_model("vit_tiny_patch16_224", img_size=64, depth=2).eval()
    image, boxes = faces(net)
    tokens = net.tokenize(image, boxes)
    assert torch.equal(net.forward_features(image, boxes).x, net.encode(tokens).x)
    assert net.forward_features(image).x.shape == (2, net.layout.num_tokens, 192)
    assert net.logits(image).shape == (2, 8)


def test_a_model_without_classifier_has_features() -> None:
    net = fer_vit.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1).eval()
    assert net.forward_features(torch.rand(1, 3, 32, 32)).x.shape[2] == 192
    net = fer_vit.create_model(SMALL, pretrained=True, num_classes=0).eval()
    image, boxes = faces(net)
    expected = load(SMALL, "cpu").net.forward_features(image, boxes)
    assert torch.allclose(net.forward_features(image, boxes).x, expected.x, atol=1e-5)


def test_without_pretrained_the_weights_are_new() -> None:
    net = fer_vit.create_model(SMALL, num_classes=3)
    state = load(SMALL, "cpu").net.state_dict()
    assert not torch.equal(
        net.state_dict()["vit.blocks.0.attn.qkv.weight"], state["vit.blocks.0.attn.qkv.weight"]
    )


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("no-model", {}, "no-model"),
        ("resnet18", {}, "resnet18"),
        ("naflexvit_base_patch16_gap", {}, "naflexvit_base_patch16_gap"),
        (SMALL, {"deph": 2}, "depth"),
        (SMALL, {"num_classes": -1}, "num_classes"),
        (SMALL, {"embed_dim": 96, "pretrained": True}, "encoder"),
    ],
)
def test_create_model_refuses(name: str, settings: dict[str, object], reason: str) -> None:
    with pytest.raises(FerVitError, match=reason):
        fer_vit.create_model(name, **settings)


def test_what_a_pretrained_model_leaves_out_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dropped weight is named; a change that keeps all weights is no warning."""
    start = fer_vit.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    save_network(start.eval(), tmp_path / "start")
    caplog.set_level(logging.INFO, "fer_vit")

    def lines(**settings: Any) -> list[tuple[int, str]]:
        caplog.clear()
        fer_vit.create_model(tmp_path / "start", pretrained=True, **settings)
        return own_lines()

    def own_lines() -> list[tuple[int, str]]:
        return [
            (record.levelno, record.getMessage())
            for record in caplog.records
            if record.name == "fer_vit"
        ]

    for settings in ({}, {"drop_path_rate": 0.1}):
        ((level, line),) = lines(**settings)
        assert level == logging.INFO
        assert "start" in line
    ((level, line),) = lines(img_size=64)
    assert level == logging.WARNING
    assert "resampled: vit.pos_embed" in line
    ((level, line),) = lines(num_classes=3)
    assert level == logging.WARNING
    assert "new 0, 1, 2" in line
    ((level, line),) = lines(num_classes=0)
    assert level == logging.INFO
    assert ";" not in line.partition("of the encoder")[2]
    fer_vit.create_model(tmp_path / "start")
    assert len(own_lines()) == 1  # random weights are what was requested
