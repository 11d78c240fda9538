"""The verb `predict`: photos in, one table out."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fer_vit.data.photos import FaceMode, Photo, find_images
from fer_vit.errors import FerVitError
from fer_vit.face.geometry import LANDMARKS
from fer_vit.recognizer import DetectorName, FaceResult, load
from fer_vit.report.table import SUFFIXES, Cell, TableWriter

BOX = ("box_left", "box_top", "box_right", "box_bottom")
POINTS = tuple(f"{name}_{axis}" for name in LANDMARKS for axis in "xy")


def predict(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("faces.csv"),
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Finds and classifies every face in photos: one row per face, and one for each image without a face.

    Columns: path, status ("ok", "no face", or why the image cannot be read), face (its number in the photo), box and
    landmarks in the photo's pixels, score of the detection, label, confidence, and every expression's probability.
    A row of `--face crop` without box and landmarks is a crop in which none were found: its regions lie where an
    average face has them.

    Examples:
        fer-vit predict photos

        fer-vit predict a.jpg "more/**/*.png" --output faces.parquet

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

    Args:
        images: Image files, folders (with all below them) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name out of `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
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
    model = load(checkpoint)
    columns = {"path": str, "status": str, "face": int, **dict.fromkeys((*BOX, *POINTS, "score"), float)}
    columns |= {"label": str, "confidence": float}
    if taken := columns.keys() & set(model.labels):
        raise FerVitError(
            f"The model has a class `{min(taken)}`, which is the name of another column. Rename the class."
        )
    columns |= dict.fromkeys(model.labels, float)
    status: Counter[str] = Counter()
    found: Counter[str] = Counter()
    with TableWriter(output, columns) as table:
        for photo, faces in model.stream(find_images(images), face, detector, batch_size, workers):
            table.write(list(photo_rows(photo, faces)))
            status[photo.status] += 1
            found.update(one.label for one in faces)
    print(f"{sum(status.values()):,} images: " + ", ".join(f"{n:,} {what}" for what, n in status.most_common()))
    print(f"{sum(found.values()):,} faces: " + ", ".join(f"{n:,} {label}" for label, n in found.most_common()))
    print(f"Table: {output}")


def photo_rows(photo: Photo, faces: list[FaceResult]) -> Iterator[dict[str, Cell]]:
    """Yields the rows of a photo: one for each face, or one without a face."""
    if not faces:
        yield {"path": photo.path, "status": photo.status, "label": None}
    for face in faces:
        box = {} if face.box is None else dict(zip(BOX, face.box.tolist(), strict=True))
        points = [number for point in (face.landmarks or {}).values() for number in point]
        yield {
            "path": photo.path,
            "status": photo.status,
            "face": face.face,
            **box,
            **dict(zip(POINTS, points, strict=False)),
            "score": face.score,
            "label": face.label,
            "confidence": face.confidence,
            **face.probabilities,
        }


def check_table(path: Path, overwrite: bool) -> None:
    """Raises FerVitError when a table could not be written there, before any work."""
    if path.suffix not in SUFFIXES:
        raise FerVitError(f"Expected a table that ends in {', '.join(SUFFIXES)}, but got {path}.")
    if path.is_dir():
        raise FerVitError(f"Expected the name of a table, but {path} is a folder. Name a file in it.")
    if path.exists() and not overwrite:
        raise FerVitError(f"{path} exists already. Choose another name or add `--overwrite`.")
