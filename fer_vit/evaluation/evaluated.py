"""The faces of an evaluation, with their labels and a model's predictions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fer_vit.angles import join_directions
from fer_vit.conformal import in_set
from fer_vit.data.manifest import Manifest, have_ties
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.faces import Objects, as_objects
from fer_vit.geometry import Array, Image, IntArray, Mask
from fer_vit.heads import HEADS, nearest_to, outputs_of, target_column
from fer_vit.labels import Merge, merge_names, merge_probabilities
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer

Columns: TypeAlias = dict[str, Objects]  # cells (N,) by column name; None for an empty cell


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """The K outputs of a further head: a model's values, and the targets of the data."""

    head: str
    names: list[str]
    values: Array  # (N, K); NaN for an image without a face
    targets: Array  # (N, K); NaN where the target is unknown

    @property
    def columns(self) -> list[str]:
        """The names (K) of the columns that the outputs have in tables and manifests."""
        return [target_column(self.head, name) for name in self.names]

    def take(self, which: NDArray[Any]) -> "HeadOutputs":
        """Returns the outputs of some of the faces, by a mask or indices."""
        return replace(self, values=self.values[which], targets=self.targets[which])

    def take_columns(self, which: Sequence[bool]) -> "HeadOutputs":
        """Returns some of the outputs, by a mask (K)."""
        columns = np.array(which, bool)
        return HeadOutputs(
            head=self.head,
            names=list(compress(self.names, which)),
            values=self.values[:, columns],
            targets=self.targets[:, columns],
        )


def pair_outputs(
    values: Mapping[str, Array], targets: Mapping[str, Array]
) -> dict[str, HeadOutputs]:
    """Returns, by head, the outputs that have both values and targets.

    `values` and `targets` are by column, (N,) each.
    """
    shared = [column for column in targets if column in values]
    heads = {}
    for head, names in outputs_of(shared).items():
        columns = [target_column(head, name) for name in names]
        head_values = np.column_stack([values[column] for column in columns])  # (N, K)
        head_targets = np.column_stack([targets[column] for column in columns])  # (N, K)
        period = HEADS[head].period
        if period is not None:
            head_targets = join_directions(head_targets, period)
        heads[head] = HeadOutputs(
            head=head,
            names=names,
            values=nearest_to(head, head_values, head_targets),
            targets=head_targets,
        )
    return heads


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
class EvaluatedFaces:
    """N faces of a manifest or table: probabilities of C expressions, labels and columns.

    `fer_vit.faces.Faces` has what a detector and a model found in photos. `EvaluatedFaces` has
    labels and columns for groups as well, and its predictions may be by another program.
    """

    labels: list[str]  # the expressions
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
    heads: dict[str, HeadOutputs] = field(default_factory=dict)  # further heads with targets

    def take(self, which: NDArray[Any]) -> "EvaluatedFaces":
        """Returns some of the faces, by a mask or indices."""
        return replace(
            self,
            paths=self.paths[which],
            probabilities=self.probabilities[which],
            detected=self.detected[which],
            targets=None if self.targets is None else self.targets[which],
            columns={name: cells[which] for name, cells in self.columns.items()},
            rows=self.rows[which],
            heads={head: outputs.take(which) for head, outputs in self.heads.items()},
        )

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

    def with_label(self) -> "EvaluatedFaces":
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

    @property
    def clustered(self) -> bool:
        """Whether faces are dependent, because several belong to one person or image."""
        return len(np.unique(self.units)) < len(self.units)

    @cached_property
    def ambiguous(self) -> Array:
        """The ambiguity (N,): 0 if a prediction set has one expression, 1 if it has more or none.

        NaN if the prediction set is unknown.
        """
        return self.columns.get("ambiguous", np.full(len(self.paths), None)).astype(float)

    @property
    def correct(self) -> Mask:
        """Whether each prediction equals the label, the expression with the most votes (N,)."""
        assert self.targets is not None
        return np.asarray(self.probabilities.argmax(1) == self.targets.argmax(1))


