"""The verb `predict`: photos and videos in, a table out."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from fer_vit.errors import FerVitError, check_number
from fer_vit.files import check_output
from fer_vit.predict.photos import DetectorName, FaceMode, PhotoOptions
from fer_vit.predict.plan import MAX_PART_SIZE
from fer_vit.predict.recognizer import load
from fer_vit.predict.tables import predict_folder, predict_table
from fer_vit.processes import ProcessRank, cores, process_rank
from fer_vit.report.table import SUFFIXES


def predict(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("faces.csv"),
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    part_size: int = 1000,
    min_confidence: float = 0.0,
    overwrite: bool = False,
    summary: Path | None = None,
    annotate: Path | None = None,
    **video: Any,
) -> None:
    """Finds and classifies every face in photos and videos: one row for each face, and one for each image without one.

    Columns: path, status ("ok", "no face", or why the image cannot be read), face (its index in the photo), box and
    landmarks in the photo's pixels, detection score, label, confidence, and every expression's probability.
    With `--face crop`, a row without box and landmarks is a crop in which none were found: its regions are placed where
    an average face has them.

    With videos there is a row for each face of each frame, and more columns: frame (its index), seconds (its time in
    the file), track (the number of the person), and every probability once more, smoothed over time.

    How far to trust a row: entropy (of the probabilities), set (the expressions that cannot be left out: the true one
    is among them in 90 % of faces like those of the calibration), unsure (whether the set has not exactly one), size
    (side of the face's crop in the photo's pixels), blur (length of its finest detail in 48ths of the crop's side),
    outside (regions that lie outside the photo). `set` and `unsure` are empty for models without `export --calibrate`.

    A folder as `--output` gets one table per chunk of images. Several processes can share the work (torchrun, SLURM),
    the same command resumes an interrupted run, and the last process checks that every image has its rows exactly once.

    Examples:
        fer-vit predict photos

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

        srun fer-vit predict /data/photos --output /data/faces

        fer-vit predict clip.mp4 "videos/*.mov" photos --fps 5 --summary people.csv

        fer-vit predict clip.mp4 --annotate marked.mp4

    Args:
        images: Image and video files, folders (searched recursively) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The table to write: .csv, .parquet or .jsonl; or a folder of Parquet tables.
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Finds faces or, in crops, landmarks. With "none" crops are assumed to be framed like the model's own.
        batch_size: Photos or frames per batch; the result does not depend on it.
        workers: Processes that read photos. Left out: one per core. Videos are read by one.
        part_size: Images per table in a folder; a video has a table of its own.
        min_confidence: Faces below this confidence get no label, and are unsure.
        overwrite: Whether an existing table may be replaced.
        summary: A second table, with a row for each person in the videos: when seen, with which expressions.
        annotate: A copy (.mp4) of the only video, with a box, track, label and probability for each face.
        video: How videos are read; see `PhotoOptions`.
    """
    rank = process_rank()
    check_number("part_size", part_size, 1, MAX_PART_SIZE)
    check_number("min_confidence", min_confidence, 0, 1)
    in_chunks = output.is_dir() or not output.suffix
    check_outputs(None if in_chunks else output, summary, overwrite, rank)
    if annotate:
        check_copy(annotate, in_chunks, overwrite)
    workers = max(1, cores() // rank.local_world_size) if workers is None else workers
    options = PhotoOptions(face=face, detector=detector, batch_size=batch_size, workers=workers, **video)
    gpus = torch.cuda.device_count()  # SLURM may show each process only its own
    model = load(checkpoint, f"cuda:{rank.local_rank % gpus}" if gpus else "cpu")
    parts = partial(predict_folder, part_size=part_size, rank=rank)
    write = parts if in_chunks else partial(predict_table, annotate=annotate)
    print(write(model, images, output, options, people_table=summary, min_confidence=min_confidence))


def check_outputs(table: Path | None, summary: Path | None, overwrite: bool, rank: ProcessRank) -> None:
    """Raises FerVitError, before any work, when a table cannot be written; None: they go to a folder."""
    if table:
        check_table(table, overwrite, rank)
    elif overwrite and not summary:
        raise FerVitError("Finished tables in a folder are kept. Remove the folder to start over.")
    if summary:
        check_table(summary, overwrite, ProcessRank())
        if table and summary.resolve() == table.resolve():
            raise FerVitError(f"`--summary` is a table of its own, but both are {summary}. Choose another name.")


def check_copy(path: Path, in_chunks: bool, overwrite: bool) -> None:
    """Raises FerVitError, before any work, when a marked copy of a video cannot be written there."""
    if path.suffix != ".mp4" or in_chunks:
        raise FerVitError(
            "`--annotate` needs a name that ends in .mp4, and one table rather than a folder of them: for example "
            "--output faces.csv --annotate marked.mp4."
        )
    check_output(path, overwrite)


def check_table(path: Path, overwrite: bool, rank: ProcessRank) -> None:
    """Raises FerVitError, before any work, when a table cannot be written there."""
    if path.suffix not in SUFFIXES:
        endings = ", ".join(SUFFIXES)
        raise FerVitError(f"Expected a table that ends in {endings}, or a folder without a dot, but got {path}.")
    check_output(path, overwrite)
    if rank.world_size > 1:
        raise FerVitError(
            f"{rank.world_size} processes (WORLD_SIZE, or SLURM's) cannot write one table. Name a folder, for "
            f"example --output {path.stem}, or unset RANK and WORLD_SIZE."
        )
