"""Trained models as files: shipped models, folders, the Hugging Face hub, and checkpoints of `fer-vit fit`.

A folder contains model.safetensors and config.json: the architecture, and what prediction needs (labels, cropping,
calibration). No code in a file is run, and sizes that a file claims are checked.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fer_vit.conformal import COVERAGES
from fer_vit.errors import FerVitError, short, suggest
from fer_vit.labels import check_labels
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.config import ModelSettings, read_config
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS, check_folder, find_folder


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


MAX_CONFIG = 1_000_000
"""Largest config.json in bytes; the included ones have 2 kB."""
EXTRA_KEYS = tuple(field.name for field in fields(ModelSettings))
"""What prediction needs besides the network."""
TO_FILL = "To be filled in: training data, results, prohibited uses."
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
"""The card of a folder without one."""


def _is_template(value: Any) -> bool:
    """Returns whether a value is five points (x, y) in or near a crop, or none."""
    if not all_are(value, list | tuple) or [len(point) for point in value] not in ([], [2] * 5):
        return False
    return all(isinstance(number, int | float) and -9 <= number <= 9 for point in value for number in point)


def _are_thresholds(value: Any, classes: int) -> bool:
    """Returns whether a value is a result of `fit_thresholds`, or empty."""
    if not isinstance(value, dict) or value.keys() not in (set(), set(map(str, COVERAGES))):
        return False
    rows = [*value.values()]
    if not all_are(rows, list) or any(len(row) != 1 + classes for row in rows):
        return False
    numbers = [number for row in rows for place, number in enumerate(row) if number is not None or not place]
    return all(isinstance(number, int | float) and 0 <= number <= 1 for number in numbers)


def _is_prior(value: Any, classes: int) -> bool:
    """Returns whether a value is a positive share for each class, or empty."""
    if not isinstance(value, list | tuple) or len(value) not in (0, classes):
        return False
    return all(isinstance(number, float) and 1e-9 < number <= 1 for number in value)


def _is_faithfulness(value: Any) -> bool:
    """Returns whether a value is one number, or three, by name."""
    if not isinstance(value, dict) or not all_are(rows := [*value.values()], list):
        return False
    numbers = [number for row in rows for number in row]
    return {len(row) for row in rows} <= {1, 3} and all(
        isinstance(number, int | float) and -9 <= number <= 9 for number in numbers
    )


EXTRA_RULES: dict[str, tuple[Callable[[Any, int], bool], str]] = {
    "align": (lambda value, _: value in ("landmarks", "crop"), "landmarks or crop"),
    "template": (lambda value, _: _is_template(value), "five points (x, y)"),
    "temperature": (lambda value, _: isinstance(value, int | float) and 1e-3 <= value <= 1e3, "from 0.001 to 1000"),
    "thresholds": (_are_thresholds, "numbers from 0 to 1 for 90 and 95 %, one for all faces and one for each label"),
    "prior": (_is_prior, "a share above 0 for each label, or empty"),
    "adjustment": (lambda value, _: isinstance(value, int | float) and 0 <= value <= 1, "from 0 to 1"),
    "faithfulness": (lambda value, _: _is_faithfulness(value), "one number or three for each method"),
}
"""Rule for a setting, given the number of labels, and its text for messages."""


def load_network(name: str | Path | None = None, **hub: Any) -> RegionViT:
    """Loads a trained network, ready to predict on the CPU; arguments and errors as for `read_model`."""
    return build_network(*read_model(name, **hub), name or DEFAULT)


def build_network(settings: dict[str, Any], state: dict[str, Tensor], name: str | Path) -> RegionViT:
    """Builds a network, called `name` in messages, ready to predict on the CPU.

    Raises FerVitError when the settings (arguments of `build_model`) and the state dict do not match.
    """
    try:
        with torch.device("meta"):  # uses no memory, however large the network
            wanted = build_model(**settings).state_dict()
        check_weights(wanted, state, name)
        net = build_model(**settings)
        net.load_state_dict(state)  # from any precision, to float32
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:  # settings can be anything
        reason = " ".join(str(error).split())[:200]
        raise FerVitError(f"{name} is of another version of fer-vit, or damaged ({reason}).") from error
    use_fused_attention(net, fused_is_faster(torch.device("cpu"), net.layout.num_tokens))
    return net.eval()


def average_networks(names: Sequence[str]) -> RegionViT:
    """Averages the weights of models, for example of several seeds: a "model soup" (Wortsman et al. 2022).

    Running statistics are averaged as well; counters and `standardize` are the first model's. The average has neither
    calibration nor logit adjustment.

    Raises:
        FerVitError: A model cannot be loaded, or has another architecture, or other labels or crops than the first.
    """
    first, *others = nets = [load_network(name) for name in names]
    for name, net in zip(names[1:], others, strict=True):
        net.config = replace(net.config, standardize=first.config.standardize)
        here, wanted = (vars(one.settings) | {"config": one.config} for one in (net, first))
        for what in ("config", "labels", "align", "template"):
            if here[what] != wanted[what]:
                raise FerVitError(f"{name} has another {what} than {names[0]}. Average models of one configuration.")
    states = [net.state_dict() for net in nets]
    for key, value in states[0].items():
        if value.is_floating_point():
            value.copy_(torch.stack([state[key].double() for state in states]).mean(0))
    first.settings.temperature, first.settings.thresholds = 1.0, {}
    first.adjust((), 0)
    return first


def save_network(net: RegionViT, folder: Path) -> None:
    """Writes a folder for `load_network`: weights in their precision, settings and a model card."""
    settings = {"config": asdict(net.config)} | asdict(net.settings)
    weights = save({name: value.contiguous() for name, value in net.state_dict().items()}, {"format": "pt"})
    folder.mkdir(exist_ok=True)
    (folder / CARD_FILE).write_text(CARD, "utf-8")
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


def read_model(
    name: str | Path | None = None, *, pretraining: bool = False, **hub: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the arguments of `build_model`, and its state dict.

    Args:
        name: An included model, a checkpoint, a folder, or "user/name" on the hub. None: `DEFAULT`.
        pretraining: Whether it may be a checkpoint of masked pretraining, without labels and head.
        **hub: `revision`, `token`, `cache_dir`, `local_files_only` or `force_download` of huggingface_hub.

    Raises:
        FerVitError: There is no such model, or its files are damaged or not fer-vit's.
    """
    name = DEFAULT if name is None else name
    if Path(name).is_file() or Path(name).suffix == ".ckpt":
        settings, state = unpack_checkpoint(load_checkpoint(Path(name)), name)
        if not (settings["labels"] or pretraining):
            raise FerVitError(
                f"{name} is of masked pretraining and has no expressions. Train a classifier from it: "
                f"`fer-vit fit --model.init {name}`."
            )
        return settings, state
    folder = find_folder(name, **hub)
    check_folder(folder, name)
    try:
        if (folder / CONFIG).stat().st_size > MAX_CONFIG:
            raise FerVitError(f"Expected a {CONFIG} of at most {MAX_CONFIG:,} bytes in {name}, but it is larger.")
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise FerVitError(f"The model {name} cannot be read ({error}). Download or export it again.") from error
    return check_settings(settings, name), state


