"""A trained model at work, for the command line and for Python: `fer_vit.load().predict("photo.jpg")[0].plot()`."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset
from tqdm import tqdm

from fer_vit.data.sample import Batch, collate
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.face.detect import CROP_SCORE, PHOTO_SCORE, Detector, DetectorName, Face, make_detector
from fer_vit.face.regions import check_regions
from fer_vit.geometry import LANDMARKS, TEMPLATE, Array
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.inputs import Images, Source, as_sources, is_video
from fer_vit.predict.photos import (
    NO_FACE,
    OK,
    FaceMode,
    FoundPhoto,
    Photo,
    PhotoDataset,
    PhotoOptions,
    photo_loader,
)
from fer_vit.predict.quality import blur, inside
from fer_vit.predict.results import FaceResult
from fer_vit.predict.smoothing import smoothed
from fer_vit.processes import WORKER_DIED, cores, is_dead_worker
from fer_vit.store.folder import load_network

if TYPE_CHECKING:
    from fer_vit.predict.video import Frame

CHUNK = 64
"""Faces in one forward pass."""


def load(
    model: str | Path | None = None,
    device: str | torch.device | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> "Recognizer":
    """Loads a trained model.

    Args:
        model: A model that fer-vit ships (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a folder, or
            "user/name" on the Hugging Face hub. None: the default one that is shipped.
        device: Where to compute. None: the GPU if there is one.
        revision: Branch, tag or commit on the hub.
        token: For a private repository on the hub; None uses the one you logged in with.

    Raises:
        FerVitError: There is no such model or device, or its files are damaged or not fer-vit's.
    """
    recognizer = Recognizer(load_network(model, revision=revision, token=token))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        recognizer.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Expected an available device, for example cpu, but got {device} ({reason}).") from error
    use_fused_attention(recognizer.net, fused_is_faster(recognizer.device, recognizer.net.layout.num_tokens))
    return recognizer


class Recognizer(nn.Module):
    """A RegionViT with what prediction needs around it: cropping, labels and calibrated probabilities.

    Attributes:
        labels: The C expressions in the order of the probabilities.
        crop_spec: How a face becomes a crop.
    """

    def __init__(self, net: RegionViT) -> None:
        super().__init__()
        check_regions(net.config.regions)
        self.net = net
        self.eval()
        self.labels = net.labels
        self.crop_spec = CropSpec(net.config.img_size, tuple(net.config.regions), net.align, net.template or TEMPLATE)
        self._detectors: dict[tuple[DetectorName, float], Detector | None] = {}

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.net.probabilities(self.net(image, boxes, valid))

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: DetectorName = "yunet",
        batch_size: int = 32,
        workers: int | None = None,
        **video: Any,
    ) -> list[FaceResult]:
        """Finds and classifies every face in photos and videos.

        Args:
            images: A file, a folder, a glob pattern, a PIL image, a uint8 array (RGB), or a list of these.
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: "yunet" finds faces, in crops as well. "landmarks" takes crops whole, and finds landmarks in
                them. "none": crops are framed like the model's own.
            batch_size: Photos per batch; the result does not depend on it.
            workers: Processes that read photos. None: one per core. A video has one.
            video: Options for videos: `every`, `fps`, `start`, `end`, `detect_every` and `smooth`, as for the command.

        Returns:
            The faces, photo by photo and frame by frame. A photo without a face gives none; those that cannot be read
            give a warning.

        Raises:
            FerVitError: An image does not exist, the only one cannot be read, or an option has a wrong value.
        """
        sources = as_sources(images)
        found = list(self.results(sources, PhotoOptions(face, detector, batch_size, workers, **video)))
        wrong = [f"{photo.path}: {photo.status}" for photo in found if photo.status not in (OK, NO_FACE)]
        if wrong and len(found) == 1:
            raise FerVitError(f"{wrong[0]}.")
        if wrong:
            warnings.warn(f"{len(wrong)} of {len(sources)} images cannot be read, the first {wrong[0]}.", stacklevel=2)
        return [face for photo in found for face in photo.faces]

    def stream(self, images: Images | Iterable[Images], **options: Any) -> Iterator[Photo[FaceResult]]:
        """Yields photos and the frames of videos with their `faces`, in order, as soon as they are known.

        Takes the arguments of `predict`. Of a video a few seconds are held at most.
        """
        return self.results(as_sources(images), PhotoOptions(**options))

    def results(self, sources: Sequence[Source], options: PhotoOptions) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their faces, in order."""
        return smoothed(self._raw_results(self.batches(sources, options), sources), options.smooth)

    def watch(self, frames: Iterable["Frame"], path: str) -> Iterator[Photo[FaceResult]]:
        """Yields each frame of live pictures from `path` with its faces as soon as it is given.

        `smoothed` has probabilities averaged over the past alone.
        """
        from fer_vit.predict.frames import find_faces  # only here: PyAV may not be installed

        options = PhotoOptions()
        photos = PhotoDataset([], self.crop_spec, options.face, self._detector(options))
        found = find_faces(photos, frames, path, 0, options.detect_every)
        batches = (([photo], [collate(samples).ready(self.device)] if samples else []) for photo, samples in found)
        return smoothed(self._raw_results(batches, [Path(path)]), options.smooth, causal=True)

    def _raw_results(
        self, batches: Iterable[tuple[list[FoundPhoto], list[Batch]]], sources: Sequence[Source]
    ) -> Iterator[Photo[FaceResult]]:
        for photos, chunks in batches:
            found = ((row, chunk, shares) for chunk in chunks for row, shares in enumerate(self.probabilities(chunk)))
            for photo in photos:
                faces, source = zip(enumerate(photo.faces), found, strict=False), sources[photo.source]
                results = [self.result(photo, source, index, face, *its) for (index, face), its in faces]
                yield Photo(photo.path, photo.status, results, *photo[3:])

    @torch.inference_mode()
    def probabilities(self, batch: Batch) -> list[list[float]]:
        """Returns the probability of every expression for each face of a batch from `Batch.ready`."""
        return self(batch.image, batch.boxes, batch.valid).tolist()  # type: ignore[no-any-return]

    def result(
        self,
        photo: FoundPhoto,
        source: Source,
        index: int,
        face: Face | None,
        row: int,
        batch: Batch,
        shares: list[float],
    ) -> FaceResult:
        """Returns the face in a row of a batch; `shares` are its probabilities."""
        probabilities = dict(zip(self.labels, shares, strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        to_crop, regions = batch.to_crop[row].double().numpy(), self.region_boxes(batch, row)
        shown = inside(regions, to_crop, photo.size)
        return FaceResult(
            label=label,
            confidence=probabilities[label],
            probabilities=probabilities,
            path=photo.path,
            face=index,
            box=None if face is None else face.box,
            landmarks=None if face is None else dict(zip(LANDMARKS, map(tuple, face.landmarks.tolist()), strict=True)),
            score=None if face is None or math.isnan(face.score) else face.score,
            source=source,
            to_crop=to_crop,
            crop_size=self.crop_spec.size,
            regions=regions if self.net.layout.num_regions else {},
            thresholds=self.net.thresholds,
            blur=blur(batch.image[row, None]).item(),
            outside=tuple(name for name in self.crop_spec.regions if name not in shown),
            frame=photo.frame,
            seconds=photo.seconds,
            track=photo.tracks[index] if photo.tracks else None,
        )

    def region_boxes(self, batch: Batch, row: int) -> dict[str, Array]:
        """Returns the box (4,) of each region that is present in a face of a batch, xyxy in crop pixels."""
        boxes, valid = batch.boxes[row].cpu().double().numpy(), batch.valid[row].tolist()
        return {name: box for name, box, there in zip(self.crop_spec.regions, boxes, valid, strict=True) if there}

    def _detector(self, options: PhotoOptions) -> Detector | None:
        """Returns the detector for some options; it is loaded once, which takes longer than a photo."""
        score = CROP_SCORE if options.face == "crop" else PHOTO_SCORE
        if (key := (options.detector, score)) not in self._detectors:
            self._detectors[key] = make_detector(*key)
        return self._detectors[key]

    def batches(
        self, sources: Sequence[Source], options: PhotoOptions
    ) -> Iterator[tuple[list[FoundPhoto], list[Batch]]]:
        """Yields photos and frames with all their faces in batches for the model, under a progress bar."""
        photos = PhotoDataset(sources, self.crop_spec, options.face, self._detector(options))
        workers = cores() if options.workers is None else options.workers
        runs = list(_runs(sources))
        if videos := any(video for video, _ in runs):
            from fer_vit.predict.frames import VideoDataset  # only here: PyAV may not be installed
        with tqdm(total=None if videos else len(sources), unit=" images", disable=None) as bar, _readable_errors():
            for video, run in runs:
                dataset = VideoDataset(photos, run, options) if video else Subset(photos, run)
                # Starting workers takes seconds; a handful of photos is read sooner without them.
                number = min(workers, 1) if video else workers if len(run) > options.batch_size else 0
                for found, batch in photo_loader(dataset, options.batch_size, number):
                    # A photo may hold hundreds of faces, and recorded attention grows with their number.
                    yield found, [chunk.ready(self.device) for chunk in batch.split(CHUNK)] if batch else []
                    bar.update(len(found))


def _runs(sources: Sequence[Source]) -> Iterator[tuple[bool, range]]:
    """Yields the indices of neighbours that are all photos or all videos, and whether they are videos."""
    start = 0
    for video, run in groupby(sources, is_video):
        stop = start + sum(1 for _ in run)
        yield video, range(start, stop)
        start = stop


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turns out-of-memory errors and dead workers into one line that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FerVitError("The GPU has too little memory for this model. Free some, or hide the GPU.") from error
    except RuntimeError as error:
        if not is_dead_worker(error):
            raise
        raise FerVitError(WORKER_DIED) from error
