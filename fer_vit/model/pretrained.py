"""Pretrained weights of a backbone, from an untrusted file."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from timm.models import clean_state_dict
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.pickles import UnsafeError, load_tensors

# The keys under which timm looks for weights in a checkpoint, in this order.
WEIGHT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")

OPTION = "(`--model.network.pretrained`)"


def read_weights(file: str) -> dict[str, Tensor]:
    """Reads weights by name from a safetensors file, or a file of `torch.save` (see `pickles`).

    Raises FerVitError when there is no file, the file is not safe to read, or it has no weights.
    """
    path = Path(file)
    if not path.is_file():
        raise FerVitError(f"Expected a state dict at {file} {OPTION}, but there is none.")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else load_tensors(path)
    except Exception as error:  # both readers raise many types for files of another format
        reason = f" ({error})" if isinstance(error, UnsafeError) else ""
        raise FerVitError(
            f"{file} {OPTION} cannot be read safely{reason}. Save its state dict with `torch.save` "
            "of torch 1.6 or newer, or as .safetensors."
        ) from error

    weights = _find_weights(content)
    are_weights = [
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ]
    if not weights or not all(are_weights):
        raise FerVitError(f"Expected weights by name in {file} {OPTION}, but got other values.")
    cleaned: dict[str, Tensor] = clean_state_dict(weights)
    return cleaned


def _find_weights(content: Any) -> dict[Any, Any]:
    if not isinstance(content, dict):
        return {}
    for name in WEIGHT_KEYS:
        part = content.get(name)
        if part is not None:
            return part if isinstance(part, dict) else {}
    return content
