"""The verb `predict`: photos in, one table out."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from fer_vit.commands.faces import DetectorName, best_device, face_batches
from fer_vit.data.photos import FaceMode, Photo
from fer_vit.errors import FerVitError
from fer_vit.face.detect import Face
from fer_vit.face.geometry import LANDMARKS
from fer_vit.report.table import SUFFIXES, Cell, TableWriter
from fer_vit.task import load_task

BOX = ("box_left", "box_top", "box_right", "box_bottom")
POINTS = tuple(f"{name}_{axis}" for name in LANDMARKS for axis in "xy")


def predict(
    images: list[Path],
    *,
    checkpoint: Path,
    output: Path,
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Finds and classifies every face in photos: one row per face, and one for each image without a face.

    Columns: path, status ("ok", "no face", or why the image cannot be read), face (its number in the photo), box and
    landmarks in the photo's pixels, score of the detection, label, confidence, and every expression's probability.
    A row of `--face crop` without box and landmarks is a crop in which none were found: its regions had no part.

    Examples:
        fer-vit predict photos --checkpoint best.ckpt --output faces.csv

        fer-vit predict a.jpg "more/**/*.png" --checkpoint best.ckpt --output faces.parquet

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

    Args:
        images: Image files, folders (with all below them) and glob patterns.
        checkpoint: The model, as `fer-vit fit` wrote it.
        output: The table to write: .csv, .parquet or .jsonl.
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Finds faces or, in crops, landmarks. With "none" crops are taken to be framed like the model's own.
        batch_size: Photos per batch; the result does not depend on it.
        workers: Processes that read photos; all cores when left out.
        overwrite: Whether an existing table may be replaced.

    Raises:
        FerVitError: The checkpoint or the images are not there, or the table cannot be written.
    """
    check_table(output, overwrite)
    task = load_task(checkpoint).to(best_device())
    columns = {"path": str, "status": str, "face": int, **dict.fromkeys((*BOX, *POINTS, "score"), float)}
    columns |= {"label": str, "confidence": float}
    if taken := columns.keys() & set(task.labels):
        raise FerVitError(
            f"The model has a class `{min(taken)}`, which is the name of another column. Rename the class."
        )
    columns |= dict.fromkeys(task.labels, float)
    status: Counter[str] = Counter()
    found: Counter[str] = Counter()
    with TableWriter(output, columns) as table, torch.inference_mode():
        for photos, parts in face_batches(task, images, face, detector, batch_size, workers):
            probabilities = [shares for part in parts for shares in task(part).tolist()]
            rows = list(prediction_rows(photos, probabilities, task.labels))
            table.write(rows)
            status.update(photo.status for photo in photos)
            found.update(str(row["label"]) for row in rows if row["label"])
    print(f"{sum(status.values()):,} images: " + ", ".join(f"{n:,} {what}" for what, n in status.most_common()))
    print(f"{sum(found.values()):,} faces: " + ", ".join(f"{n:,} {label}" for label, n in found.most_common()))
    print(f"Table: {output}")


def prediction_rows(
    photos: list[Photo], probabilities: list[list[float]], labels: list[str]
) -> Iterator[dict[str, Cell]]:
    """Yields the rows of a batch of photos.

    Args:
        photos: The photos.
        probabilities: Of every face in order, (F, C).
        labels: Names of the C classes.
    """
    left = iter(probabilities)
    for photo in photos:
        if not photo.faces:
            yield {"path": photo.path, "status": photo.status, "label": None}
        for number, (face, shares) in enumerate(zip(photo.faces, left, strict=False)):
            best = max(range(len(labels)), key=shares.__getitem__)
            yield {
                "path": photo.path,
                "status": photo.status,
                "face": number,
                **({} if face is None else _place(face)),
                "label": labels[best],
                "confidence": shares[best],
                **dict(zip(labels, shares, strict=True)),
            }


def _place(face: Face) -> dict[str, Cell]:
    box = dict(zip(BOX, face.box.tolist(), strict=True))
    return {**box, **dict(zip(POINTS, face.landmarks.ravel().tolist(), strict=True)), "score": face.score}


def check_table(path: Path, overwrite: bool) -> None:
    """Raises FerVitError when a table could not be written there, before any work."""
    if path.suffix not in SUFFIXES:
        raise FerVitError(f"Expected a table that ends in {', '.join(SUFFIXES)}, but got {path}.")
    if path.is_dir():
        raise FerVitError(f"Expected the name of a table, but {path} is a folder. Name a file in it.")
    if path.exists() and not overwrite:
        raise FerVitError(f"{path} exists already. Choose another name or add `--overwrite`.")
