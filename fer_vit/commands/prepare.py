"""The command `prepare`: writes a manifest of a data set in its original layout."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

import fer_vit.data.schema as schema
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import SPLITS, Embed, Reading
from fer_vit.errors import FerVitError, check_number, printable, suggest
from fer_vit.face.detectors import CROP_SCORE, FINDERS, PHOTO_SCORE, DetectorName, make_detector
from fer_vit.files import check_output
from fer_vit.labels import check_labels
from fer_vit.report.table import align_columns
from fer_vit.sources import SOURCES
from fer_vit.sources.archive import is_archive, unpacked
from fer_vit.sources.common import add_landmarks, class_notes
from fer_vit.sources.duplicates import Duplicates, handle_near_duplicates


def prepare(
    source: str,
    root: Path,
    out: Path,
    *,
    detector: DetectorName = "yunet",
    embed: Embed = "auto",
    cut: bool = False,
    duplicates: Duplicates = "drop",
    add: Sequence[Path] = (),
    shards: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Writes a manifest (one Parquet table) of a data set in its original layout, with landmarks of every face.

    Training images that are near-duplicates of val or test images are left out: the same picture,
    also encoded again, mirrored or shrunk.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare fairface data/fairface.zip data/faces.parquet --add data/ferplus.parquet

        fer-vit prepare affectnet data/affectnet data/affectnet_shards --shards 64

    Args:
        source: The data set: ferplus, fairface, drawn or another one in data/README.md; `folder`
            for class folders.
        root: Its folder, or a zip or tar.gz of it. For drawn: a new folder to draw into.
        out: The manifest to write, `*.parquet`; with `--shards` a folder.
        detector: How landmarks are found: `yunet` detects the face first, `landmarks` treats each
            image as one face, `none` leaves landmarks out.
        embed: Images stored in the manifest: `auto`, the small ones; `always`, all. Others must lie
            below its folder.
        cut: Of photos larger than 384 pixels, store only the face in the manifest, as a square of
            at most 384 pixels; leave out photos without a face. For models that align by landmarks.
        duplicates: `drop` leaves out training images that are near-duplicates of val or test
            images, `keep` keeps them.
        add: Manifests with the same labels whose rows are added. Near-duplicates between data sets
            are kept.
        shards: Number of shards of training images to write into a folder, with all images, for
            `fit` to stream.
        workers: Processes that read images. Default: one per core.
        overwrite: Whether an existing manifest may be replaced.
        options: The options of the data set.
    """
    options = _source_options(source, options)
    _check_arguments(root, out, workers, shards, add, overwrite)
    with unpacked(root, out) as (base, left_out):
        embed = (
            embed if base == root and not cut else "always"
        )  # unpacked files are removed afterwards
        reading = SOURCES[source](base, **options)
        check_labels(reading.names, root)  # before every image is read
        more = [*map(Manifest.read, add)]
        for other in more:
            other.check_copy(out)
            other.check_labels(reading.names)
        schema.check_shards(reading, shards) if shards else schema.check_images(
            reading, out.parent, embed
        )
        reading = replace(reading, dropped=reading.dropped + left_out)
        reading = _with_landmarks(reading, root, detector, workers, cut)
        reading = handle_near_duplicates(reading, duplicates)
        reading.notes += class_notes(reading)
        if shards:
            schema.write_shards(out, reading, source, shards)
        else:
            schema.write_manifest(out, reading, source, embed, more=[other.table for other in more])
    print(summarize(reading, out).replace(str(base), str(root)))
    if more:
        print(f"added: {sum(map(len, more)):,} rows of {', '.join(map(str, add))}")


def add_options(parser: ArgumentParser) -> None:
    """Adds the options of every data set to the parser of `prepare`."""
    added: set[str | int] = {"root"}
    for read in SOURCES.values():
        parser.add_function_arguments(read, as_group=False, skip=added)
        added |= {*signature(read).parameters}


