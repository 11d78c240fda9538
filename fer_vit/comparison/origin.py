"""The model that made a table: its training data, and how well outputs agree with their targets.

A table names its model. Only a shipped model is looked up: a table may be from elsewhere, and opens
no path.
"""

from dataclasses import dataclass

import yaml

from fer_vit.heads import NO_OUTPUTS, POSE, HeadOutputs
from fer_vit.model_settings import read_model_settings
from fer_vit.store.hub import CARD_FILE, read_config, shipped_models
from fer_vit.tables.labelled import Labelled


@dataclass(frozen=True)
class TableModel:
    """What is known about the model that made a table."""

    outputs: HeadOutputs = NO_OUTPUTS  # with the r of those whose values are from this model
    datasets: tuple[str, ...] = ()  # the training data that the model's card names


def find_model(faces: Labelled) -> TableModel:
    """Returns what is known about the model of a table.

    Nothing is known if the rows name no model or several, or a model that is not shipped. The pose
    counts if all angles are from the model's head.
    """
    names = {*faces.columns.get("model", ())} - {None}
    if len(names) != 1:
        return TableModel()
    (name,) = map(str, names)
    folder = shipped_models().get(name)
    if folder is None:
        return TableModel()
    outputs = read_model_settings(read_config(folder, name), name).outputs
    if {*faces.columns.get("pose_from", ())} - {None} != {"head"}:
        outputs = HeadOutputs(tuple(output for output in outputs if output.head != POSE))
    _, metadata, _ = (folder / CARD_FILE).read_text(encoding="utf-8").split("---\n", 2)
    return TableModel(outputs, tuple(yaml.safe_load(metadata)["datasets"]))
