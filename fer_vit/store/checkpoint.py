"""Checkpoints of `fer-vit fit`, loaded without running code in them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fer_vit.errors import ModelError
from fer_vit.model_settings import SETTINGS_KEYS
from fer_vit.pickles import UnsafeError, load_tensors
from fer_vit.store.hub import MAX_CONFIG
from fer_vit.store.stored_model import StoredModel, read_stored_model
from fer_vit.texts import as_dict, check_permission


class Section(NamedTuple):
    """A part of Lightning's state for resuming, which contains dictionaries."""

    kind: type
    keys: frozenset[str] = frozenset()  # what each dictionary needs


SECTIONS = {
    "callbacks": Section(dict),
    "loops": Section(dict),
    "optimizer_states": Section(list, frozenset({"state", "param_groups"})),
    "lr_schedulers": Section(list),
}
VERSION = "pytorch-lightning_version"  # Lightning reads it whenever it loads a checkpoint


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a checkpoint.

    Raises:
        FerVitError: The file is missing, cannot be read or is not fer-vit's.
    """
    if not path.is_file():
        raise ModelError(
            f"No checkpoint at {path}. "
            "`fer-vit fit` writes them to runs/NAME/version_N/checkpoints."
        )
    size = path.stat().st_size
    checkpoint = _load_safely(path)

    hyper_parameters = as_dict(checkpoint.get("hyper_parameters"))
    state = as_dict(checkpoint.get("state_dict"))
    is_classifier = {"network", "labels"} <= hyper_parameters.keys()
    if not state or not (is_classifier or is_pretraining(hyper_parameters)):
        raise ModelError(
            f"{path} is not a fer-vit checkpoint. Choose one that `fer-vit fit` wrote."
        )
    if not all_are(state.values(), Tensor) or sum(value.nbytes for value in state.values()) > size:
        raise ModelError(
            f"{path} claims more weights than it contains. "
            "Choose a checkpoint that `fer-vit fit` wrote."
        )
    _check_sections(checkpoint, path)
    return checkpoint


def _load_safely(path: Path) -> dict[str, Any]:
    """Loads a file without running code in it.

    Raises:
        FerVitError: The file is damaged, or could expand to gigabytes.
    """
    try:
        checkpoint = as_dict(load_tensors(path))
        hyper_parameters = as_dict(checkpoint.get("hyper_parameters"))
        length = 0
        # In parts, because a small file can contain huge settings: lists may share their items.
        for part in json.JSONEncoder().iterencode(hyper_parameters):
            length += len(part)
            if length > MAX_CONFIG:
                raise UnsafeError("its settings are too long")
    except Exception as error:  # torch raises many types for files that are not checkpoints
        check_permission(path, error)
        reason = f" ({error})" if isinstance(error, UnsafeError) else ""
        raise ModelError(
            f"{path} cannot be read safely{reason}. Choose a checkpoint that `fer-vit fit` wrote."
        ) from error
    return checkpoint


# Settings of a task that name models, anywhere on the disk or the hub. They never come from a
# checkpoint, which may be from somebody else; the command line names them again.
NAMES_OF_MODELS = ("init", "teachers")


def own_settings(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Returns the hyper-parameters of a task without `NAMES_OF_MODELS` and Lightning's notes."""
    settings = {}
    for name, value in checkpoint["hyper_parameters"].items():
        if name not in NAMES_OF_MODELS and not name.startswith("_"):
            settings[name] = value
    return settings


def is_pretraining(hyper_parameters: dict[str, Any]) -> bool:
    """Returns whether hyper-parameters are from masked pretraining, which has no labels."""
    return {"network", "mask_ratio"} <= hyper_parameters.keys() and "labels" not in hyper_parameters


def all_are(values: Iterable[Any], kind: type) -> bool:
    """Returns whether all values are of a type."""
    return all(isinstance(value, kind) for value in values)


def _check_sections(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises FerVitError when the state for resuming is not as Lightning writes it.

    A section may be missing, because a model is loaded without the state.
    """
    for name, section in SECTIONS.items():
        parts = checkpoint.get(name, section.kind())
        states = parts.values() if isinstance(parts, dict) else parts
        sound = isinstance(parts, section.kind) and all_are(states, dict)
        if not sound or not all(section.keys <= state.keys() for state in states):
            raise ModelError(
                f"{path}: its {name} are damaged. Choose a checkpoint that `fer-vit fit` wrote."
            )
    if not isinstance(checkpoint.get(VERSION), str):
        raise ModelError(f"{path} has no {VERSION}. Choose a checkpoint that `fer-vit fit` wrote.")


def unpack_checkpoint(checkpoint: dict[str, Any], name: str | Path) -> StoredModel:
    """Returns the model in a loaded checkpoint. Messages call the model `name`."""
    hyper_parameters = checkpoint["hyper_parameters"]
    plain = {key: hyper_parameters[key] for key in SETTINGS_KEYS if key in hyper_parameters}
    plain["config"] = hyper_parameters["network"]
    # balanced sampling evens out the classes completely, a logit adjustment by its strength
    balanced = checkpoint.get("balanced") is True
    plain["evened"] = 1.0 if balanced else hyper_parameters.get("logit_adjust", 0.0)
    state = {key.removeprefix("net."): value for key, value in checkpoint["state_dict"].items()}
    if not is_pretraining(hyper_parameters):
        return read_stored_model(plain, state, name)

    # the parts that reconstruct the masked tokens are no longer needed
    decoder = [key for key in state if key.partition(".")[0] in ("mask_token", "decoder")]
    for key in decoder:
        del state[key]
    plain["labels"] = []
    return read_stored_model(plain, state, name, pretraining=True)
