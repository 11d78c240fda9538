"""Computes the values of a report's charts: a chart for each output head, and special charts.

`HEADS` describes the output heads. A chart may have a script `report/page/NAME.js`; `outputs.js`
draws the charts without a script.

Shapes: K outputs of a head, R regions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fer_vit.engine.decode import ACTIVATIONS, unchanged
from fer_vit.faces import Face
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, POSE, WEAK, Head, HeadOutputs, in_words, output_titles
from fer_vit.model_settings import ModelSettings
from fer_vit.report.explained_face import FaceTerms
from fer_vit.report.records import round_values

Json = Any
# The regions of a movement, by the first word of the movement's name. `drawn_region` selects one.
MOVEMENT_REGIONS = {
    "brow": ("brow", "glabella"),
    "eye": ("eye",),
    "nose": ("nose",),
    "cheek": ("cheek",),
    "mouth": ("mouth",),
    "jaw": ("chin", "mouth"),
}


Terms = Mapping[str, FaceTerms]  # the terms of a face by name of the head; only torch has them


class Chart(NamedTuple):
    """A chart that each face has, unless the model or the face lacks the values."""

    title: str
    # returns what all faces share beside the title; None if the model has no such chart
    fixed: Callable[[ModelSettings, Terms], Json]
    # returns the values of a face; None if it has no values
    of_face: Callable[[Face, Terms], Json]


def fixed_head(settings: ModelSettings, terms: Terms, name: str) -> Json:
    """Returns what all faces share in a head's chart: what describes its outputs, and its scale.

    The mark of an output is `WEAK` or empty. Only a head that names its outputs has meanings.
    Returns None if the model has no such head. `terms` are those of any face.
    """
    outputs = settings.outputs.of_head(name)
    if not outputs:
        return None
    head = HEADS[name]
    regions = settings.crop.regions
    shared = _about(head) | {
        "names": [*output_titles(outputs.names).values()],
        "marks": [WEAK if output.is_weak else "" for output in outputs],
        "meanings": [head.outputs[output] for output in outputs.names if head.outputs],
        "places": [drawn_region(output, regions) for output in outputs.names],
    }
    if name in terms:
        bias = _in_unit(head, terms[name].bias)  # (K,)
        shared["bias"] = round_values(bias if is_bounded(head) else head.middle + bias)
    return shared


def head_values(face: Face, terms: Terms, name: str) -> Json:
    """Returns the values (K,) of a head, and their terms; None if the model has no such head."""
    outputs = HeadOutputs.among(face.outputs).of_head(name)
    if not outputs:
        return None
    head = HEADS[name]
    numbers = [face.outputs[column] for column in outputs.columns]
    values = {"values": round_values(np.array(numbers))}
    if name in terms:
        values["face"] = round_values(_in_unit(head, terms[name].face))
        values["regions"] = round_values(_in_unit(head, terms[name].regions.T))
    return values


def fixed_pose(settings: ModelSettings, terms: Terms) -> Json:
    """Returns what all faces share in the chart of the pose.

    Without a head for the pose, the pose is from landmarks, and there are no names.
    """
    shared = fixed_head(settings, terms, POSE)
    if shared is None:
        return _about(HEADS[POSE]) | {"names": [], "marks": [], "places": [], "bias": []}
    return shared


def pose(face: Face, terms: Terms) -> Json:
    """Returns the angles in degrees by name, and the values of the model's head for the pose.

    Returns None if the face has no pose.
    """
    angles = face.pose
    if angles is None:
        return None
    values = {name: round(value, 1) for name, value in angles._asdict().items()}
    return {"angles": values} | (head_values(face, terms, POSE) or {})


def is_bounded(head: Head) -> bool:
    """Returns whether a head's values are a nonlinear function of its raw outputs.

    Terms add up to raw outputs, so they do not add up to the values of such a head.
    """
    return ACTIVATIONS[head.scale] is not unchanged


def _about(head: Head) -> dict[str, Json]:
    """Returns the unit and the scale of a head for its chart."""
    return {
        "unit": head.unit,
        "low": head.low,
        "high": head.high,
        "bounded": is_bounded(head),
    }


def _in_unit(head: Head, terms: Array) -> Array:
    """Returns terms in the unit of the head's values; unscaled if the head is bounded."""
    return terms if is_bounded(head) else head.step * terms


def drawn_region(movement: str, regions: Sequence[str]) -> int | None:
    """Returns the index of the region that a movement is drawn on; None if there is no region.

    A movement of one side is drawn on the region of this side.
    """
    words = in_words(movement).split()
    for part in MOVEMENT_REGIONS.get(words[0], ()):
        for wanted in (f"{words[-1]}_{part}", part):
            if wanted in regions:
                return regions.index(wanted)
    # A movement of both sides, such as browInnerUp, is drawn on a region between the sides, or
    # otherwise on the region of the first side.
    for part in reversed(MOVEMENT_REGIONS.get(words[0], ())):
        for index, region in enumerate(regions):
            if region.endswith(part):
                return index
    return None


# Charts by name that are not only the values of a head. `report/page/NAME.js` draws each chart.
SPECIAL = {POSE: Chart(HEADS[POSE].title, fixed_pose, pose)}


def all_charts() -> dict[str, Chart]:
    """Returns every chart by its name: a chart for each head, and the special charts."""
    charts = {}
    for name, head in HEADS.items():  # at each call, since other code may have added a head
        fixed = partial(fixed_head, name=name)
        charts[name] = Chart(head.title, fixed, partial(head_values, name=name))
    return charts | SPECIAL


def fixed_charts(settings: ModelSettings, terms: Terms) -> dict[str, Json]:
    """Returns what all faces share, by name of each chart that the model has.

    `terms` are those of any face.
    """
    fixed = {}
    for name, chart in all_charts().items():
        value = chart.fixed(settings, terms)
        if value is not None:
            fixed[name] = {"title": chart.title} | value
    return fixed


def face_charts(face: Face, terms: Terms) -> dict[str, Json]:
    """Returns the values of a face by name of the chart, without charts that the face lacks."""
    values = {}
    for name, chart in all_charts().items():
        value = chart.of_face(face, terms)
        if value is not None:
            values[name] = value
    return values
