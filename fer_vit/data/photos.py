"""Photos as faces: found or given, cropped as a model expects them, in worker processes."""

import glob
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil
from PIL import ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fer_vit.data.crop import CropSpec, crop_face, place_regions
from fer_vit.data.sample import Batch, Sample, collate
from fer_vit.errors import FerVitError
from fer_vit.face.detect import MAX_SIDE, Detector, Face, detect_in_crop
from fer_vit.face.geometry import Image, crop_matrix
from fer_vit.face.image import (
    IMAGE_SUFFIXES,
    ImageError,
    decode_image,
    one_thread,
    read_bytes,
    reduction_to,
    to_rgb,
)

FaceMode = Literal["detect", "crop"]
Source: TypeAlias = Path | Image
"""A file, or an image in memory (H, W, 3), RGB uint8."""
Images: TypeAlias = str | Path | Pil.Image | NDArray[np.generic]
"""A file, a folder, a pattern, or an image in memory: PIL's or an array (H, W), (H, W, 3) or (H, W, 4)."""
OK = "ok"
NO_FACE = "no face"


class Photo(NamedTuple):
    """What became of an image.

    Attributes:
        path: The image; "image 0" and so on for images in memory.
        status: `OK`, `NO_FACE`, or the reason why it could not be read.
        faces: Its faces in the image's own pixels; None for a whole-image crop in which none was found.
    """

    path: str
    status: str
    faces: list[Face | None]

    @property
    def reason(self) -> str:
        """The status without what is this photo's alone, such as its size: what photos are counted by."""
        return self.status.partition(":")[0]


class PhotoBatch(NamedTuple):
    """Some photos, and all their faces in order.

    Attributes:
        photos: The photos.
        batch: Their faces, photo by photo; None when there is none. `row` is the face's place in its photo.
    """

    photos: list[Photo]
    batch: Batch | None


class PhotoDataset(Dataset[tuple[Photo, list[Sample]]]):
    """Images as faces. Nothing about an image raises: what went wrong becomes its status.

    Args:
        sources: The images.
        spec: How a face becomes a crop.
        face: "detect" finds every face; "crop" takes each image as one face crop.
        detector: Finds the faces. None, for "crop" only, takes the images to be framed like the model's template.
    """

    def __init__(self, sources: Sequence[Source], spec: CropSpec, face: FaceMode, detector: Detector | None) -> None:
        self.sources = sources
        self.spec = spec
        self.face = face
        self.detector = detector

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[Photo, list[Sample]]:
        """Reads an image and crops its faces."""
        source = self.sources[index]
        path = str(source) if isinstance(source, Path) else f"image {index}"
        try:
            image, reduction, faces = self._look(source)
            samples = [self._sample(image, reduction, face, place, path) for place, face in enumerate(faces)]
        except ImageError as error:
            return Photo(path, str(error), []), []
        except (cv2.error, MemoryError):  # by an image of an odd shape, or a huge one
            return Photo(path, "the image cannot be processed", []), []
        return Photo(path, OK if faces else NO_FACE, faces), samples

    def _look(self, source: Source) -> tuple[Image, int, list[Face | None]]:
        """Returns an image, its reduction, and its faces in pixels of the whole image."""
        if not isinstance(source, Path):
            return source, 1, self._faces(source, 1)
        data = read_bytes(source)
        # A photo of a phone has many more pixels than the detector looks at.
        reduction = reduction_to(data, MAX_SIDE) if self.face == "detect" else 1
        image = decode_image(data, reduction)
        faces = self._faces(image, reduction)
        if any(face and self._wants_more(face, reduction) for face in faces):
            return decode_image(data), 1, faces
        return image, reduction, faces

    def _faces(self, image: Image, reduction: int) -> list[Face | None]:
        if self.face == "detect":
            found = self.detector(image) if self.detector else []
            return [Face(face.box * reduction, face.landmarks * reduction, face.score) for face in found]
        return [detect_in_crop(self.detector, image) if self.detector else None]

    def _wants_more(self, face: Face, reduction: int) -> bool:
        """Tells whether a face's crop has more pixels than the face has in a reduced image."""
        to_crop = crop_matrix(face.landmarks, self.spec.size, self.spec.template, self.spec.align)
        return reduction > 1 and float(np.linalg.det(to_crop[:, :2])) * reduction**2 > 1

    def _sample(self, image: Image, reduction: int, face: Face | None, place: int, path: str) -> Sample:
        landmarks = None if face is None else face.landmarks / reduction
        crop, points, to_crop = crop_face(image, landmarks, self.spec, framed=self.face == "crop")
        to_crop[:, :2] /= reduction
        boxes, valid = place_regions(points, self.spec)
        return Sample(crop, boxes, valid, None, place, path, to_crop)


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def photo_loader(dataset: PhotoDataset, batch_size: int, num_workers: int) -> DataLoader[PhotoBatch]:
    """Returns batches of `batch_size` photos in order, read by `num_workers` processes (0: in this one)."""
    one_thread()
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size,
        num_workers=num_workers,
        collate_fn=_collate,
        worker_init_fn=_start_worker,
    )


