"""Reads photos and videos in worker processes, as batches of photos and frames, in order.

`inputs.py` lists what is read. `photos.py` reads one photo, and `video.py` the frames of one video.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol

from fer_vit.face.crop import CropSpec
from fer_vit.face.detectors import find_detector
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import CRASHED
from fer_vit.face.network import import_runtime
from fer_vit.faces import Faces, PhotoInfo, Source, Stamp, join_faces, no_faces
from fer_vit.files import open_input
from fer_vit.model_settings import read_crop
from fer_vit.predict.inputs import is_video, source_name
from fer_vit.predict.photos import PhotoOptions, find_in_photo
from fer_vit.processes import cores, work_in_processes
from fer_vit.store.hub import DEFAULT_MODEL, read_config, shipped_models


def start_reading(
    model: str | None, sources: Sequence[Source], options: PhotoOptions
) -> Iterator[Faces] | None:
    """Starts to read for a shipped model, which is loaded meanwhile.

    Returns None if `options.workers` is 0 or None, and for other models, because their crops are
    known only when they are loaded.
    """
    folder = shipped_models().get(model or DEFAULT_MODEL)
    if folder is None or not options.workers:
        return None
    spec = read_crop(read_config(folder, folder.name), folder.name)
    import_runtime()  # once, before the workers start
    return read_sources(sources, spec, options)


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


def read_sources(
    sources: Sequence[Source], spec: CropSpec, options: PhotoOptions, stamped: bool = False
) -> Iterator[Faces]:
    """Yields batches of photos and frames, in order. The first worker processes start at once.

    Faces are cropped as in `spec`. With `stamped`, the sources are files, and each `PhotoInfo` has
    the stamp of its file. Raises FerVitError when a file of the detector is missing.
    """
    reader = SourceReader(sources, make_finder(spec, options), options, stamped)
    # Runs of successive photos, and of successive videos.
    by_kind = groupby(range(len(sources)), lambda index: is_video(sources[index]))
    runs = (_read_run(reader, list(indices), videos) for videos, indices in by_kind)
    first_run = next(runs, iter(()))  # starts its worker processes
    return chain(first_run, chain.from_iterable(runs))


def _read_run(reader: "SourceReader", indices: Sequence[int], videos: bool) -> Iterator[Faces]:
    """Yields batches of successive photos, or, with `videos`, of successive videos."""
    options = reader.options
    workers = cores() if options.workers is None else options.workers
    if videos:
        processes = min(workers, 1)  # a file that crashes a decoder ends the process that reads it
    elif options.workers is None and len(indices) <= options.batch_size:
        processes = 0  # a few photos are read faster than workers start
    else:
        processes = min(workers, math.ceil(len(indices) / options.batch_size))
    return read_batches(reader, indices, options.batch_size, processes)


class Reader(Protocol):
    """Reads sources by their index."""

    def name(self, index: int) -> str:
        """Returns the name of a source in results."""

    def read_faces(self, index: int) -> Iterator[Faces]:
        """Yields the faces of a photo, or of the frames of a video, with their crops."""


def read_batches(
    reader: Reader, indices: Sequence[int], batch_size: int, processes: int
) -> Iterator[Faces]:
    """Yields batches of photos or frames in order, with their faces and the crops of these.

    Worker processes, which start at once, read them; with 0 `processes`, this process does. A
    source that kills its worker process has the status `CRASHED`.
    """
    results = work_in_processes(reader.read_faces, indices, processes)

    def join_results() -> Iterator[Faces]:
        batch: list[Faces] = []
        for index, faces in results:
            if faces is None:
                faces = no_faces([PhotoInfo(reader.name(index), CRASHED, index)])
            batch.append(faces)
            if len(batch) == batch_size:
                yield join_faces(batch)
                batch = []
        if batch:
            yield join_faces(batch)

    return join_results()


@dataclass(frozen=True, eq=False)
class SourceReader:
    """Reads photos and videos by their index, finds their faces and cuts them out."""

    sources: Sequence[Source]
    finder: FaceFinder
    options: PhotoOptions
    stamped: bool = False

    def name(self, index: int) -> str:
        """Returns the name of a source in results."""
        return source_name(self.sources[index], index)

    def read_faces(self, index: int) -> Iterator[Faces]:
        """Yields the faces of a photo, or of each frame of a video, with their crops."""
        source = self.sources[index]
        info = PhotoInfo(self.name(index), index=index)
        if self.stamped:
            # The stamp is first: a file that is replaced meanwhile differs from its stamp.
            info = replace(info, stamp=read_stamp(Path(info.path)))
        if is_video(source):
            from fer_vit.predict.video import find_in_video  # not at the top: photos need no PyAV

            yield from find_in_video(source, info, self.finder, self.options)
        else:
            yield find_in_photo(source, info, self.finder)


def read_stamp(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None if the file cannot be read."""
    try:
        with open_input(path) as file:
            status = os.fstat(file.fileno())
            digest = file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except (OSError, ValueError):  # ValueError: a NUL byte in the path
        return None
    return Stamp(status.st_size, status.st_mtime_ns, digest)
