"""Computes the values of a report's charts: a chart for each output head, and special charts.

`HEADS` describes the output heads. A chart may have a script `report/page/NAME.js`; `outputs.js`
draws the charts without a script.

Shapes: K outputs of a head, R regions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fer_vit.faces import Face
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, POSE, WEAK, Head, HeadOutputs, in_words, output_titles
from fer_vit.losses import LOSSES, identity
from fer_vit.model.additive import AdditiveHead
from fer_vit.predict.recognizer import Recognizer
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


class FaceTerms(NamedTuple):
    """The terms of an output head for a face; bias and terms add up to the raw outputs (K,)."""

    bias: Array  # (K,)
    face: Array  # (K,), the terms of the whole face
    regions: Array  # (R, K), the terms of each region


class ReadFace(NamedTuple):
    """A face, and the terms of the model's further heads."""

    face: Face
    terms: Mapping[str, FaceTerms]  # the terms by name of the head


class Chart(NamedTuple):
    """A chart that each face has, unless the model or the face lacks the values."""

    title: str
    # returns what all faces share beside the title; None if the model has no such chart
    fixed: Callable[[Recognizer], Json]
    of_face: Callable[[ReadFace], Json]  # returns the values of a face; None if it has no values


def fixed_head(model: Recognizer, name: str) -> Json:
    """Returns what all faces share in a head's chart: what describes its outputs, and its scale.

    The mark of an output is `WEAK` or empty. Only a head that names its outputs has meanings.
    Returns None if the model has no such head.
    """
    outputs = model.outputs.of_head(name)
    if not outputs:
        return None
    head = HEADS[name]
    regions = model.crop_spec.regions
    layer = cast(AdditiveHead, model.net.heads[name])
    bias = _in_unit(head, layer.bias.detach().double().cpu().numpy())  # (K,)
    if not is_bounded(head):
        bias = head.middle + bias
    return _about(head) | {
        "names": [*output_titles(outputs.names).values()],
        "marks": [WEAK if output.is_weak else "" for output in outputs],
        "meanings": [head.outputs[output] for output in outputs.names if head.outputs],
        "places": [drawn_region(output, regions) for output in outputs.names],
        "bias": round_values(bias),
    }


def head_values(read: ReadFace, name: str) -> Json:
    """Returns the values (K,) of a head and their terms; None if the model has no such head."""
    terms = read.terms.get(name)
    if terms is None:
        return None
    head = HEADS[name]
    outputs = HeadOutputs.among(read.face.outputs).of_head(name)
    values = [read.face.outputs[column] for column in outputs.columns]
    return {
        "values": round_values(np.array(values)),
        "face": round_values(_in_unit(head, terms.face)),
        "regions": round_values(_in_unit(head, terms.regions.T)),
    }


def fixed_pose(model: Recognizer) -> Json:
    """Returns what all faces share in the chart of the pose.

    Without a head for the pose, the pose is from landmarks, and there are no names.
    """
    shared = fixed_head(model, POSE)
    if shared is None:
        return _about(HEADS[POSE]) | {"names": [], "marks": [], "places": [], "bias": []}
    return shared


def pose(read: ReadFace) -> Json:
    """Returns the angles in degrees by name; and their terms if the model has a head for the pose.

    Returns None if the face has no pose.
    """
    angles = read.face.pose
    if angles is None:
        return None
    values = {name: round(value, 1) for name, value in angles._asdict().items()}
    return {"angles": values} | (head_values(read, POSE) or {})


def is_bounded(head: Head) -> bool:
    """Returns whether a head's values are a nonlinear function of its raw outputs.

    Terms add up to raw outputs, so they do not add up to the values of such a head.
    """
    return LOSSES[head.scale].activate is not identity


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


def head_chart(name: str) -> Chart:
    """Returns the chart `name`: the chart of a head, or a special chart."""
    return SPECIAL.get(name) or Chart(
        HEADS[name].title,
        fixed=lambda model: fixed_head(model, name),
        of_face=lambda read: head_values(read, name),
    )


def fixed_charts(model: Recognizer) -> dict[str, Json]:
    """Returns what all faces share, by name of each chart that the model has."""
    fixed = {}
    for name in dict.fromkeys([*HEADS, *SPECIAL]):
        chart = head_chart(name)
        value = chart.fixed(model)
        if value is not None:
            fixed[name] = {"title": chart.title} | value
    return fixed


def face_charts(read: ReadFace, names: Iterable[str]) -> dict[str, Json]:
    """Returns the values of a face by name of the chart, without charts that the face lacks."""
    values = {}
    for name in names:
        value = head_chart(name).of_face(read)
        if value is not None:
            values[name] = value
    return values
