"""Explains the faces of a report.

Shapes: B faces, C labels, O raw outputs (C logits and the outputs of further heads), R regions,
E explained scores for each face.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from fer_vit.errors import FerVitError, known_names, suggest
from fer_vit.explain.methods import HEAT_GRID
from fer_vit.explain.regions import normalized_shares, spread_shares
from fer_vit.extras import is_installed, missing_extra
from fer_vit.face.crop import CropSpec
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import Crops, Face
from fer_vit.geometry import Array, Image
from fer_vit.predict.explanations import hide_regions
from fer_vit.predict.plot import face_view
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView
from fer_vit.report.records import Attributed, Evidence
from fer_vit.visualization.charts import face_charts
from fer_vit.visualization.timelines import Shown

EXPLAINED_BYTES = 2_000_000_000  # the default memory for faces that are explained together
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
    model: Recognizer, faces: Iterable[Shown], chunks: Iterable[Crops], options: ExplainOptions
) -> Iterator[tuple[Face, FaceView, Evidence]]:
    """Yields each face with its view and its explanation.

    Args:
        model: The model whose predictions are explained.
        faces: The faces, with or without their views.
        chunks: The crops of the faces. Crops after the last face are ignored.
        options: What is explained.
    """
    faces = iter(faces)
    # Workers return only crops, since photos can be large; the photo is read again here.
    read_photo = lru_cache(maxsize=1)(_read_again)
    for crops in chunks:
        shown = list(islice(faces, len(crops)))
        if not shown:
            return
        crops = crops[: len(shown)]  # without crops beyond the last face
        explained = explain_crops(model, crops, options)
        for row, ((face, view), evidence) in enumerate(zip(shown, explained, strict=True)):
            if view is None:
                photo = read_photo(face.path)
                view = crop_view(face, crops.image[row])
                if photo is not None:
                    view = face_view(face, photo)
            view = replace(view, regions=visible_regions(model.crop_spec, crops, row))
            yield face, view, evidence._replace(charts=face_charts(face, evidence.terms))


def explain_crops(model: Recognizer, crops: Crops, options: ExplainOptions) -> Iterator[Evidence]:
    """Yields the explanation of each crop, without charts.

    Without PyTorch, regions are hidden; there are no interactions, no attention and no terms.
    """
    if is_installed("torch"):
        # not at the top: PyTorch may be missing
        from fer_vit.visualization.network_evidence import explain_with_network

        yield from explain_with_network(model, crops, options)
        return
    raw = model.engine.run(crops)
    scores = Scores(model, model.decode(raw, crops).probabilities, options)
    falls = hide_regions(model.engine, crops, raw)  # (B, R, O)
    shares = normalized_shares(falls, scores.directions)  # (E, B, R)
    heat = spread_shares(shares, crops.boxes, model.crop_spec.size, HEAT_GRID)
    for row, ranking in enumerate(scores.order.tolist()):
        yield Evidence(ranking, scores.attributed(row, shares[:, row], heat[:, row]))


def check_explained(model: Recognizer) -> None:
    """Raises FerVitError when nothing can be explained without PyTorch, and that is missing."""
    if not model.crop_spec.regions and not is_installed("torch"):
        raise missing_extra(f"An explanation of {model.name}, which has no regions,", "torch")


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


def find_targets(model: Recognizer, names: Sequence[str]) -> dict[str, int]:
    """Returns the index of each target among the raw outputs, by name.

    Raises FerVitError for a name that is neither an expression nor a column of a further head.
    """
    known = [*model.labels, *model.outputs.columns]
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

    def __init__(self, model: Recognizer, probabilities: Array, options: ExplainOptions) -> None:
        """Chooses scores by the probabilities (B, C), or by logits, which have the same order."""
        labels = model.labels
        faces, classes = probabilities.shape
        self._labels = labels
        self._probabilities = probabilities
        self.order = np.argsort(-probabilities, axis=1, kind="stable")
        number = classes if options.labels == "all" else 1
        second = min(1, classes - 1)

        unit = np.eye(classes + len(model.outputs))  # (O, O)
        ranked = unit[self.order]  # (B, C, O)
        directions = [ranked[:, rank] for rank in range(number)]  # (B, O) each
        directions.append(ranked[:, 0] - ranked[:, second])
        targets = find_targets(model, options.targets)
        for index in targets.values():
            directions.append(np.tile(unit[index], (faces, 1)))
        self.directions = np.stack(directions)  # (E, B, O)

        self.names = []
        for ranking in self.order.tolist():
            names = [labels[index] for index in ranking[:number]]
            names.append(f"{labels[ranking[0]]} rather than {labels[ranking[second]]}")
            self.names.append([*names, *targets])

    def attributed(self, row: int, shares: Array, heat: Array) -> list[Attributed]:
        """Returns the attributions of a face, once for each score.

        Args:
            row: The index of the face.
            shares: The share of each region, for each score (E, R).
            heat: The heat map of each score (E, HEAT_GRID, HEAT_GRID).
        """
        probabilities = dict(zip(self._labels, self._probabilities[row].tolist(), strict=True))
        targets: dict[str, Attributed] = {}
        for name, share, cells in zip(self.names[row], shares, heat, strict=True):
            target = Attributed(name, share, cells, probabilities.get(name))
            targets.setdefault(name, target)  # a target may be the predicted expression
        return list(targets.values())


def _read_again(path: str) -> Image | None:
    """Returns a photo (H, W, 3); None if the photo can no longer be read."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
