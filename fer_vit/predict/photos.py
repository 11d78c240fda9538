"""From photos to face crops: faces are detected or given, and cropped as a model expects, in worker processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from fer_vit.data.sample import Batch, Sample, collate
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.face.detect import MAX_SIDE, Detector, Face, detect_in_crop, look_closer
from fer_vit.face.image import ImageError, decode_image, read_bytes, read_image, reduction_to
from fer_vit.geometry import Image, crop_matrix
from fer_vit.predict.inputs import Source
from fer_vit.processes import one_thread, start_worker

FaceMode = Literal["detect", "crop"]
DetectorName = Literal["yunet", "none"]
OK = "ok"
NO_FACE = "no face"


@dataclass(frozen=True)
class PhotoOptions:
    """How photos are read; `Recognizer.predict` explains the options.

    Raises:
        FerVitError: An option is unknown, or two contradict each other.
    """

    face: FaceMode = "detect"
    detector: DetectorName = "yunet"
    batch_size: int = 32
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.face not in get_args(FaceMode) or self.detector not in get_args(DetectorName):
            modes = f"face {' or '.join(get_args(FaceMode))}, and detector {' or '.join(get_args(DetectorName))}"
            raise FerVitError(f"Expected {modes}, but got {self.face} and {self.detector}.")
        if self.batch_size < 1 or (self.workers or 0) < 0:
            raise FerVitError(
                f"Expected a positive batch size and number of workers, but got {self.batch_size} and {self.workers}."
            )
        if self.face == "detect" and self.detector == "none":
            raise FerVitError(
                "`--face detect` needs a detector. Use `--face crop` for images that are face crops already."
            )


class Photo(NamedTuple):
    """An image and what was found in it.

    Attributes:
        path: The image; "image 0" and so on if it was given in memory.
        status: `OK`, `NO_FACE`, or the reason why it could not be read.
        faces: Its faces in the image's own pixels; None stands for an image taken whole as a crop.
    """

    path: str
    status: str
    faces: list[Face | None]

    @property
    def reason(self) -> str:
        """The status without details such as the image's size, for counting photos."""
        return self.status.partition(":")[0]


PhotoBatch: TypeAlias = tuple[list[Photo], Batch | None]
"""Some photos, and all their faces in the same order, or None; `row` is a face's index in its photo."""


@dataclass(eq=False)
class PhotoDataset(Dataset[tuple[Photo, list[Sample]]]):
    """Images as faces. No image raises an error: what went wrong becomes its status.

    Without a detector, for `face` "crop" only, images are taken to be framed like the model's template.
    """

    sources: Sequence[Source]
    spec: CropSpec
    face: FaceMode
    detector: Detector | None

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[Photo, list[Sample]]:
        """Reads an image and crops its faces."""
        source = self.sources[index]
        path = str(source) if isinstance(source, Path) else f"image {index}"
        try:
            image, reduction, faces = self._read(source)
            samples = [self._sample(image, reduction, face, number, path) for number, face in enumerate(faces)]
        except ImageError as error:
            return Photo(path, str(error), []), []
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            return Photo(path, "the image cannot be processed", []), []
        return Photo(path, OK if faces else NO_FACE, faces), samples

    def _read(self, source: Source) -> tuple[Image, int, list[Face | None]]:
        """Returns an image, its reduction, and its faces in pixels of the image at full size."""
        if self.face == "crop" or self.detector is None:
            image = read_image(source) if isinstance(source, Path) else source
            return image, 1, [detect_in_crop(self.detector, image) if self.detector else None]
        if not isinstance(source, Path):
            return source, 1, [*look_closer(self.detector, source, self.detector(source))]
        data = read_bytes(source)
        reduction = reduction_to(data, MAX_SIDE)  # a phone's photo has many more pixels than the detector reads
        image = decode_image(data, reduction)
        faces = self.detector(image)
        if reduction > 1 and any(self._needs_more(face) for face in faces):
            image, reduction, faces = decode_image(data), 1, [face.moved(reduction) for face in faces]
        return image, reduction, [face.moved(reduction) for face in look_closer(self.detector, image, faces)]

    def _needs_more(self, face: Face) -> bool:
        """Tells whether a face's crop has more pixels than the face in its image."""
        to_crop = crop_matrix(face.landmarks, self.spec.size, self.spec.template, self.spec.align)
        return float(np.linalg.det(to_crop[:, :2])) > 1

    def _sample(self, image: Image, reduction: int, face: Face | None, number: int, path: str) -> Sample:
        landmarks = None if face is None else face.landmarks / reduction
        crop, points, to_crop = crop_face(image, landmarks, self.spec, framed=self.face == "crop")
        to_crop[:, :2] /= reduction
        boxes, valid = place_regions(points, self.spec)
        return Sample(crop, boxes, valid, None, number, path, to_crop)


def photo_loader(dataset: PhotoDataset, batch_size: int, num_workers: int) -> DataLoader[PhotoBatch]:
    """Returns batches of `batch_size` photos in order, read by `num_workers` worker processes (0: in this one)."""
    one_thread()
    return DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size,
        num_workers=num_workers,
        collate_fn=_collate,
        worker_init_fn=start_worker,
    )


def _collate(items: list[tuple[Photo, list[Sample]]]) -> PhotoBatch:
    samples = [sample for _, found in items for sample in found]
    return [photo for photo, _ in items], collate(samples) if samples else None
