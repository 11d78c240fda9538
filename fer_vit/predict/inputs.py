"""Lists the inputs: files by path, folder or pattern, open files, and images in memory.

`photos.py` reads the photos among them, and `video.py` the videos.
"""

import glob
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil, ImageOps

from fer_vit.errors import FerVitError, printable
from fer_vit.face.image import ImageError, reduce_depth, to_rgb
from fer_vit.faces import Source
from fer_vit.files import open_input
from fer_vit.geometry import Image
from fer_vit.listing import (
    MEDIA_SUFFIXES,
    PHOTO_SUFFIXES,
    VIDEO_SUFFIXES,
    Skipped,
    is_marked_copy,
    list_folder,
    result_kind,
    system_entry,
    unread_notes,
)

LOGGER = logging.getLogger("fer_vit")

# A file, a folder or a pattern; an open file, or the content of one; a PIL image; or an array
# (H, W), (H, W, 3) or (H, W, 4).
Images: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Pil.Image | NDArray[np.generic]


def as_sources(images: Images | Iterable[Images]) -> list[Source]:
    """Lists the files that paths, folders and patterns name, and images in memory as RGB.

    The logger `fer_vit` reports what is not read in a folder.
    """
    if isinstance(images, str | os.PathLike):
        item = os.fsdecode(images)
        inputs = find_inputs([item], MEDIA_SUFFIXES)
        for note in inputs.notes:
            LOGGER.warning("%s: %s", printable(item), note)
        return [*inputs.files]
    if isinstance(images, Pil.Image):
        return [from_pil(images)]
    if isinstance(images, np.ndarray) and images.dtype.kind == "S" and images.ndim == 1:
        # encoded paths: numpy stores them as bytes of a fixed length
        return as_sources([os.fsdecode(path) for path in images])
    if isinstance(images, np.ndarray) and images.ndim < 4 and not _are_paths(images):
        return [to_rgb(images)]
    if isinstance(images, bytes | bytearray | memoryview):
        return [bytes(images)]
    if hasattr(images, "read"):
        return [_read_open(images)]
    if type(images).__module__ == "torch":
        remedy = "Pass the `.numpy()` of a uint8 tensor (H, W, 3)"
    elif isinstance(images, Iterable):
        return [source for image in images for source in as_sources(image)]
    else:
        remedy = "Pass one of them"
    raise FerVitError(
        "Expected a path, a file, an image of numpy or PIL, or a list of these, but got "
        f"{type(images).__name__}. {remedy}."
    )


def _are_paths(array: NDArray[np.generic]) -> bool:
    """Returns whether an array holds text or objects (N,), such as the paths in a data frame."""
    return array.dtype.kind in "OUT" and array.ndim == 1


def _read_open(file: Any) -> bytes:
    """Returns the content of an open file, from its position on.

    Raises FerVitError if the file is closed, was opened as text, or was read to its end.
    """
    if getattr(file, "closed", False):
        raise FerVitError("Expected an open file, but it is closed. Open it again.")
    content = b"" if isinstance(file, io.TextIOBase) else file.read()
    if isinstance(file, io.TextIOBase) or not isinstance(content, bytes):
        raise FerVitError('Expected a file of bytes, but it was opened as text. Add the mode "rb".')
    if not content and hasattr(file, "seekable") and file.seekable() and file.seek(0, io.SEEK_END):
        raise FerVitError(
            "Expected a file at its beginning, but it was read to its end. Call its `seek(0)`."
        )
    return content


def source_name(source: Source, index: int) -> str:
    """Returns the name of a source in results; `index` is its index among the inputs."""
    if isinstance(source, Path):
        return str(source)
    return f"<bytes {index}>" if isinstance(source, bytes) else f"image {index}"


def is_video(path: object) -> TypeGuard[Path]:
    """Returns whether a source is a video by its suffix, or a GIF of several frames."""
    if not isinstance(path, Path):
        return False
    suffix = path.suffix.lower()
    if suffix == ".gif":
        # Pillow raises many types for broken files
        with (
            suppress(Exception),
            open_input(path) as file,
            Pil.open(file, formats=["GIF"]) as image,
        ):
            return bool(getattr(image, "is_animated", False))
    return suffix in VIDEO_SUFFIXES


def from_pil(image: Pil.Image) -> Image:
    """Converts a PIL image to RGB uint8 (H, W, 3) as the file reader does.

    The image is rotated by EXIF, and 16 bits are reduced to the highest 8 of the bits in use.
    Raises ImageError when its file is closed or damaged: PIL reads the pixels lazily.
    """
    try:
        image.load()
    except Exception as error:  # Pillow raises many types for broken files
        raise ImageError(
            f"Expected an image of PIL with pixels, but got none ({error}). Open it again, or pass "
            "its path."
        ) from error
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return to_rgb(reduce_depth(np.asarray(image)))
    if image.mode in ("I", "F"):
        raise FerVitError(
            f"Expected an image of 8 or 16 bits, but got PIL's mode {image.mode}. Scale it to 0 to "
            "255."
        )
    return to_rgb(np.asarray(image.convert("RGB")))


