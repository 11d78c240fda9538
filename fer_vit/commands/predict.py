"""The verb `predict`: photos in, one table out."""

from pathlib import Path

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
    overwrite: bool = False,
) -> None:
    """Finds and classifies every face in photos: one row per face, and one for each image without a face.

    Columns: path, status ("ok", "no face", or why the image cannot be read), face (its number in the photo), box and
    landmarks in the photo's pixels, score of the detection, label, confidence, and every expression's probability.
    A row of `--face crop` without box and landmarks is a crop in which none were found: its regions lie where an
    average face has them.

    A folder as `--output` gets tables of some images each. Several processes share them (torchrun, SLURM), the same
    command goes on where one was interrupted, and the last to end checks that every image has its rows exactly once.

    Examples:
        fer-vit predict photos

        fer-vit predict a.jpg "more/**/*.png" --output faces.parquet

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

        srun fer-vit predict /data/photos --output /data/faces

    Args:
        images: Image files, folders (with all below them) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name out of `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The table to write: .csv, .parquet or .jsonl; or a folder for tables of Parquet.
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Finds faces or, in crops, landmarks. With "none" crops are taken to be framed like the model's own.
        batch_size: Photos per batch; the result does not depend on it.
        workers: Processes that read photos; all cores when left out.
        part_size: Images of each table in a folder.
        overwrite: Whether an existing table may be replaced.
    """
    rank = process_rank()
    check_number("part_size", part_size, 1, MAX_PART_SIZE)
    in_parts = output.is_dir() or not output.suffix
    if not in_parts:
        check_table(output, overwrite, rank)
    elif overwrite:
        raise FerVitError(f"Finished tables in a folder are kept. Remove {output} to start over.")
    workers = max(1, cores() // rank.local_world_size) if workers is None else workers
    options = PhotoOptions(face, detector, batch_size, workers)
    gpus = torch.cuda.device_count()  # SLURM may show each process its own alone
    model = load(checkpoint, f"cuda:{rank.local_rank % gpus}" if gpus else "cpu")
    if in_parts:
        print(predict_folder(model, images, output, options, part_size, rank))
    else:
        print(predict_table(model, images, output, options))


def check_table(path: Path, overwrite: bool, rank: ProcessRank) -> None:
    """Raises FerVitError when a table could not be written there, before any work."""
    if path.suffix not in SUFFIXES:
        endings = ", ".join(SUFFIXES)
        raise FerVitError(f"Expected a table that ends in {endings}, or a folder without a dot, but got {path}.")
    check_output(path, overwrite)
    if rank.world_size > 1:
        raise FerVitError(
            f"{rank.world_size} processes (WORLD_SIZE, or SLURM's) cannot write one table. Name a folder, for "
            f"example --output {path.stem}, or unset RANK and WORLD_SIZE."
        )
