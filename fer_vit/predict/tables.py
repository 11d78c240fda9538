"""What `predict` writes: one table, or a folder of tables that processes share and a later run completes."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from fer_vit.predict.inputs import find_images, iter_images
from fer_vit.predict.photos import Photo, PhotoOptions
from fer_vit.predict.plan import Plan, open_or_create
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import FaceResult, photo_rows, table_columns
from fer_vit.processes import ProcessRank
from fer_vit.report.table import TableWriter


class Summary:
    """Counts of what was found: images by status and faces by label, as two lines of text."""

    def __init__(self) -> None:
        self.status: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()

    def __str__(self) -> str:
        return "\n".join(
            f"{found.total():,} {what}: " + ", ".join(f"{number:,} {name}" for name, number in found.most_common())
            for what, found in (("images", self.status), ("faces", self.labels))
        )


def predict_table(model: Recognizer, images: Sequence[Path], output: Path, options: PhotoOptions) -> str:
    """Writes one table and returns a summary.

    Args:
        model: The model.
        images: Files, folders and patterns.
        output: The table, by its suffix CSV, Parquet or JSON Lines.
        options: How the images are read.
    """
    summary = Summary()
    write_table(output, model, model.stream(find_images(images), options), summary)
    return f"{summary}\nTable: {output}"


def predict_folder(
    model: Recognizer, images: Sequence[Path], output: Path, options: PhotoOptions, part_size: int, rank: ProcessRank
) -> str:
    """Writes this process's share of a folder of tables, those that are still missing, and returns a summary.

    Args:
        model: The model.
        images: Files, folders and patterns.
        output: The folder; what is done in it is kept.
        options: How the images are read.
        part_size: Images of each table.
        rank: Which tables are this process's.

    Raises:
        FerVitError: The folder was begun with other settings, or an image does not have its rows exactly once.
    """
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": options.detector, "part_size": part_size}
    plan = open_or_create(output, iter_images(images), part_size, settings, rank.rank)
    mine = Plan(output, [part for part in plan.missing() if part % rank.world_size == rank.rank])
    stream, summary = model.stream(mine, options), Summary()
    for part in mine.parts:
        write_table(plan.table(part), model, islice(stream, plan.sizes[part]), summary)
    next(stream, None)  # which ends its progress bar
    return f"{summary}\n{check_folder(plan)}"


def check_folder(plan: Plan) -> str:
    """Says how much of a plan is done. If all is, every image is looked up in the tables.

    Raises:
        FerVitError: An image does not have its rows exactly once.
    """
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.parts) - len(left):,} of {len(plan.parts):,} tables are there. The others are "
            "being made elsewhere, or the same command goes on with them."
        )
    status, faces = Counter[str](), 0
    for part in tqdm(plan.parts, desc="checking", unit=" tables", disable=None, leave=False):
        found, number = plan.check(part)
        status, faces = status + found, faces + number
    listed = ", ".join(f"{number:,} {name}" for name, number in status.most_common(5))
    return (
        f"{plan.folder}: all {len(plan.parts):,} tables, all {status.total():,} images of the plan exactly once "
        f"({listed}), {faces:,} faces"
    )


def fingerprint(model: Recognizer) -> str:
    """Returns 16 characters that tell a model from others: a hash of its weights and of all that its use needs."""
    net = model.net
    text = str((net.config, net.labels, net.align, net.template, net.temperature))
    # With the options of version 0.1 that are no more, so that predictions which it began can be resumed
    text = text.replace("pos_embed=", "patch_downscale=1, pos_embed=", 1).replace("), [", ", head_drop_rate=0.0), [", 1)
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def write_table(
    path: Path, model: Recognizer, stream: Iterable[tuple[Photo, list[FaceResult]]], summary: Summary
) -> None:
    """Writes the rows of photos, and counts them."""
    with TableWriter(path, table_columns(model.labels)) as table:
        for photo, faces in stream:
            table.write(list(photo_rows(photo, faces)))
            summary.status[photo.reason] += 1
            summary.labels.update(one.label for one in faces)
