"""Trained models as files: those that fer-vit ships, folders, the Hugging Face hub, and checkpoints of `fer-vit fit`.

A folder holds model.safetensors and config.json: what to build, and what its use needs (labels, cropping, temperature).
Nothing here runs code that lies in a file, or believes what a file says of its size.
"""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import DryRunError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fer_vit.errors import FerVitError, short
from fer_vit.files import whole
from fer_vit.labels import check_labels
from fer_vit.model.config import RegionViTConfig

SHIPPED = Path(__file__).parents[1] / "weights"
"""Where the package keeps its models, a folder each."""
DEFAULT = "ferplus-small"
"""The model that is taken when nobody names one."""
CONFIG, WEIGHTS, CARD_FILE = "config.json", "model.safetensors", "README.md"
FILES = [CONFIG, WEIGHTS, CARD_FILE]
"""What is fetched from the hub."""
MAX_BYTES = 10_000_000_000
"""No more is fetched from the hub; the largest of timm's models have 8 GB."""
MAX_CONFIG = 1_000_000
"""Bytes of a config.json, at most; ours have 2 kB."""
USE = ("labels", "align", "template", "temperature")
"""What a model's use needs beside the network."""

CARD = """---
{{ card_data }}
---

# A facial expression model of fer-vit

```python
from fer_vit import load

faces = load("path/to/this/folder").predict("photo.jpg")
```

What it was trained on, how good it is, and what it must not be used for: not said yet.
"""
"""The card of a model that has none, for huggingface_hub's mixin."""


