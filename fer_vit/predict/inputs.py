"""The inputs of `predict`: files, folders, patterns, and images in memory."""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil
from PIL import ImageOps
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.face.image import IMAGE_SUFFIXES, to_rgb
from fer_vit.files import files_below
from fer_vit.geometry import Image

Source: TypeAlias = Path | Image
"""A file (a photo or a video), or an image in memory (H, W, 3), RGB uint8."""
Images: TypeAlias = str | Path | Pil.Image | NDArray[np.generic]
"""A file, a folder, a pattern, or an image in memory: PIL's or an array (H, W), (H, W, 3) or (H, W, 4)."""

VIDEO_SUFFIXES = frozenset((".mp4", ".m4v", ".m3u8", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg"))
VIDEO_SUFFIXES |= frozenset((".ts", ".mts", ".m2ts", ".3gp", ".wmv", ".flv", ".ogv"))
"""Lower-case suffixes of videos."""
MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES


def as_sources(images: Images | Iterable[Images]) -> list[Source]:
    """Lists the files that paths, folders and patterns name, and images in memory as RGB."""
    if isinstance(images, str | Path):
        return [*find_images([images], MEDIA_SUFFIXES)]
    if isinstance(images, Pil.Image):
        return [from_pil(images)]
    if isinstance(images, np.ndarray) and images.ndim < 4:
        return [to_rgb(images)]
    if not isinstance(images, Iterable) or isinstance(images, Tensor | bytes):
        raise FerVitError(
            f"Expected a path, an image of numpy or PIL, or a list of these, but got {type(images).__name__} "
            "(for a uint8 tensor (H, W, 3), pass its `.numpy()`)."
        )
    return [source for image in images for source in as_sources(image)]


def is_video(path: object) -> bool:
    """Returns whether a source is a video by its suffix, or a GIF of several frames."""
    if not isinstance(path, Path):
        return False
    suffix = path.suffix.lower()
    if suffix == ".gif" and path.is_file():
        with suppress(Exception), Pil.open(path) as image:  # Pillow raises many types for broken files
            return bool(getattr(image, "is_animated", False))
    return suffix in VIDEO_SUFFIXES


def from_pil(image: Pil.Image) -> Image:
    """Converts a PIL image as the file reader does: rotated by EXIF, 16 bits reduced to 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return to_rgb((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise FerVitError(f"Expected an image of 8 or 16 bits, but got PIL's mode {image.mode}. Scale it to 0 to 255.")
    return to_rgb(np.asarray(image.convert("RGB")))


def find_images(inputs: Sequence[str | Path], suffixes: Set[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Lists the images that `iter_images` finds."""
    return list(iter_images(inputs, suffixes))


def iter_images(inputs: Sequence[str | Path], suffixes: Set[str] = IMAGE_SUFFIXES) -> Iterator[Path]:
    """Yields the images in files, folders (searched recursively) and glob patterns, each once, in order.

    In folders, hidden entries and files without one of the `suffixes` are skipped; other inputs may have any suffix.

    Raises:
        FerVitError: An input does not exist or contains no image.
    """
    named = {str(item): _named(str(item)) for item in inputs}
    # A single folder contains no image twice, and may contain more names than fit in memory.
    alone = sum(map(len, named.values())) == 1
    seen: set[Path] = set()
    for item, paths in named.items():
        image = None
        for image in chain.from_iterable(_images_in(path, suffixes) for path in paths):
            if image not in seen:
                yield image
            if not alone:
                seen.add(image)
        if image is None:
            names = ", ".join(sorted(suffixes))
            raise FerVitError(f"Expected images ({names}) in {item}, but found none. Name a folder with images.")


def _named(item: str) -> list[Path]:
    """Returns the files and folders that a path or glob pattern names."""
    if os.path.lexists(item):
        return [Path(item)]
    # A pattern may reach one file through several links, or a loop of them.
    matches = {os.path.realpath(match): Path(match) for match in sorted(glob.glob(item, recursive=True))[::-1]}
    if not matches and (url := re.fullmatch(r"(\w{2,}):/+(.*)", item)):  # a Path has one slash
        raise FerVitError(f"Expected a file or folder, but got {url[1]}://{url[2]}. Download it first.")
    if not matches:
        raise FerVitError(f"Expected an image, a folder or a pattern that matches some, but there is no {item}.")
    return sorted(matches.values())


def _images_in(path: Path, suffixes: Set[str]) -> Iterable[Path]:
    return (file for file in files_below(path) if file.suffix.lower() in suffixes) if path.is_dir() else [path]