class Inputs(NamedTuple):
    """The files that inputs name, and what is not read in their folders."""

    files: list[Path]
    other_suffixes: Counter[str]  # files without a known suffix, by suffix
    skipped: Skipped  # entries of folders that are left out

    @property
    def notes(self) -> list[str]:
        """Lines about what is not read."""
        return unread_notes(self.other_suffixes, self.skipped)


def find_inputs(inputs: Sequence[str | Path], suffixes: Set[str] = PHOTO_SUFFIXES) -> Inputs:
    """Lists the images in files, folders (recursively) and glob patterns, each once, in order.

    In folders, system entries, hidden entries, results and files without one of the `suffixes` are
    only counted; other inputs may have any suffix. Raises FerVitError when an input does not exist
    or contains no image.
    """
    paths_of_inputs = {str(item): expand_pattern(str(item)) for item in inputs}
    files: dict[Path, None] = {}  # an ordered set
    other_suffixes: Counter[str] = Counter()
    skipped = Skipped()
    for item, paths in paths_of_inputs.items():
        has_images = False
        for path in paths:
            if not path.is_dir():
                files[path] = None
                has_images = True
                continue
            listing = list_folder(path)
            images = listing.with_suffixes(suffixes)
            files |= dict.fromkeys(images)
            other_suffixes += listing.count_others(suffixes)
            skipped += listing.skipped
            # `predict *` also names the report of an earlier run, which is no error.
            has_results = bool(listing.skipped.results)
            has_images = has_images or bool(images) or has_results
        if not has_images:
            raise _no_image(item, other_suffixes, skipped)
    if paths_of_inputs and not files:
        raise _no_image(", ".join(paths_of_inputs), other_suffixes, skipped)
    return Inputs(list(files), other_suffixes, skipped)


def _no_image(item: str, other_suffixes: Counter[str], skipped: Skipped) -> FerVitError:
    notes = unread_notes(other_suffixes, skipped)
    actual = f"found none ({'; '.join(notes)})" if notes else "found none"
    return FerVitError(
        f"Expected images in {item}, but {actual}. Name a folder with images, or the files "
        "themselves."
    )


def expand_pattern(item: str) -> list[Path]:
    """Returns the files and folders that a path or glob pattern names, in order.

    An existing path is returned, even if it looks like a pattern. In a pattern, leading folders
    that exist are literal. If a pattern matches nothing, its brackets are tried as literal
    characters. Matches in system entries, hidden entries or folders of results are left out, unless
    the pattern names these; so are marked copies of videos.

    Raises:
        FerVitError: The pattern is empty, matches nothing, or is an address such as https://.
    """
    if not item:
        raise FerVitError('Expected an image, a folder or a pattern, but got "".')
    if os.path.lexists(item):
        return [Path(item)]
    matches = _match(_as_pattern(item)) or _match(item.replace("[", "[[]"))
    if matches:
        return _without_system(matches, item)

    address = re.fullmatch(r"(\w{2,}):/+(.*)", item)  # a Path has made one slash of two
    if address:
        raise FerVitError(
            f"Expected a file or folder, but got {address[1]}://{address[2]}. Download it first."
        )
    raise FerVitError(f"No image, folder or matching pattern found: {item}.")


def _without_system(matches: Iterable[Path], pattern: str) -> list[Path]:
    """Leaves out matches in system entries, hidden entries and results that are not named."""
    named = set(Path(pattern).parts)
    is_results: dict[Path, bool] = {}  # whether a folder contains results
    kept = []
    for match in matches:
        folders = [folder for folder in match.parents if folder.name not in {*named, ""}]
        for folder in folders:
            if folder not in is_results:
                is_results[folder] = result_kind(folder) is not None
        is_hidden = any(map(system_entry, {*match.parts} - named))
        is_result = any(is_results[folder] for folder in folders) or is_marked_copy(match)
        if not is_hidden and not is_result:
            kept.append(match)
    return kept


def _as_pattern(item: str) -> str:
    """Returns a pattern in which the leading folders that exist by this name are literal."""
    parts = Path(item).parts
    count = 0
    while count < len(parts) and os.path.lexists(os.path.join(*parts[: count + 1])):
        count += 1
    literal = [glob.escape(part) for part in parts[:count]]
    return os.path.join(*literal, *parts[count:])


def _match(pattern: str) -> list[Path]:
    """Returns the paths that match a pattern, in order.

    If several paths lead to one place, by a loop of links or several links to a folder, only the
    first path is returned. A link to a file counts as a place, as in `list_folder`.
    """
    matches = sorted(glob.glob(pattern, recursive=True))
    places: dict[str, Path] = {}
    for match in matches:
        places.setdefault(_resolve_folder(match), Path(match))
    return sorted(places.values())


def _resolve_folder(path: str) -> str:
    """Resolves the links in a path to a folder; a file, or link to a file, keeps its name."""
    if os.path.isdir(path):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
