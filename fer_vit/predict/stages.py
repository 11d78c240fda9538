"""The stages of prediction: find faces, classify them, smooth their probabilities over time.

Each stage takes and yields photos and frames one after another; sinks, such as tables, take the results.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Subset
from tqdm import tqdm

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.geometry import LANDMARKS, Array, Float32Array, apply, invert
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import FoundPhoto, Photo, PhotoDataset, PhotoOptions, Source, is_video, photo_loader
from fer_vit.predict.results import FaceResult
from fer_vit.processes import WORKER_DIED, cores, is_dead_worker

CHUNK = 64  # faces in one forward pass
FoundFaces: TypeAlias = tuple[list[FoundPhoto], list[Batch]]
"""Photos or frames, and all their faces in batches for the network."""
Timed: TypeAlias = tuple[float, Photo[FaceResult]]  # a frame after its time in seconds
REACH = 3.0  # half the width of the smoothing window in time constants: 99.7 % of the weight
FLOOR = 1e-6  # lower limit of smoothed probabilities: a logarithm of 0 would outweigh all others
SIDE = 48  # side of the crop in whose pixels blur is measured, for every model
LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def find_faces(photos: PhotoDataset, options: PhotoOptions, device: torch.device) -> Iterator[FoundFaces]:
    """Finds the faces of photos and videos in worker processes, in order, under a progress bar."""
    by_kind = groupby(range(len(photos)), lambda index: is_video(photos.sources[index]))
    runs = [(video, list(run)) for video, run in by_kind]
    if videos := any(map(itemgetter(0), runs)):
        from fer_vit.predict.video import VideoDataset  # only here: PyAV may not be installed
    with tqdm(total=None if videos else len(photos), unit=" images", disable=None) as bar, _readable_errors():
        for video, run in runs:
            dataset = VideoDataset(photos, run, options) if video else Subset(photos, run)
            for some, batch in photo_loader(dataset, options.batch_size, _count_workers(options, video, len(run))):
                # A photo may contain hundreds of faces, and recorded attention grows with their number.
                yield some, [chunk.ready(device) for chunk in batch.split(CHUNK)] if batch else []
                bar.update(len(some))


def _count_workers(options: PhotoOptions, video: bool, sources: int) -> int:
    workers = cores() if options.workers is None else options.workers
    if video:
        return min(workers, 1)
    return workers if sources > options.batch_size else 0  # few photos are read faster than workers start


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


def classify_faces(
    net: RegionViT, spec: CropSpec, found: Iterable[FoundFaces], sources: Sequence[Source]
) -> Iterator[Photo[FaceResult]]:
    """Classifies the faces that were found in `sources`, which were cropped by `spec`."""
    for photos, chunks in found:
        rows = (row for chunk in chunks for row in zip(*_classify(net, chunk), chunk.split(1), strict=True))
        for photo in photos:
            source = sources[photo.source]
            faces = [_result(net, spec, photo, source, index, *next(rows)) for index in range(len(photo.faces))]
            yield Photo(photo.path, photo.status, faces, *photo[3:])


@torch.inference_mode()
def _classify(net: RegionViT, batch: Batch) -> tuple[list[list[float]], Float32Array]:
    """Returns the probabilities (B, C) and the features (B, D) of faces; features per expression are averaged."""
    pooled = net.pool_features(batch.image, batch.boxes, batch.valid)
    features = pooled.float().reshape(len(pooled), -1, pooled.shape[-1]).mean(1).cpu().numpy()
    return net.probabilities(net.classify(pooled)).tolist(), features


def _result(
    net: RegionViT,
    spec: CropSpec,
    photo: FoundPhoto,
    source: Source,
    index: int,
    values: list[float],
    features: Float32Array,
    batch: Batch,
) -> FaceResult:
    """Returns face `index` of a photo, from its probabilities and a batch with this face alone."""
    face, probabilities = photo.faces[index], dict(zip(net.settings.labels, values, strict=True))
    label = max(probabilities, key=probabilities.__getitem__)
    to_crop, regions = batch.to_crop[0].double().numpy(), visible_regions(spec, batch, 0)
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
        crop_size=spec.size,
        regions=regions if net.layout.num_regions else {},
        thresholds=net.settings.thresholds,
        blur=measure_blur(batch.image).item(),
        outside=tuple(name for name in spec.regions if name not in shown),
        net=net,
        frame=photo.frame,
        seconds=photo.seconds,
        track=photo.tracks[index] if photo.tracks else None,
        features=features,
    )


def visible_regions(spec: CropSpec, batch: Batch, row: int) -> dict[str, Array]:
    """Returns the box (4,) of each visible region of a face in a batch, xyxy in crop pixels."""
    boxes, valid = batch.boxes[row].cpu().double().numpy(), batch.valid[row].tolist()
    return {name: box for name, box, seen in zip(spec.regions, boxes, valid, strict=True) if seen}


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


def average_over_time(probabilities: Array, elapsed: Array, constant: float, causal: bool) -> Array:
    """Averages log-probabilities at T times, given as probabilities (T, C), into probabilities (C,) at one time.

    `elapsed` are the seconds (T,) from each time to the result's time, negative for later ones, and `constant` is the
    time constant in seconds; 0 uses the result's time only. If `causal`, the average of the past is exponential, for
    live video; otherwise it is Gaussian and has no delay.
    """
    ages = elapsed / max(constant, 1e-9)
    weights = np.where(ages >= 0, np.exp(-ages.clip(0)), 0.0) if causal else np.exp(-0.5 * ages**2)
    logs = weights @ np.log(np.maximum(probabilities, FLOOR)) / weights.sum()
    average: Array = np.exp(logs) / np.exp(logs).sum()
    return average


def smooth_faces(
    photos: Iterable[Photo[FaceResult]], constant: float, causal: bool = False
) -> Iterator[Photo[FaceResult]]:
    """Yields photos unchanged, and frames with `smoothed` probabilities.

    Frames are delayed by half a window; if `causal`, by nothing.
    """
    for _, frames in groupby(photos, attrgetter("source")):
        yield from _smooth_video(frames, constant, causal)


def _smooth_video(frames: Iterable[Photo[FaceResult]], constant: float, causal: bool) -> Iterator[Photo[FaceResult]]:
    reach, near, waiting = REACH * constant, deque[Timed](), deque[Timed]()  # `near` begins in the window of the first

    def smooth_first() -> Photo[FaceResult]:
        seconds, frame = waiting.popleft()
        while abs(seconds - near[0][0]) > reach:
            near.popleft()
        return _smooth_frame(seconds, frame, near, constant, causal)

    for frame in frames:
        if frame.seconds is None:  # a photo, or the end of a damaged video
            yield from (smooth_first() for _ in range(len(waiting)))
            yield frame
            continue
        while waiting and abs(frame.seconds - waiting[0][0]) > reach:
            yield smooth_first()
        near.append((frame.seconds, frame))
        waiting.append((frame.seconds, frame))
        if causal:
            yield smooth_first()
    yield from (smooth_first() for _ in range(len(waiting)))


def _smooth_frame(
    seconds: float, frame: Photo[FaceResult], near: Iterable[Timed], constant: float, causal: bool
) -> Photo[FaceResult]:
    faces = []
    for face in frame.faces:
        same = [(seconds - time, one) for time, other in near for one in other.faces if one.track == face.track]
        probabilities, elapsed = np.array([[*one.probabilities.values()] for _, one in same]), [age for age, _ in same]
        average = average_over_time(probabilities, np.array(elapsed), constant, causal)
        faces.append(replace(face, smoothed=dict(zip(face.probabilities, average.tolist(), strict=True))))
    return frame._replace(faces=faces)