def _collate(items: list[tuple[Photo, list[Sample]]]) -> PhotoBatch:
    samples = [sample for _, found in items for sample in found]
    return PhotoBatch([photo for photo, _ in items], collate(samples) if samples else None)


def _start_worker(_: int) -> None:
    one_thread()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the main process cleans up, see `cli`
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the status says what cannot be read


def as_sources(images: Images | Iterable[Images]) -> list[Source]:
    """Lists files by their paths, images in memory as RGB; folders and patterns become the files they name.

    Raises:
        FerVitError: A file is not there, or an array is not an image.
    """
    if isinstance(images, str | Path):
        return list(find_images([images]))
    if isinstance(images, Pil.Image):
        return [from_pil(images)]
    if isinstance(images, np.ndarray) and images.ndim < 4:
        return [to_rgb(images)]
    if not isinstance(images, Iterable) or isinstance(images, Tensor | bytes):
        raise FerVitError(
            f"Expected a path, an image of numpy or PIL, or a list of these, but got {type(images).__name__} "
            "(of a uint8 tensor (H, W, 3) `.numpy()` is an image)."
        )
    return [source for image in images for source in as_sources(image)]


def from_pil(image: Pil.Image) -> Image:
    """Takes a PIL image as the file reader would: turned as its EXIF says, 16 bits made 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return to_rgb((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise FerVitError(f"Expected an image of 8 or 16 bits, but got PIL's mode {image.mode}. Scale it to 0 to 255.")
    return to_rgb(np.asarray(image.convert("RGB")))


def find_images(inputs: Sequence[str | Path]) -> list[Path]:
    """Lists the images that `iter_images` finds."""
    return list(iter_images(inputs))


def iter_images(inputs: Sequence[str | Path]) -> Iterator[Path]:
    """Yields the images that files, folders (with all below them) and glob patterns name, each once, in order.

    Hidden files and folders are left out of folders; a file that is named itself is taken whatever it is called.

    Raises:
        FerVitError: An input does not exist or holds no image.
    """
    named = {str(item): _named(str(item)) for item in inputs}
    # A folder alone names no image twice, and may hold more than memory does.
    seen: set[Path] | None = None if sum(map(len, named.values())) == 1 else set()
    for item, paths in named.items():
        empty = True
        for path in paths:
            for image in _images_below(path) if path.is_dir() else [path]:
                empty = False
                if seen is None or image not in seen:
                    yield image
                if seen is not None:
                    seen.add(image)
        if empty:
            suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
            raise FerVitError(f"Expected images ({suffixes}) in {item}, but found none. Name a folder with images.")


def _named(item: str) -> list[Path]:
    """Returns the files and folders that a path or glob pattern names."""
    if os.path.lexists(item):
        return [Path(item)]
    # A pattern may reach one file through several links, or a loop of them.
    matches = {os.path.realpath(match): Path(match) for match in sorted(glob.glob(item, recursive=True))[::-1]}
    if not matches:
        raise FerVitError(f"Expected an image, a folder or a pattern that matches some, but there is no {item}.")
    return sorted(matches.values())


def _refuse(error: OSError) -> None:
    raise FerVitError(f"Cannot list the folder {error.filename} ({error.strerror}). Make it readable or name others.")


def _images_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith("."):
                yield Path(parent, name)
