"""What `predict` writes: one table, or a folder of tables that several processes fill and a later run resumes."""

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
    """Writes one table of the faces in files, folders and patterns, and returns a summary."""
    status, labels = write_table(output, model, model.stream(find_images(images), options))
    return f"{summary(status, labels)}\nTable: {output}"


def predict_folder(
    model: Recognizer, images: Sequence[Path], output: Path, options: PhotoOptions, part_size: int, rank: ProcessRank
) -> str:
    """Writes the missing tables of a folder that this process is to make, and returns a summary.

    Raises:
        FerVitError: The folder was started with other settings, or an image does not have its rows exactly once.
    """
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": options.detector, "part_size": part_size}
    plan = open_or_create(output, iter_images(images), part_size, settings, rank.rank)
    mine = Plan(output, [chunk for chunk in plan.missing() if chunk % rank.world_size == rank.rank])
    stream, status, labels = model.stream(mine, options), Counter[str](), Counter[str]()
    for chunk in mine.chunks:
        found = write_table(plan.table(chunk), model, islice(stream, plan.sizes[chunk]))
        status, labels = status + found[0], labels + found[1]
    next(stream, None)  # closes its progress bar
    return f"{summary(status, labels)}\n{check_folder(plan)}"


def check_folder(plan: Plan) -> str:
    """Says how much of a plan is done; if all of it is, checks first that the tables hold every image."""
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.chunks) - len(left):,} of {len(plan.chunks):,} tables are there. The others are "
            "being made elsewhere, or the same command resumes them."
        )
    status, faces = Counter[str](), 0
    for chunk in tqdm(plan.chunks, desc="checking", unit=" tables", disable=None, leave=False):
        found, number = plan.check(chunk)
        status, faces = status + found, faces + number
    return (
        f"{plan.folder}: all {len(plan.chunks):,} tables, all {status.total():,} images of the plan exactly once "
        f"({listed(status, 5)}), {faces:,} faces"
    )


def fingerprint(model: Recognizer) -> str:
    """Returns 16 characters that identify a model: a hash of its weights and of all that prediction needs."""
    net = model.net
    text = str((net.config, net.labels, net.align, net.template, net.temperature))
    # The options of version 0.1, so that predictions which it started can be resumed
    text = text.replace("stem_convs=3, standardize=False, ", "", 1)
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
    """Summarises what was found in two lines."""
    return f"{status.total():,} images: {listed(status)}\n{labels.total():,} faces: {listed(labels)}"


def listed(counts: Counter[str], limit: int | None = None) -> str:
    """Lists counts on one line, the largest first."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))
