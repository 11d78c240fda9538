"""Reads and writes trained models as folders. `store.hub` finds the folder of a model by name.

A folder contains model.safetensors and config.json. config.json has the architecture, and the
settings that prediction needs (labels, cropping, calibration). No code in a file is run, and sizes
that a file claims are checked.
"""

import hashlib
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fer_vit.errors import ModelError, short
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT, build_from_parts
from fer_vit.model_settings import plain_settings
from fer_vit.store.checkpoint import load_checkpoint, unpack_checkpoint
from fer_vit.store.hub import (
    CARD_FILE,
    CONFIG_FILE,
    DEFAULT_MODEL,
    WEIGHTS_FILE,
    check_model_folder,
    fetch_folder,
    is_checkpoint,
    read_config,
    unreadable_model,
)
from fer_vit.store.stored_model import StoredModel, read_stored_model
from fer_vit.texts import json_text

LOGGER = logging.getLogger("fer_vit")
TO_FILL = "To be filled in: training data, results, prohibited uses."

# The model card of a new folder.
CARD = f"""---
library_name: fer-vit
pipeline_tag: image-classification
tags: [facial-expression-recognition]
---

# A facial expression model of fer-vit

    from fer_vit import load

    faces = load("path/to/this/folder").predict("photo.jpg")

{TO_FILL}
"""


def load_network(name: str | Path | None = None, **hub: Any) -> RegionViT:
    """Loads a trained network, ready to predict on the CPU.

    The arguments and errors are the same as for `read_model`.
    """
    return build_network(read_model(name, **hub))


def build_network(model: StoredModel) -> RegionViT:
    """Builds the network of a stored model, ready to predict.

    Raises:
        FerVitError: The state dict belongs to another network, or some weights are not finite.
    """
    try:
        with torch.device("meta"):  # uses no memory, also for a large network
            described = build_from_parts(model.config, model.settings, initialize=False)
        for key, expected, actual in differing(described.state_dict(), model.state):
            raise ValueError(
                f"weights `{short(key)}`: {actual}, but its settings require {expected}"
            )
        check_finite(model.state, model.name)
        with _Uninitialized():
            net = build_from_parts(model.config, model.settings, initialize=False)
        net.load_state_dict(model.state)  # weights of any precision become float32
    # settings in a file can have any value
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{model.name} is from another version of fer-vit, or damaged ({reason})."
        ) from error
    use_fused_attention(net, fused_is_faster(torch.device("cpu"), net.layout.num_tokens))
    return net.eval()


class _Uninitialized(TorchFunctionMode):
    """Skips the initialization of most weights of layers that are built within this block.

    The weights are loaded from a file afterwards, and the initialization would take most of the
    time of building a network. Functions of `torch.nn.init` such as `ones_`, for which torch does
    not call this mode, still run.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def check_finite(state: Mapping[str, Tensor], name: str | Path) -> None:
    """Raises FerVitError when some weights are not finite."""
    for key, value in state.items():
        # calling `isfinite` for each number takes four times as long
        if value.numel() > 0 and not value.float().abs().max().isfinite():
            raise ModelError(
                f"{name} holds weights that are not finite (`{key}`), as after diverged training."
            )


def hash_weights(state: Mapping[str, Tensor]) -> str:
    """Returns the hash of weights, which are compared as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode() + tensor.cpu().float().numpy().tobytes())
    return digest.hexdigest()


def save_network(net: RegionViT, folder: Path) -> None:
    """Writes a folder for `load_network`: settings, model card, and weights in their precision."""
    settings = {"config": asdict(net.config)} | plain_settings(net.settings)
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    weights = save(state, {"format": "pt"})
    folder.mkdir(exist_ok=True)
    (folder / CARD_FILE).write_text(CARD, "utf-8")
    (folder / WEIGHTS_FILE).write_bytes(weights)
    (folder / CONFIG_FILE).write_text(json_text(settings, indent=2) + "\n", "utf-8")


def classifier_command(encoder: str | Path) -> str:
    """Returns the command that trains a classifier from a checkpoint of masked pretraining.

    The command freezes no weights, because the batch norms of the stem have the statistics of
    masked faces.
    """
    words = ["fer-vit", "fit", "--config", "finetune", "--model.init", str(encoder)]
    words += ["--model.freeze", "none", "--data.manifest", "MANIFEST"]
    return shlex.join(words)


def no_expressions(name: str | Path) -> ModelError:
    """Returns the error for a checkpoint of masked pretraining where a classifier is needed."""
    return ModelError(
        f"{name} has no expressions. Train a classifier from it: `{classifier_command(name)}`."
    )


def read_model(
    name: str | Path | None = None, *, pretraining: bool = False, **hub: Any
) -> StoredModel:
    """Reads the settings and weights of a model.

    Args:
        name: A shipped model, a checkpoint, a folder, or "user/name" on the hub. None: the default
            model.
        pretraining: Whether the model may be a checkpoint of masked pretraining, without labels and
            head.
        **hub: The options `revision`, `token`, `cache_dir`, `local_files_only` or `force_download`
            of huggingface_hub.

    Raises:
        FerVitError: There is no such model, or its files are damaged or not fer-vit's.
    """
    name = DEFAULT_MODEL if name is None else name
    if is_checkpoint(name):
        checkpoint = load_checkpoint(Path(name))
        model = unpack_checkpoint(checkpoint, name)
        task_class = checkpoint.get("task_class")
        if task_class:
            LOGGER.warning(
                f"{name} was trained by {short(task_class)}, but its network is read as one of "
                f"fer-vit. If the class changes it, add `--model {short(task_class)}`."
            )
        if not (model.settings.labels or pretraining):
            raise no_expressions(name)
        return model

    folder = fetch_folder(name, **hub)
    check_model_folder(folder, name)
    plain = read_config(folder, name)
    try:
        state = load_file(folder / WEIGHTS_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise unreadable_model(folder, name, error) from error
    return read_stored_model(plain, state, name)


def differing(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, str]]:
    """Yields the weights of two state dicts that differ in type or shape.

    An item is the name of the weights, and their type and shape in the first and in the second
    state dict.
    """
    for key in dict.fromkeys([*first, *second]):
        before = _kind(first.get(key))
        after = _kind(second.get(key))
        if before != after:
            yield key, before, after


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    kind = "float" if tensor.is_floating_point() else "int"
    return f"{kind} {tuple(tensor.shape)}"
