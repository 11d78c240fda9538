"""A model in the form of its file, and the conversion of settings from plain values."""

import math
from argparse import ArgumentError
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser
from torch import Tensor

from fer_vit.conformal import COVERAGES
from fer_vit.errors import FerVitError, ModelError, short
from fer_vit.heads import check_head_outputs
from fer_vit.labels import check_labels
from fer_vit.model.config import ModelSettings, RegionViTConfig

Settings = TypeVar("Settings")
COVERAGE_KEYS = {str(coverage) for coverage in COVERAGES}  # the keys of `thresholds` in JSON

# Names of the settings that prediction needs besides the network.
SETTINGS_KEYS = tuple(field.name for field in fields(ModelSettings))


@dataclass(frozen=True)
class StoredModel:
    """A model from a folder or checkpoint, with checked settings and unchecked weights.

    `store.folder.build_network` compares the weights with the settings.
    """

    name: str | Path  # the name in messages: a path, a shipped model, or a name on the hub
    config: RegionViTConfig  # the architecture
    settings: ModelSettings  # what prediction needs besides the network
    state: dict[str, Tensor]  # the state dict of the network


def read_stored_model(
    plain: Any, state: dict[str, Tensor], name: str | Path, *, pretraining: bool = False
) -> StoredModel:
    """Converts and checks the plain settings of a file; returns the model.

    Args:
        plain: The dictionary in config.json, or such a dictionary from the hyper-parameters of a
            checkpoint. It contains the fields of `ModelSettings`, and `config` with the fields of
            `RegionViTConfig`.
        state: The state dict in the file.
        name: The name of the model in messages.
        pretraining: Whether the model is an encoder of masked pretraining, without labels.

    Raises:
        FerVitError: Settings are missing or wrong.
    """
    config = plain.get("config") if isinstance(plain, dict) else None
    if not isinstance(config, dict) or not isinstance(plain.get("labels"), list | tuple):
        raise ModelError(
            f"{name} is not a model of fer-vit: its settings have no `config` or no `labels`."
        )
    if not pretraining:
        check_labels(plain["labels"], name)
    values = {}
    for key in SETTINGS_KEYS:
        if plain.get(key) is not None:
            values[key] = plain[key]

    settings = read_settings(ModelSettings, values, name)
    check_head_outputs(settings.outputs, name)
    check_ranges(settings, name)
    config = config | {"pretrained": False}  # the file has the weights
    return StoredModel(
        name=name,
        config=read_settings(RegionViTConfig, config, name),
        settings=settings,
        state=state,
    )


def read_settings(kind: type[Settings], values: dict[str, Any], name: object) -> Settings:
    """Converts plain values of the file `name` to a class of settings.

    Raises FerVitError for a value of a wrong type.
    """
    parser = _settings_parser(kind)  # type: ignore[arg-type] # mypy takes a class as not hashable
    try:
        return kind(**parser.parse_object(values).as_dict())
    except (ArgumentError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
        reason = short(" ".join(str(error).split()))
        raise FerVitError(
            f"{name} does not fit this version of fer-vit ({reason}). Upgrade fer-vit."
        ) from error


@cache
def _settings_parser(kind: type) -> ArgumentParser:
    """Returns a cached parser for the fields of a class: jsonargparse is slow to build a parser."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind)
    return parser


def check_ranges(settings: ModelSettings, name: str | Path) -> None:
    """Raises FerVitError when the number of values of a setting or a value is wrong."""
    classes = len(settings.labels)

    def expect(key: str, fits: bool, expected: str) -> None:
        if not fits:
            actual = short(getattr(settings, key))
            raise ModelError(f"{name}: expected {key} to be {expected}, but got {actual}.")

    coordinates = chain(*settings.template)
    has_points = len(settings.template) in (0, 5) and _all_within(coordinates, -9, 9)
    expect("template", has_points, "five points (x, y)")

    expect("temperature", _all_within([settings.temperature], 1e-3, 1e3), "from 0.001 to 1000")

    # A row has the threshold for all faces, then for each label (1 + C). Files of earlier versions
    # have None for a label with too few calibration faces.
    valid_rows = []
    for row in settings.thresholds.values():
        is_complete = len(row) == 1 + classes and row[0] is not None
        valid_rows.append(is_complete and _all_within(row, 0, 1))
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

    for head, measured in settings.r.items():
        are_outputs = measured.keys() <= {*settings.outputs.get(head, ())}
        expect("r", are_outputs and _all_within(measured.values(), -1, 1), "from -1 to 1 by output")


def _all_within(numbers: Iterable[float | None], low: float, high: float) -> bool:
    """Returns whether all numbers lie between two bounds, inclusive. None is ignored."""
    return all(low <= number <= high for number in numbers if number is not None)
