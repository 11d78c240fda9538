"""Faces with truth: what `evaluate` and `compare` read.

N faces, C expressions, K outputs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fer_vit.angles import join_directions
from fer_vit.conformal import in_set
from fer_vit.data.manifest import Manifest, have_ties
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.faces import Objects, as_objects
from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.heads import HeadOutputs
from fer_vit.labels import Merge, merge_names, merge_probabilities
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer

Columns: TypeAlias = dict[str, Objects]  # cells (N,) by column name; None for an empty cell


class Pair(NamedTuple):
    """The values of a further output, and the targets of the data."""

    values: Array  # (N,); NaN for an image without a face
    targets: Array  # (N,); NaN where the target is unknown


def pair_outputs(values: Mapping[str, Array], targets: Mapping[str, Array]) -> dict[str, Pair]:
    """Returns the outputs that have both values (N,) and targets (N,), by column."""
    pairs = {}
    for output in HeadOutputs.among(column for column in targets if column in values):
        column = output.column
        target = targets[column]
        period = output.kind.period
        if period is not None:
            target = join_directions(target[:, None], period)[:, 0]
        pairs[column] = Pair(output.kind.near(values[column], target), target)
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


class Images(NamedTuple):
    """What predicts the faces of a manifest."""

    manifest: Manifest
    model: Recognizer
    merge: Merge | None  # how labels of the model are merged

    @property
    def has_sets(self) -> bool:
        """Whether predictions add the column `ambiguous`.

        The column needs prediction sets. They are calibrated for the model's own labels: a merge
        of labels excludes them.
        """
        return bool(self.model.thresholds) and self.merge is None


@dataclass(frozen=True, eq=False)
class Labelled:
    """N faces with truth: what a model predicts, labels and targets, columns and paths.

    `fer_vit.faces.Faces` has what a detector and a model found in photos. The predictions of
    `Labelled` may be by another program, or of a manifest, whose model predicts later: until
    `predict` they are NaN.
    """

    labels: list[str]  # the C expressions
    paths: NDArray[np.object_]  # (N,), the image of each face
    probabilities: Array  # (N, C), NaN for an image without a face
    detected: Mask  # (N,), whether a detector found the face, or none was used
    # (N, C), the fractions of the votes, NaN for a face without a label; None without any label
    targets: Array | None
    columns: Columns  # the other columns
    rows: IntArray  # (N,), the index in the manifest or table
    picture: Callable[[int], Image]  # reads the image of a row; raises FerVitError if that fails
    facts: dict[str, str] = field(default_factory=dict)  # how the predictions were made
    notes: tuple[str, ...] = ()  # assumptions and omissions of reading; not yet `printable`
    outputs: dict[str, Pair] = field(default_factory=dict)  # further outputs with targets by column
    images: Images | None = None  # None: the predictions are of a table

    def take(self, which: NDArray[Any]) -> "Labelled":
        """Returns some of the faces, by a mask or indices."""
        pairs = {
            name: Pair(*(array[which] for array in pair)) for name, pair in self.outputs.items()
        }
        return replace(
            self,
            paths=self.paths[which],
            probabilities=self.probabilities[which],
            detected=self.detected[which],
            targets=None if self.targets is None else self.targets[which],
            columns={name: cells[which] for name, cells in self.columns.items()},
            rows=self.rows[which],
            outputs=pairs,
        )

    @property
    def has_truth(self) -> bool:
        """Whether there are labels, or targets of further outputs."""
        return self.targets is not None or bool(self.outputs)

    @property
    def predicted(self) -> Mask:
        """Whether each face has probabilities (N,)."""
        return np.isfinite(self.probabilities[:, 0])

    @property
    def labelled(self) -> Mask:
        """Whether each face has a label (N,); True for all faces if no face has one."""
        if self.targets is None:
            return np.ones(len(self.paths), bool)
        return np.asarray(np.isfinite(self.targets).all(1))

    def with_label(self) -> "Labelled":
        """Returns the faces with a label, or all faces if no face has one.

        Notes count the faces without a label, and the faces with several labels of most votes.
        """
        faces = self.take(self.labelled)
        notes = [*self.notes]
        num_unlabelled = len(self.paths) - len(faces.paths)
        if num_unlabelled:
            notes.append(
                f"{num_unlabelled:,} of {len(self.paths):,} faces have no label: "
                "expressions are scored on the labelled faces."
            )
        num_tied = 0 if faces.targets is None else int(have_ties(faces.targets).sum())
        if num_tied:
            notes.append(
                f"No single label has the most votes for {num_tied:,} of {len(faces.paths):,} "
                f"faces: the first in the order {', '.join(self.labels)} counts."
            )
        return replace(faces, notes=tuple(notes))

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

    @cached_property
    def ambiguous(self) -> Array:
        """The ambiguity (N,): 0 if a prediction set has one expression, 1 if it has more or none.

        NaN if the prediction set is unknown.
        """
        return self.columns.get("ambiguous", np.full(len(self.paths), None)).astype(float)

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

    def predict(self) -> "Labelled":
        """Returns the faces with the predictions of their model; faces of a table have theirs."""
        if self.images is None:
            return self
        # not at the top: it needs PyTorch, and tables of predictions do not
        from fer_vit.data.dataset import FaceDataset, face_crops

        manifest, model, merge = self.images
        dataset = FaceDataset(manifest, model.crop_spec)
        batches = face_crops(dataset, range(len(manifest)), FACES_PER_PASS)
        parts = [model.read(batch) for batch in batches]
        probabilities = np.concatenate([part.probabilities for part in parts])  # (N, C)
        if merge is not None:
            _, matrix = merge_names(model.labels, merge)
            probabilities = merge_probabilities(probabilities, matrix)
        columns = dict(self.columns)
        if self.images.has_sets:
            ambiguous = in_set(probabilities, model.thresholds).sum(1) != 1
            columns["ambiguous"] = as_objects(ambiguous.tolist())
        values = np.concatenate([part.outputs for part in parts])  # (N, K)
        outputs = model.outputs.by_column(values.T)
        return replace(
            self,
            probabilities=probabilities,
            columns=columns,
            outputs=pair_outputs(outputs, manifest.target_values()),
        )


def open_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> Labelled:
    """Returns the faces of one split before they are predicted.

    Args:
        model: The model that will predict them.
        manifest: The faces.
        split: The split, for messages.
        merge: The new label of each label of the model; probabilities of merged labels are added.
            None: the model keeps its labels.

    Raises:
        FerVitError: There is no face, or a label is missing or unknown.
    """
    if not len(manifest):
        raise FerVitError(
            f"Expected faces in the {split} split of {manifest.path}, but got none. "
            "Name another `--split`."
        )
    images = Images(manifest, model, merge)
    labels = model.labels
    if merge is not None:
        names, _ = merge_names(model.labels, merge)
        labels = list(names)
    columns = {name: as_objects(cells) for name, cells in manifest.describing_columns().items()}
    if images.has_sets:
        columns["ambiguous"] = as_objects([None] * len(manifest))
    # a face that no detector found has a score of 0, but may have landmarks
    has_landmarks = ~np.isnan(manifest.landmarks()[:, 0, 0])
    has_score = np.array(manifest.column("score"), float) != 0
    unknown = dict.fromkeys(model.outputs.columns, np.full(len(manifest), np.nan))
    return Labelled(
        labels=labels,
        paths=as_objects(manifest.image_names()),
        probabilities=np.full((len(manifest), len(labels)), np.nan),
        detected=has_landmarks & has_score,
        targets=manifest.model_targets(labels),
        columns=columns,
        rows=np.arange(len(manifest)),
        picture=manifest.image,
        facts=model.conditions,
        notes=tuple(note_missing_outputs(model, manifest)),
        outputs=pair_outputs(unknown, manifest.target_values()),
        images=images,
    )


def note_missing_outputs(model: Recognizer, manifest: Manifest) -> list[str]:
    """Returns a line if a manifest has targets for outputs that the model lacks."""
    missing = [output for output in manifest.outputs if output not in model.outputs]
    if not missing:
        return []
    counts = Counter(output.head for output in missing)
    heads = [f"{head} ({count})" for head, count in counts.items()]
    return [
        f"{manifest.path}: targets without outputs of {model.name} are not measured: "
        f"{', '.join(heads)}."
    ]


def predict_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> Labelled:
    """Predicts the faces of one split; arguments and errors as for `open_manifest`."""
    return open_manifest(model, manifest, split, merge).predict()


def join_labelled(parts: Sequence[Labelled]) -> Labelled:
    """Joins the predictions for several parts of the same labelled data."""

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    columns = {}
    for name in first.columns:
        columns[name] = np.concatenate([part.columns[name] for part in parts])
    outputs = {}
    for name in first.outputs:
        pairs = [part.outputs[name] for part in parts]
        outputs[name] = Pair(*(np.concatenate(arrays) for arrays in zip(*pairs, strict=True)))
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
