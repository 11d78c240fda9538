"""The verb `evaluate`: how good a model or a table of predictions is, for whom, and where it fails."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.evaluate.faces import Faces, is_predictions, predict_manifest, read_predictions
from fer_vit.evaluate.groups import overview
from fer_vit.evaluate.hard import hard_faces, hard_results
from fer_vit.evaluate.joins import aligned, with_columns, with_labels
from fer_vit.evaluate.labelled import Merged
from fer_vit.evaluate.scores import compared, mcnemar, normal, scored
from fer_vit.evaluate.writer import FILES, write_results
from fer_vit.files import atomic_write, check_output
from fer_vit.geometry import Array
from fer_vit.labels import Merge
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.hub import DEFAULT


def evaluate(
    data: Path,
    *,
    checkpoint: str | None = None,
    labels: Path | None = None,
    split: Split = "val",
    merge: Merge | None = None,
    columns: Path | None = None,
    by: Sequence[str] = (),
    against: str | None = None,
    hard: bool = False,
    output: Path = Path("evaluation"),
    overwrite: bool = False,
) -> None:
    """Says how good predictions are, for whom, and where they fail, with 95 % bootstrap intervals.

    Writes OUTPUT/index.html, results.md and results.json: accuracy, macro F1, UAR (the mean recall), calibration error,
    cross-entropy; with votes, the agreement with one who voted. The page shows the mistakes, and labels that are likely
    wrong. Intervals resample persons (a column `person`), else photos. A column `twin` marks faces that were trained
    on: there are scores without them as well. Without labels: how often a face was found, confidence, expressions. Of a
    calibrated model also how many faces are unsure, and the accuracy on the others.

    Examples:
        fer-vit evaluate data/ferplus.parquet --checkpoint best.ckpt --against other.ckpt --hard

        fer-vit evaluate data/rafdb.parquet --split test --by gender race age

        fer-vit evaluate faces.csv --labels truth.csv --columns people.csv --by age

        fer-vit evaluate faces.parquet --merge "{calm: good, happiness: good, anger: bad, surprise: null}"

    Args:
        data: A manifest, whose faces the model predicts, or a table or folder of tables of `fer-vit predict`.
        checkpoint: For a manifest: a checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from `fer-vit
            models` or "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        labels: For a table: a manifest, or a table with columns path and label. Of a photo with several faces the
            surest is taken.
        split: The split of a manifest.
        merge: For a manifest: new labels by old ones. Votes and probabilities of merged labels add up; null leaves the
            faces of one out. The model may have the old labels or, trained with `fit --data.merge`, the new ones.
        columns: A table with a column path, and others to group by.
        by: Columns; each makes groups, which are compared. Groups of fewer than 30 are only counted.
        against: Another model, or a table of its predictions for the same images.
        hard: Whether to cover, turn, blur and shrink the images of a manifest, and to spoil landmarks, as well.
        output: The folder to write.
        overwrite: Whether existing results may be replaced.
    """
    check_output(output, overwrite, FILES)
    faces, model, rows = read(data, checkpoint, labels, split, merge)
    faces = with_columns(faces, columns) if columns else faces
    check_options(faces, by, against is not None or hard, model is None and hard)
    theirs = read_other(faces, against, rows, split, merge)
    results = overview(faces, by) | ({"comparison": comparison(faces, theirs)} if against is not None else {})
    if hard and model and rows and faces.shares is not None:
        results["hard"] = hard_results(hard_faces(model, rows, faces.shares.argmax(1)), faces.units)
    facts = said(data, (checkpoint or DEFAULT) if rows else None, split, merge, against)
    with atomic_write(output, FILES) as folder:
        print(write_results(folder, facts, results, faces.take(faces.predicted), theirs[faces.predicted]))
    print(f"Written to {output}: {', '.join(FILES)}")


def read(
    data: Path, checkpoint: str | None, labels: Path | None, split: Split, merge: Merge | None = None
) -> tuple[Faces, Recognizer | None, Manifest | None]:
    """Reads a table of predictions, or predicts a manifest; the latter comes with its model and its rows."""
    if is_predictions(data):
        if checkpoint is not None:
            raise FerVitError("`--checkpoint` is for manifests. Leave it out, or predict with it first.")
        if merge:
            raise FerVitError("`--merge` is for manifests. Leave it out, or name a manifest and a model.")
        faces = read_predictions(data)
        return (with_labels(faces, labels, split) if labels else faces), None, None
    if labels is not None:
        raise FerVitError(
            f"`--labels` is for a table of predictions, but {data} is none: a manifest has its own labels."
        )
    rows = Manifest.read(data, [split]).split(split)
    model = load(checkpoint)
    if merge:
        rows = rows.merge_labels(merge)
        model = merged(model, merge, rows)
    return predict_manifest(model, rows, split), model, rows


def merged(model: Recognizer, merge: Merge, rows: Manifest) -> Recognizer:
    """Returns a model with the labels of merged rows: as it is if it was trained with them, else one that merges."""
    return model if model.labels == list(rows.names) else Merged(model, merge)


def said(data: Path, model: str | None, split: Split, merge: Merge | None, against: str | None) -> dict[str, str]:
    """Returns what was evaluated, for the head of the results; without a model the data are a table."""
    facts = {"data": str(data)} | ({"model": model, "split": split} if model else {})
    facts |= {"merge": ", ".join(f"{old}: {new or 'left out'}" for old, new in merge.items())} if merge else {}
    return facts | ({"against": against} if against else {})


def check_options(faces: Faces, by: Sequence[str], truth: bool, images: bool) -> None:
    """Raises FerVitError when a column is not there, or the truth or images that an option needs."""
    if not faces.predicted.any():
        raise FerVitError("No image has a face with a prediction. Name a table with faces.")
    if missing := [column for column in by if column not in faces.columns]:
        known = ", ".join(faces.columns)
        raise FerVitError(f"There is no column `{missing[0]}`, only {known}. Name one, or add a table: `--columns`.")
    if truth and faces.shares is None:
        raise FerVitError("`--against` and `--hard` need labels. Add `--labels` to a table, or prepare with labels.")
    if images:
        raise FerVitError("`--hard` needs images, and there is only a table. Name a manifest.")


def read_other(faces: Faces, against: str | None, rows: Manifest | None, split: Split, merge: Merge | None) -> Array:
    """Returns what another table, or another model for the same rows, says of the faces (N, C); NaN without one."""
    if against is None:
        return np.full_like(faces.probabilities, np.nan)
    if is_predictions(Path(against)):
        return aligned(faces, read_predictions(Path(against)), against)
    if rows is None:
        raise FerVitError(f"{against} is no table, and a model needs images. Name a manifest, or another table.")
    other = merged(load(against), merge, rows) if merge else load(against)
    return aligned(faces, predict_manifest(other, rows, split), against)


def comparison(faces: Faces, theirs: Array) -> dict[str, Any]:
    """Returns the scores of another model (N, C), NaN where it found no face, and how ours differ on the same faces."""
    both = faces.predicted & np.isfinite(theirs[:, 0])
    faces, theirs = faces.take(both), theirs[both]
    assert faces.shares is not None
    truth = (faces.shares, faces.labels, faces.units)
    difference = compared(faces.probabilities, theirs, *truth)
    tested = mcnemar(faces.right, theirs.argmax(1) == faces.shares.argmax(1))
    if faces.clustered:  # alike faces say less than as many independent ones, never more
        tested["p"] = max(tested["p"], normal(difference["accuracy"]))
    return {
        "faces": int(both.sum()),
        "other": scored(theirs, *truth),
        "difference": difference,
        "McNemar": tested,
    }
