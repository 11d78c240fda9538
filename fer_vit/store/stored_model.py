"""A model in the form of its file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fer_vit.model.config import RegionViTConfig
from fer_vit.model_settings import ModelSettings, read_model_settings, read_settings


@dataclass(frozen=True)
class StoredModel:
    """A model from a folder or checkpoint, with checked settings and unchecked weights.

    `store.model_folder.build_network` compares the weights with the settings.
    """

    name: str | Path  # the name in messages: a path, a shipped model, or a name on the hub
    config: RegionViTConfig  # the architecture
    settings: ModelSettings  # what prediction needs besides the network
    state: dict[str, Tensor]  # the state dict of the network


def read_stored_model(
    plain: Any, state: dict[str, Tensor], name: str | Path, *, pretraining: bool = False
) -> StoredModel:
    """Converts and checks the plain settings of a file; returns the model.

    Arguments and errors are the same as for `read_model_settings`; `state` is the state dict in the
    file.
    """
    settings = read_model_settings(plain, name, pretraining)
    config = plain["config"] | {"pretrained": False}  # the file has the weights
    return StoredModel(
        name=name,
        config=read_settings(RegionViTConfig, config, name),
        settings=settings,
        state=state,
    )
