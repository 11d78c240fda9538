"""Trained models as files: shipped models, folders, the hub, and checkpoints of `fer-vit fit`.

A folder contains model.safetensors and config.json: the architecture, and what prediction needs
(labels, cropping, calibration). No code in a file is run, and sizes that a file claims are checked.
"""

import json
import logging
import math
import os
import reprlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fer_vit.conformal import COVERAGES
from fer_vit.errors import FerVitError, ModelError, short, suggest
from fer_vit.files import check_permission, json_text
from fer_vit.heads import check_outputs
from fer_vit.labels import check_labels
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.config import ModelSettings, RegionViTConfig, read_settings
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.pickles import UnsafeError, load_tensors
from fer_vit.store.hub import CARD_FILE, CONFIG, DEFAULT, WEIGHTS, check_folder, find_folder

LOGGER = logging.getLogger("fer_vit")
MAX_CONFIG = 1_000_000
"""Largest settings in characters of JSON; the included models have 2,000."""
SECTIONS: dict[str, type] = {
    "callbacks": dict,
    "loops": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
}
"""State for resuming that Lightning writes, each of dictionaries."""


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

    hyper = as_dict(checkpoint.get("hyper_parameters"))
    state = as_dict(checkpoint.get("state_dict"))
    is_classifier = {"network", "labels"} <= hyper.keys()
    if not state or not (is_classifier or is_pretraining(hyper)):
        raise ModelError(
            f"{path} is not a checkpoint of fer-vit. Choose one that `fer-vit fit` wrote."
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
        FerVitError: It is damaged, or could expand to gigabytes.
    """
    try:
        checkpoint = as_dict(load_tensors(path))
        hyper = as_dict(checkpoint.get("hyper_parameters"))
        length = 0
        for part in json.JSONEncoder().iterencode(hyper):  # lists may share their items
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


def is_pretraining(hyper: dict[str, Any]) -> bool:
    """Returns whether these are the settings of masked pretraining, which has no labels."""
    return {"network", "mask_ratio"} <= hyper.keys() and "labels" not in hyper


def as_dict(value: Any) -> dict[str, Any]:
    """Returns a dictionary with string keys, else an empty one."""
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else {}


def all_are(values: Iterable[Any], kind: type) -> bool:
    """Returns whether all values are of a type."""
    return all(isinstance(value, kind) for value in values)


def _check_sections(checkpoint: dict[str, Any], path: Path) -> None:
    """Raises FerVitError when the state for resuming is not of the types that Lightning writes."""
    for section, kind in SECTIONS.items():
        parts = checkpoint.get(section, kind())
        states = parts.values() if isinstance(parts, dict) else parts
        if not isinstance(parts, kind) or not all_are(states, dict):
            raise ModelError(
                f"{path}: its {section} are damaged. Choose a checkpoint that `fer-vit fit` wrote."
            )
    for saved in checkpoint.get("callbacks", {}).values():
        _check_saved(saved, path)


def _check_saved(saved: dict[Any, Any], path: Path) -> None:
    """Raises FerVitError when the state of a callback names files outside its folder.

    A resumed run deletes the files that ModelCheckpoint has recorded as older ones, in any folder.
    The best one may be in the previous run's folder: Lightning keeps it there, unless it is a URL
    or leads upwards.
    """
    older: list[object] = []
    models = saved.get("best_k_models")
    if isinstance(models, dict):
        older.extend(models)
    older.append(saved.get("kth_best_model_path"))
    older.append(saved.get("last_model_path"))

    folder = saved.get("dirpath")
    for name in older:
        if name and not (_is_plain(name) and _is_inside(name, folder)):
            raise _outside(path, name)
    best = saved.get("best_model_path")
    if best and not _is_plain(best):
        raise _outside(path, best)


def _outside(path: Path, name: object) -> ModelError:
    came = f"{reprlib.repr(name)}, which is not in the run's folder and could be lost"
    return ModelError(f"{path} records {came}. Choose a checkpoint that `fer-vit fit` wrote.")


def _is_plain(name: object) -> bool:
    """Returns whether this is a path, not a URL, and leads out of no folder that it names."""
    if not isinstance(name, str) or "://" in name or "::" in name:
        return False
    return os.path.normpath(name).count("..") == name.count("..")


def _is_inside(name: object, folder: object) -> bool:
    """Returns whether a path begins with a folder."""
    return str(name).startswith(folder + os.sep) if isinstance(folder, str) else False


LEVELS = {*map(str, COVERAGES)}
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


def load_network(name: str | Path | None = None, **hub: Any) -> RegionViT:
    """Loads a trained network, ready to predict on the CPU.

    Arguments and errors as for `read_model`.
    """
    settings, state = read_model(name, **hub)
    return build_network(settings, state, name or DEFAULT)


def build_network(
    settings: dict[str, Any], state: dict[str, Tensor], name: str | Path
) -> RegionViT:
    """Builds a network from arguments of `build_model`, ready to predict.

    Raises:
        FerVitError: The state dict is of another network, or some weights are not finite.
    """
    try:
        with torch.device("meta"):  # uses no memory, however large the network
            expected = build_model(**settings, initialize=False).state_dict()
        for key, required, came in differing(expected, state):
            raise ValueError(f"weights `{short(key)}`: {came}, but its settings require {required}")
        check_finite(state, name)
        net = build_model(**settings, initialize=False)
        net.load_state_dict(state)  # from any precision, to float32
    # settings of a file can be anything
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{name} is of another version of fer-vit, or damaged ({reason})."
        ) from error
    use_fused_attention(net, fused_is_faster(torch.device("cpu"), net.layout.num_tokens))
    return net.eval()


def check_finite(state: Mapping[str, Tensor], name: str | Path) -> None:
    """Raises FerVitError when some weights are not finite."""
    for key, value in state.items():
        if not value.float().isfinite().all():
            raise ModelError(
                f"{name} holds weights that are not finite (`{key}`), as after diverged training."
            )


def average_networks(names: Sequence[str]) -> RegionViT:
    """Averages the weights of models, for example of several seeds.

    This is a "model soup" (Wortsman et al. 2022). Counters and `standardize` are taken from the
    first model. The average has neither calibration nor logit adjustment. Raises FerVitError when a
    model cannot be loaded, or has another architecture, or other labels or crops.
    """
    nets = [load_network(name) for name in names]
    first = nets[0]
    for name, net in zip(names[1:], nets[1:], strict=True):
        net.config = replace(net.config, standardize=first.config.standardize)
        same = {"config": net.config == first.config}
        for field in ("labels", "outputs", "align", "template", "evened"):
            same[field] = getattr(net.settings, field) == getattr(first.settings, field)
        for field, equal in same.items():
            if not equal:
                raise ModelError(
                    f"{name} has another {field} than {names[0]}. "
                    "Average models of one configuration."
                )

    states = [net.state_dict() for net in nets]
    for key, value in states[0].items():
        if value.is_floating_point():
            weights = torch.stack([state[key].double() for state in states])
            value.copy_(weights.mean(0))

    # these were fitted to the logits of each model alone
    first.settings.temperature = 1.0
    first.settings.thresholds = {}
    first.adjust((), 0)
    return first


def save_network(net: RegionViT, folder: Path) -> None:
    """Writes a folder for `load_network`: weights in their precision, settings and a model card."""
    settings = {"config": asdict(net.config)} | asdict(net.settings)
    state = {name: value.contiguous() for name, value in net.state_dict().items()}
    weights = save(state, {"format": "pt"})
    folder.mkdir(exist_ok=True)
    (folder / CARD_FILE).write_text(CARD, "utf-8")
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CONFIG).write_text(json_text(settings, indent=2) + "\n", "utf-8")


def classifier_command(encoder: str | Path) -> str:
    """Returns the command that trains a classifier from a checkpoint of masked pretraining.

    Nothing is frozen: the batch norms of the stem have the statistics of masked faces.
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
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the arguments of `build_model`, and its state dict.

    Args:
        name: An included model, a checkpoint, a folder, or "user/name" on the hub. None: `DEFAULT`.
        pretraining: Whether it may be a checkpoint of masked pretraining, without labels and head.
        **hub: `revision`, `token`, `cache_dir`, `local_files_only` or `force_download` of
            huggingface_hub.

    Raises:
        FerVitError: There is no such model, or its files are damaged or not fer-vit's.
    """
    name = DEFAULT if name is None else name
    if Path(name).is_file() or Path(name).suffix == ".ckpt":
        checkpoint = load_checkpoint(Path(name))
        settings, state = unpack_checkpoint(checkpoint, name)
        task_class = checkpoint.get("task_class")
        if task_class:
            LOGGER.warning(
                f"{name} was trained by {short(task_class)}, but its network is read as one of "
                f"fer-vit. If the class changes it, add `--model {short(task_class)}`."
            )
        if not (settings["labels"] or pretraining):
            raise no_expressions(name)
        return settings, state
    folder = find_folder(name, **hub)
    check_folder(folder, name)
    try:
        if (folder / CONFIG).stat().st_size > MAX_CONFIG:
            raise ModelError(
                f"Expected a {CONFIG} of at most {MAX_CONFIG:,} bytes in {name}, but it is larger."
            )
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        check_permission(folder, error)
        raise ModelError(
            f"The model {name} cannot be read ({error}). Download or export it again."
        ) from error
    return check_settings(settings, name), state


def unpack_checkpoint(
    checkpoint: dict[str, Any], name: str | Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the result of `read_model` for a checkpoint in memory, called `name` in messages."""
    hyper = checkpoint["hyper_parameters"]
    settings = {key: hyper[key] for key in EXTRA_KEYS if key in hyper}
    settings["config"] = hyper["network"]
    settings["evened"] = _evened(checkpoint)
    state = {key.removeprefix("net."): value for key, value in checkpoint["state_dict"].items()}
    if not is_pretraining(hyper):
        return check_settings(settings, name), state

    # the parts that reconstruct the masked tokens are no longer needed
    decoder = [key for key in state if key.partition(".")[0] in ("mask_token", "decoder")]
    for key in decoder:
        del state[key]
    settings["labels"] = []
    return check_settings(settings, name, pretraining=True), state


def _evened(checkpoint: dict[str, Any]) -> Any:
    """Returns `ModelSettings.evened` of a run, by the options of its data and task."""
    data = as_dict(checkpoint.get("FaceDataModule"))
    if data.get("balanced") is True:
        return 1.0
    return checkpoint["hyper_parameters"].get("logit_adjust", 0.0)


def check_settings(settings: Any, name: str | Path, pretraining: bool = False) -> dict[str, Any]:
    """Returns the settings of a file as arguments of `build_model`.

    Raises:
        FerVitError: Some are missing or wrong.
    """
    config = settings.get("config") if isinstance(settings, dict) else None
    if not isinstance(config, dict) or not isinstance(settings.get("labels"), list | tuple):
        raise ModelError(
            f"{name} is not a model of fer-vit: its settings have no `config` or no `labels`."
        )
    if not pretraining:
        check_labels(settings["labels"], name)
    values = {}
    for key in EXTRA_KEYS:
        if settings.get(key) is not None:
            values[key] = settings[key]
    checked = read_settings(ModelSettings, values, name)
    check_outputs(checked.outputs, name)
    check_ranges(checked, name)
    config = config | {"pretrained": False}  # the file has the weights
    return vars(checked) | {"config": read_settings(RegionViTConfig, config, name)}


def check_ranges(settings: ModelSettings, name: str | Path) -> None:
    """Raises FerVitError when settings have too many or too few numbers, or some out of range."""
    classes = len(settings.labels)

    def expect(key: str, fits: bool, expected: str) -> None:
        if not fits:
            came = short(getattr(settings, key))
            raise ModelError(f"{name}: expected {key} to be {expected}, but got {came}.")

    coordinates = chain(*settings.template)
    points = len(settings.template) in (0, 5) and _within(-9, coordinates, 9)
    expect("template", points, "five points (x, y)")

    expect("temperature", _within(1e-3, [settings.temperature], 1e3), "from 0.001 to 1000")

    thresholds = {*settings.thresholds} in (set(), LEVELS)
    for row in settings.thresholds.values():  # for all faces, then for each label
        complete = len(row) == 1 + classes and row[0] is not None
        thresholds = thresholds and complete and _within(0, row, 1)
    expect("thresholds", thresholds, "from 0 to 1, all and each label, by level")

    prior = len(settings.prior) in (0, classes) and _within(1e-9, settings.prior, 1)
    expect("prior", prior, "empty or one share per label")

    expect("evened", 0 <= settings.evened < math.inf, "at least 0")
    most = 1 if settings.prior else 0
    expect("adjustment", 0 <= settings.adjustment <= most, "from 0 to 1, and 0 without a prior")

    for gain in settings.faithfulness.values():
        is_gain = len(gain) in (1, 3) and _within(-9, gain, 9)
        expect("faithfulness", is_gain, "one number or three for each method")


def _within(low: float, numbers: Iterable[float | None], high: float) -> bool:
    """Returns whether numbers lie between two bounds; None is not checked."""
    return all(low <= number <= high for number in numbers if number is not None)


def differing(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, str]]:
    """Yields the weights of two state dicts that differ in type or shape.

    Each is a name, with the type and shape in the first and in the second state dict.
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


CONFIGS = Path(__file__).parents[1] / "configs"
"""In a checkout a link to the folder `configs` at its top level."""


def shipped_configs() -> dict[str, Path]:
    """Returns the configs in the package by file name without suffix."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def find_config(name: str) -> str:
    """Returns the path of a file or shipped config, and YAML text unchanged.

    Raises:
        FerVitError: There is neither.
    """
    if os.path.isfile(name) or ":" in name:
        return name
    configs = shipped_configs()
    if name not in configs:
        raise FerVitError(
            f"Expected a file or a shipped config ({', '.join(configs)}), "
            f"but got {name}.{suggest(name, configs)}"
        )
    return str(configs[name])
