"""The settings that prediction needs besides a network, and their plain form in files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from fer_vit.conformal import COVERAGES, Thresholds
from fer_vit.errors import FerVitError, ModelError, short
from fer_vit.face.crop import MAX_CROP, CropSpec
from fer_vit.geometry import Array
from fer_vit.heads import NO_OUTPUTS, HeadOutputs
from fer_vit.labels import check_labels

Settings = TypeVar("Settings")
DEFAULT_SIZE = 224  # the side of the crop if a file does not have it, as in `RegionViTConfig`
COVERAGE_KEYS = {str(coverage) for coverage in COVERAGES}  # the keys of `thresholds` in JSON


@dataclass
class ModelSettings:
    """Settings that prediction needs besides the network."""

    # The C expressions in the order of the logits; empty: an encoder for pretraining.
    labels: list[str]
    # How a face becomes the input of the network.
    crop: CropSpec
    # Divides the logits before the softmax, so that confidence matches accuracy.
    temperature: float = 1.0
    # The thresholds of prediction sets (see `conformal`); empty: not calibrated.
    thresholds: Thresholds = field(default_factory=dict)
    # How far training balanced the classes: 1 for balanced sampling, otherwise the strength of the
    # logit adjustment in training.
    evened: float = 0.0
    # (C,), the share of each class that the network expects, all above 0; empty: unknown. The prior
    # is the shares of the training faces to the power of 1 - `evened`, normalized.
    prior: tuple[float, ...] = ()
    # The log of the prior, times this, is subtracted from the logits (Menon et al. 2021).
    adjustment: float = 0.0
    # Gain in pixel insertion over random scores, followed by the interval if that is known, by
    # explanation method and for "attention" (see docs/explanation/faithfulness.md); empty: not
    # measured.
    faithfulness: dict[str, list[float]] = field(default_factory=dict)
    # The K outputs, in order, of the heads of `heads.HEADS`.
    outputs: HeadOutputs = NO_OUTPUTS

    def offset(
        self, prior: Sequence[float] | None = None, possible: Sequence[bool] = ()
    ) -> Array | None:
        """Returns what is added to the logits of the network (C,). None: nothing.

        Without arguments, this is the logit adjustment of training (Menon et al. 2021).

        Args:
            prior: Another prior (C,), which replaces the adjustment: probabilities are divided by
                the training prior and multiplied by the new prior (Saerens et al. 2002).
            possible: Which classes are possible (C,); other classes get probability 0. Empty: all.
        """
        with np.errstate(divide="ignore"):  # the log of 0 is -inf
            offsets = [np.log(np.asarray(possible, float))] if possible else []
            if prior is not None:
                new, old = np.log([prior, self.prior])
                offsets.append(self.temperature * (new - old))
            elif self.adjustment:
                offsets.append(-self.adjustment * np.log(self.prior))
        return np.sum(offsets, axis=0) if offsets else None


# The names of the settings in a file. The size and the regions of the crop are in the file's
# `config`, because the network depends on them. `outputs` has the names of the outputs, in order,
# by head; `r` has their r, by head and name. None, and an output that is not there: not measured.
CROP_KEYS = ("align", "template")
OUTPUT_KEYS = ("outputs", "r")
OTHER_KEYS = tuple(
    entry.name for entry in fields(ModelSettings) if entry.name not in ("crop", "outputs")
)
SETTINGS_KEYS = (*CROP_KEYS, *OTHER_KEYS, *OUTPUT_KEYS)


def plain_settings(settings: ModelSettings) -> dict[str, Any]:
    """Returns settings as plain values by `SETTINGS_KEYS`."""
    plain = asdict(replace(settings, outputs=NO_OUTPUTS))
    crop = plain.pop("crop")
    plain |= {"outputs": settings.outputs.plain, "r": settings.outputs.plain_r}
    return {key: crop[key] for key in CROP_KEYS} | plain


def read_model_settings(plain: Any, name: str | Path, pretraining: bool = False) -> ModelSettings:
    """Converts and checks the plain settings of a file.

    Args:
        plain: The dictionary in config.json, or such a dictionary from the hyper-parameters of a
            checkpoint: values by `SETTINGS_KEYS`, and `config` with the settings of the network.
        name: The name of the model in messages.
        pretraining: Whether the model is an encoder of masked pretraining, without labels.

    Raises:
        FerVitError: Settings are missing or wrong.
    """
    crop = read_crop(plain, name)
    if not pretraining:
        check_labels(plain["labels"], name)
    values = {key: plain[key] for key in OTHER_KEYS if plain.get(key) is not None}
    outputs = _read_outputs(plain, name)
    settings = read_settings(ModelSettings, values, name, crop=crop, outputs=outputs)
    check_ranges(settings, name)
    return settings


def read_crop(plain: Any, name: str | Path) -> CropSpec:
    """Returns how a model's faces are cropped; arguments and errors as for `read_model_settings`.

    Reading all settings takes much longer.
    """
    config = plain.get("config") if isinstance(plain, dict) else None
    if not isinstance(config, dict) or not isinstance(plain.get("labels"), list | tuple):
        raise ModelError(
            f"{name} is not a fer-vit model: its settings have no `config` or no `labels`."
        )
    crop = {"size": config.get("img_size", DEFAULT_SIZE), "regions": config.get("regions", ())}
    crop |= {key: plain[key] for key in CROP_KEYS if plain.get(key)}
    return read_settings(CropSpec, crop, name)


def _read_outputs(plain: dict[str, Any], name: str | Path) -> HeadOutputs:
    """Converts and checks the outputs of a file."""
    given = {key: plain[key] for key in OUTPUT_KEYS if plain.get(key) is not None}
    outputs = HeadOutputs.of_names(given.get("outputs", {}), name)
    r = given.get("r", {})
    if not _is_r(r, outputs):
        raise ModelError(f"{name}: expected r to be from -1 to 1 by output, but got {short(r)}.")
    return outputs.with_r(r)


def _is_r(values: Any, outputs: HeadOutputs) -> bool:
    """Returns whether values from a file are the r of outputs, by head and name."""
    if not isinstance(values, dict):
        return False
    for head, measured in values.items():
        names = {*outputs.of_head(head).names}
        if not isinstance(measured, dict) or not measured.keys() <= names:
            return False
        if not _all_within(measured.values(), -1, 1):
            return False
    return True


def read_settings(
    kind: type[Settings], values: dict[str, Any], name: object, **built: Any
) -> Settings:
    """Converts plain values of the file `name` to a class of settings.

    `built` are arguments of the class that are converted already. Raises FerVitError for a value of
    a wrong type.
    """
    # by hand, because the import of jsonargparse takes 0.05 s for each `predict`
    types = get_type_hints(kind)
    converted = {}
    try:
        for key, value in values.items():
            if key not in types:
                raise ValueError(f"'{key}' is not accepted")
            converted[key] = _in_type(types[key], value, key)
        return kind(**converted, **built)
    except (ArithmeticError, TypeError, ValueError) as error:
        reason = short(" ".join(str(error).split()))
        raise FerVitError(
            f"{name} does not fit this version of fer-vit ({reason}). Upgrade fer-vit."
        ) from error


def _in_type(kind: Any, value: Any, key: str) -> Any:
    """Returns a value from a file in a type: lists become tuples, and whole numbers floats.

    Raises TypeError, with the `key` of the setting, for a value of another type.
    """
    origin = get_origin(kind)
    members = get_args(kind)
    if origin is UnionType:
        for member in members:
            with suppress(TypeError):
                return _in_type(member, value, key)
    elif origin is Literal:
        if value in members:
            return value
    elif origin in (dict, Mapping):
        if isinstance(value, dict):
            return {str(name): _in_type(members[1], item, key) for name, item in value.items()}
    elif origin is not None:  # a list, a tuple of any length, or one with a type for each item
        is_long = origin is not tuple or ... in members
        if isinstance(value, list | tuple) and (is_long or len(value) == len(members)):
            items = [_in_type(members[0], item, key) for item in value]
            return tuple(items) if origin is tuple else items
    elif _is_of(kind, value):
        return float(value) if kind is float else value
    raise TypeError(f"{key}: {short(value)}")


def _is_of(kind: type, value: object) -> bool:
    """Returns whether a value without items has a type. Whole numbers are floats, too."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, float | int if kind is float else kind)


