"""What `predict` writes: one table, or a folder of tables that several processes fill and a later run resumes."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, islice
from operator import add, attrgetter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fer_vit.errors import FerVitError
from fer_vit.predict.inputs import MEDIA_SUFFIXES, find_images, is_video, iter_images
from fer_vit.predict.people import People
from fer_vit.predict.photos import NO_FACE, OK, Photo, PhotoOptions
from fer_vit.predict.plan import Plan, open_or_create
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import FaceResult, photo_rows, table_columns
from fer_vit.processes import ProcessRank
from fer_vit.report.table import TableWriter

NO_LABEL = "without a label"


class Counts(NamedTuple):
    """How many photos and frames there are, how many have each status, how many faces each label or are unsure."""

    kinds: Counter[str]
    status: Counter[str]
    labels: Counter[str]
    unsure: Counter[bool]


def predict_table(
    model: Recognizer,
    images: Sequence[Path],
    output: Path,
    options: PhotoOptions,
    people_table: Path | None,
    min_confidence: float = 0.0,
    annotate: Path | None = None,
) -> str:
    """Writes one table of the faces in files, folders and patterns, and one of the people; returns a summary.

    With `annotate` also a copy of the only video, in which the faces are marked.
    """
    sources = find_images(images, MEDIA_SUFFIXES)
    check_people(people_table, sources)
    columns = table_columns(model.labels, any(map(is_video, sources)))
    photos = model.results(sources, options)
    if annotate:
        video = only_video(sources, annotate)
        from fer_vit.predict.annotate import annotated  # only here: PyAV may not be installed

        photos = annotated(photos, video, annotate, options)
    people = People()
    counts = write_table(output, columns, photos, min_confidence, people)
    if people_table:
        people.write(people_table, model.labels)
    return f"{summary(counts)}\nTable: {output}"


def predict_folder(
    model: Recognizer,
    images: Sequence[Path],
    output: Path,
    options: PhotoOptions,
    people_table: Path | None,
    part_size: int,
    rank: ProcessRank,
    min_confidence: float = 0.0,
) -> str:
    """Writes the missing tables of a folder that this process is to make, and returns a summary.

    Raises:
        FerVitError: The folder was started with other settings, or an image does not have its rows exactly once.
    """
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": options.detector, "part_size": part_size, **options.video()}
    settings["min_confidence"] = min_confidence or None  # None as in plans of version 0.1
    settings["directory"] = None if all(map(os.path.isabs, images)) else os.getcwd()  # what relative names begin at
    plan = open_or_create(output, iter_images(images, MEDIA_SUFFIXES), part_size, settings, rank.rank)
    check_people(people_table, plan)
    mine = Plan(output, [chunk for chunk in plan.missing() if chunk % rank.world_size == rank.rank])
    columns = table_columns(model.labels, any(map(is_video, plan)))
    by_source = (photos for _, photos in groupby(model.results(mine, options), attrgetter("source")))
    counts = Counts(*(Counter() for _ in Counts._fields))
    for chunk in mine.chunks:
        photos = chain.from_iterable(islice(by_source, plan.sizes[chunk]))
        counts = Counts(*map(add, counts, write_table(plan.table(chunk), columns, photos, min_confidence)))
    nothing = (
        "Nothing to do here: the tables are there already. Photos that were added since are not in the plan: name them "
        "with an `--output` folder of their own."
    )
    done = summary(counts) if mine else nothing
    report = f"{done}\n{check_folder(plan)}"
    if people_table and not plan.missing():
        people = People()
        for chunk in plan.chunks:
            for frame in plan.frames(chunk):
                people.add(frame)
        people.write(people_table, model.labels)
    return report


def check_people(table: Path | None, sources: Iterable[Path]) -> None:
    """Raises FerVitError when a table of people is wanted, but there is no video."""
    if table and not any(map(is_video, sources)):
        raise FerVitError("`--summary` is about the people in videos, but there is no video. Leave it out.")


def only_video(sources: Iterable[Path], copy: Path) -> Path:
    """Returns the video of which a copy is wanted. Raises FerVitError unless there is one, which is not replaced."""
    videos = [source for source in sources if is_video(source)]
    if len(videos) != 1 or videos[0].resolve() == copy.resolve():
        raise FerVitError(
            f"`--annotate` makes a marked copy of one video, but there are {len(videos)}, or it is {copy} itself. "
            "Name one video, and another file for the copy."
        )
    return videos[0]


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
        f"{plan.folder}: all {counted(len(plan.chunks), 'table')}, all {counted(len(plan), 'file')} of the plan "
        f"exactly once ({listed(status, 5)}), {counted(faces, 'face')}"
    )


def fingerprint(model: Recognizer) -> str:
    """Returns 16 characters that identify a model: a hash of its weights and of all that prediction needs."""
    net = model.net
    text = str((net.config, net.labels, net.align, net.template, net.temperature))
    # The options of version 0.1, so that predictions which it started can be resumed
    text = text.replace("stem_convs=3, standardize=False, ", "", 1)
    text = text.replace("pos_embed=", "patch_downscale=1, pos_embed=", 1).replace("), [", ", head_drop_rate=0.0), [", 1)
    text += str(net.thresholds or "")  # which earlier versions did not have
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def write_table(
    path: Path,
    columns: dict[str, type],
    photos: Iterable[Photo[FaceResult]],
    min_confidence: float,
    people: People | None = None,
) -> Counts:
    """Writes the rows of photos and counts them."""
    counts = Counts(*(Counter() for _ in Counts._fields))
    with TableWriter(path, columns) as table:
        for photo in photos:
            rows = list(photo_rows(photo, min_confidence))
            table.write(rows)
            if people:
                people.add(rows)
            counts.kinds[kind_of(photo)] += 1
            counts.status[photo.reason] += 1
            counts.labels.update(str(row["label"] or NO_LABEL) for row in rows if "label" in row)
            counts.unsure.update(row["unsure"] is True for row in rows if row.get("unsure") is not None)
    return counts


def kind_of(photo: Photo[FaceResult]) -> str:
    """Says what was counted: a photo, a frame, or a video that could not be read (to its end)."""
    if photo.frame is not None:
        return "frame"
    return "failed video" if photo.status not in (OK, NO_FACE) and is_video(Path(photo.path)) else "photo"


def summary(counts: Counts) -> str:
    """Summarises what was found in two lines, and, where it is known, in a third how many faces are unsure."""
    kinds, status, labels, unsure = counts
    read = ", ".join(counted(number, kind) for kind, number in kinds.items())
    lines = [f"{read}: {listed(status)}", f"{counted(labels.total(), 'face')}: {listed(labels)}".removesuffix(": ")]
    if known := unsure.total():
        lines.append(f"{unsure[True]:,} of {known:,} faces are unsure ({unsure[True] / known:.1%})")
    return "\n".join(lines)


def counted(number: int, name: str) -> str:
    """Returns a number of things: "1 face", "1,200 faces"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def listed(counts: Counter[str], limit: int | None = None) -> str:
    """Lists counts on one line, the largest first."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))
