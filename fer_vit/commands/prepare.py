"""The command `prepare`: writes a manifest of a data set in its original layout."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

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
from fer_vit.errors import FerVitError, printable, suggest
from fer_vit.face.detectors import (
    DEFAULT_DETECTOR,
    DETECTORS_HELP,
    find_detector,
)
from fer_vit.faces import NOT_FOUND
from fer_vit.files import check_output
from fer_vit.labels import check_labels
from fer_vit.options import Number, Options
from fer_vit.report.table import align_columns
from fer_vit.sources import SOURCES
from fer_vit.sources.add_landmarks import add_landmarks
from fer_vit.sources.archive import is_archive, unpacked
from fer_vit.sources.class_names import class_notes
from fer_vit.sources.duplicates import Duplicates, handle_near_duplicates
from fer_vit.sources.source import SourceOptions
from fer_vit.wording import join_names, list_names

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Options of `prepare` for every data set."""

    TEXTS: ClassVar = {"DETECTORS": DETECTORS_HELP, "SOURCES": join_names(SOURCES)}

    source: str
    """The data set, as in data/README.md: {SOURCES}. `folder` reads class folders, `drawn` draws
    faces."""
    root: Path
    """The folder of the data set, or a zip, tar or tar.gz of it; for `drawn`, a new folder."""
    out: Path
    """The manifest to write, `*.parquet`."""
    _: KW_ONLY
    detector: str = DEFAULT_DETECTOR
    """How faces and their landmarks are found. {DETECTORS}."""
    embed: Embed = "auto"
    """Store small images (`auto`) or all images (`always`) in the manifest. Keep the others below
    its folder."""
    cut: bool = False
    """Store only the face of each photo above 384 pixels, and leave out photos without a face. For
    models that align by landmarks."""
    duplicates: Duplicates = "drop"
    """`drop` or `keep` training images that nearly repeat a val or test image."""
    add: Sequence[Path] = ()
    """Manifests with the same labels to append. Near-duplicates between them stay."""
    workers: Number | None = None
    """Processes that read images; 0: this process. Default: one per core."""
    overwrite: bool = False
    """Replace an existing manifest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source not in SOURCES:
            hint = suggest(self.source, SOURCES)
            raise FerVitError(
                f"Expected a data set, one of {', '.join(SOURCES)}, but got {self.source}.{hint}"
            )
        find_detector(self.detector)  # raises the error for an unknown name
        if re.match(r"\w+:/", str(self.out)):
            raise FerVitError(
                f"Expected a path on this machine, but got {self.out}. Copy the files afterwards."
            )
        if len({manifest.resolve() for manifest in self.add}) < len(self.add):
            raise FerVitError(
                "Expected each manifest of `--add` once, but one was given more than once."
            )
        check_manifest_name(self.out)


def source_options(source: str) -> type[SourceOptions]:
    """Returns the class of the options of a data set."""
    return getattr(SOURCES.get(source), "options", SourceOptions)


VARIANTS = {name: source_options(name) for name in SOURCES}  # the further options of data sets


def prepare(source: str, root: str | Path, out: str | Path, **values: Any) -> None:
    """Writes a manifest, one Parquet table with the faces of a data set.

    Training images that repeat a val or test image are left out. `fer-vit prepare SOURCE --help`
    also lists the options of that data set.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare fairface data/fairface.zip data/faces.parquet --add data/ferplus.parquet
    """
    kind = source_options(source)
    own = {}
    for field in fields(kind):
        if field.name in values:
            own[field.name] = values.pop(field.name)
    options = PrepareOptions(source, Path(root), Path(out), **values)
    write(options, kind(Path(root), **own))


# By hand, because `takes` needs one class, and `prepare` also takes the options of the data set.
prepare.options = PrepareOptions  # type: ignore[attr-defined]


def write(options: PrepareOptions, own: SourceOptions) -> None:
    """Writes a manifest; `own` has the options of the data set."""
    root = options.root
    if is_archive(root) and not root.is_file():
        raise FerVitError(f"Expected an archive of the data set, but there is none at {root}.")
    check_output(options.out, options.overwrite)
    with unpacked(root, options.out) as (base, left_out):
        # Unpacked files are removed afterwards, and cut faces have no files.
        embed = "always" if base != root or options.cut else options.embed
        reading = SOURCES[options.source](**vars(replace(own, root=base)))

        # errors are reported before every image is read
        check_labels(reading.labels, root)
        check_declared(reading)
        added = [Manifest.read(manifest) for manifest in options.add]
        for manifest in added:
            manifest.check_copy(options.out)
            manifest.check_labels(reading.labels)
        check_images(reading, options.out.parent, embed)

        reading = replace(reading, dropped=reading.dropped + left_out)
        reading = with_landmarks(reading, options)
        reading = handle_near_duplicates(reading, options.duplicates)
        # Notes name the data set, not the folder that an archive was unpacked to.
        notes = [note.replace(str(base), str(root)) for note in reading.notes]
        reading = replace(reading, notes=notes + class_notes(reading))

        tables = [manifest.table for manifest in added]
        write_manifest(options.out, reading, options.source, embed, more=tables)

    LOGGER.info(describe_reading(reading, options.out))
    if added:
        num_rows = sum(len(manifest) for manifest in added)
        LOGGER.info(f"added: {num_rows:,} rows of {', '.join(map(str, options.add))}")


def with_landmarks(reading: Reading, options: PrepareOptions) -> Reading:
    """Returns the data set with landmarks, without rows whose images cannot be read.

    Raises:
        FerVitError: No image can be read, or `cut` needs a detector.
    """
    chosen = find_detector(options.detector)
    missing = any(row.landmarks is None for row in reading.rows)
    if options.cut and missing and not chosen.searches:
        raise FerVitError(
            f"`--cut` needs to find faces, but `--detector {options.detector}` does not. "
            "Remove one of them."
        )

    loaded = None  # the detector with its files; None: no image is searched
    if missing:
        # A crop contains a face, so a low score is enough. A photo to cut may contain no face.
        loaded = chosen.load(chosen.min_score if options.cut else chosen.crop_score)
    reading = add_landmarks(reading, loaded, options.workers, options.cut)
    if not reading.rows:
        reasons = [f"{number:,} {reason}" for reason, number in reading.dropped.most_common()]
        raise FerVitError(
            f"Expected images in {options.root}, but none can be used ({', '.join(reasons)})."
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
