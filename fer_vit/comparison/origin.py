"""The model that made a table: its training data, and how well outputs agree with their targets.

A table names its model. A shipped model, or a folder with this name, has both beside its weights;
nothing is downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from fer_vit.errors import FerVitError
from fer_vit.evaluation.labelled import Labelled
from fer_vit.heads import POSE
from fer_vit.model_settings import read_model_settings
from fer_vit.store.hub import CARD_FILE, CONFIG_FILE, read_config, shipped_models

Agreement = Mapping[str, Mapping[str, float | None]]  # r by head and output; None: not measured


@dataclass(frozen=True)
class TableModel:
    """What is known about the model that made a table."""

    r: Agreement = field(default_factory=dict)  # empty: not known
    datasets: tuple[str, ...] = ()  # the training data that the model's card names


def find_model(faces: Labelled) -> TableModel:
    """Returns what is known about the model of a table.

    Nothing is known if the rows name no model or several, or a model that is elsewhere. The r of
    the pose counts if all angles are from the model's head.
    """
    names = {*faces.columns.get("model", ())} - {None}
    if len(names) != 1:
        return TableModel()
    (name,) = map(str, names)
    folder = shipped_models().get(name, Path(name))
    if not (folder / CONFIG_FILE).is_file():
        return TableModel()
    try:
        r = dict(read_model_settings(read_config(folder, name), name).r)
    except FerVitError:  # a folder of something else has this name here
        return TableModel()
    if {*faces.columns.get("pose_from", ())} - {None} != {"head"}:
        r.pop(POSE, None)
    return TableModel(r, read_datasets(folder / CARD_FILE))


def read_datasets(card: Path) -> tuple[str, ...]:
    """Returns the data sets in the metadata of a model's card; empty without a readable card."""
    try:
        _, metadata, _ = card.read_text(encoding="utf-8").split("---\n", 2)
        datasets = yaml.safe_load(metadata)["datasets"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return ()
    return tuple(map(str, datasets)) if isinstance(datasets, list) else ()
