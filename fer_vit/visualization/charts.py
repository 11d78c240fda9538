"""Charts of a report beside the expression: one of each head, which `HEADS` describes, and others.

`report/page/NAME.js` may draw the chart of a head in its way; `outputs.js` draws all others.

K outputs of a head, R regions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fer_vit.faces import Face
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, POSE, Head, in_words, output_titles, outputs_of, target_column
from fer_vit.losses import LOSSES, identity
from fer_vit.model.additive import AdditiveHead
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.faces import round_values

Json = Any
# The regions of a movement, by the word that its name begins with; the first is drawn on.
MOVEMENT_REGIONS = {
    "brow": ("brow", "glabella"),
    "eye": ("eye",),
    "nose": ("nose",),
    "cheek": ("cheek",),
    "mouth": ("mouth",),
    "jaw": ("chin", "mouth"),
}


class FaceTerms(NamedTuple):
    """The terms of a head for one face: with the bias they add up to the raw outputs."""

    bias: Array  # (K,)
    face: Array  # of the whole face (K,)
    regions: Array  # (R, K)


class ReadFace(NamedTuple):
    """A face and what the further heads of the model read."""

    face: Face
    terms: Mapping[str, FaceTerms]  # by the name of the head


class Chart(NamedTuple):
    """A chart of every face."""

    title: str
    # what all faces share beside the title; None: the model has no such chart
    fixed: Callable[[Recognizer], Json]
    of_face: Callable[[ReadFace], Json]  # None: this face has none


def head_outputs(model: Recognizer, head: str) -> list[str]:
    """Returns the outputs of a head of a model; empty if it has no such head."""
    return list(model.net.settings.outputs.get(head, ()))


def head_bias(model: Recognizer, head: str) -> Array:
    """Returns the bias (K,) of a head of a model."""
    layer = cast(AdditiveHead, model.net.heads[head])
    return layer.bias.detach().double().cpu().numpy()


def fixed_head(model: Recognizer, name: str) -> Json:
    """Returns what all faces share of a head: names of its outputs, scale and biases; or None."""
    outputs = head_outputs(model, name)
    if not outputs:
        return None
    head = HEADS[name]
    regions = model.crop_spec.regions
    bias = _in_unit(head, head_bias(model, name))
    if not is_bounded(head):
        bias = head.middle + bias
    return _about(head) | {
        "names": [*output_titles(outputs).values()],
        "places": [drawn_region(output, regions) for output in outputs],
        "bias": round_values(bias),
    }


def head_values(read: ReadFace, name: str) -> Json:
    """Returns the values (K,) of a head, and their terms; None: the model lacks the head."""
    terms = read.terms.get(name)
    if terms is None:
        return None
    head = HEADS[name]
    outputs = outputs_of([*read.face.outputs])[name]
    values = [read.face.outputs[target_column(name, output)] for output in outputs]
    return {
        "values": round_values(np.array(values)),
        "face": round_values(_in_unit(head, terms.face)),
        "regions": round_values(_in_unit(head, terms.regions.T)),
    }


def fixed_pose(model: Recognizer) -> Json:
    """Returns what all faces share of the pose; no names where the landmarks give the pose."""
    shared = fixed_head(model, POSE)
    if shared is None:
        return _about(HEADS[POSE]) | {"names": [], "places": [], "bias": []}
    return shared


def pose(read: ReadFace) -> Json:
    """Returns the angles in degrees by name, and their terms if the model has a head for them."""
    angles = read.face.pose
    if angles is None:
        return None
    values = {name: round(value, 1) for name, value in angles._asdict().items()}
    return {"angles": values} | (head_values(read, POSE) or {})


def is_bounded(head: Head) -> bool:
    """Returns whether the values of a head are a curve of its raw outputs, to which terms add."""
    return LOSSES[head.scale].activate is not identity


def _about(head: Head) -> dict[str, Json]:
    """Returns the unit and the scale of a head."""
    return {
        "unit": head.unit,
        "low": head.low,
        "high": head.high,
        "bounded": is_bounded(head),
    }


def _in_unit(head: Head, terms: Array) -> Array:
    """Returns terms of raw outputs in the unit of the values; raw where these are a curve."""
    return terms if is_bounded(head) else head.step * terms


def drawn_region(movement: str, regions: Sequence[str]) -> int | None:
    """Returns the index of the region that a movement is drawn on; None: it has no place.

    A movement of a side has the region of its side.
    """
    words = in_words(movement).split()
    for part in MOVEMENT_REGIONS.get(words[0], ()):
        for wanted in (f"{words[-1]}_{part}", part):
            if wanted in regions:
                return regions.index(wanted)
    # A movement of both sides, such as browInnerUp, lies between them, or on the first side.
    for part in reversed(MOVEMENT_REGIONS.get(words[0], ())):
        for index, region in enumerate(regions):
            if region.endswith(part):
                return index
    return None


# The charts that differ from the values of a head, by the head's name, and charts of no head:
# `report/page/NAME.js` draws each of them.
SPECIAL = {POSE: Chart(HEADS[POSE].title, fixed_pose, pose)}


def head_chart(name: str) -> Chart:
    """Returns the chart of a head."""
    return SPECIAL.get(name) or Chart(
        HEADS[name].title,
        fixed=lambda model: fixed_head(model, name),
        of_face=lambda read: head_values(read, name),
    )


def fixed_charts(model: Recognizer) -> dict[str, Json]:
    """Returns what all faces share, by chart that the model has, the charts of heads first."""
    fixed = {}
    for name in dict.fromkeys([*HEADS, *SPECIAL]):
        chart = head_chart(name)
        value = chart.fixed(model)
        if value is not None:
            fixed[name] = {"title": chart.title} | value
    return fixed


def face_charts(read: ReadFace, names: Iterable[str]) -> dict[str, Json]:
    """Returns the values of a face, by chart of these names that the face has."""
    values = {}
    for name in names:
        value = head_chart(name).of_face(read)
        if value is not None:
            values[name] = value
    return values
