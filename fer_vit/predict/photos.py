"""Photos: where they are, how they are read, and their faces as batches of crops."""

import glob
import io
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil, ImageOps
from torch import Tensor

import fer_vit.face.image as image_file
from fer_vit.data.dataset import Batch, Sample, collate
from fer_vit.errors import (
    FerVitError,
    check_number,
    check_positive,
    check_whole,
    for_reader,
    printable,
)
from fer_vit.face.detectors import ChosenDetector, find_detector
from fer_vit.face.finder import Crop, FaceFinder, FaceMode
from fer_vit.face.headers import is_animated
from fer_vit.face.image import CRASHED, ImageError, reduce_depth, to_rgb
from fer_vit.faces import (
    FIRST_FRAME,
    NO_FACE,
    OK,
    Faces,
    PhotoInfo,
    Source,
    join_faces,
    no_faces,
)
from fer_vit.geometry import Image
from fer_vit.listing import (
    MEDIA_SUFFIXES,
    PHOTO_SUFFIXES,
    RESULTS,
    VIDEO_SUFFIXES,
    is_marked_copy,
    list_folder,
    result_kind,
    system_entry,
    unread_notes,
)
from fer_vit.processes import work_in_processes

LOGGER = logging.getLogger("fer_vit")

Images: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Pil.Image | NDArray[np.generic]
"""A file, a folder or a pattern; an open file, or the content of one; or an image in memory: PIL's
or an array (H, W), (H, W, 3) or (H, W, 4)."""


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
        # bytes of a fixed length are encoded paths
        return as_sources([os.fsdecode(path) for path in images])
    if isinstance(images, np.ndarray) and images.ndim < 4 and not _are_paths(images):
        return [to_rgb(images)]
    if isinstance(images, bytes | bytearray | memoryview):
        return [bytes(images)]
    if hasattr(images, "read"):
        return [_read_open(images)]
    if isinstance(images, Tensor):
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

    Raises FerVitError if it is closed, text, or read to its end already.
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


def is_video(path: object) -> bool:
    """Returns whether a source is a video by its suffix, or a GIF of several frames."""
    if not isinstance(path, Path):
        return False
    suffix = path.suffix.lower()
    if suffix == ".gif" and path.is_file():
        # Pillow raises many types for broken files
        with (
            suppress(Exception),
            Pil.open(path, formats=["GIF"]) as image,
        ):
            return bool(getattr(image, "is_animated", False))
    return suffix in VIDEO_SUFFIXES


def from_pil(image: Pil.Image) -> Image:
    """Converts a PIL image to RGB uint8 (H, W, 3) as the file reader does.

    It is rotated by EXIF, and 16 bits are reduced to the 8 that are used. Raises ImageError when
    its file is closed or damaged: PIL reads the pixels late.
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
    others: Counter[str]  # files without a known suffix, by suffix
    system: Counter[str]  # system entries and hidden ones, by pattern

    @property
    def notes(self) -> list[str]:
        """Lines about what is not read."""
        return unread_notes(self.others, self.system)


def find_inputs(inputs: Sequence[str | Path], suffixes: Set[str] = PHOTO_SUFFIXES) -> Inputs:
    """Lists the images in files, folders (recursively) and glob patterns, each once, in order.

    In folders, system entries, hidden ones, results and files without one of the `suffixes` are
    counted; other inputs may have any suffix. Raises FerVitError when an input does not exist or
    contains no image.
    """
    named = {str(item): expand_pattern(str(item)) for item in inputs}
    files: dict[Path, None] = {}
    others: Counter[str] = Counter()
    system: Counter[str] = Counter()
    for item, paths in named.items():
        known = False
        for path in paths:
            if not path.is_dir():
                files[path] = None
                known = True
                continue
            listing = list_folder(path)
            images = listing.of_kinds(suffixes)
            files |= dict.fromkeys(images)
            others += listing.other_kinds(suffixes)
            system += listing.system
            # `predict *` also names the report of an earlier run
            known = known or bool(images) or any(kind in listing.system for kind in RESULTS)
        if not known:
            raise _no_image(item, others, system)
    if named and not files:
        raise _no_image(", ".join(named), others, system)
    return Inputs(list(files), others, system)


def _no_image(item: str, others: Counter[str], system: Counter[str]) -> FerVitError:
    notes = unread_notes(others, system)
    came = f"found none ({'; '.join(notes)})" if notes else "found none"
    return FerVitError(
        f"Expected images in {item}, but {came}. Name a folder with images, or the files "
        "themselves."
    )


def expand_pattern(item: str) -> list[Path]:
    """Returns the files and folders that a path or glob pattern names, in order.

    An existing path is itself, even if it looks like a pattern. In a pattern, leading folders that
    exist are literal; where it matches nothing, brackets are, too. Matches with system entries,
    hidden ones or folders of results on their way are left out, unless the pattern names these.

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

    address = re.fullmatch(r"(\w{2,}):/+(.*)", item)  # a Path has one slash
    if address:
        raise FerVitError(
            f"Expected a file or folder, but got {address[1]}://{address[2]}. Download it first."
        )
    raise FerVitError(
        f"Expected an image, a folder or a pattern that matches some, but there is no {item}."
    )


