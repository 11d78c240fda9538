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


def predict_table(model: Recognizer, images: Sequence[Path], output: Path, options: PhotoOptions) -> str:
    """Writes one table of what files, folders and patterns hold, and returns a summary."""
    status, labels = write_table(output, model, model.stream(find_images(images), options))
    return f"{summary(status, labels)}\nTable: {output}"


def predict_folder(
    model: Recognizer, images: Sequence[Path], output: Path, options: PhotoOptions, part_size: int, rank: ProcessRank
) -> str:
    """Writes those tables of a folder that are missing and this process's, and returns a summary.

    Raises:
        FerVitError: The folder was begun with other settings, or an image does not have its rows exactly once.
    """
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": options.detector, "part_size": part_size}
    plan = open_or_create(output, iter_images(images), part_size, settings, rank.rank)
    mine = Plan(output, [part for part in plan.missing() if part % rank.world_size == rank.rank])
    stream, status, labels = model.stream(mine, options), Counter[str](), Counter[str]()
    for part in mine.parts:
        found = write_table(plan.table(part), model, islice(stream, plan.sizes[part]))
        status, labels = status + found[0], labels + found[1]
    next(stream, None)  # which ends its progress bar
    return f"{summary(status, labels)}\n{check_folder(plan)}"


def check_folder(plan: Plan) -> str:
    """Says how much of a plan is done; if all is, only after it has found every image in the tables."""
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.parts) - len(left):,} of {len(plan.parts):,} tables are there. The others are "
            "being made elsewhere, or the same command goes on with them."
        )
    status, faces = Counter[str](), 0
    for part in tqdm(plan.parts, desc="checking", unit=" tables", disable=None, leave=False):
        found, number = plan.check(part)
        status, faces = status + found, faces + number
    return (
        f"{plan.folder}: all {len(plan.parts):,} tables, all {status.total():,} images of the plan exactly once "
        f"({listed(status, 5)}), {faces:,} faces"
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
    path: Path, model: Recognizer, stream: Iterable[tuple[Photo, list[FaceResult]]]
) -> tuple[Counter[str], Counter[str]]:
    """Writes the rows of photos; returns how many images have each status, and how many faces each label."""
    status, labels = Counter[str](), Counter[str]()
    with TableWriter(path, table_columns(model.labels)) as table:
        for photo, faces in stream:
            table.write(list(photo_rows(photo, faces)))
            status[photo.reason] += 1
            labels.update(face.label for face in faces)
    return status, labels


def summary(status: Counter[str], labels: Counter[str]) -> str:
    """Writes what was found in two lines."""
    return f"{status.total():,} images: {listed(status)}\n{labels.total():,} faces: {listed(labels)}"


def listed(counts: Counter[str], most: int | None = None) -> str:
    """Writes counts on one line, the largest first."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(most))
