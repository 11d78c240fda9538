"""Settings in the files of models: whether they are complete and in range."""

import math
from collections.abc import Iterable
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from fer_vit.conformal import COVERAGES
from fer_vit.errors import ModelError, short
from fer_vit.heads import check_outputs
from fer_vit.labels import check_labels
from fer_vit.model.config import ModelSettings, RegionViTConfig, read_settings

LEVELS = {*map(str, COVERAGES)}
EXTRA_KEYS = tuple(field.name for field in fields(ModelSettings))
"""What prediction needs besides the network."""


def network_arguments(settings: Any, name: str | Path, pretraining: bool = False) -> dict[str, Any]:
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
            actual = short(getattr(settings, key))
            raise ModelError(f"{name}: expected {key} to be {expected}, but got {actual}.")

    coordinates = chain(*settings.template)
    has_points = len(settings.template) in (0, 5) and _within(-9, coordinates, 9)
    expect("template", has_points, "five points (x, y)")

    expect("temperature", _within(1e-3, [settings.temperature], 1e3), "from 0.001 to 1000")

    has_levels = not settings.thresholds or settings.thresholds.keys() == LEVELS
    for row in settings.thresholds.values():  # for all faces, then for each label
        is_complete = len(row) == 1 + classes and row[0] is not None
        has_levels = has_levels and is_complete and _within(0, row, 1)
    expect("thresholds", has_levels, "from 0 to 1, all and each label, by level")

    has_prior = len(settings.prior) in (0, classes) and _within(1e-9, settings.prior, 1)
    expect("prior", has_prior, "empty or one share per label")

    expect("evened", 0 <= settings.evened < math.inf, "at least 0")
    most = 1 if settings.prior else 0
    expect("adjustment", 0 <= settings.adjustment <= most, "from 0 to 1, and 0 without a prior")

    for gain in settings.faithfulness.values():
        is_gain = len(gain) in (1, 3) and _within(-9, gain, 9)
        expect("faithfulness", is_gain, "one number or three for each method")


def _within(low: float, numbers: Iterable[float | None], high: float) -> bool:
    """Returns whether numbers lie between two bounds; None is not checked."""
    return all(low <= number <= high for number in numbers if number is not None)