def _without_system(matches: Iterable[Path], pattern: str) -> list[Path]:
    """Returns the matches without system entries, hidden ones and results that are not named."""
    named = set(Path(pattern).parts)
    results: dict[Path, bool] = {}  # whether a folder is one
    kept = []
    for match in matches:
        folders = [folder for folder in match.parents if folder.name not in {*named, ""}]
        for folder in folders:
            if folder not in results:
                results[folder] = result_kind(folder) is not None
        hidden = any(map(system_entry, {*match.parts} - named))
        made = any(results[folder] for folder in folders) or is_marked_copy(match)
        if not hidden and not made:
            kept.append(match)
    return kept


def _as_pattern(item: str) -> str:
    """Returns a pattern whose leading folders, if they exist by this name, are literal."""
    parts = Path(item).parts
    count = 0
    while count < len(parts) and os.path.lexists(os.path.join(*parts[: count + 1])):
        count += 1
    literal = [glob.escape(part) for part in parts[:count]]
    return os.path.join(*literal, *parts[count:])


def _match(pattern: str) -> list[Path]:
    """Returns the paths that match a pattern, in order; of several to one place the first.

    A loop of links, or several links to a folder, make several paths to one place. A link to a file
    is a place, too, as in `list_folder`.
    """
    matches = sorted(glob.glob(pattern, recursive=True))
    places: dict[str, Path] = {}
    for match in matches:
        places.setdefault(_place(match), Path(match))
    return sorted(places.values())


def _place(path: str) -> str:
    """Returns the folder that a path names, or the file or link in its folder."""
    if os.path.isdir(path):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


VIDEO_OPTIONS = ("every", "fps", "start", "end", "detect_every", "smooth")
"""Options of `PhotoOptions` that photos do not use."""


@dataclass(frozen=True)
class PhotoOptions:
    """How photos and videos are read.

    Args:
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: "yunet" finds faces, also in crops. "landmarks" treats each image as one face and
            finds its landmarks. "none" finds nothing: crops must be framed like the training crops.
        batch_size: Photos or frames per batch; the result does not depend on it.
        workers: Processes that read photos; 0: this one. Default: one per core. Videos are read by
            one process.
        every: Use every n-th frame of a video.
        fps: Use at most this many frames per second of a video.
        start: Begin this many seconds after the first frame of a video.
        end: End this many seconds after the first frame of a video.
        detect_every: Search the full frame for faces every n-th frame, and track them in between.
        smooth: Time constant of the smoothed probabilities in seconds.
        min_score: Faces in photos and videos with a lower score of the detector are left out.
            Default: 0.7 for yunet; below 0.8, its faces have the warning "uncertain face". Crops
            (`face="crop"`) are searched down to 0.3.

    Raises:
        FerVitError: An option is unknown, or two contradict each other.
    """

    face: FaceMode = "detect"
    detector: ChosenDetector = "yunet"
    batch_size: int = 32
    workers: int | None = None
    every: int = 1
    fps: float | None = None
    start: float = 0.0
    end: float = math.inf
    detect_every: int = 5
    smooth: float = 0.25
    min_score: float | None = None

    def __post_init__(self) -> None:
        if self.face not in get_args(FaceMode):
            modes = " or ".join(get_args(FaceMode))
            raise FerVitError(f"Expected face {modes}, but got {self.face}.")
        if self.face == "detect" and not find_detector(self.detector).searches:
            remedy = "Leave it out, or add `--face crop` if each image is the crop of one face."
            raise FerVitError(f"`--detector {self.detector}` finds no faces in photos. {remedy}")
        check_whole("workers", self.workers or 0, 0)
        for name in ("batch_size", "every", "detect_every"):
            check_whole(name, getattr(self, name), 1)
        check_number("smooth", self.smooth, 0)
        check_number("start", self.start, 0)
        check_number("end", self.end, self.start)
        check_number("min_score", self.min_score or 0, 0, 1)
        if self.fps is not None:
            check_positive("fps", self.fps)
        if self.min_score is not None and self.face == "crop":
            raise FerVitError(
                "`--min_score` is for `--face detect`: a crop is one face with any score. "
                "Leave one of them out."
            )
        if self.fps is not None and self.every != 1:
            raise FerVitError(
                f"Expected either `--fps` or `--every`, but got {self.fps:g} and {self.every}. "
                "Leave one of them out."
            )

    def unused(self, sources: Sequence[Source]) -> list[str]:
        """Returns a line about options of videos, if they were changed and there is no video."""
        if any(map(is_video, sources)):
            return []
        names = [f"`--{name}`" for name in self.changed() if name in VIDEO_OPTIONS]
        if not names:
            return []
        return [for_reader(f"Not used, since there is no video: {', '.join(names)}.")]

    def changed(self) -> dict[str, object]:
        """Returns the options that change the results and are not the defaults.

        The origin of a row has `face` and `detector`.
        """
        values = {}
        for option in fields(self):
            if option.name in ("face", "detector", "batch_size", "workers"):
                continue
            value = getattr(self, option.name)
            if value != option.default:
                values[option.name] = value
        return values


