"""The output of `predict`: one table, or a folder of tables that several processes write and later runs resume."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import add, attrgetter
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fer_vit.errors import FerVitError
from fer_vit.face.detect import choose_detector
from fer_vit.predict.inputs import MEDIA_SUFFIXES, find_images, is_video, iter_images
from fer_vit.predict.people import People, is_textgrid, write_intervals
from fer_vit.predict.photos import NO_FACE, OK, Photo, PhotoOptions
from fer_vit.predict.plan import Plan, open_or_create
from fer_vit.predict.recognizer import Recognizer
from fer_vit.predict.results import FEATURE, SEPARATOR, WARNINGS, FaceResult, photo_rows, table_columns
from fer_vit.processes import ProcessRank
from fer_vit.report.table import TableWriter
from fer_vit.version import __version__

NO_LABEL = "without a label"


class Counts(NamedTuple):
    """Numbers of photos and frames by kind and status, and of faces by label and ambiguity."""

    kinds: Counter[str]
    status: Counter[str]
    labels: Counter[str]
    ambiguous: Counter[bool]
    warnings: Counter[str]


def predict_table(
    model: Recognizer,
    images: Sequence[Path],
    output: Path,
    options: PhotoOptions,
    people_table: Path | None,
    min_confidence: float = 0.0,
    annotate: Path | None = None,
    intervals: Path | None = None,
    overwrite: bool = True,
    features: bool = False,
) -> str:
    """Writes a table of the faces in files, folders and patterns; returns a summary.

    Optional: `people_table`, `intervals` of expressions, and with `annotate` a marked copy of the only video. If that
    copy fails, all tables are written before the error is raised.
    """
    sources = find_images(images, MEDIA_SUFFIXES)
    check_people((people_table, intervals), sources)
    facts = prediction_facts(model, options)
    columns = table_columns(model.labels, any(map(is_video, sources)), features * model.net.vit.embed_dim)
    photos = model.recognize(sources, options)
    failed: list[FerVitError] = []
    if annotate:
        video = only_video(sources, annotate)
        from fer_vit.predict.annotate import annotate_video  # only here: PyAV may not be installed

        photos = annotate_video(photos, video, annotate, options, failed, overwrite)
    people = People()
    counts = write_table(output, columns, photos, min_confidence, people, overwrite, facts)
    write_people(people, people_table, intervals, model.labels, overwrite)
    if failed:
        raise FerVitError(f"{failed[0]} The table {output} is complete.")
    return f"{summary(counts)}\nDetector: {facts['detector']}\nTable: {output}"


def predict_folder(
    model: Recognizer,
    images: Sequence[Path],
    output: Path,
    options: PhotoOptions,
    people_table: Path | None,
    part_size: int,
    rank: ProcessRank,
    min_confidence: float = 0.0,
    intervals: Path | None = None,
    overwrite: bool = True,
    features: bool = False,
) -> str:
    """Writes this process's share of the missing tables of a folder; returns a summary.

    Raises:
        FerVitError: The folder was started with other settings, or an image does not have its rows exactly once.
    """
    facts = prediction_facts(model, options)
    settings: dict[str, object] = {"images": [os.path.abspath(image) for image in images], "model": fingerprint(model)}
    settings |= {"face": options.face, "detector": facts["detector"], "part_size": part_size, **options.video()}
    settings |= {"min_confidence": min_confidence, "features": features}
    settings["directory"] = None if all(map(os.path.isabs, images)) else os.getcwd()  # of relative names
    plan = open_or_create(output, iter_images(images, MEDIA_SUFFIXES), part_size, settings, rank.rank)
    check_people((people_table, intervals), plan)
    part = Plan(output, [chunk for chunk in plan.missing() if chunk % rank.world_size == rank.rank])
    columns = table_columns(model.labels, any(map(is_video, plan)), features * model.net.vit.embed_dim)
    by_source = (photos for _, photos in groupby(model.recognize(part, options), attrgetter("source")))
    counts = Counts(*(Counter() for _ in Counts._fields))
    for chunk in part.chunks:
        photos = chain.from_iterable(islice(by_source, plan.sizes[chunk]))
        added = write_table(plan.table(chunk), columns, photos, min_confidence, facts=facts)
        counts = Counts(*map(add, counts, added))
    report = "Nothing to do: all tables exist. For photos that were added later, use another `--output` folder."
    if part:
        report = f"{summary(counts)}\nDetector: {facts['detector']}"
    if (people_table or intervals) and not plan.missing():
        people = People()
        for chunk in plan.chunks:
            for frame in plan.frames(chunk):
                people.add(frame)
        write_people(people, people_table, intervals, model.labels, overwrite)
    return f"{report}\n{check_folder(plan)}"


def prediction_facts(model: Recognizer, options: PhotoOptions) -> dict[str, str]:
    """Returns what the metadata of a table records: version, model, and the settings that change predictions."""
    settings = {name: str(value) for name, value in options.video().items()}
    facts = {"version": __version__, "model": model.name, "face": options.face}
    return {**facts, **model.conditions, "detector": choose_detector(options.detector), **settings}


def write_people(
    people: People, people_table: Path | None, intervals: Path | None, labels: list[str], overwrite: bool
) -> None:
    """Writes the requested tables of people."""
    if people_table:
        people.write(people_table, labels, overwrite)
    if intervals:
        write_intervals(intervals, people.intervals(), overwrite)


def check_people(tables: Sequence[Path | None], sources: Iterable[Path]) -> None:
    """Raises FerVitError for a table of people without videos, or a TextGrid of several."""
    if wanted := [table for table in tables if table]:
        videos = sum(map(is_video, sources))
        if not videos:
            raise FerVitError(f"{wanted[0]} is a table of the people in videos, but there is no video. Leave it out.")
        if videos > 1 and is_textgrid(wanted[-1]):
            raise FerVitError(f"A TextGrid contains one video, but there are {videos}. Write a .csv instead.")


def only_video(sources: Iterable[Path], copy: Path) -> Path:
    """Returns the only video. Raises FerVitError for another number, or if the copy would replace it."""
    videos = [source for source in sources if is_video(source)]
    if len(videos) != 1 or videos[0].resolve() == copy.resolve():
        raise FerVitError(
            f"`--annotate` makes a marked copy of one video, but there are {len(videos)}, or it is {copy} itself. "
            "Name one video, and another file for the copy."
        )
    return videos[0]


def check_folder(plan: Plan) -> str:
    """Reports how many tables of a plan exist; if all do, checks that they contain every image."""
    if left := plan.missing():
        return (
            f"{plan.folder}: {len(plan.chunks) - len(left):,} of {len(plan.chunks):,} tables exist. Other processes "
            "write the rest, or the same command resumes them."
        )
    status, faces = Counter[str](), 0
    for chunk in tqdm(plan.chunks, desc="checking", unit=" tables", disable=None, leave=False):
        statuses, number = plan.check(chunk)
        status, faces = status + statuses, faces + number
    return (
        f"{plan.folder}: all {counted(len(plan.chunks), 'table')}, all {counted(len(plan), 'file')} of the plan "
        f"exactly once ({listed(status, 5)}), {counted(faces, 'face')}"
    )


def fingerprint(model: Recognizer) -> str:
    """Returns 16 characters that identify a model: a hash of its weights and its settings for prediction."""
    net = model.net
    digest = hashlib.sha256(str((net.config, net.settings, model.conditions)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def write_table(
    path: Path,
    columns: dict[str, type],
    photos: Iterable[Photo[FaceResult]],
    min_confidence: float,
    people: People | None = None,
    overwrite: bool = True,
    facts: Mapping[str, str] | None = None,
) -> Counts:
    """Writes the rows of photos and counts them."""
    counts = Counts(*(Counter() for _ in Counts._fields))
    with TableWriter(path, columns, overwrite=overwrite, facts=facts) as table:
        for photo in photos:
            rows = list(photo_rows(photo, min_confidence, f"{FEATURE}0" in columns))
            table.write(rows)
            if people:
                people.add(rows)
            counts.kinds[photo_kind(photo)] += 1
            counts.status[photo.reason if photo.taken_whole else photo.status] += 1
            counts.labels.update(str(row["label"] or NO_LABEL) for row in rows if "label" in row)
            counts.ambiguous.update(row["ambiguous"] is True for row in rows if row.get("ambiguous") is not None)
            counts.warnings.update(name for row in rows for name in str(row.get("warning") or "").split(SEPARATOR))
    return counts


def photo_kind(photo: Photo[FaceResult]) -> str:
    """Returns "photo", "frame", or "failed video" for one that cannot be read to its end."""
    if photo.frame is not None:
        return "frame"
    return "failed video" if photo.status not in (OK, NO_FACE) and is_video(Path(photo.path)) else "photo"


def summary(counts: Counts) -> str:
    """Summarises the counts in two lines, and further ones for ambiguous and small faces."""
    kinds, status, labels, ambiguous, warnings = counts
    read = ", ".join(counted(number, kind) for kind, number in kinds.items())
    lines = [
        f"{read}: {listed(by_reason(status))}",
        f"{counted(labels.total(), 'face')}: {listed(labels)}".removesuffix(": "),
    ]
    if known := ambiguous.total():
        lines.append(f"{ambiguous[True]:,} of {known:,} faces are ambiguous ({ambiguous[True] / known:.1%})")
    lines += [f"{warnings[name]:,} of {labels.total():,} {text}" for name, text in WARNINGS.items() if warnings[name]]
    return "\n".join(lines)


def by_reason(status: Counter[str]) -> Counter[str]:
    """Counts statuses by the text before the colon; details after it are kept if they are always the same."""
    reasons = Counter[str]()
    for text, number in status.items():
        reasons[text.partition(":")[0]] += number
    whole = {reason: text for text in status if reasons[reason := text.partition(":")[0]] == status[text]}
    return Counter({whole.get(reason, reason): number for reason, number in reasons.items()})


def counted(number: int, name: str) -> str:
    """Formats a number with its noun: "1 face", "1,200 faces"."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def listed(counts: Counter[str], limit: int | None = None) -> str:
    """Formats counts on one line, the largest first."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common(limit))
