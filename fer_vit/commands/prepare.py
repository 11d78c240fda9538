"""The command `prepare`: writes a manifest of a data set in its original layout."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import (
    SPLITS,
    Embed,
    Reading,
    check_declared,
    check_images,
    check_manifest_name,
    write_manifest,
)
from fer_vit.errors import FerVitError, check_whole, printable, suggest
from fer_vit.face.detectors import (
    DEFAULT_DETECTOR,
    DETECTORS_HELP,
    find_detector,
)
from fer_vit.faces import NOT_FOUND
from fer_vit.files import check_output
from fer_vit.labels import check_labels
from fer_vit.report.table import align_columns
from fer_vit.sources import SOURCES
from fer_vit.sources.add_landmarks import add_landmarks
from fer_vit.sources.archive import is_archive, unpacked
from fer_vit.sources.class_names import class_notes
from fer_vit.sources.duplicates import Duplicates, handle_near_duplicates
from fer_vit.wording import fill_docstring, join_names, list_names

LOGGER = logging.getLogger("fer_vit")


@fill_docstring(SOURCES=join_names(SOURCES), DETECTORS=DETECTORS_HELP)
def prepare(
    source: str,
    root: Path,
    out: Path,
    *,
    detector: str = DEFAULT_DETECTOR,
    embed: Embed = "auto",
    cut: bool = False,
    duplicates: Duplicates = "drop",
    add: Sequence[Path] = (),
    workers: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Writes a manifest (one Parquet table) of a data set in its original layout.

    The manifest has the landmarks of every face. It leaves out training images that repeat a val or
    test image, also re-encoded, mirrored or shrunk.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare fairface data/fairface.zip data/faces.parquet --add data/ferplus.parquet

    Args:
        source: The data set (see data/README.md): {SOURCES}. `folder` reads class folders, `drawn`
            draws faces.
        root: The folder of the data set, or a zip, tar or tar.gz of it. For drawn: a new folder.
        out: The manifest to write, `*.parquet`.
        detector: How faces and their landmarks are found. {DETECTORS}.
        embed: Store small images (`auto`) or all images (`always`) in the manifest. Other images
            must stay below the manifest's folder.
        cut: Store only the face of each photo larger than 384 pixels, and leave out photos without
            a face. For models that align by landmarks.
        duplicates: `drop` or `keep` training images that are near-duplicates of val or test images.
        add: Manifests with the same labels to append. Near-duplicates between data sets stay.
        workers: Processes that read images; 0: this process. Default: one per core.
        overwrite: Replace an existing manifest.
        options: The options of the data set.
    """
    options = _source_options(source, options)
    find_detector(detector)  # an unknown name is reported before any work
    _check_arguments(root, out, workers, add, overwrite)
    with unpacked(root, out) as (base, left_out):
        # Unpacked files are removed afterwards, and cut faces have no files.
        if base != root or cut:
            embed = "always"
        reading = SOURCES[source](base, **options)

        # errors are reported before every image is read
        check_labels(reading.labels, root)
        check_declared(reading)
        added = [Manifest.read(manifest) for manifest in add]
        for manifest in added:
            manifest.check_copy(out)
            manifest.check_labels(reading.labels)
        check_images(reading, out.parent, embed)

        reading = replace(reading, dropped=reading.dropped + left_out)
        reading = _with_landmarks(reading, root, detector, workers, cut)
        reading = handle_near_duplicates(reading, duplicates)
        # Notes name the data set, not the folder that an archive was unpacked to.
        notes = [note.replace(str(base), str(root)) for note in reading.notes]
        reading = replace(reading, notes=notes + class_notes(reading))

        tables = [manifest.table for manifest in added]
        write_manifest(out, reading, source, embed, more=tables)

    LOGGER.info(describe_reading(reading, out))
    if added:
        num_rows = sum(len(manifest) for manifest in added)
        LOGGER.info(f"added: {num_rows:,} rows of {', '.join(map(str, add))}")


def add_options(parser: ArgumentParser) -> None:
    """Adds the options of every data set to the parser of `prepare`."""
    used: set[str | int] = {"root"}
    for source, read in SOURCES.items():
        names = {*signature(read).parameters}
        parser.add_function_arguments(read, as_group=False, skip=used)
        parser.add_function_arguments(
            read, nested_key=source, as_group=False, skip={"root", *(names - used)}
        )
        used |= names


def _spelling(source: str, option: str) -> str:
    """Returns the spelling of an option of a data set.

    The spelling is `count`, or `drawn.count` if an earlier data set in `SOURCES` has an option
    `count`.
    """
    for name, read in SOURCES.items():
        if name == source:
            break
        if option in signature(read).parameters:
            return f"{source}.{option}"
    return option


