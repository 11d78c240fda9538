"""Checkpoints of `fer-vit fit`, read without running code in them."""

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from fer_vit.errors import FerVitError, short
from fer_vit.model.config import drop_retired


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a checkpoint; raises FerVitError when the file is missing, cannot be read or is not fer-vit's."""
    if not path.is_file():
        raise FerVitError(f"No checkpoint at {path}. `fer-vit fit` writes them to runs/NAME/version_N/checkpoints.")
    size = path.stat().st_size
    try:
        with ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > size:
                raise ValueError("it is compressed")  # torch never does so, and little could become very much
        checkpoint = as_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds for files that are not checkpoints
        raise FerVitError(
            f"{path} is not a checkpoint that can be read safely. Choose one that fer-vit wrote."
        ) from error
    hyper, state = as_dict(checkpoint.get("hyper_parameters")), as_dict(checkpoint.get("state_dict"))
    if not {"network", "labels"} <= hyper.keys() or not state:
        raise FerVitError(f"{path} is not a checkpoint of fer-vit. Choose one that `fer-vit fit` wrote.")
    if not all_are([*state.values()], Tensor) or sum(value.nbytes for value in state.values()) > size:
        raise FerVitError(f"{path} claims more weights than it holds. Choose a checkpoint that `fer-vit fit` wrote.")
    _check_parts(checkpoint, path)
    if isinstance(hyper["network"], dict):
        hyper["network"] = drop_retired(hyper["network"])
    return checkpoint


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a dictionary whose keys are strings as it is, and an empty one for everything else."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def all_are(values: Any, kind: Any) -> bool:
    """Tells whether something is a list or tuple whose items are all of a type."""
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)


def _check_parts(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises FerVitError when what Lightning goes on from is not as Lightning writes it."""
    for part in ("callbacks", "loops", "optimizer_states", "lr_schedulers"):
        notes = checkpoint.get(part, [])
        if not all_are([*notes.values()] if isinstance(notes, dict) else notes, dict):
            raise FerVitError(f"{path}: its {part} are broken. Choose a checkpoint that `fer-vit fit` wrote.")
    for notes in checkpoint.get("callbacks", {}).values():
        _check_saved(notes, path)


def _check_saved(notes: dict[Any, Any], path: Path) -> None:
    """Raises FerVitError when the notes of a callback name files that are not in its own folder.

    A run that goes on removes those that Lightning's ModelCheckpoint has noted as its older ones, wherever they are.
    The best one may be in the folder of the run before: Lightning leaves it there, unless it is a URL or leads upwards.
    """
    models = notes.get("best_k_models")
    older = [*models] if isinstance(models, dict) else []
    older += [notes.get("kth_best_model_path"), notes.get("last_model_path")]
    outside = [name for name in older if name and not str(name).startswith(f"{notes.get('dirpath')}{os.sep}")]
    outside += [name for name in [*older, notes.get("best_model_path")] if _leads_elsewhere(str(name))]
    if outside:
        raise FerVitError(
            f"{path} notes {short(ascii(str(outside[0])))} as an older checkpoint of its run, which is not in the "
            "run's folder and could be lost. Choose a checkpoint that `fer-vit fit` wrote."
        )


def _leads_elsewhere(name: str) -> bool:
    """Tells whether a path is a URL, or leaves a folder that it has named."""
    parts = Path(name).parts
    upwards = parts.count("..")
    return "://" in name or "::" in name or parts[:upwards] != ("..",) * upwards
