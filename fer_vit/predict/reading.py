"""Reads sources in worker processes, as batches of photos and frames, in order.

`photos.py` reads one photo, and `video.py` the frames of one video. Reading can start before the
model is loaded.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

from fer_vit.face.crop import CropSpec
from fer_vit.face.detectors import find_detector
from fer_vit.face.finder import FaceFinder
from fer_vit.faces import Faces, Source
from fer_vit.model_settings import read_crop
from fer_vit.predict.inputs import is_video
from fer_vit.predict.photos import PhotoOptions, PhotoReader, Reader, read_batches
from fer_vit.predict.stamps import StampedReader
from fer_vit.processes import cores
from fer_vit.store.hub import DEFAULT_MODEL, read_config, shipped_models


def read_sources(
    sources: Sequence[Source], finder: FaceFinder, options: PhotoOptions, stamped: bool = False
) -> Iterator[Faces]:
    """Yields batches of photos and frames, in order. The first worker processes start at once.

    With `stamped`, the sources are files, and each `PhotoInfo` has the stamp of its file.
    """
    # Runs of successive photos, and of successive videos.
    by_kind = groupby(range(len(sources)), lambda index: is_video(sources[index]))
    runs = (
        _read_run(sources, finder, options, stamped, videos, list(indices))
        for videos, indices in by_kind
    )
    first_run = next(runs, iter(()))  # starts its worker processes
    return chain(first_run, chain.from_iterable(runs))


def _read_run(
    sources: Sequence[Source],
    finder: FaceFinder,
    options: PhotoOptions,
    stamped: bool,
    videos: bool,
    indices: Sequence[int],
) -> Iterator[Faces]:
    """Yields batches of successive photos, or, with `videos`, of successive videos."""
    processes = count_processes(options, len(indices), videos)
    reader: Reader = PhotoReader(sources, finder)
    if videos:
        from fer_vit.predict.video import VideoReader  # not at the top: photos need no PyAV

        reader = VideoReader(sources, finder, options)
    if stamped:
        reader = StampedReader(reader)
    return read_batches(reader, indices, options.batch_size, processes)


def count_processes(options: PhotoOptions, num_sources: int, videos: bool) -> int:
    """Returns how many worker processes read photos or videos; 0: the main process reads them.

    A file that crashes a decoder ends the process that reads it.
    """
    workers = cores() if options.workers is None else options.workers
    if videos:
        return min(workers, 1)
    if options.workers is None and num_sources <= options.batch_size:
        return 0  # a few photos are read faster than workers start
    return min(workers, math.ceil(num_sources / options.batch_size))


def make_finder(spec: CropSpec, options: PhotoOptions) -> FaceFinder:
    """Returns the finder that crops faces as in `spec`.

    Raises FerVitError when a file of the detector is missing.
    """
    detector = find_detector(options.detector)
    if options.face == "crop":
        min_score = detector.crop_score
    elif options.min_score is None:
        min_score = detector.min_score
    else:
        min_score = options.min_score
    return FaceFinder(spec, options.face, detector.load(min_score))


class Started(NamedTuple):
    """Reading that began before the model was loaded: imports for a model take two seconds."""

    spec: CropSpec  # how faces are cropped, for the model that will be loaded
    batches: Iterator[Faces]


def start_reading(
    model: str | None, sources: Sequence[Source], options: PhotoOptions
) -> Started | None:
    """Starts to read for a shipped model.

    Returns None if `options.workers` is 0 or None, and for other models, because their crops are
    known only when they are loaded.
    """
    folder = shipped_models().get(model or DEFAULT_MODEL)
    if folder is None or not options.workers:
        return None
    spec = read_crop(read_config(folder, folder.name), folder.name)
    return Started(spec, read_sources(sources, make_finder(spec, options), options))
