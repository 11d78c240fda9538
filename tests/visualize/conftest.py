"""A small model and two faces."""

import pytest
import torch
from torch import Tensor

from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT


@pytest.fixture
def net() -> RegionViT:
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    net = RegionViT(RegionViTConfig(**size, regions=("right_eye", "nose", "mouth")), "abcd").eval()
    torch.nn.init.normal_(net.vit.head.weight)
    return net


@pytest.fixture
def faces() -> tuple[Tensor, Tensor, Tensor]:
    """Crops, boxes and which regions are there: the second face has no mouth."""
    boxes = torch.tensor([[2.0, 2, 14, 14], [10, 10, 20, 20], [8, 18, 24, 30]]).expand(2, 3, 4).clone()
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return image, boxes, torch.tensor([[True, True, True], [True, True, False]])
