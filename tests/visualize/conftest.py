"""A small model and two faces."""

import pytest
import torch
from torch import Tensor

from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import noise_faces, small_model


@pytest.fixture
def net() -> RegionViT:
    return small_model(classifier=("weight",), regions=("right_eye", "nose", "mouth"))


@pytest.fixture
def faces() -> tuple[Tensor, Tensor, Tensor]:
    """Crops, boxes and which regions are there: the second face has no mouth."""
    boxes = torch.tensor([[2.0, 2, 14, 14], [10, 10, 20, 20], [8, 18, 24, 30]])
    return noise_faces(boxes, torch.tensor([[True, True, True], [True, True, False]]))
