"""The verb `predict`: photos in, a table out."""

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
    """Finds and classifies every face in photos: one row for each face, and one for each image without a face.

    Columns: path, status ("ok", "no face", or why the image cannot be read), face (its index in the photo), box and
    landmarks in the photo's pixels, detection score, label, confidence, and every expression's probability.
    With `--face crop`, a row without box and landmarks is a crop in which none were found: its regions are placed where
    an average face has them.

    A folder as `--output` gets one table per chunk of images. Several processes can share the work (torchrun, SLURM),
    the same command resumes an interrupted run, and the last process checks that every image has its rows exactly once.

    Examples:
        fer-vit predict photos

        fer-vit predict a.jpg "more/**/*.png" --output faces.parquet

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

        srun fer-vit predict /data/photos --output /data/faces

    Args:
        images: Image files, folders (searched recursively) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The table to write: .csv, .parquet or .jsonl; or a folder of Parquet tables.
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Finds faces or, in crops, landmarks. With "none" crops are assumed to be framed like the model's own.
        batch_size: Photos per batch; the result does not depend on it.
        workers: Processes that read photos. Left out: one per core.
        part_size: Images per table in a folder.
        overwrite: Whether an existing table may be replaced.
    """
    rank = process_rank()
    check_number("part_size", part_size, 1, MAX_PART_SIZE)
    in_chunks = output.is_dir() or not output.suffix
    if not in_chunks:
        check_table(output, overwrite, rank)
    elif overwrite:
        raise FerVitError(f"Finished tables in a folder are kept. Remove {output} to start over.")
    workers = max(1, cores() // rank.local_world_size) if workers is None else workers
    options = PhotoOptions(face, detector, batch_size, workers)
    gpus = torch.cuda.device_count()  # SLURM may show each process only its own
    model = load(checkpoint, f"cuda:{rank.local_rank % gpus}" if gpus else "cpu")
    if in_chunks:
        print(predict_folder(model, images, output, options, part_size, rank))
    else:
        print(predict_table(model, images, output, options))


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
