"""Reads faces with truth: a manifest that a model predicts, or a table of predictions."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fer_vit.data.manifest import Manifest, no_label
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.evaluation.predicted_manifest import ManifestFaces, open_manifest
from fer_vit.extras import require
from fer_vit.faces import as_objects
from fer_vit.labels import Merge
from fer_vit.options import Options
from fer_vit.predict.recognizer import load
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.tables.images import AngleUnit, Truth, read_truth_table
from fer_vit.tables.join import add_truth, with_columns
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import check_no_photos, check_predicted, read_predictions
from fer_vit.tables.table_reader import is_predictions, is_table

if TYPE_CHECKING:
    from fer_vit.model.region_vit import RegionViT


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Options of `evaluate`: which faces are read, how they are predicted, and what is scored."""

    data: Path
    """A manifest, whose faces the model predicts, or a table or folder of tables of `fer-vit
    predict`."""
    _: KW_ONLY
    checkpoint: str | None = None
    """For a manifest: the model, as for `predict`."""
    model: str | None = None
    """Your class that trained the checkpoint, such as my_module.MyTask."""
    labels: Path | None = None
    """For a table: the truth, a manifest or a table with the column path, and label or targets
    (move_mouthSmileLeft, yaw, valence). The most confident face of a photo counts."""
    targets_unit: AngleUnit | None = None
    """The unit of angles in a table of `--labels`. Default: degrees; an error if no angle is above
    1.57."""
    split: Split | None = None
    """The split of a manifest, also of `--labels`. Default: val."""
    merge: Merge | None = None
    """For a manifest: the new label of each old label; null leaves out its faces."""
    prior: str | None = None
    """For a manifest: how frequent expressions are, as for `predict`."""
    classes: Sequence[str] = ()
    """For a manifest: the only possible expressions; faces with others are left out."""
    columns: Path | None = None
    """A table with the column path and others for `--by`."""
    by: Sequence[str] = ()
    """Columns to group by. Groups of fewer than 30 persons or photos get no scores."""
    against: str | None = None
    """Another model, or a table of its predictions for the same images."""
    robustness: bool = False
    """Also score a manifest's images covered, turned, blurred, shrunk and with wrong landmarks."""
    output: Path = Path("evaluation")
    """The folder to write."""
    overwrite: bool = False
    """Replace existing results."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes and self.merge:
            raise FerVitError(
                "`--classes` and `--merge` exclude each other. A merge with null leaves out a "
                "class."
            )


def read_labelled(options: EvaluateOptions, network: "str | RegionViT | None" = None) -> Labelled:
    """Reads a table of predictions, or a manifest and the model that predicts it later.

    `network` replaces the network of `checkpoint`; see `commands.find_network`.

    Raises:
        FerVitError: A file cannot be read, or an option does not fit the faces.
    """
    if is_predictions(options.data):
        faces = _read_table(options)
    else:
        faces = _read_manifest(options, network)
    faces = with_columns(faces, options.data, options.columns, options.by)
    if options.against is not None and not faces.has_truth:
        raise FerVitError(
            "`--against` needs labels, or targets of further heads. Add `--labels`, or prepare "
            "with labels."
        )
    if options.robustness and not faces.has_truth:
        raise FerVitError(
            "`--robustness` needs labels, or targets of further heads. Prepare with either."
        )
    if options.robustness and not isinstance(faces, ManifestFaces):
        raise FerVitError(
            "`--robustness` needs images, and there is only a table. Name a manifest."
        )
    return replace(faces, facts={"data": str(options.data), **faces.facts})


def read_other(options: EvaluateOptions, faces: Labelled) -> Labelled | None:
    """Returns the faces of the table `against`, or the same faces with the model `against`."""
    against = options.against
    if not against:
        return None
    if is_predictions(Path(against)):
        return read_predictions(Path(against))
    if not isinstance(faces, ManifestFaces):
        raise FerVitError(
            f"{against} is not a table, and a model needs images. Name a manifest, or "
            "another table."
        )
    return _open_model(options, faces.manifest, against)


def _read_table(options: EvaluateOptions) -> Labelled:
    """Reads a table of predictions, with the truth of `labels`."""
    labels = options.labels
    if any([options.checkpoint, options.merge, options.prior, options.classes]):
        raise FerVitError(
            "`--checkpoint`, `--merge`, `--prior` and `--classes` need a manifest, not a table."
        )
    if options.split is not None and (labels is None or is_table(labels)):
        raise FerVitError(
            "`--split` is a split of a manifest, but there are only tables. Remove it."
        )
    faces = read_predictions(options.data)
    if labels is not None:
        faces = add_labels(faces, labels, options.split or "val", options.targets_unit)
    check_predicted(options.data, faces)
    return faces


def add_labels(
    faces: Labelled, path: Path, split: Split = "val", unit: AngleUnit | None = None
) -> Labelled:
    """Returns the first face of each image with labels or targets in a table or manifest.

    The table has the column `path`, and the column `label`, outputs of heads (`move_*`, `yaw`,
    `valence` ...), or both; `unit` is that of its angles. Of a manifest, a split is read. Raises
    FerVitError when the model lacks a label, or the predictions lack an image.
    """
    if is_table(path):
        truth = read_truth_table(path, faces.labels, unit)
    else:
        manifest = Manifest.read(path).split(split)
        truth = Truth(
            paths=as_objects(manifest.image_names()),
            votes=manifest.model_targets(faces.labels),
            outputs=manifest.target_values(),
            columns=manifest.describing_columns(),
        )
        if truth.votes is None and not truth.outputs:
            raise no_label(path, split)
    return add_truth(faces, truth, path.name)


def _read_manifest(options: EvaluateOptions, network: "str | RegionViT | None") -> ManifestFaces:
    """Reads the split of a manifest, merges labels, and leaves out faces of other classes."""
    check_no_photos(options.data)
    if options.labels is not None:
        raise FerVitError(
            f"`--labels` is for a table of predictions, but {options.data} is a manifest, which "
            "has labels."
        )
    require("torch", "The prediction of a manifest")
    manifest = Manifest.read(options.data).split(options.split or "val")
    if options.merge:
        manifest = manifest.merge_labels(options.merge)
    elif options.classes:
        if not {*options.classes} & {*manifest.labels}:
            raise FerVitError(
                f"Expected `--classes` among {', '.join(manifest.labels)}, the labels of "
                f"{options.data}, but got {', '.join(options.classes)}."
            )
        merge: Merge = {}
        for label in manifest.labels:
            merge[label] = label if label in options.classes else None
        manifest = manifest.merge_labels(merge)
    return _open_model(options, manifest, options.checkpoint, network)


def _open_model(
    options: EvaluateOptions,
    manifest: Manifest,
    checkpoint: str | None,
    network: "str | RegionViT | None" = None,
) -> ManifestFaces:
    """Loads a model and returns the faces that it will predict."""
    model = load(
        network or checkpoint, prior=options.prior, classes=options.classes, name=checkpoint
    )
    # a model may have the old labels or the new ones
    merge = None if model.labels == list(manifest.labels) else options.merge
    split = options.split or "val"
    faces = open_manifest(model, manifest, split, merge or None)
    facts: dict[str, str] = {"model": checkpoint or DEFAULT_MODEL, "split": split}
    changes = []
    for old, new in (options.merge or {}).items():
        if old != new:
            changes.append(f"{old}: {new or 'left out'}")
    if changes:
        facts["merge"] = ", ".join(changes)
    return replace(faces, facts=facts | faces.facts)
