"""Reads faces with truth: a manifest that a model predicts, or a table of predictions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, known_names, printable, short, suggest
from fer_vit.evaluation.checks import check_rows, check_times, find_moments, order_rows
from fer_vit.evaluation.join import add_columns, add_labels
from fer_vit.evaluation.labelled import Columns, Labelled, open_manifest
from fer_vit.extras import require
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import NOT_FOUND, SEPARATOR, UNCERTAIN, as_objects
from fer_vit.fields import BOX_COLUMNS, ORIGIN_FIELDS, SMOOTHED_LABEL, is_owned
from fer_vit.geometry import Image, Mask
from fer_vit.labels import Merge
from fer_vit.predict.recognizer import load
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.tables.cells import is_missing
from fer_vit.tables.images import AngleUnit
from fer_vit.tables.layout import PATH
from fer_vit.tables.parts import is_predictions
from fer_vit.tables.predicted import read_predicted
from fer_vit.tables.read import is_table
from fer_vit.wording import format_counts

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT

BOX_MARGIN = 0.15  # margin on each side of a face's box, as a fraction of the box


@dataclass(frozen=True)
class Conditions:
    """How a manifest is read and predicted: options of `fer-vit evaluate`.

    `split` is None if the option was not given.
    """

    split: Split | None = None
    merge: Merge | None = None
    prior: str | None = None
    classes: Sequence[str] = ()
    targets_unit: AngleUnit | None = None  # the unit of angles in a table of `--labels`

    def __post_init__(self) -> None:
        if self.classes and self.merge:
            raise FerVitError(
                "`--classes` and `--merge` exclude each other. A merge with null leaves out a "
                "class."
            )

    @property
    def chosen_split(self) -> Split:
        """The split to read from a manifest."""
        return self.split or "val"

    def read(self, path: Path) -> Manifest:
        """Reads the split of a manifest, merges labels, and leaves out faces of other classes."""
        manifest = Manifest.read(path).split(self.chosen_split)
        if self.merge:
            return manifest.merge_labels(self.merge)
        if self.classes:
            if not {*self.classes} & {*manifest.labels}:
                raise FerVitError(
                    f"Expected `--classes` among {', '.join(manifest.labels)}, the labels of "
                    f"{path}, but got {', '.join(self.classes)}."
                )
            merge: Merge = {}
            for label in manifest.labels:
                merge[label] = label if label in self.classes else None
            return manifest.merge_labels(merge)
        return manifest

    def open(
        self, manifest: Manifest, checkpoint: str | None, network: "str | RegionViT | None" = None
    ) -> Labelled:
        """Loads a model and returns the faces that it will predict.

        `network` replaces the network of `checkpoint`; see `commands.find_network`.
        """
        model = load(network or checkpoint, prior=self.prior, classes=self.classes, name=checkpoint)
        # a model may have the old labels or the new ones
        merge = None if model.labels == list(manifest.labels) else self.merge
        faces = open_manifest(model, manifest, self.chosen_split, merge or None)
        facts: dict[str, str] = {"model": checkpoint or DEFAULT_MODEL, "split": self.chosen_split}
        changes = []
        for old, new in (self.merge or {}).items():
            if old != new:
                changes.append(f"{old}: {new or 'left out'}")
        if changes:
            facts["merge"] = ", ".join(changes)
        return replace(faces, facts=facts | faces.facts)


def read_labelled(
    data: Path,
    checkpoint: str | None,
    labels: Path | None,
    conditions: Conditions,
    network: "str | RegionViT | None" = None,
) -> Labelled:
    """Reads a table of predictions, or a manifest and the model that predicts it later.

    `network` replaces the network of `checkpoint`; see `commands.find_network`.
    """
    if is_predictions(data):
        if any([checkpoint, conditions.merge, conditions.prior, conditions.classes]):
            raise FerVitError(
                "`--checkpoint`, `--merge`, `--prior` and `--classes` need a manifest, not a table."
            )
        is_split = labels is not None and not is_table(labels)
        if conditions.split is not None and not is_split:
            raise FerVitError(
                "`--split` is a split of a manifest, but there are only tables. Leave it out."
            )
        faces = read_predictions(data)
        if labels:
            faces = add_labels(faces, labels, conditions.chosen_split, conditions.targets_unit)
        check_predicted(data, faces)
        return faces
    if labels is not None:
        raise FerVitError(
            f"`--labels` is for a table of predictions, but {data} is a manifest, which has labels."
        )
    require("torch", "The prediction of a manifest")
    return conditions.open(conditions.read(data), checkpoint, network)


def read_other(against: str, faces: Labelled, conditions: Conditions) -> Labelled:
    """Returns the faces of another table, or the same faces with another model."""
    if is_predictions(Path(against)):
        return read_predictions(Path(against))
    if faces.images is None:
        raise FerVitError(
            f"{against} is no table, and a model needs images. Name a manifest, or another table."
        )
    return conditions.open(faces.images.manifest, against)


def read_predictions(path: Path, videos: bool = False) -> Labelled:
    """Reads a table of `predict`, or a folder of such tables.

    `videos` allows frames of videos. Faces are sorted by path, frame and face, and may have another
    order than the rows.

    Raises:
        FerVitError: The table is incomplete, a row occurs twice, or a cell does not fit its column.
    """
    table = read_predicted(path)
    check_rows(table, videos)

    # sort the rows
    order = order_rows(table)
    if videos:
        check_times(table, order)
    columns = {name: cells[order] for name, cells in table.columns.items()}
    columns[PATH] = table.paths[order]
    predicted = table.predicted[order]
    probabilities = np.where(predicted[:, None], table.shares[order], np.nan)  # (N, C)
    score = table.numbers.get("score", np.full(len(order), np.nan))[order]

    # assumptions and omissions
    notes = [*table.notes]
    notes += _describe_rows(path, columns, predicted)
    uncertain = find_uncertain(columns)
    if uncertain.any():
        notes.append(f"{uncertain.sum():,} of {predicted.sum():,} faces are uncertain.")
    return Labelled(
        labels=table.labels,
        paths=columns[PATH],
        probabilities=probabilities,
        detected=predicted & (score != NOT_FOUND),
        targets=None,
        columns=columns,
        rows=np.arange(len(predicted)),
        picture=lambda row: cut_face(columns, row),
        facts=_facts(table.facts, columns),
        notes=tuple(notes),
    )


def find_uncertain(columns: Columns) -> Mask:
    """Returns whether the warning of each row (N,) of a table states that its face is uncertain."""
    warnings = columns.get("warning", as_objects([None] * len(columns[PATH])))
    return np.array([UNCERTAIN in str(cell).split(SEPARATOR) for cell in warnings], bool)


def leave_out_uncertain(faces: Labelled) -> Labelled:
    """Leaves out uncertain faces in photos that also have a certain face.

    Such an uncertain face is often no face, but a mean over the photo's faces would give both the
    same weight. Frames of videos stay.
    """
    uncertain = find_uncertain(faces.columns)
    photos = is_missing(find_moments(faces.columns))
    certain = set(faces.paths[faces.predicted & ~uncertain])
    with_certain = np.array([path in certain for path in faces.paths], bool)
    dropped = uncertain & photos & with_certain
    if not dropped.any():
        return faces
    note = (
        f"{dropped.sum():,} uncertain faces are left out, because their photos have a certain face "
        "(`--uncertain` uses them)."
    )
    return replace(faces.take(~dropped), notes=(*faces.notes, note))


def _facts(recorded: dict[str, str], columns: Columns) -> dict[str, str]:
    """Returns how a table was made as printable text, from its record, or from its rows."""
    facts = {**recorded}
    if not recorded:
        for name, values in _origins(columns).items():
            if values:
                facts[name] = " and ".join(values)
    return {printable(short(name)): printable(short(fact)) for name, fact in facts.items()}


def _origins(columns: Columns) -> dict[str, list[str]]:
    """Returns the distinct values of each column that records how a row was made."""
    names = [field.name for field in ORIGIN_FIELDS if field.name in columns]
    return {name: sorted({*columns[name].tolist()} - {None}) for name in names}


def _describe_rows(path: Path, columns: Columns, predicted: Mask) -> list[str]:
    """Returns lines about rows without a face, or without a smoothed label, and their origins."""
    notes = []
    if not predicted.all():
        status = columns.get("status", np.full(len(predicted), None))
        counts = Counter(str(cell or "no status") for cell in status[~predicted])
        known = format_counts(counts, 5)
        notes.append(
            f"{path.name}: {(~predicted).sum():,} of {len(predicted):,} rows have no face and are "
            f"left out ({known})."
        )
    for name, values in _origins(columns).items():
        if len(values) > 1 and name != "predicted_on":
            shown = short(", ".join(values))
            notes.append(f"{path.name}: its rows have {len(values)} values of `{name}`: {shown}.")
    labelled = [("label", predicted, "they count in no share of `compare`")]
    if "seconds" in columns:
        in_clip = predicted & ~is_missing(columns["seconds"])
        reason = "they are below `--min_confidence`, and count in no duration"
        labelled.append((SMOOTHED_LABEL, in_clip, reason))
    for name, expected, reason in labelled:
        if name in columns and is_missing(columns[name][expected]).any():
            count = is_missing(columns[name][expected]).sum()
            notes.append(
                f"{path.name}: {count:,} of {expected.sum():,} faces have no `{name}`: {reason}."
            )
    return notes


def cut_face(table: Columns, row: int) -> Image:
    """Returns the face in a row of a table, cut out of its photo with `BOX_MARGIN`."""
    image = read_image(Path(table[PATH][row]))
    box: list[Any] = [table[name][row] for name in BOX_COLUMNS if name in table]
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


def check_predicted(data: Path, faces: Labelled) -> None:
    """Raises FerVitError when no face has a prediction."""
    if not faces.predicted.any():
        raise FerVitError(
            f"Expected a face with a prediction in {data}, but there is none. Name another table."
        )


def with_columns(
    faces: Labelled, data: Path, columns: Path | None, names: Sequence[str]
) -> Labelled:
    """Returns faces with the columns of another table; None: there is none.

    `data` is the path of the faces, for messages. Raises FerVitError when a column to group by,
    one of `names`, is missing.
    """
    if columns is not None:
        faces = add_columns(faces, columns)
    for name in names:
        if name not in faces.columns:
            raise _no_column(name, data, faces)
    return faces


def check_needs(faces: Labelled, *, against: bool, robustness: bool) -> None:
    """Raises FerVitError when an option needs labels or images, and there are none."""
    if against and not faces.has_truth:
        raise FerVitError(
            "`--against` needs labels, or targets of further heads. Add `--labels`, or prepare "
            "with labels."
        )
    if robustness and not faces.has_truth:
        raise FerVitError(
            "`--robustness` needs labels, or targets of further heads. Prepare with either."
        )
    if robustness and faces.images is None:
        raise FerVitError(
            "`--robustness` needs images, and there is only a table. Name a manifest."
        )


def _no_column(column: str, data: Path, faces: Labelled) -> FerVitError:
    """Returns the error of a missing column, with the columns that a user may name."""
    names = list(faces.columns)
    if faces.images is not None:
        known = f"It has {known_names(column, names)}."
    else:
        added = [name for name in names if not is_owned(name, faces.labels)]
        known = "`fer-vit predict --help` lists the columns of `predict`"
        if added:
            known += f"; others are {known_names(column, added)}"
        known += "."
    hint = suggest(column, names)
    return FerVitError(
        f"There is no column `{column}` in {data}.{hint} {known} `--columns` adds a table."
    )
