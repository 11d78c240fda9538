"""Prediction with a trained model: `fer_vit.load().predict("photo.jpg")[0].plot()`."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Subset
from tqdm import tqdm

from fer_vit.data.sample import Batch, collate
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.face.detect import CROP_SCORE, PHOTO_SCORE, Detector, DetectorName, make_detector
from fer_vit.face.regions import check_regions
from fer_vit.geometry import LANDMARKS, TEMPLATE, Array, apply, invert
from fer_vit.labels import read_prior
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.inputs import Images, Source, as_sources, is_video
from fer_vit.predict.photos import (
    READ,
    FaceMode,
    FoundPhoto,
    Photo,
    PhotoDataset,
    PhotoOptions,
    photo_loader,
)
from fer_vit.predict.results import FaceResult, Faces
from fer_vit.predict.smoothing import smooth_photos
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
    prior: str | Path | Mapping[str, float] | None = None,
    classes: Sequence[str] = (),
) -> "Recognizer":
    """Loads a trained model.

    Args:
        model: A model that fer-vit ships (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a folder, or
            "user/name" on the Hugging Face hub. None: the default one that is shipped.
        device: Where to compute, for example "cpu" or "cuda:1". None: an NVIDIA or Apple GPU if there is one.
        revision: Branch, tag or commit on the hub.
        token: For a private repository on the hub; None uses the one you logged in with.
        prior: See `Recognizer.change_prior`.
        classes: See `Recognizer.change_prior`.

    Raises:
        FerVitError: There is no such model or device, or its files are damaged or not fer-vit's.
    """
    recognizer = Recognizer(load_network(model, revision=revision, token=token))
    if prior is not None or classes:
        recognizer.change_prior(prior, classes)
    device = device or best_device()
    try:
        recognizer.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Expected an available device, for example cpu, but got {device} ({reason}).") from error
    use_fused_attention(recognizer.net, fused_is_faster(recognizer.device, recognizer.net.layout.num_tokens))
    return recognizer


def best_device() -> str:
    """Returns the GPU, of NVIDIA ("cuda") or Apple ("mps"), if there is one; else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


class Recognizer(nn.Module):
    """A RegionViT with cropping, labels and calibrated probabilities.

    Attributes:
        labels: The C expressions in the order of the probabilities.
        crop_spec: How a face becomes a crop.
        conditions: `prior` and `classes` if they were changed.
    """

    def __init__(self, net: RegionViT) -> None:
        super().__init__()
        check_regions(net.config.regions)
        self.net = net
        self.eval()
        settings = net.settings
        self.labels = settings.labels
        self.conditions: dict[str, str] = {}
        template = settings.template or TEMPLATE
        self.crop_spec = CropSpec(net.config.img_size, tuple(net.config.regions), settings.align, template)
        self._detectors: dict[tuple[DetectorName, float], Detector | None] = {}

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def change_prior(self, prior: str | Path | Mapping[str, float] | None, classes: Sequence[str] = ()) -> None:
        """Changes the class prior and the possible classes of all further probabilities.

        Faces then have no prediction set: calibration does not cover it.

        Args:
            prior: "even", the share of each class by name, or a JSON file of these shares. None: as in training.
            classes: The possible labels; others get a probability of 0. Empty: all.

        Raises:
            FerVitError: A class is not one of the model's, the prior does not fit the classes, or the model does not
                contain the class shares of its training faces.
        """
        if unknown := [name for name in classes if name not in self.labels]:
            raise FerVitError(f"Expected classes among {', '.join(self.labels)}, but got {unknown[0]}.")
        possible = [name for name in self.labels if not classes or name in classes]
        self.conditions = {"classes": ", ".join(possible)} if classes else {}
        shares = None
        if prior is not None:
            if not self.net.settings.prior:
                raise FerVitError(
                    "The model does not contain the class shares of its training faces, which `prior` needs. Write it "
                    "again: `fer-vit export FOLDER --checkpoint MODEL --calibrate MANIFEST`."
                )
            by_name = read_prior(prior, possible)
            self.conditions["prior"] = ", ".join(f"{name} {share:.3g}" for name, share in by_name.items())
            shares = [by_name.get(name, 0.0) for name in self.labels]
        self.net.change_prior(shares, [name in possible for name in self.labels])

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.net.probabilities(self.net(image, boxes, valid))

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: DetectorName = "auto",
        batch_size: int = 32,
        workers: int | None = None,
        **video: Any,
    ) -> Faces:
        """Finds and classifies every face in photos and videos.

        Args:
            images: A file, a folder, a glob pattern, a PIL image, a uint8 array (RGB), or a list of these.
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: "auto", "builtin", "yunet", "landmarks" or "none"; see `PhotoOptions`.
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
        photos = list(self.results(sources, PhotoOptions(face, detector, batch_size, workers, **video)))
        wrong = [f"{photo.path}: {photo.status}" for photo in photos if photo.status not in READ]
        if wrong and len(photos) == 1:
            raise FerVitError(f"{wrong[0]}.")
        if wrong:
            warnings.warn(f"{len(wrong)} of {len(sources)} images cannot be read, the first {wrong[0]}.", stacklevel=2)
        if whole := [photo.path for photo in photos if photo.taken_whole]:
            hint = f"{len(whole)} of {len(sources)} images are photos, but each was taken as one face, the first"
            warnings.warn(f'{hint} {whole[0]}. Leave out face="crop".', stacklevel=2)
        return Faces(face for photo in photos for face in photo.faces)

    def stream(self, images: Images | Iterable[Images], **options: Any) -> Iterator[Photo[FaceResult]]:
        """Yields photos and the frames of videos with their `faces`, in order, a few seconds of video at a time.

        Takes the arguments of `predict`.
        """
        return self.results(as_sources(images), PhotoOptions(**options))

    def results(self, sources: Sequence[Source], options: PhotoOptions) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their faces, in order."""
        return smooth_photos(self._raw_results(self.batches(sources, options), sources), options.smooth)

    def watch(self, frames: Iterable["Frame"], path: str) -> Iterator[Photo[FaceResult]]:
        """Yields each frame of live video from `path` with its faces, without delay; `smoothed` averages the past."""
        from fer_vit.predict.frames import find_faces  # only here: PyAV may not be installed

        options = PhotoOptions()
        photos = PhotoDataset([], self.crop_spec, options.face, self._detector(options))
        items = find_faces(photos, frames, path, 0, options.detect_every)
        batches = (([photo], [collate(samples).ready(self.device)] if samples else []) for photo, samples in items)
        return smooth_photos(self._raw_results(batches, [Path(path)]), options.smooth, causal=True)

    def _raw_results(
        self, batches: Iterable[tuple[list[FoundPhoto], list[Batch]]], sources: Sequence[Source]
    ) -> Iterator[Photo[FaceResult]]:
        for photos, chunks in batches:
            yield from self.classify(photos, chunks, sources)

    def classify(
        self, photos: list[FoundPhoto], chunks: list[Batch], sources: Sequence[Source]
    ) -> Iterator[Photo[FaceResult]]:
        """Yields photos or frames with their faces classified; `chunks` contain all these faces."""
        rows = ((chunk, row, values) for chunk in chunks for row, values in enumerate(self.probabilities(chunk)))
        for photo in photos:
            source = sources[photo.source]
            faces = [self.result(photo, source, index, *next(rows)) for index in range(len(photo.faces))]
            yield Photo(photo.path, photo.status, faces, *photo[3:])

    @torch.inference_mode()
    def probabilities(self, batch: Batch) -> list[list[float]]:
        """Returns the probability of every expression for each face of a batch from `Batch.ready`."""
        return self(batch.image, batch.boxes, batch.valid).tolist()  # type: ignore[no-any-return]

    def result(
        self, photo: FoundPhoto, source: Source, index: int, batch: Batch, row: int, values: list[float]
    ) -> FaceResult:
        """Returns face `index` of a photo, which is a row of a batch; `values` are its probabilities."""
        face, probabilities = photo.faces[index], dict(zip(self.labels, values, strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        to_crop, regions = batch.to_crop[row].double().numpy(), self.region_boxes(batch, row)
        shown = regions_in_photo(regions, to_crop, photo.size)
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
            thresholds=self.net.settings.thresholds,
            blur=measure_blur(batch.image[row, None]).item(),
            outside=tuple(name for name in self.crop_spec.regions if name not in shown),
            frame=photo.frame,
            seconds=photo.seconds,
            track=photo.tracks[index] if photo.tracks else None,
        )

    def region_boxes(self, batch: Batch, row: int) -> dict[str, Array]:
        """Returns the box (4,) of each visible region of a face in a batch, xyxy in crop pixels."""
        boxes, valid = batch.boxes[row].cpu().double().numpy(), batch.valid[row].tolist()
        return {name: box for name, box, seen in zip(self.crop_spec.regions, boxes, valid, strict=True) if seen}

    def _detector(self, options: PhotoOptions) -> Detector | None:
        """Returns the detector for some options, loaded once: loading takes longer than a photo."""
        score = CROP_SCORE if options.face == "crop" else PHOTO_SCORE
        if (key := (options.detector, score)) not in self._detectors:
            self._detectors[key] = make_detector(*key)
        return self._detectors[key]

    def batches(
        self, sources: Sequence[Source], options: PhotoOptions
    ) -> Iterator[tuple[list[FoundPhoto], list[Batch]]]:
        """Yields photos and frames with all their faces in batches for the model; shows a progress bar."""
        photos = PhotoDataset(sources, self.crop_spec, options.face, self._detector(options))
        workers = cores() if options.workers is None else options.workers
        runs = list(_split_by_kind(sources))
        if videos := any(video for video, _ in runs):
            from fer_vit.predict.frames import VideoDataset  # only here: PyAV may not be installed
        with tqdm(total=None if videos else len(sources), unit=" images", disable=None) as bar, _readable_errors():
            for video, run in runs:
                dataset = VideoDataset(photos, run, options) if video else Subset(photos, run)
                # Starting workers takes seconds; few photos are read faster without them.
                number = min(workers, 1) if video else workers if len(run) > options.batch_size else 0
                for some, batch in photo_loader(dataset, options.batch_size, number):
                    # A photo may contain hundreds of faces, and recorded attention grows with their number.
                    yield some, [chunk.ready(self.device) for chunk in batch.split(CHUNK)] if batch else []
                    bar.update(len(some))


SIDE = 48
"""Side of the crop in whose pixels blur is measured, for every model."""
LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def measure_blur(crops: Tensor) -> Tensor:
    """Returns the blur (B,) of crops (B, C, S, S) in pixels of `SIDE`; NaN without contrast.

    The fourth root of the variance of grey levels over the variance of their Laplacian (Pech-Pacheco et al. 2000): a
    length that does not depend on contrast.
    """
    grey = F.interpolate(crops.mean(1, keepdim=True), (SIDE, SIDE), mode="bilinear", antialias=True)
    edges = F.conv2d(grey, LAPLACIAN.to(grey)[None, None])
    return (grey.var((1, 2, 3)) / edges.var((1, 2, 3))) ** 0.25


def regions_in_photo(regions: Mapping[str, Array], to_crop: Array, size: tuple[int, int]) -> list[str]:
    """Returns the regions, boxes (4,) in crop pixels, whose centre lies in a photo of width and height `size`."""
    boxes = np.array([*regions.values()]).reshape(-1, 4)  # also without regions
    centres = apply(invert(to_crop), (boxes[:, :2] + boxes[:, 2:]) / 2)
    return [name for name, centre in zip(regions, centres, strict=True) if ((centre >= 0) & (centre < size)).all()]


def _split_by_kind(sources: Sequence[Source]) -> Iterator[tuple[bool, range]]:
    """Yields ranges of successive photos or successive videos, with whether they are videos."""
    start = 0
    for video, run in groupby(sources, is_video):
        stop = start + sum(1 for _ in run)
        yield video, range(start, stop)
        start = stop


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Replaces out-of-memory errors and dead workers by a line with the remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FerVitError("The GPU has too little memory for this model. Free some, or hide the GPU.") from error
    except RuntimeError as error:
        if not is_dead_worker(error):
            raise
        raise FerVitError(WORKER_DIED) from error