def _source_options(source: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a data set; raises FerVitError when an option of another one was changed."""
    if source not in SOURCES:
        hint = suggest(source, SOURCES)
        raise FerVitError(
            f"Expected a data set, one of {', '.join(SOURCES)}, but got {source}.{hint}"
        )
    own = signature(SOURCES[source]).parameters
    for name, read in SOURCES.items():
        for option, parameter in signature(read).parameters.items():
            if option not in own and given.get(option, parameter.default) != parameter.default:
                raise FerVitError(
                    f"`--{option}` belongs to the source {name}, not to {source}. Leave it out."
                )
    return {name: value for name, value in given.items() if name in own}


def _check_arguments(
    root: Path,
    out: Path,
    workers: int | None,
    shards: int | None,
    add: Sequence[Path],
    overwrite: bool,
) -> None:
    """Raises FerVitError, before the data set is read, for a wrong argument."""
    check_number("workers", 1 if workers is None else workers, 1)
    check_number("shards", 1 if shards is None else shards, 1)
    for wrong, message in (
        (
            is_archive(root) and not root.is_file(),
            f"Expected an archive of the data set, but there is none at {root}.",
        ),
        (
            re.match(r"\w+:/", str(out)),
            f"Expected a path on this machine, but got {out}. Copy the files afterwards.",
        ),
        (
            shards and add,
            "`--add` is for one manifest, but `--shards` writes several. Leave one of them out.",
        ),
        (
            shards and not _may_hold_shards(out),
            f"Expected a new folder for shards, but got {out}. Name another.",
        ),
        (
            not shards and out.suffix != ".parquet",
            f"Expected a file name that ends in .parquet, but got {out}.",
        ),
        (
            not shards and out.is_dir(),
            f"Expected a name for the manifest, but {out} is a folder. Name a file in it.",
        ),
    ):
        if wrong:
            raise FerVitError(message)
    check_output(out, overwrite)


def _may_hold_shards(out: Path) -> bool:
    """Returns whether a path is new or a folder that has only shards, which may be replaced."""
    ours = out.is_dir() and all(schema.SHARD_NAME.fullmatch(path.name) for path in out.iterdir())
    return (
        bool(out.name)
        and out.suffix != ".parquet"
        and not out.is_symlink()
        and (ours or not out.exists())
    )


def _with_landmarks(
    reading: Reading, root: Path, detector: DetectorName, workers: int | None, cut: bool
) -> Reading:
    """Returns the rows whose images can be read, with landmarks; raises FerVitError when none can."""
    missing = any(row.landmarks is None for row in reading.rows)
    if cut and missing and detector not in FINDERS:
        raise FerVitError(
            f"`--cut` needs to find faces, but `--detector {detector}` does not. Leave one of them out."
        )
    # A photo that is cut may hold no face, which is found by the detector's usual score.
    finder = make_detector(detector, PHOTO_SCORE if cut else CROP_SCORE) if missing else None
    reading = add_landmarks(reading, finder, workers, cut)
    if not reading.rows:
        reasons = ", ".join(
            f"{number:,} {reason}" for reason, number in reading.dropped.most_common()
        )
        raise FerVitError(f"Expected images in {root}, but none can be used ({reasons}).")
    return reading


def summarize(reading: Reading, out: Path) -> str:
    """Returns lines of text: images by split and class, faces found, images left out, size of the files."""
    rows, files = len(reading.rows), list(out.iterdir()) if out.is_dir() else [out]
    found = sum(row.landmarks is not None and row.score != 0 for row in reading.rows)
    whole = sum(row.score == 0 for row in reading.rows)
    lines = [
        count_table(reading),
        f"faces found: {found:,} of {rows:,} ({found / max(rows, 1):.2%})",
    ]
    lines[-1] += f"; taken whole as a face: {whole:,}" if whole else ""
    lines += [
        f"left out: {number:,} ({reason})" for reason, number in reading.dropped.most_common()
    ]
    lines += [f"note: {printable(note)}" for note in reading.notes]
    lines += [f"WARNING: {printable(warning)}" for warning in reading.warnings]
    return "\n".join(
        [*lines, f"{out}: {rows:,} rows, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB"]
    )


def count_table(reading: Reading) -> str:
    """Returns a table of the images by label and split, with totals."""
    total = ""  # no label is empty
    counts = Counter(
        cell for row in reading.rows for cell in product((row.label, total), (row.split, total))
    )
    columns = {split: split for split in SPLITS if counts[total, split]} | {total: "total"}
    names = {name: name for name in reading.names} | (
        {None: "(no label)"} if counts[None, total] else {}
    )
    rows = [["", *(f"{name:>8}" for name in columns.values())]]
    for label, name in {**names, total: "total"}.items():
        rows.append([name, *(f"{counts[label, column]:>8,}" for column in columns)])
    return align_columns(rows)