Item: TypeAlias = tuple[Faces, list[Sample]]
"""A photo or frame with its faces, and these as crops."""
PhotoBatch: TypeAlias = tuple[Faces, Batch | None]
"""Photos or frames with their faces, and all these as crops in the same order."""


@dataclass(frozen=True, eq=False)
class PhotoReader:
    """Reads photos, finds their faces and cuts them out."""

    sources: Sequence[Source]
    finder: FaceFinder

    def name(self, index: int) -> str:
        """Returns the name of a photo in results."""
        return source_name(self.sources[index], index)

    def read_items(self, index: int) -> Iterator[Item]:
        """Yields a photo with its faces as crops."""
        yield self.read(index)

    def read(self, index: int) -> Item:
        """Reads a photo and cuts out its faces; the status of an unreadable one is the reason."""
        source = self.sources[index]
        info = PhotoInfo(self.name(index), index=index)
        try:
            content = image_file.read_bytes(source) if isinstance(source, Path) else source
            if isinstance(content, bytes):
                search = self.finder.find_in_file(content, info)
                animated = is_animated(content)
            else:
                search = self.finder.search(content, info)
                animated = False
            crops = self.finder.crop(search.image, search.faces, search.reduction)
            taken_whole = self.finder.shows_photo(search.image)
        except ImageError as error:
            return no_faces([replace(info, status=str(error))]), []
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            return no_faces([replace(info, status="the image cannot be processed")]), []
        status = OK if len(search.faces) else NO_FACE
        if animated:
            status = FIRST_FRAME
        info = replace(info, status=status, size=search.size, taken_whole=taken_whole)
        return replace(search.faces, infos=(info,)), as_samples(crops, info.path)


def as_samples(crops: Iterable[Crop], path: str) -> list[Sample]:
    """Returns the crops of a photo's faces as a model's input."""
    samples = []
    for row, crop in enumerate(crops):
        sample = Sample(
            image=crop.image,
            boxes=crop.boxes,
            valid=crop.valid,
            target=None,
            row=row,
            path=path,
            to_crop=crop.to_crop,
            targets={},
        )
        samples.append(sample)
    return samples


class Reader(Protocol):
    """Reads sources by their index."""

    def read_items(self, index: int) -> Iterator[Item]:
        """Yields a photo, or the frames of a video, with its faces as crops."""

    def name(self, index: int) -> str:
        """Returns the name of a source in tables."""


def read_batches(
    reader: Reader, indices: Sequence[int], batch_size: int, processes: int
) -> Iterator[PhotoBatch]:
    """Yields batches of photos or frames in order, read by worker processes (0: this one).

    A source that kills its worker process has the status `CRASHED`.
    """

    def items() -> Iterator[Item]:
        for index, item in work_in_processes(reader.read_items, indices, processes):
            yield item or (no_faces([PhotoInfo(reader.name(index), CRASHED, index)]), [])

    stream = items()
    while batch := list(islice(stream, batch_size)):
        yield _collate(batch)


def _collate(items: Sequence[Item]) -> PhotoBatch:
    samples = [sample for _, crops in items for sample in crops]
    return join_faces([faces for faces, _ in items]), collate(samples) if samples else None
