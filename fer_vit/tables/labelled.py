"""Faces with truth: what `evaluate` and `compare` read.

N faces, C expressions, K outputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import Objects, as_objects
from fer_vit.fields import BOX_COLUMNS
from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.heads import HeadOutputs, Output

Columns: TypeAlias = dict[str, Objects]  # cells (N,) by column name; None for an empty cell

BOX_MARGIN = 0.15  # margin on each side of a face's box, as a fraction of the box
MOMENT_COLUMNS = ("frame", "seconds")  # empty for photos


def has_values(values: Array) -> Mask:
    """Returns whether each row (N,) of values (N, K) has any. A row without a face has none."""
    return np.asarray(np.isfinite(values).any(1))


class Targeted(NamedTuple):
    """The values of a further output, and the targets of the data."""

    values: Array  # (N,); NaN for an image without a face
    targets: Array  # (N,); NaN where the target is unknown

    @property
    def errors(self) -> Array:
        """The absolute error of each face (N,)."""
        return np.abs(self.values - self.targets)


def pair_outputs(
    values: Mapping[str, Array], targets: Mapping[str, Array]
) -> dict[Output, Targeted]:
    """Returns the outputs among columns that have both values (N,) and targets (N,)."""
    pairs = {}
    for output in HeadOutputs.among(column for column in targets if column in values):
        column = output.column
        pairs[output] = Targeted(*output.kind.comparable(values[column], targets[column]))
    return pairs


def name_units(paths: Iterable[str], persons: Iterable[object] | None) -> list[str]:
    """Returns the name of the unit of each face: its person, or its image if that is unknown.

    Resamples draw units, with all their faces. `persons` are the cells of the column `person`;
    None: there is no such column.
    """
    names = [f"image {path}" for path in paths]
    for row, person in enumerate(persons if persons is not None else ()):
        if person is not None:
            names[row] = f"person {person}"
    return names


@dataclass(frozen=True, eq=False)
class Labelled:
    """N faces with truth: what a model predicts, labels and targets, columns and paths.

    `fer_vit.faces.Faces` has what a detector and a model found in photos. The predictions of
    `Labelled` may be by another program, or not made yet (`ManifestFaces`): they are NaN.
    """

    labels: list[str]  # the C expressions
    paths: NDArray[np.object_]  # (N,), the image of each face
    probabilities: Array  # (N, C), NaN for an image without a face
    detected: Mask  # (N,), whether a detector found the face, or none was used
    # (N, C), the fractions of the votes, NaN for a face without a label; None without any label
    targets: Array | None
    columns: Columns  # the other columns
    rows: IntArray  # (N,), the index in the manifest or table
    facts: dict[str, str] = field(default_factory=dict)  # how the predictions were made
    notes: tuple[str, ...] = ()  # assumptions and omissions of reading; not yet `printable`
    outputs: dict[Output, Targeted] = field(default_factory=dict)  # further outputs with targets
    # the probabilities of a second model (N, C), NaN for an image without a face; None: no model
    second_probabilities: Array | None = None

    def take(self, which: NDArray[Any]) -> Self:
        """Returns some of the faces, by a mask or indices."""
        pairs = {
            output: Targeted(*(array[which] for array in pair))
            for output, pair in self.outputs.items()
        }
        second = self.second_probabilities
        if second is not None:
            second = second[which]
        return replace(
            self,
            paths=self.paths[which],
            probabilities=self.probabilities[which],
            detected=self.detected[which],
            targets=None if self.targets is None else self.targets[which],
            columns={name: cells[which] for name, cells in self.columns.items()},
            rows=self.rows[which],
            outputs=pairs,
            second_probabilities=second,
        )

    def predict(self) -> "Labelled":
        """Returns the faces with their predictions, which those of a table have already."""
        return self

    def picture(self, index: int) -> Image:
        """Reads the photo of a face, and cuts the face out with `BOX_MARGIN` if its box is known.

        Raises FerVitError if the photo cannot be read, or the box lies outside.
        """
        image = read_image(Path(self.paths[index]))
        box: list[Any] = [self.columns[name][index] for name in BOX_COLUMNS if name in self.columns]
        if len(box) < len(BOX_COLUMNS) or None in box:
            return image
        left, top, right, bottom = box
        x = (right - left) * BOX_MARGIN
        y = (bottom - top) * BOX_MARGIN
        edges = np.array([left - x, top - y, right + x, bottom + y])
        left, top, right, bottom = edges.round().astype(int).clip(0)
        face = image[top:bottom, left:right]
        if not face.size:
            raise ImageError("the face lies outside of the photo")
        return face

    def numbers(self, name: str) -> Array:
        """Returns a column of numbers (N,), NaN where a cell is empty or there is no column."""
        if name not in self.columns:
            return np.full(len(self.paths), np.nan)
        return self.columns[name].astype(float)

    @property
    def moments(self) -> Objects:
        """The frame of each face (N,), or its seconds if there are no frames; None for a photo."""
        for name in MOMENT_COLUMNS:
            if name in self.columns:
                return self.columns[name]
        return as_objects([None] * len(self.paths))

    @property
    def has_truth(self) -> bool:
        """Whether there are labels, or targets of further outputs."""
        return self.targets is not None or bool(self.outputs)

    @property
    def predicted(self) -> Mask:
        """Whether each face has probabilities (N,)."""
        return has_values(self.probabilities)

    @property
    def labelled(self) -> Mask:
        """Whether each face has a label (N,); True for all faces if no face has one."""
        if self.targets is None:
            return np.ones(len(self.paths), bool)
        return np.asarray(np.isfinite(self.targets).all(1))

    @cached_property
    def units(self) -> IntArray:
        """The unit (N,) of each face as an index: its person, or its image if that is unknown."""
        names = name_units(self.paths, self.columns.get("person"))
        return np.unique(names, return_inverse=True)[1]

    def count_units(self) -> dict[str, int]:
        """Returns the number of persons, and of photos of faces whose person is unknown."""
        persons = self.columns.get("person", np.full(len(self.paths), None))
        known = np.array([person is not None for person in persons], bool)
        counts = {}
        if known.any():
            counts["persons"] = len(np.unique(self.units[known]))
        if not known.all() or not len(known):
            counts["photos"] = len(np.unique(self.units[~known]))
        return counts

    @property
    def hits(self) -> Array:
        """Whether each prediction equals the label (N,): 1 or 0; NaN without labels."""
        if self.targets is None:
            return np.full(len(self.paths), np.nan)
        return self.correct.astype(float)

    @property
    def correct(self) -> Mask:
        """Whether each prediction equals the label, the expression with the most votes (N,)."""
        assert self.targets is not None
        return np.asarray(self.probabilities.argmax(1) == self.targets.argmax(1))


def join_labelled(parts: Sequence[Labelled]) -> Labelled:
    """Joins the predictions for several parts of the same labelled data."""

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    columns = {}
    for name in first.columns:
        columns[name] = np.concatenate([part.columns[name] for part in parts])
    outputs = {}
    for output in first.outputs:
        pairs = [part.outputs[output] for part in parts]
        outputs[output] = Targeted(*(np.concatenate(arrays) for arrays in zip(*pairs, strict=True)))
    return replace(
        first,
        paths=joined("paths"),
        probabilities=joined("probabilities"),
        detected=joined("detected"),
        targets=joined("targets"),
        rows=joined("rows"),
        columns=columns,
        outputs=outputs,
    )
