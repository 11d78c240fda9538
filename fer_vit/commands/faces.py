"""What predict and visualize share: a checkpoint, photos, and batches of faces on the model's device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from fer_vit.commands import cores
from fer_vit.data.photos import FaceMode, Photo, PhotoDataset, find_images, photo_loader
from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.face.detect import CROP_SCORE, YuNet
from fer_vit.task import FERTask

DetectorName = Literal["yunet", "none"]
PART = 64
"""Faces that the model sees at once."""


def face_batches(
    task: FERTask,
    images: Sequence[str | Path],
    face: FaceMode,
    detector: DetectorName,
    batch_size: int,
    workers: int | None,
) -> Iterator[tuple[list[Photo], list[Batch]]]:
    """Yields photos, and all their faces in parts for the model, under a progress bar in images per second.

    Args:
        task: The model; it says how faces are cropped.
        images: Files, folders and patterns.
        face: "detect" or "crop", see `PhotoDataset`.
        detector: "none" goes with "crop" only.
        batch_size: Photos per batch.
        workers: Processes that read photos; all cores when None, 0 for none.

    Raises:
        FerVitError: There are no images, or the options contradict each other.
    """
    if batch_size < 1 or (workers or 0) < 0:
        raise FerVitError(f"Expected a positive batch size and number of workers, but got {batch_size} and {workers}.")
    if face == "detect" and detector == "none":
        raise FerVitError("`--face detect` needs a detector. Use `--face crop` for images that are face crops already.")
    paths = find_images(images)
    finder = YuNet(min_score=CROP_SCORE if face == "crop" else 0.6) if detector == "yunet" else None
    dataset = PhotoDataset(paths, task.crop_spec, face, finder)
    workers = cores() if workers is None else workers
    # Starting processes costs seconds; a handful of photos is read sooner without.
    loader = photo_loader(dataset, batch_size, workers if len(paths) > batch_size else 0)
    with tqdm(total=len(paths), unit=" images", disable=None) as bar, _readable_errors():
        for photos, batch in loader:
            # A photo may hold hundreds of faces, and the attention that is recorded grows with them.
            yield photos, [part.ready(task.device) for part in batch.split(PART)] if batch else []
            bar.update(len(photos))


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turns the ends that a machine too small makes into lines that say what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FerVitError("The GPU has too little memory for this model. Free some, or hide the GPU.") from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise FerVitError(
            "A process that reads photos died, perhaps for lack of memory. Try fewer `--workers`."
        ) from error


def best_device() -> torch.device:
    """Returns the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