@dataclass(frozen=True, eq=False)
class UnpredictedFaces:
    """N faces of a manifest, and the model that will predict them as C expressions."""

    manifest: Manifest
    model: Recognizer
    merge: Merge | None  # how labels of the model are merged
    labels: list[str]  # the expressions, after the merge

    # as in `EvaluatedFaces`
    paths: NDArray[np.object_]  # (N,)
    targets: Array | None  # (N, C)
    columns: Columns  # columns to group by
    facts: dict[str, str]
    notes: tuple[str, ...]

    @property
    def has_ambiguous(self) -> bool:
        """Whether predictions add the column `ambiguous`.

        The column needs prediction sets. They are calibrated for the model's own labels: a merge
        of labels excludes them.
        """
        return bool(self.model.thresholds) and self.merge is None

    @property
    def has_truth(self) -> bool:
        """Whether any face has a label, or a target for an output of the model."""
        targets = self.manifest.target_values()
        return self.manifest.has_labels or not {*targets}.isdisjoint(self.model.outputs)

    def predict(self) -> EvaluatedFaces:
        """Predicts the faces."""
        # not at the top: it needs PyTorch, and tables of predictions do not
        from fer_vit.data.dataset import FaceDataset, face_crops

        # what the manifest has
        head_targets = self.manifest.target_values()
        # a face that no detector found has a score of 0, but may have landmarks
        has_landmarks = ~np.isnan(self.manifest.landmarks()[:, 0, 0])
        has_score = np.array(self.manifest.column("score"), float) != 0

        # what the model reads
        dataset = FaceDataset(self.manifest, self.model.crop_spec)
        rows = range(len(self.manifest))
        batches = face_crops(dataset, rows, FACES_PER_PASS)
        parts = [self.model.read(batch) for batch in batches]
        probabilities = np.concatenate([part.probabilities for part in parts])  # (N, C)
        if self.merge is not None:
            _, matrix = merge_names(self.model.labels, self.merge)
            probabilities = merge_probabilities(probabilities, matrix)
        columns = dict(self.columns)
        if self.has_ambiguous:
            ambiguous = in_set(probabilities, self.model.thresholds).sum(1) != 1
            columns["ambiguous"] = as_objects(ambiguous.tolist())
        values = np.concatenate([part.outputs for part in parts])  # (N, K)
        outputs = dict(zip(self.model.outputs, values.T, strict=True))
        return EvaluatedFaces(
            labels=self.labels,
            paths=self.paths,
            probabilities=probabilities,
            detected=has_landmarks & has_score,
            targets=self.targets,
            columns=columns,
            rows=np.arange(len(self.manifest)),
            picture=self.manifest.image,
            facts=self.facts,
            heads=pair_outputs(outputs, head_targets),
            notes=self.notes,
        )


def open_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> UnpredictedFaces:
    """Returns the faces of one split, after checks that the model can predict their labels.

    Arguments and errors as for `predict_manifest`.
    """
    if not len(manifest):
        raise FerVitError(
            f"Expected faces in the {split} split of {manifest.path}, but got none. "
            "Name another `--split`."
        )
    labels = model.labels
    if merge is not None:
        names, _ = merge_names(model.labels, merge)
        labels = list(names)
    columns = manifest.describing_columns()
    return UnpredictedFaces(
        manifest=manifest,
        model=model,
        merge=merge,
        labels=labels,
        paths=as_objects(manifest.image_names()),
        targets=manifest.model_targets(labels),
        columns={name: as_objects(cells) for name, cells in columns.items()},
        facts=model.conditions,
        notes=tuple(note_missing_outputs(model, manifest)),
    )


def note_missing_outputs(model: Recognizer, manifest: Manifest) -> list[str]:
    """Returns a line if a manifest has targets for outputs that the model lacks."""
    missing = [name for name in manifest.target_values() if name not in model.outputs]
    if not missing:
        return []
    heads = [f"{head} ({len(names)})" for head, names in outputs_of(missing).items()]
    return [
        f"{manifest.path}: targets without outputs of {model.name} are not measured: "
        f"{', '.join(heads)}."
    ]


def predict_manifest(
    model: Recognizer, manifest: Manifest, split: Split, merge: Merge | None = None
) -> EvaluatedFaces:
    """Predicts the faces of one split.

    Args:
        model: The model.
        manifest: The faces.
        split: The split, for messages.
        merge: The new label of each label of the model; probabilities of merged labels are added.
            None: the model keeps its labels.

    Raises:
        FerVitError: There is no face, or a label is missing or unknown.
    """
    return open_manifest(model, manifest, split, merge).predict()
