"""Charts of a report beside the expression: each an entry of `CHARTS` and `report/page/NAME.js`.

K outputs of a head, R regions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fer_vit.faces import Face
from fer_vit.geometry import Array
from fer_vit.heads import HEADS, target_column
from fer_vit.model.additive import AdditiveHead
from fer_vit.predict.recognizer import Recognizer

Json = Any
PARTS = {
    "brow": ("brow", "glabella"),
    "eye": ("eye",),
    "nose": ("nose",),
    "cheek": ("cheek",),
    "mouth": ("mouth",),
    "jaw": ("chin", "mouth"),
}
"""The regions of a movement, by the word that its name begins with; the first is drawn on."""


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

    fixed: Callable[[Recognizer], Json]  # what all faces share; None: the model has no such chart
    of_face: Callable[[ReadFace], Json]  # None: this face has none


def head_outputs(model: Recognizer, head: str) -> list[str]:
    """Returns the outputs of a head of a model; empty if it has no such head."""
    return list(model.net.settings.outputs.get(head, ()))


def head_bias(model: Recognizer, head: str) -> Array:
    """Returns the bias (K,) of a head of a model."""
    layer = cast(AdditiveHead, model.net.heads[head])
    return layer.bias.detach().double().cpu().numpy()


def fixed_movements(model: Recognizer) -> Json:
    """Returns the movements, the region that each is drawn on, and their biases."""
    names = head_outputs(model, "movements")
    if not names:
        return None
    regions = model.crop_spec.regions
    return {
        "names": [spoken(name) for name in names],
        "columns": [target_column("movements", name) for name in names],
        "places": [drawn_region(name, regions) for name in names],
        "bias": _rounded(head_bias(model, "movements")),
    }


def movements(read: ReadFace) -> Json:
    """Returns the intensity of each movement in [0, 1], and its terms."""
    terms = read.terms["movements"]
    prefix = target_column("movements", "")
    values = [value for name, value in read.face.outputs.items() if name.startswith(prefix)]
    return {"values": _rounded(np.array(values))} | _terms(terms)


def fixed_pose(model: Recognizer) -> Json:
    """Returns the outputs of the model's head with their biases in degrees, or none."""
    names = head_outputs(model, "pose")
    bias = []
    if names:
        bias = _rounded(HEADS["pose"].step * head_bias(model, "pose"))
    return {"names": names, "bias": bias}


def pose(read: ReadFace) -> Json:
    """Returns the angles in degrees, and their terms if the model has a head for them."""
    angles = read.face.pose
    if angles is None:
        return None
    values = {name: round(value, 1) for name, value in angles._asdict().items()}
    terms = read.terms.get("pose")
    if terms is None:
        return {"angles": values}
    step = HEADS["pose"].step  # degrees per unit of raw outputs
    degrees = FaceTerms(terms.bias, step * terms.face, step * terms.regions)
    return {"angles": values} | _terms(degrees)


def fixed_affect(model: Recognizer) -> Json:
    """Returns the outputs of the head, with their biases."""
    names = head_outputs(model, "affect")
    if not names:
        return None
    return {"names": names, "bias": _rounded(head_bias(model, "affect"))}


def affect(read: ReadFace) -> Json:
    """Returns valence and arousal in [-1, 1], and their terms."""
    values = {name: read.face.outputs[name] for name in ("valence", "arousal")}
    rounded = {name: round(value, 3) for name, value in values.items()}
    return {"values": rounded} | _terms(read.terms["affect"])


def _terms(terms: FaceTerms) -> dict[str, Json]:
    """Returns the terms of a head for JSON: the face's (K,), then a row (R,) for each output."""
    return {"face": _rounded(terms.face), "regions": _rounded(terms.regions.T)}


def _rounded(values: Array) -> list[Json]:
    rounded: list[Json] = np.round(values, 3).tolist()
    return rounded


def spoken(name: str) -> str:
    """Returns the name of a movement in words: `mouthSmileLeft` becomes `mouth smile left`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()


def drawn_region(movement: str, regions: Sequence[str]) -> int | None:
    """Returns the index of the region that a movement is drawn on; None: it has no place.

    A movement of a side has the region of its side.
    """
    words = spoken(movement).split()
    for part in PARTS.get(words[0], ()):
        for wanted in (f"{words[-1]}_{part}", part):
            if wanted in regions:
                return regions.index(wanted)
    # A movement of both sides, such as browInnerUp, lies between them, or on the first side.
    for part in reversed(PARTS.get(words[0], ())):
        for index, region in enumerate(regions):
            if region.endswith(part):
                return index
    return None


CHARTS = {
    "movements": Chart(fixed_movements, movements),
    "pose": Chart(fixed_pose, pose),
    "affect": Chart(fixed_affect, affect),
}
"""By name; the page shows them in this order."""


def fixed_charts(model: Recognizer) -> dict[str, Json]:
    """Returns what all faces share, by chart that the model has."""
    fixed = {}
    for name, chart in CHARTS.items():
        value = chart.fixed(model)
        if value is not None:
            fixed[name] = value
    return fixed


def face_charts(read: ReadFace, names: Sequence[str]) -> dict[str, Json]:
    """Returns the values of a face, by chart of these names that the face has."""
    values = {}
    for name in names:
        value = CHARTS[name].of_face(read)
        if value is not None:
            values[name] = value
    return values
