"""The verb `predict`: photos in, one table out."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from fer_vit.errors import FerVitError, check_number
from fer_vit.files import remove_stale
from fer_vit.predict.inputs import find_images, iter_images
from fer_vit.predict.photos import FaceMode, Photo
from fer_vit.predict.plan import LARGEST, Plan, begin, place
from fer_vit.predict.recognizer import DetectorName, Recognizer, load
from fer_vit.predict.results import FaceResult, photo_rows, table_columns
from fer_vit.processes import cores
from fer_vit.report.table import SUFFIXES, TableWriter


class Counts(NamedTuple):
    """What was found: images by status, and faces by label."""

    status: Counter[str]
    labels: Counter[str]

    def __str__(self) -> str:
        """Two lines."""
        return "\n".join(
            f"{found.total():,} {what}: " + ", ".join(f"{number:,} {name}" for name, number in found.most_common())
            for what, found in (("images", self.status), ("faces", self.labels))
        )


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

    Raises:
        FerVitError: The checkpoint or the images are not there, or the table cannot be written.
    """
    here = place()
    check_number("part_size", part_size, 1, LARGEST)
    in_parts = output.is_dir() or not output.suffix
    if not in_parts:
        check_table(output, overwrite)
        if here.processes > 1:
            raise FerVitError(
                f"{here.processes} processes (WORLD_SIZE, or SLURM's) cannot write one table. Name a folder, for "
                f"example --output {output.stem}, or unset RANK and WORLD_SIZE."
            )
    elif overwrite:
        raise FerVitError(
            f"What is done in a folder is kept. Remove {output} to begin anew, or leave out `--overwrite`."
        )
    gpus = torch.cuda.device_count()  # SLURM may show each process its own alone
    model = load(checkpoint, f"cuda:{here.local_rank % gpus}" if gpus else "cpu")
    columns = table_columns(model.labels)
    workers = max(1, cores() // here.local_processes) if workers is None else workers
    counts = Counts(Counter(), Counter())
    if not in_parts:
        stream = model.stream(find_images(images), face, detector, batch_size, workers)
        write_table(output, columns, stream, counts)
        print(f"{counts}\nTable: {output}")
        return
    asked: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    asked |= {"face": face, "detector": detector, "part_size": part_size}
    plan = begin(output, iter_images(images), part_size, asked, here.rank)
    mine = Plan(output, [part for part in plan.missing() if part % here.processes == here.rank])
    stream = model.stream(mine, face, detector, batch_size, workers)
    for part in mine.parts:
        write_table(plan.table(part), columns, islice(stream, plan.sizes[part]), counts)
    next(stream, None)  # which ends its progress bar
    print(f"{counts}\n{state_of(plan)}")


def write_table(
    path: Path, columns: dict[str, type], stream: Iterable[tuple[Photo, list[FaceResult]]], counts: Counts
) -> None:
    """Writes the rows of photos, and counts them."""
    with TableWriter(path, columns) as table:
        for photo, faces in stream:
            table.write(list(photo_rows(photo, faces)))
            counts.status[photo.reason] += 1
            counts.labels.update(one.label for one in faces)


def state_of(plan: Plan) -> str:
    """Says how much of a plan is done. If all is, every image is looked up in the tables.

    Raises:
        FerVitError: An image has not its rows exactly once.
    """
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.parts) - len(left):,} of {len(plan.parts):,} tables are there. The others are "
            "being made elsewhere, or the same command goes on with them."
        )
    bar = tqdm(plan.parts, desc="checking", unit=" tables", disable=None, leave=False)
    status, faces = Counter[str](), 0
    for part in bar:
        its_status, its_faces = plan.check(part)
        status, faces = status + its_status, faces + its_faces
    listed = ", ".join(f"{number:,} {name}" for name, number in status.most_common(5))
    return (
        f"{plan.folder}: all {len(plan.parts):,} tables, all {status.total():,} images of the plan exactly once "
        f"({listed}), {faces:,} faces"
    )


def fingerprint(model: Recognizer) -> str:
    """Returns a few letters that tell a model from others: its weights, and whatever else its use needs."""
    net = model.net
    digest = hashlib.sha256(str((net.config, net.labels, net.align, net.template, net.temperature)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def check_table(path: Path, overwrite: bool) -> None:
    """Raises FerVitError when a table could not be written there, before any work."""
    if path.suffix not in SUFFIXES:
        raise FerVitError(
            f"Expected a table that ends in {', '.join(SUFFIXES)}, or a folder without a dot, but got {path}."
        )
    remove_stale(path)
    if path.exists() and not overwrite:
        raise FerVitError(f"{path} exists already. Choose another name or add `--overwrite`.")
