"""Which scores of a face a report explains: the predicted expression, or all, and further targets.

Shapes: B faces, C labels, O raw outputs (C logits and the outputs of further heads), R regions,
E explained scores for each face.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fer_vit.errors import FerVitError, known_names, suggest
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.explained_face import Attributed

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