def _source_options(source: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a data set by argument.

    From the command line, `given` has the options of all data sets by spelling, such as
    `{"labels": "soft", "folder": {"labels": None}}`. From Python, `given` has arguments of the
    reader of `source`.

    Raises:
        FerVitError: There is no such data set or option, or an option of another data set differs
            from its default.
    """
    if source not in SOURCES:
        hint = suggest(source, SOURCES)
        raise FerVitError(
            f"Expected a data set, one of {', '.join(SOURCES)}, but got {source}.{hint}"
        )

    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in SOURCES:
            values |= {f"{name}.{option}": nested for option, nested in value.items()}
        else:
            values[name] = value

    options = {}
    for option in signature(SOURCES[source]).parameters:
        spelling = _spelling(source, option)
        name = spelling if spelling in values else option
        if name in values:
            options[option] = values.pop(name)

    _check_no_other_options(source, values)
    return options


def _check_no_other_options(source: str, values: dict[str, Any]) -> None:
    """Raises FerVitError for an option of another data set, or of no data set.

    `values` has the remaining options by spelling. From the command line, `values` contains the
    defaults of other data sets, which raise no error.
    """
    own_options = list(signature(SOURCES[source]).parameters)
    spellings = set()
    for owner, read in SOURCES.items():
        for option, parameter in signature(read).parameters.items():
            spelling = _spelling(owner, option)
            spellings.add(spelling)
            if values.get(spelling, parameter.default) == parameter.default:
                continue
            remedy = "Leave it out."
            if option in own_options:
                remedy = f"Write `--{_spelling(source, option)}`."
            raise FerVitError(
                f"`--{spelling}` belongs to the data set {owner}, not to {source}. {remedy}"
            )

    unknown = sorted(values.keys() - spellings)
    if unknown:
        hint = suggest(unknown[0], own_options)
        raise FerVitError(f"The data set {source} has no option `{unknown[0]}`.{hint}")


def _check_arguments(
    root: Path,
    out: Path,
    workers: int | None,
    add: Sequence[Path],
    overwrite: bool,
) -> None:
    """Raises FerVitError for a wrong argument, before the data set is read."""
    check_whole("workers", workers or 0, 0)
    if is_archive(root) and not root.is_file():
        raise FerVitError(f"Expected an archive of the data set, but there is none at {root}.")
    if re.match(r"\w+:/", str(out)):
        raise FerVitError(
            f"Expected a path on this machine, but got {out}. Copy the files afterwards."
        )

    if len({manifest.resolve() for manifest in add}) < len(add):
        raise FerVitError("Expected each manifest of `--add` once, but one is there several times.")

    check_manifest_name(out)
    check_output(out, overwrite)


def _with_landmarks(
    reading: Reading, root: Path, detector: str, workers: int | None, cut: bool
) -> Reading:
    """Returns the data set with landmarks, without rows whose images cannot be read.

    Raises:
        FerVitError: No image can be read, or `cut` needs a detector.
    """
    chosen = find_detector(detector)
    missing = any(row.landmarks is None for row in reading.rows)
    if cut and missing and not chosen.searches:
        raise FerVitError(
            f"`--cut` needs to find faces, but `--detector {detector}` does not. "
            "Leave one of them out."
        )

    loaded = None  # the detector with its files; None: no image is searched
    if missing:
        # A crop contains a face, so a low score is enough. A photo to cut may contain no face.
        loaded = chosen.load(chosen.min_score if cut else chosen.crop_score)
    reading = add_landmarks(reading, loaded, workers, cut)
    if not reading.rows:
        reasons = [f"{number:,} {reason}" for reason, number in reading.dropped.most_common()]
        raise FerVitError(
            f"Expected images in {root}, but none can be used ({', '.join(reasons)})."
        )
    return reading


def describe_reading(reading: Reading, out: Path) -> str:
    """Returns lines about what was written.

    The lines are images by split and class, faces found, images left out and the size of the files.
    """
    num_rows = len(reading.rows)
    # landmarks are from the detector or from the data set
    num_found = sum(row.landmarks is not None and row.score != NOT_FOUND for row in reading.rows)
    num_not_found = sum(row.score == NOT_FOUND for row in reading.rows)
    face_line = f"faces found: {num_found:,} of {num_rows:,} ({num_found / max(num_rows, 1):.2%})"
    if num_not_found:
        face_line += f"; taken whole as a face: {num_not_found:,}"

    lines = [count_table(reading), face_line, *target_lines(reading)]
    for reason, number in reading.dropped.most_common():
        lines.append(f"left out: {number:,} ({printable(reason)})")
    for note in reading.notes:
        lines.append(f"note: {printable(note)}")
    for warning in reading.warnings:
        lines.append(f"WARNING: {printable(warning)}")

    files = list(out.iterdir()) if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files)
    lines.append(f"{out}: {num_rows:,} rows, {size / 1e6:.1f} MB")
    return "\n".join(lines)


def target_lines(reading: Reading) -> list[str]:
    """Returns a line for each further head: the outputs, and the number of faces with a target."""
    lines = []
    for head, of_head in reading.outputs.by_head.items():
        columns = {*of_head.columns}
        num_faces = sum(not columns.isdisjoint(row.targets) for row in reading.rows)
        names = list_names(of_head.names, limit=6)
        lines.append(f"targets of {head}: {num_faces:,} faces, {names}")
    return lines


def count_table(reading: Reading) -> str:
    """Returns a table of the number of images by label and split, with totals.

    Labels are not listed if no image has a label.
    """
    counts = Counter((row.label, row.split) for row in reading.rows)
    by_label = Counter(row.label for row in reading.rows)
    by_split = Counter(row.split for row in reading.rows)
    splits = [split for split in SPLITS if by_split[split]]

    table = [_count_row("", [*splits, "total"])]
    labels: list[str | None] = []
    if reading.has_labels:
        labels += reading.labels
    if by_label[None]:
        labels.append(None)
    for label in labels:
        numbers = [counts[label, split] for split in splits]
        name = "(no label)" if label is None else label
        table.append(_count_row(name, [*numbers, by_label[label]]))
    totals = [by_split[split] for split in splits]
    table.append(_count_row("total", [*totals, len(reading.rows)]))
    return align_columns(table)


def _count_row(name: str, cells: Sequence[str | int]) -> list[str]:
    """Returns a row of the table: a name, and cells that are aligned to the right."""
    aligned = [f"{cell:>8}" if isinstance(cell, str) else f"{cell:>8,}" for cell in cells]
    return [name, *aligned]
