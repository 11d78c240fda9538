"""What the page asks for: tables and reports of uploads, made by the functions of `predict` and `visualize`.

One job runs at a time, since each can use all cores, and in a working directory of its own, where uploads have their
own names: tables and pages show no other path.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from threading import Lock

from fer_vit.errors import FerVitError
from fer_vit.predict.inputs import find_images
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import load
from fer_vit.predict.tables import predict_table
from fer_vit.visualize.writer import write_report

MAX_PHOTOS, MAX_FACES = 20, 50
"""Photos or clips in one job, and faces of each kind that are explained in one: a face takes up to a second."""
KEPT = 3600
"""Seconds after which the next job removes uploads and results."""
OPTIONS = PhotoOptions(workers=0, fps=2, end=20)
"""Of a clip a few frames a second are read, and only its start."""

model_named = cache(load)
_busy = Lock()


@dataclass(frozen=True)
class Jobs:
    """Works on uploads; `uploads` and `results` are absolute folders whose entries are removed when they are old."""

    uploads: Path
    results: Path

    def predict(self, photos: Sequence[str], model: str) -> tuple[str, Path]:
        """Writes the table of `predict`; returns a summary and its path."""
        with self._job(photos) as (paths, result):
            said = predict_table(model_named(model), paths, result / "faces.csv", OPTIONS, people_table=None)
        return said.rpartition("\n")[0], result / "faces.csv"

    def visualize(self, photos: Sequence[str], model: str) -> Path | None:
        """Writes the report of `visualize` about some of the faces; returns its folder, or None if there are none."""
        with self._job(photos) as (paths, folder):
            report, recognizer = folder / "report", model_named(model)
            shown = write_report(report, recognizer, find_images(paths), OPTIONS, "pixels", False, model, MAX_FACES)
            return report if shown else None

    def room(self) -> int:
        """Removes what is old, and returns how many bytes are free."""
        for parent in (self.uploads, self.results):
            remove_old(parent)
        return shutil.disk_usage(self.uploads).free

    @contextmanager
    def _job(self, photos: Sequence[str]) -> Iterator[tuple[list[Path], Path]]:
        """Yields uploads as files in the working directory, and a new folder for what is made of them."""
        if not 0 < len(photos) <= MAX_PHOTOS:
            raise FerVitError(f"Expected 1 to {MAX_PHOTOS} photos or clips at a time, but got {len(photos)}.")
        with _busy, TemporaryDirectory() as folder, chdir(folder):
            self.room()
            paths = []
            for photo in photos:
                name = Path(photo).name
                names = chain([name], (f"{number} {name}" for number in count(1)))
                paths.append(next(path for path in map(Path, names) if not path.exists()))
                try:
                    os.link(photo, paths[-1])  # Windows wants a privilege for symbolic links
                except OSError:  # another disk
                    shutil.copyfile(photo, paths[-1])
            result = self.results / token_urlsafe()  # its address is known only to who asked
            result.mkdir(parents=True)
            yield paths, result


def remove_old(parent: Path) -> None:
    """Removes what nothing was added to for a long time."""
    for entry in parent.iterdir():
        with suppress(FileNotFoundError):  # an upload that is just arriving gets another name
            if time.time() - entry.stat().st_mtime > KEPT:
                shutil.rmtree(entry, ignore_errors=True)
