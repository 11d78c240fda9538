"""Imports classes of users that the command line names, and builds the networks of their tasks.

A checkpoint never decides what is imported: the user names the class again to load a checkpoint.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fer_vit.errors import FerVitError, ModelError, short, suggest
from fer_vit.imports import search_current_folder
from fer_vit.model.region_vit import RegionViT, build_from_parts
from fer_vit.store.checkpoint import (
    NAMES_OF_MODELS,
    load_checkpoint,
    own_settings,
    unpack_checkpoint,
)
from fer_vit.store.model_folder import check_finite, no_expressions
from fer_vit.store.stored_model import StoredModel
from fer_vit.train.module import RegionViTModule
from fer_vit.train.pretraining import MaskedPretraining
from fer_vit.train.task import FERTask

# A file may describe a network with more weights than it contains, up to this number (2 GB).
MAX_WEIGHTS = 500_000_000


def import_task(name: str) -> type[RegionViTModule]:
    """Imports a task of `--model`; errors as for `import_class`."""
    task_class: type[RegionViTModule] = import_class("model", name, (FERTask, MaskedPretraining))
    return task_class


def import_class(option: str, name: str, bases: tuple[type, ...]) -> Any:
    """Imports a class such as `my_module.FocalTask`, also from the current folder.

    Args:
        option: The option that names the class, without dashes.
        name: The module and the class.
        bases: The classes of fer-vit of which it may be a subclass.

    Raises:
        FerVitError: The class cannot be imported, or is no subclass.
    """
    module_name, _, class_name = name.rpartition(".")
    if not module_name:
        raise FerVitError(f"Expected a class as `--{option} MODULE.CLASS`, but got {short(name)}.")
    search_current_folder()
    try:
        module = import_module(module_name)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        remedy = "Correct the module"
        # "a.b" is missing if the missing module is "a" or "a.b"; else its own import is missing
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            remedy = "Run in its folder, or set PYTHONPATH"
        raise FerVitError(
            f"Cannot import {module_name} of `--{option} {name}` ({reason}). {remedy}; `--debug` "
            "shows the traceback."
        ) from error

    found = getattr(module, class_name, None)
    if isinstance(found, type) and issubclass(found, bases):
        return found
    names = []
    for key, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, bases):
            names.append(key)
    raise FerVitError(
        f"Expected `--{option}` to be a subclass of fer_vit.{bases[0].__name__}, but got {name}."
        f"{suggest(class_name, names)} Other modules train with lightning.Trainer."
    )


def load_custom(checkpoint: str | Path, name: str) -> RegionViT:
    """Builds the network of a checkpoint with the class `name` that trained it, ready to predict.

    Raises:
        FerVitError: The class cannot be imported, or cannot load the checkpoint.
    """
    task_class = import_task(name)
    path = Path(checkpoint)
    content = load_checkpoint(path)
    model = unpack_checkpoint(content, path)
    if not model.settings.labels:
        raise no_expressions(path)
    check_network_size(model)
    # with these arguments, the task loads no other model, and keeps every head
    arguments = own_settings(content)
    for argument in (*NAMES_OF_MODELS, "head_weights"):
        if argument in content["hyper_parameters"]:
            arguments[argument] = None
    try:
        task = task_class(**arguments)
        net_class = type(task.net)
        if issubclass(net_class, RegionViT):
            task.load_state_dict(content["state_dict"])
    except Exception as error:  # the class is the user's, and may raise anything
        reason = short(" ".join(str(error).split()))
        raise ModelError(
            f"{name} can't load {path} ({type(error).__name__}: {reason}). "
            "Name the class that trained it in `--model`."
        ) from error
    if not issubclass(net_class, RegionViT):
        raise ModelError(
            f"Expected {name} to have a RegionViT as `net`, but it is a {net_class.__name__}."
        )
    check_finite(task.net.state_dict(), path)
    return task.net.eval()


def check_network_size(model: StoredModel) -> None:
    """Raises FerVitError when a file describes a far larger network than its weights fill."""
    with torch.device("meta"):  # uses no memory
        net = build_from_parts(model.config, model.settings)
    described = sum(value.numel() for value in net.state_dict().values())
    stored = sum(value.numel() for value in model.state.values())
    if described > max(stored, MAX_WEIGHTS):
        raise ModelError(
            f"{model.name} describes {described:,} weights, but contains {stored:,}. "
            "Choose a checkpoint that `fer-vit fit` wrote."
        )