def check_ranges(settings: ModelSettings, name: str | Path) -> None:
    """Raises FerVitError when the number of values of a setting or a value is wrong."""
    classes = len(settings.labels)
    crop = settings.crop

    def expect(key: str, fits: bool, expected: str, part: object = settings) -> None:
        if not fits:
            actual = short(getattr(part, key))
            raise ModelError(f"{name}: expected {key} to be {expected}, but got {actual}.")

    has_points = len(crop.template) == 5 and _all_within(chain(*crop.template), -9, 9)
    expect("template", has_points, "five points (x, y)", crop)
    expect("size", 1 <= crop.size <= MAX_CROP, f"from 1 to {MAX_CROP} pixels", crop)

    expect("temperature", _all_within([settings.temperature], 1e-3, 1e3), "from 0.001 to 1000")

    # a row has the threshold for all faces, then for each label (1 + C)
    valid_rows = [
        len(row) == 1 + classes and _all_within(row, 0, 1) for row in settings.thresholds.values()
    ]
    has_keys = not settings.thresholds or settings.thresholds.keys() == COVERAGE_KEYS
    are_valid = has_keys and all(valid_rows)
    expect("thresholds", are_valid, "from 0 to 1, all and each label, by coverage")

    has_prior = len(settings.prior) in (0, classes) and _all_within(settings.prior, 1e-9, 1)
    expect("prior", has_prior, "empty or one share per label")

    expect("evened", 0 <= settings.evened < math.inf, "at least 0")
    most = 1 if settings.prior else 0
    expect("adjustment", 0 <= settings.adjustment <= most, "from 0 to 1, and 0 without a prior")

    for gain in settings.faithfulness.values():
        is_gain = len(gain) in (1, 3) and _all_within(gain, -9, 9)
        expect("faithfulness", is_gain, "one number or three for each method")


def _all_within(numbers: Iterable[float | None], low: float, high: float) -> bool:
    """Returns whether all numbers lie between two bounds, inclusive. None is ignored."""
    known = [number for number in numbers if number is not None]
    return all(isinstance(number, float | int) and low <= number <= high for number in known)
