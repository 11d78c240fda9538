"""Checkpoints of `fer-vit fit`, read without running code in them."""

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from fer_vit.errors import FerVitError, short


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a checkpoint; raises FerVitError when the file is missing, cannot be read or is not fer-vit's."""
    if not path.is_file():
        raise FerVitError(f"No checkpoint at {path}. `fer-vit fit` writes them to runs/NAME/version_N/checkpoints.")
    size = path.stat().st_size
    try:
        with ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > size:
                raise ValueError("it is compressed")  # torch writes none, and it could expand to gigabytes
        checkpoint = as_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many types for files that are not checkpoints
        raise FerVitError(
            f"{path} is not a checkpoint that can be read safely. Choose one that fer-vit wrote."
        ) from error
    hyper, state = as_dict(checkpoint.get("hyper_parameters")), as_dict(checkpoint.get("state_dict"))
    if not ({"network", "labels"} <= hyper.keys() or is_pretraining(hyper)) or not state:
        raise FerVitError(f"{path} is not a checkpoint of fer-vit. Choose one that `fer-vit fit` wrote.")
    if not all_are([*state.values()], Tensor) or sum(value.nbytes for value in state.values()) > size:
        raise FerVitError(f"{path} claims more weights than it contains. Choose a checkpoint that `fer-vit fit` wrote.")
    _check_sections(checkpoint, path)
    return checkpoint


def is_pretraining(hyper: dict[str, Any]) -> bool:
    """Returns whether these are the settings of masked pretraining, which has no labels."""
    return {"network", "mask_ratio"} <= hyper.keys() and "labels" not in hyper


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a dictionary with string keys, else an empty one."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def all_are(values: Any, kind: Any) -> bool:
    """Returns whether something is a list or tuple whose items are all of a type."""
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)


def _check_sections(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises FerVitError when the state for resuming is not of the types that Lightning writes."""
    for section in ("callbacks", "loops", "optimizer_states", "lr_schedulers"):
        state = checkpoint.get(section, [])
        if not all_are([*state.values()] if isinstance(state, dict) else state, dict):
            raise FerVitError(f"{path}: its {section} are damaged. Choose a checkpoint that `fer-vit fit` wrote.")
    for state in checkpoint.get("callbacks", {}).values():
        _check_saved(state, path)


def _check_saved(state: dict[Any, Any], path: Path) -> None:
    """Raises FerVitError when the state of a callback names files outside its folder.

    A resumed run deletes the files that ModelCheckpoint has recorded as older ones, in any folder. The best one may
    be in the previous run's folder: Lightning keeps it there, unless it is a URL or leads upwards.
    """
    models = state.get("best_k_models")
    older = [*models] if isinstance(models, dict) else []
    older += [state.get("kth_best_model_path"), state.get("last_model_path")]
    outside = [name for name in older if name and not str(name).startswith(f"{state.get('dirpath')}{os.sep}")]
    outside += [name for name in [*older, state.get("best_model_path")] if _leads_elsewhere(str(name))]
    if outside:
        raise FerVitError(
            f"{path} records {short(ascii(str(outside[0])))} as an older checkpoint of its run, which is not in the "
            "run's folder and could be lost. Choose a checkpoint that `fer-vit fit` wrote."
        )


def _leads_elsewhere(name: str) -> bool:
    """Returns whether a path is a URL, or leads out of a folder that it names."""
    parts = Path(name).parts
    upwards = parts.count("..")
    return "://" in name or "::" in name or parts[:upwards] != ("..",) * upwards
