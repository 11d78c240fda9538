"""The verb `prepare`: a data set as its owners distribute it becomes a manifest."""

import importlib
import inspect
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from fer_vit.data.schema import SPLITS, Reading
from fer_vit.data.shards import NAME
from fer_vit.data.writing import check_images, check_shards, write_manifest, write_shards
from fer_vit.errors import FerVitError
from fer_vit.face.detect import CROP_SCORE, YuNet
from fer_vit.files import check_output
from fer_vit.labels import check_labels
from fer_vit.sources.archive import _unpacked
from fer_vit.sources.landmarks import add_landmarks

OPTION_OF = {
    "labels": "ferplus",
    "classes": "affectnet",
    "count": "drawn",
    "size": "drawn",
    "colour": "drawn",
    "seed": "drawn",
}
"""The source that each source's option belongs to."""


def prepare(
    source: Literal["ferplus", "fer2013", "rafdb", "affectnet", "folder", "drawn"],
    root: Path,
    out: Path,
    *,
    detector: Literal["yunet", "none"] = "yunet",
    labels: Literal["majority", "soft"] | None = None,
    classes: Literal[7, 8] | None = None,
    count: int | None = None,
    size: int | None = None,
    colour: bool | None = None,
    seed: int | None = None,
    embed: Literal["auto", "always", "never"] = "auto",
    shards: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Makes a manifest (one Parquet table) of a data set as its owners distribute it, with landmarks for every face.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare affectnet data/affectnet data/affectnet_shards --shards 64

    Args:
        source: The data set.
        root: Its folder, or a zip of it. For drawn: the new folder to draw into.
        out: The manifest to write, `*.parquet`; with `--shards` a folder.
        detector: Finds the landmarks of images that come without; `none` leaves them out.
        labels: For ferplus: one winner per training image (`majority`) or shares of votes (`soft`).
        classes: For affectnet: 8, or 7 without contempt.
        count: For drawn: how many faces.
        size: For drawn: the images' side in pixels.
        colour: For drawn: in colour rather than grey.
        seed: For drawn: the same seed draws the same faces.
        embed: Whether images are kept inside the manifest: small ones (`auto`), all, or none. Those that are not must
            lie below the manifest's folder.
        shards: Write a folder of so many Parquet files of training images, to be streamed by `fit`; images are inside.
        workers: Processes that read images; all cores when left out.
        overwrite: Whether an existing manifest may be replaced.

    Raises:
        FerVitError: The data set is not there or not as expected, or the manifest cannot be written.
    """
    given = {"labels": labels, "classes": classes, "count": count, "size": size, "colour": colour, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None}
    read = importlib.import_module(f"fer_vit.sources.{source}").read
    for name in options.keys() - inspect.signature(read).parameters.keys():
        raise FerVitError(f"`--{name}` belongs to the source {OPTION_OF[name]}, not to {source}. Leave it out.")
    zipped = root.suffix.lower() == ".zip"
    if workers is not None and workers < 1:
        raise FerVitError(f"Expected one worker or more, but got {workers}.")
    if shards is not None and shards < 1:
        raise FerVitError(f"Expected one shard or more, but got {shards}.")
    if shards is not None and embed == "never":
        raise FerVitError("Shards hold their images: leave out `--embed never`.")
    one_file = zipped or (source == "fer2013" and root.suffix.lower() == ".csv")
    if source != "drawn" and not (root.is_file() if one_file else root.is_dir()):
        raise FerVitError(f"Expected the data set {source} in a folder or zip, but there is none at {root}.")
    if zipped and embed == "never":
        raise FerVitError(
            "Expected `--embed auto` or `always` for a zip, but got `never`. Unpack the zip to point to it."
        )
    embed = "always" if zipped else embed
    _check_out(out, overwrite, folder=shards is not None)
    with _unpacked(root, out) if zipped else nullcontext(root) as folder:
        reading = read(folder, **options)
        reading.notes = [note.replace(str(folder), str(root)) for note in reading.notes]
        check_labels(reading.names, root)
        if shards is not None:
            check_shards(reading, shards)
        else:
            check_images(reading, out.parent, embed)
        missing = detector == "yunet" and any(row.landmarks is None for row in reading.rows)
        reading = add_landmarks(reading, YuNet(min_score=CROP_SCORE) if missing else None, workers)
        if not reading.rows:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in reading.dropped.most_common())
            raise FerVitError(f"Expected images in {root}, but none can be used ({reasons}).")
        if shards is None:
            write_manifest(out, reading, source, embed)
        else:
            write_shards(out, reading, source, shards)
    print(summary(reading, out))


def summary(reading: Reading, out: Path) -> str:
    """Returns what a manifest holds in lines of text: images by split and class, faces found, what was left out."""
    counts = Counter((row.split, row.label) for row in reading.rows)
    names = [*reading.names, *([None] if any(row.label is None for row in reading.rows) else [])]
    splits = [split for split in SPLITS if any(row.split == split for row in reading.rows)]
    table = [["", *splits, "total"]]
    for name in names:
        row = [counts[split, name] for split in splits]
        table.append([name or "(no label)", *(f"{n:,}" for n in (*row, sum(row)))])
    totals = [sum(counts[split, name] for name in names) for split in splits]
    table.append(["total", *(f"{n:,}" for n in (*totals, sum(totals)))])
    width = max(len(line[0]) for line in table)
    lines = [f"{line[0]:<{width}}" + "".join(f"{cell:>10}" for cell in line[1:]) for line in table]
    found = sum(row.landmarks is not None for row in reading.rows)
    lines.append(f"faces found: {found:,} of {len(reading.rows):,} ({found / max(len(reading.rows), 1):.2%})")
    lines += [f"left out: {number:,} ({reason})" for reason, number in reading.dropped.most_common()]
    lines += [f"note: {note}" for note in reading.notes]
    files = list(out.iterdir()) if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files)
    lines.append(f"{out}: {len(reading.rows):,} rows, {size / 1e6:.1f} MB")
    return "\n".join(lines)


def _check_out(out: Path, overwrite: bool, folder: bool = False) -> None:
    """Raises FerVitError when a manifest or folder of shards could not be written, before hours of work, not after."""
    if not folder and out.suffix != ".parquet":
        raise FerVitError(f"Expected a file name that ends in .parquet, but got {out}.")
    if not folder and out.is_dir():
        raise FerVitError(f"Expected the name of a manifest, but {out} is a folder. Name a file in it.")
    if re.match(r"\w+:/", str(out)):
        raise FerVitError(f"Expected a place on this machine, but got {out}. Copy the folder there afterwards.")
    taken = out.is_symlink() or (out.exists() and not _holds_shards(out))
    if folder and (out.suffix == ".parquet" or not out.name or taken):
        raise FerVitError(f"Expected the name of a new folder for shards, but got {out}. Choose another name.")
    check_output(out, overwrite)


def _holds_shards(folder: Path) -> bool:
    """Tells whether nothing but shards would be lost with a folder."""
    # index.json: earlier versions wrote one
    return folder.is_dir() and all(path.name == "index.json" or NAME.fullmatch(path.name) for path in folder.iterdir())
