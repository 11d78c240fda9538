"""The verb `prepare`: turns a data set as its owners distribute it into a manifest."""

import re
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Literal

from fer_vit.data.schema import Reading
from fer_vit.data.shards import NAME
from fer_vit.data.writing import Embed, check_images, check_shards, write_manifest, write_shards
from fer_vit.errors import FerVitError, check_number
from fer_vit.face.detect import CROP_SCORE, PHOTO_SCORE, DetectorName, make_detector
from fer_vit.files import check_output
from fer_vit.labels import check_labels
from fer_vit.sources import affectnet, drawn, fairface, fer2013, ferplus, folder, rafdb
from fer_vit.sources.archive import is_zip, unpacked
from fer_vit.sources.landmarks import add_landmarks
from fer_vit.sources.summary import summary
from fer_vit.sources.twins import drop_twins

SOURCES = {
    "ferplus": ferplus,
    "fer2013": fer2013,
    "rafdb": rafdb,
    "affectnet": affectnet,
    "fairface": fairface,
    "folder": folder,
    "drawn": drawn,
}


def prepare(
    source: Literal["ferplus", "fer2013", "rafdb", "affectnet", "fairface", "folder", "drawn"],
    root: Path,
    out: Path,
    *,
    detector: DetectorName = "yunet",
    labels: Literal["majority", "soft"] | None = None,
    classes: Literal[7, 8] | None = None,
    count: int | None = None,
    size: int | None = None,
    colour: bool | None = None,
    seed: int | None = None,
    embed: Embed = "auto",
    cut: bool = False,
    shards: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Makes a manifest (one Parquet table) from a data set as its owners distribute it, with landmarks for every face.

    Training images that show the same picture as one of val or test are left out.

    Examples:
        fer-vit prepare ferplus data/ferplus data/ferplus.parquet --labels soft

        fer-vit prepare folder photos.zip data/photos.parquet

        fer-vit prepare drawn data/drawn data/drawn.parquet --count 2000

        fer-vit prepare affectnet data/affectnet data/affectnet_shards --shards 64

    Args:
        source: The data set.
        root: Its folder, or a zip of it. For drawn: a new folder to draw into.
        out: The manifest to write, `*.parquet`; with `--shards` a folder.
        detector: For landmarks: `yunet` finds the face first, `landmarks` takes images whole, `none` leaves them out.
        labels: For ferplus: one label per training image (`majority`) or shares of votes (`soft`).
        classes: For affectnet: 8, or 7 without contempt.
        count: For drawn: how many faces.
        size: For drawn: the side of the images in pixels.
        colour: For drawn: in colour rather than grey.
        seed: For drawn: the same seed draws the same faces.
        embed: Which images are stored inside the manifest: small ones, or all. Others must lie below its folder.
        cut: Store only the face of a photo of more than 384 pixels, in at most so many and inside the manifest, and
            leave out photos without one: less to store and faster to train on. For models that align by landmarks.
        shards: Write a folder with this many shards of training images, for `fit` to stream; images are stored inside.
        workers: Processes that read images. Left out: one per core.
        overwrite: Whether an existing manifest may be replaced.
    """
    read = _reader(source, labels=labels, classes=classes, count=count, size=size, colour=colour, seed=seed)
    _check_arguments(source, root, out, workers, shards, overwrite)
    with unpacked(root, out) as base:
        embed = embed if base == root and not cut else "always"  # unpacked files are removed afterwards
        reading = read(base)
        check_labels(reading.names, root)  # before every image is read
        check_shards(reading, shards) if shards else check_images(reading, out.parent, embed)
        reading = drop_twins(_with_landmarks(reading, root, detector, workers, cut))
        write = partial(write_shards, shards=shards) if shards else partial(write_manifest, embed=embed)
        write(out, reading, source)
    print(summary(reading, out).replace(str(base), str(root)))


def _reader(source: str, **options: object) -> Callable[[Path], Reading]:
    """Returns a source's `read` with its options bound; raises FerVitError for another source's option."""
    given = {name: value for name, value in options.items() if value is not None}
    takes = {name: signature(module.read).parameters for name, module in SOURCES.items()}
    for option in given.keys() - takes[source].keys():
        owner = next(name for name in takes if option in takes[name])
        raise FerVitError(f"`--{option}` belongs to the source {owner}, not to {source}. Leave it out.")
    return partial(SOURCES[source].read, **given)


def _check_arguments(
    source: str, root: Path, out: Path, workers: int | None, shards: int | None, overwrite: bool
) -> None:
    """Raises FerVitError for whatever can be found wrong before the data set is read."""
    for name, number in (("workers", workers), ("shards", shards)):
        if number is not None:
            check_number(name, number, 1)
    one_file = is_zip(root) or (source == "fer2013" and root.suffix.lower() == ".csv")
    if source != "drawn" and not (root.is_file() if one_file else root.is_dir()):
        what = "a folder of photos for each class" if source == "folder" else f"the data set {source}"
        raise FerVitError(f"Expected {what} in a folder or zip, but there is none at {root}.")
    if re.match(r"\w+:/", str(out)):
        raise FerVitError(f"Expected a path on this machine, but got {out}. Copy the folder there afterwards.")
    if shards is not None:
        _check_folder(out)
    elif out.suffix != ".parquet":
        raise FerVitError(f"Expected a file name that ends in .parquet, but got {out}.")
    elif out.is_dir():
        raise FerVitError(f"Expected the name of a manifest, but {out} is a folder. Name a file in it.")
    check_output(out, overwrite)


def _check_folder(out: Path) -> None:
    """Raises FerVitError when `out` cannot be a folder of shards, or holds anything but shards."""
    # Earlier versions wrote an index.json beside the shards.
    shards = out.is_dir() and all(path.name == "index.json" or NAME.fullmatch(path.name) for path in out.iterdir())
    taken = out.is_symlink() or (out.exists() and not shards)
    if out.suffix == ".parquet" or not out.name or taken:
        raise FerVitError(f"Expected the name of a new folder for shards, but got {out}. Choose another name.")


def _with_landmarks(reading: Reading, root: Path, detector: DetectorName, workers: int | None, cut: bool) -> Reading:
    """Returns the rows whose images can be read, with landmarks; raises FerVitError when none can."""
    missing = any(row.landmarks is None for row in reading.rows)
    if cut and missing and detector != "yunet":
        raise FerVitError(f"`--cut` needs to find faces, but `--detector {detector}` does not. Leave one of them out.")
    # A photo that is cut may hold no face, which is found by the detector's usual score.
    finder = make_detector(detector, PHOTO_SCORE if cut else CROP_SCORE) if missing else None
    reading = add_landmarks(reading, finder, workers, cut)
    if not reading.rows:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in reading.dropped.most_common())
        raise FerVitError(f"Expected images in {root}, but none can be used ({reasons}).")
    return reading