def unpack_checkpoint(checkpoint: dict[str, Any], name: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the result of `read_model` for a checkpoint in memory, called `name` in messages."""
    hyper = checkpoint["hyper_parameters"]
    settings = {"config": hyper["network"], **{key: hyper[key] for key in EXTRA_KEYS if key in hyper}}
    state = {key.removeprefix("net."): value for key, value in checkpoint["state_dict"].items()}
    if not is_pretraining(hyper):
        return check_settings(settings, name), state
    state = {key: value for key, value in state.items() if key.partition(".")[0] not in ("mask_token", "decoder")}
    return check_settings({**settings, "labels": []}, name, pretraining=True), state


def check_settings(settings: Any, name: str | Path, pretraining: bool = False) -> dict[str, Any]:
    """Returns the settings of a file as arguments of `build_model`; raises FerVitError when some are wrong."""
    config = settings.get("config") if isinstance(settings, dict) else None
    if not isinstance(config, dict) or not isinstance(settings.get("labels"), list | tuple):
        raise FerVitError(f"{name} is not a model of fer-vit: its settings have no `config` or no `labels`.")
    if not pretraining:
        check_labels(settings["labels"], name)
    extra = {key: settings[key] for key in EXTRA_KEYS if key in settings}
    for key, (fits, expected) in EXTRA_RULES.items():
        if key in extra and not fits(extra[key], len(settings["labels"])):
            raise FerVitError(f"{name}: expected {key} to be {expected}, but got {short(extra[key])}.")
    if extra.get("adjustment") and not extra.get("prior"):
        raise FerVitError(f"{name}: expected a prior beside an adjustment of {extra['adjustment']}, but got none.")
    if "template" in extra:
        extra["template"] = tuple((x, y) for x, y in extra["template"])
    return {**extra, "config": read_config({**config, "pretrained": False}, name)}  # the file has the weights


def check_weights(wanted: dict[str, Tensor], state: dict[str, Tensor], name: str | Path) -> None:
    """Raises FerVitError when a file's weights, of any precision, are not the expected ones, or not finite."""
    for key, here, there in differing(wanted, state):
        raise FerVitError(
            f"{name} is of another version of fer-vit, or damaged (weights `{short(key)}`: {there}, but its "
            f"settings require {here})."
        )
    for key, value in state.items():
        if not value.float().isfinite().all():
            raise FerVitError(f"{name} holds weights that are not finite (`{key}`), as after training that diverged.")


def differing(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Iterator[tuple[str, str, str]]:
    """Yields name, type in the first and type in the second state dict of weights that differ in type or shape."""
    for key in dict.fromkeys([*first, *second]):
        here, there = (_kind(state[key]) if key in state else "missing" for state in (first, second))
        if here != there:
            yield key, here, there


def _kind(tensor: Tensor) -> str:
    return f"{'float' if tensor.is_floating_point() else 'int'} {tuple(tensor.shape)}"


CONFIGS = Path(__file__).parents[1] / "configs"
"""In a checkout a link to the folder `configs` at its top level."""


def shipped_configs() -> dict[str, Path]:
    """Returns the configs in the package by file name without suffix."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def find_config(name: str) -> str:
    """Returns the path of a config: a file of that name, else the one in the package; YAML text is returned unchanged.

    Raises:
        FerVitError: There is neither.
    """
    if os.path.isfile(name) or ":" in name:
        return name
    if name not in (configs := shipped_configs()):
        known = ", ".join(configs)
        raise FerVitError(f"Expected a file or a shipped config ({known}), but got {name}.{suggest(name, configs)}")
    return str(configs[name])