def read_model(name: str | Path | None = None, **hub: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads a model.

    Args:
        name: A model that fer-vit ships, a checkpoint, a folder, or "user/name" on the hub. None: `DEFAULT`.
        **hub: `revision`, `token`, `cache_dir`, `local_files_only` or `force_download` of huggingface_hub.

    Returns:
        The arguments of `RegionViT`, and its state dict.

    Raises:
        FerVitError: There is no such model, or its files are not whole or not fer-vit's.
    """
    name = DEFAULT if name is None else name
    if Path(name).is_file() or Path(name).suffix == ".ckpt":
        checkpoint = load_checkpoint(Path(name))
        hyper = checkpoint["hyper_parameters"]
        settings = {"config": hyper["network"], **{key: hyper[key] for key in USE if key in hyper}}
        state = {key.removeprefix("net."): value for key, value in checkpoint["state_dict"].items()}
        return check_settings(settings, name), state
    folder = find_folder(name, **hub)
    if missing := [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]:
        raise FerVitError(f"{name} has no {missing[0]}. Name a folder that `fer-vit export` wrote, or a checkpoint.")
    try:
        if (folder / CONFIG).stat().st_size > MAX_CONFIG:
            raise FerVitError(f"Expected a {CONFIG} of at most {MAX_CONFIG:,} bytes, but that of {name} has more.")
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise FerVitError(f"The model {name} cannot be read ({error}). Get it again.") from error
    return check_settings(settings, name), state


def find_folder(name: str | Path, **hub: Any) -> Path:
    """Returns the folder of a model, out of the package, the disk or the hub (downloaded and kept in its cache).

    Raises:
        FerVitError: There is none.
    """
    if name in (models := shipped_models()):  # a Path is a folder of that name
        return models[str(name)]
    if str(name) and Path(name).is_dir():
        return Path(name)
    known = f"Expected a model that is shipped ({', '.join(models)}), a checkpoint, a folder or user/name on the hub"
    if str(name).count("/") != 1:
        raise FerVitError(f"{known}, but there is no {name}.")
    try:
        return _download(str(name), **hub)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FerVitError(f"{known}, but cannot get {name} from the hub ({reason}).") from error


def _download(name: str, **hub: Any) -> Path:
    """Fetches a model from the hub, or takes it out of its cache; returns the folder.

    Raises:
        FerVitError: It would not come over https, is too large, or its weights are not those that the hub lists.
    """
    if not hub.get("local_files_only"):
        if not constants.ENDPOINT.startswith("https://"):
            raise FerVitError(f"Expected HF_ENDPOINT to begin with https://, but got {constants.ENDPOINT}. Change it.")
        with suppress(DryRunError):  # the hub does not answer: its cache may know the model
            files = snapshot_download(name, allow_patterns=FILES, dry_run=True, **hub)
            if (size := sum(file.file_size or 0 for file in files)) > MAX_BYTES:
                raise FerVitError(f"Expected at most {MAX_BYTES:,} bytes of {name} on the hub, but it has {size:,}.")
    folder = Path(snapshot_download(name, allow_patterns=FILES, **hub))
    blob = (folder / WEIGHTS).resolve()  # which the cache calls by the sha256 of large files
    if blob.is_file() and re.fullmatch("[0-9a-f]{64}", blob.name):
        with blob.open("rb") as file:
            came = hashlib.file_digest(file, "sha256").hexdigest()
        if came != blob.name:
            raise FerVitError(f"Expected sha256 {blob.name} of {blob}, but got {came}. Remove it and get it again.")
    return folder


def shipped_models() -> dict[str, Path]:
    """Returns the folders of the models in the package by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{CONFIG}"))}


def write_model(folder: Path, settings: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Writes what `read_model` reads.

    Raises:
        FerVitError: The folder cannot be written.
    """
    settings = {**settings, "config": asdict(settings["config"])}
    weights = save({name: value.contiguous() for name, value in state.items()}, {"format": "pt"})
    with whole(folder, (WEIGHTS, CONFIG)) as new:
        new.mkdir()
        (new / WEIGHTS).write_bytes(weights)
        (new / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a checkpoint without running any code in it.

    Raises:
        FerVitError: The file is missing, cannot be read or is not a checkpoint of fer-vit.
    """
    if not path.is_file():
        raise FerVitError(f"No checkpoint at {path}. `fer-vit fit` writes them to runs/NAME/version_N/checkpoints.")
    size = path.stat().st_size
    try:
        with ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > size:
                raise ValueError("it is compressed")  # torch never does so, and little could become very much
        checkpoint = _dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds for files that are not checkpoints
        raise FerVitError(
            f"{path} is not a checkpoint that can be read safely. Choose one that fer-vit wrote."
        ) from error
    state = _dict(checkpoint.get("state_dict"))
    if not {"network", "labels"} <= _dict(checkpoint.get("hyper_parameters")).keys() or not state:
        raise FerVitError(f"{path} is not a checkpoint of fer-vit. Choose one that `fer-vit fit` wrote.")
    if not _all([*state.values()], Tensor) or sum(value.nbytes for value in state.values()) > size:
        raise FerVitError(f"{path} claims more weights than it holds. Choose a checkpoint that `fer-vit fit` wrote.")
    for part in ("callbacks", "loops", "optimizer_states", "lr_schedulers"):
        notes = checkpoint.get(part, [])
        if not _all([*notes.values()] if isinstance(notes, dict) else notes, dict):
            raise FerVitError(f"{path}: its {part} are broken. Choose a checkpoint that `fer-vit fit` wrote.")
    for notes in checkpoint.get("callbacks", {}).values():
        _check_saved(notes, path)
    return checkpoint


def _check_saved(notes: dict[Any, Any], path: Path) -> None:
    """Raises FerVitError when the notes of a callback name files that are not in its own folder.

    A run that goes on removes those that Lightning's ModelCheckpoint has noted as its older ones, wherever they are.
    The best one may be in the folder of the run before: Lightning leaves it there, unless it is a URL or leads upwards.
    """
    models = notes.get("best_k_models")
    older = [
        *(models if isinstance(models, dict) else ()),
        notes.get("kth_best_model_path"),
        notes.get("last_model_path"),
    ]
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


def check_settings(settings: Any, name: str | Path) -> dict[str, Any]:
    """Returns what a file says as the arguments of `RegionViT`.

    Raises:
        FerVitError: Something is missing or is not what it should be.
    """
    config = settings.get("config") if isinstance(settings, dict) else None
    if not isinstance(config, dict) or not isinstance(settings.get("labels"), list | tuple):
        raise FerVitError(f"{name} is not a model of fer-vit: its settings have no `config` or no `labels`.")
    if unknown := config.keys() - {field.name for field in fields(RegionViTConfig)}:
        raise FerVitError(
            f"{name} does not fit this version of fer-vit (`{min(unknown)}` is unknown). Upgrade fer-vit."
        )
    known = {key: settings[key] for key in USE if key in settings}
    labels, template, temperature = known["labels"], known.get("template", ()), known.get("temperature", 1.0)
    if known.get("align", "landmarks") not in ("landmarks", "crop"):
        raise FerVitError(f"{name}: expected align to be landmarks or crop, but got {known['align']}.")
    check_labels(labels, name)
    points = template if _all(template, list | tuple) else [[]]
    numbers = [value for point in points for value in point if isinstance(value, int | float) and -9 <= value <= 9]
    if template and ([len(point) for point in points] != [2] * 5 or len(numbers) != 10):
        raise FerVitError(f"{name}: expected five points (x, y) as template, but got {short(template)}.")
    if not isinstance(temperature, int | float) or not 1e-3 <= temperature <= 1e3:
        raise FerVitError(f"{name}: expected a temperature from 0.001 to 1000, but got {short(temperature)}.")
    # JSON knows lists only
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
    return {**known, "config": RegionViTConfig(**{**values, "pretrained": False})}  # the weights are its own


def check_weights(wanted: dict[str, Tensor], state: dict[str, Tensor], name: str | Path) -> None:
    """Compares the weights of a file with those that its settings ask for.

    Args:
        wanted: The state dict of a model as the settings say, which may lie on the meta device.
        state: That of the file, of any precision.
        name: What to call the file in messages.

    Raises:
        FerVitError: They differ, or a weight is not a finite number.
    """
    for key in sorted(wanted.keys() | state.keys()):
        here, there = (_kind(weights[key]) if key in weights else "missing" for weights in (wanted, state))
        if here != there:
            raise FerVitError(
                f"{name} is of another version of fer-vit, or damaged (weights `{short(key)}`: {there}, but its "
                f"settings ask for {here})."
            )
        if not state[key].float().isfinite().all():
            raise FerVitError(f"{name} holds weights that are no numbers (`{key}`), as after a training that diverged.")


def _kind(tensor: Tensor) -> str:
    return f"{'float' if tensor.is_floating_point() else 'int'} {tuple(tensor.shape)}"


def _dict(value: Any) -> dict[str, Any]:
    """Returns what is a dictionary with names as keys; an empty one for everything else."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)
