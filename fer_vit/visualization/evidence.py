"""Explains the faces of a report.

Shapes: B faces, C labels, O raw outputs (C logits and the outputs of further heads), R regions, V
views of attention, L attention heads, E explained scores for each face.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from fer_vit.engine.torch_engine import to_inputs
from fer_vit.engine.torch_threads import few_threads
from fer_vit.errors import FerVitError, known_names, suggest
from fer_vit.explain.methods import (
    METHODS,
    Explanation,
    average_heat,
    explain_each,
    find_method,
)
from fer_vit.explain.trace import Trace, attention_views, interactions, trace
from fer_vit.face.crop import CropSpec
from fer_vit.face.finder import Crops
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import Face
from fer_vit.geometry import Array, Image
from fer_vit.model.additive import AdditiveHead
from fer_vit.model.attention import ATTENTION, has_bf16
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.plot import face_view
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.records import Attributed, Evidence
from fer_vit.visualization.charts import FaceTerms, ReadFace, face_charts
from fer_vit.visualization.timelines import Shown

EXPLAINED_BYTES = 2_000_000_000  # the default memory for faces that are explained together
VECTORS = 16  # vectors that a block stores for each token
# The memory for a value with its gradients. Measured with additive attention at 224 pixels.
VALUE_BYTES = 16
LabelChoice = Literal["predicted", "all"]


@dataclass(frozen=True)
class ExplainOptions:
    """Which scores of a face are explained, and how.

    Attributes:
        method: A name in `METHODS`.
        labels: Whether the predicted expression or all expressions are explained.
        targets: Further scores: expressions, or columns of further heads, such as `move_jawOpen`.
        memory: The memory in bytes for faces that are explained together.
    """

    method: str = "pixels"
    labels: LabelChoice = "predicted"
    targets: Sequence[str] = ()
    memory: int = EXPLAINED_BYTES


def explain_faces(
    model: Recognizer,
    faces: Iterable[Shown],
    chunks: Iterable[Crops],
    options: ExplainOptions,
    charts: Iterable[str],
) -> Iterator[tuple[Face, FaceView, Evidence]]:
    """Yields each face with its view and its explanation.

    Args:
        model: The model whose predictions are explained.
        faces: The faces, with or without their views.
        chunks: The crops of the faces. Crops after the last face are ignored.
        options: What is explained.
        charts: The names of the charts that the model has, see `fixed_charts`.
    """
    faces = iter(faces)
    # Workers return only crops, since photos can be large; the photo is read again here.
    read_photo = lru_cache(maxsize=1)(_read_again)
    size = faces_at_once(model.net, options.memory)
    for crops in chain.from_iterable(chunk.split(size) for chunk in chunks):
        shown = list(islice(faces, len(crops)))
        if not shown:
            return
        crops = crops[: len(shown)]  # without crops beyond the last face
        with few_threads(len(crops)):
            traced = trace(model.net, *to_inputs(crops, model.device))
            explanations = list(explain_scores(model, traced, options))
            terms = head_terms(model.net, traced)
        for row, ((face, view), evidence) in enumerate(zip(shown, explanations, strict=True)):
            if view is None:
                photo = read_photo(face.path)
                view = crop_view(face, crops.image[row])
                if photo is not None:
                    view = face_view(face, photo)
            view = replace(view, regions=visible_regions(model.crop_spec, crops, row))
            values = face_charts(ReadFace(face, terms[row]), charts)
            yield face, view, evidence._replace(charts=values)


def crop_view(face: Face, crop: Image) -> FaceView:
    """Returns the view of a face in its crop (S, S, 3) instead of its photo."""
    return replace(face_view(face, crop), box=None, to_crop=np.eye(2, 3))


def visible_regions(spec: CropSpec, crops: Crops, row: int) -> dict[str, Array]:
    """Returns the box (4,) of each visible region of a face, xyxy in crop pixels."""
    boxes = crops.boxes[row].astype(float)  # (R, 4)
    regions = {}
    for name, box, visible in zip(spec.regions, boxes, crops.valid[row], strict=True):
        if visible:
            regions[name] = box
    return regions


def faces_at_once(net: RegionViT, memory: int) -> int:
    """Returns how many faces can be explained together with `memory` bytes, at least one.

    Gradients need the values of all blocks. A block stores `VECTORS` vectors for each token, and
    numbers for each pair of tokens. With additive attention, it stores a vector for each pair (see
    `AdditiveAttention.score`).
    """
    blocks = len(net.vit.blocks)
    tokens = net.layout.num_tokens
    width = int(net.vit.embed_dim)
    pair = 4 * int(net.vit.blocks[0].attn.num_heads)
    if ATTENTION[net.config.attention].vector_pairs:
        pair = width
    values = blocks * tokens * (VECTORS * width + tokens * pair)
    return max(1, memory // (values * VALUE_BYTES))


def find_targets(model: Recognizer, names: Sequence[str]) -> dict[str, int]:
    """Returns the index of each target among the raw outputs, by name.

    Raises FerVitError for a name that is neither an expression nor a column of a further head.
    """
    known = [*model.net.settings.labels, *model.outputs.columns]
    indices = {}
    for name in names:
        if name not in known:
            raise FerVitError(
                f"Expected targets among {known_names(name, known)}, but got {name}."
                f"{suggest(name, known)} `fer-vit predict --help` lists all columns."
            )
        indices[name] = known.index(name)
    return indices


class Scores:
    """The E explained scores of each face.

    The first score is the predicted expression. With the labels "all", the other expressions follow
    in descending order of probability. The next score is the difference between the two most
    probable expressions. The further targets are last.

    Attributes:
        order: The indices (B, C) of the labels in descending order of probability.
        directions: The gradient (E, B, O) of each score in the raw outputs.
        names: The names of the E scores of each face.
    """

    def __init__(self, model: Recognizer, traced: Trace, options: ExplainOptions) -> None:
        labels = model.net.settings.labels
        faces, classes = traced.logits.shape
        self.order = traced.logits.argsort(dim=1, descending=True, stable=True)
        number = classes if options.labels == "all" else 1
        second = min(1, classes - 1)

        unit = torch.eye(traced.outputs.shape[1], device=traced.outputs.device)  # (O, O)
        ranked = unit[self.order]  # (B, C, O)
        directions = list(ranked[:, :number].unbind(1))  # (B, O) each
        directions.append(ranked[:, 0] - ranked[:, second])
        targets = find_targets(model, options.targets)
        for index in targets.values():
            directions.append(unit[index].expand(faces, -1))
        self.directions = torch.stack(directions)  # (E, B, O)

        self.names = []
        for ranking in self.order.tolist():
            names = [labels[index] for index in ranking[:number]]
            names.append(f"{labels[ranking[0]]} rather than {labels[ranking[second]]}")
            self.names.append([*names, *targets])


def explain_scores(model: Recognizer, traced: Trace, options: ExplainOptions) -> Iterator[Evidence]:
    """Yields the explanation of each face, without charts."""
    net = model.net
    scores = Scores(model, traced, options)

    rounded = find_method(options.method, METHODS).can_be_rounded and has_bf16("cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
        explanations = explain_each(net, traced, options.method, scores.directions)
    views = attention_views(traced)
    relations = _array(views.relations)  # (B, V, R, R)
    output = _array(views.output)  # (B, V, R)
    patches = _array(views.patches)  # (B, V, rows, columns)
    distance = _array(views.distance)  # (B, L)
    interacting = _array(interactions(net, traced))  # (B, R, R)

    for row, ranking in enumerate(scores.order.tolist()):
        yield Evidence(
            order=ranking,
            targets=attributed(scores.names[row], explanations, row, net.settings.labels),
            attention=Attention(relations[row], output[row], patches[row], distance[row]),
            interactions=interacting[row],
            charts={},
        )


def attributed(
    names: Sequence[str], explanations: Sequence[Explanation], row: int, labels: Sequence[str]
) -> list[Attributed]:
    """Returns the attributions of a face, once for each score.

    Args:
        names: The names of the E scores.
        explanations: The explanation of each of E scores, for all faces.
        row: The index of the face.
        labels: The names of the expressions.
    """
    targets: dict[str, Attributed] = {}
    for name, explanation in zip(names, explanations, strict=True):
        probabilities = dict(zip(labels, explanation.probabilities[row].tolist(), strict=True))
        heat = average_heat(explanation.heat[row])
        target = Attributed(
            name=name,
            shares=_array(explanation.shares[row]),
            heat=_array(heat),
            probability=probabilities.get(name),
        )
        targets.setdefault(name, target)  # a target may be the predicted expression
    return list(targets.values())


@torch.no_grad()
def head_terms(net: RegionViT, traced: Trace) -> list[Mapping[str, FaceTerms]]:
    """Returns the terms of the further heads for each face, by name of the head."""
    faces: list[dict[str, FaceTerms]] = [{} for _ in traced.logits]
    for name, head in net.heads.items():
        terms = cast(AdditiveHead, head).terms(traced.encoded)
        bias = _array(terms.bias)
        whole = _array(terms.face)  # (B, K)
        regions = _array(terms.regions)  # (B, R, K)
        for row, face in enumerate(faces):
            face[name] = FaceTerms(bias, whole[row], regions[row])
    return list(faces)


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo (H, W, 3); None if the photo can no longer be read."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
