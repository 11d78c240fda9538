"""The verb `live`: the faces before a camera, on a page and in a table."""

import sys
import time
from collections import Counter, deque
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fer_vit.errors import FerVitError
from fer_vit.files import check_output
from fer_vit.predict.live import Seen, is_camera, shown_name, watch
from fer_vit.predict.recognizer import load
from fer_vit.predict.results import photo_rows, table_columns
from fer_vit.predict.tables import listed
from fer_vit.report.draw import percent
from fer_vit.report.live import LivePage
from fer_vit.report.table import TableWriter


def live(
    source: str = "0",
    *,
    checkpoint: str | None = None,
    output: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    overwrite: bool = False,
) -> None:
    """Finds and classifies the faces before a camera, and shows them on a page of this machine.

    Always the newest frame is shown: what comes while one is worked on is skipped. Expressions on the page are averaged
    over the last moments. Ctrl-C ends it.

    Examples:
        fer-vit live

        fer-vit live rtsp://camera.local/stream --output live.csv

        fer-vit live clip.mp4 --port 8080

    Args:
        source: The number of a camera, an address (rtsp://, http:// ...), or a video file, played at its own speed.
            Left out: camera 0.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: A table to record: .csv or .jsonl, with the columns of `predict` for videos. Rows are written at once.
        host: Where the page is served. Everybody who can reach this address can look; the usual one is this machine's.
        port: The page's port; 0 takes one that is free.
        overwrite: Whether an existing table may be replaced.
    """
    check(source, output, overwrite)
    model, meter = load(checkpoint), Meter()
    with ExitStack() as stack:
        page = stack.enter_context(LivePage(host, port))
        columns = table_columns(model.labels, videos=True)
        table = stack.enter_context(TableWriter(output, columns, live=True)) if output else None
        print(f"{shown_name(source)}: open {page.address} (Ctrl-C ends)", flush=True)
        if not page.private:
            print("Everybody who can reach this machine can look: there is no password.", file=sys.stderr)
        stack.callback(lambda: meter.frames and print(meter.summary(output)))
        line = stack.enter_context(tqdm(bar_format="{desc}", disable=None))
        with suppress(KeyboardInterrupt), closing(watch(model, source)) as frames:
            for seen in frames:
                if table:
                    table.write([*photo_rows(seen.photo)])
                meter.add(seen)
                page.show(seen.image, [face.marked for face in seen.photo.faces], meter.speed())
                line.set_description_str(f"{meter.speed()}; {people(seen)}")


def check(source: str, output: Path | None, overwrite: bool) -> None:
    """Raises FerVitError, before any work, when there is no such source, or no such table can be recorded."""
    if not (is_camera(source) or "://" in source or Path(source).is_file()):
        raise FerVitError(f"Expected a camera's number, an address with ://, or a video file, but got {source}.")
    if output:
        if output.suffix.lower() not in (".csv", ".jsonl"):
            raise FerVitError(f"Expected a table that ends in .csv or .jsonl, since it grows, but got {output}.")
        check_output(output, overwrite)


class Meter:
    """What was seen, and how fast in the last frames."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, float, int]] = deque(maxlen=100)  # when done, seconds since it came, faces
        self.frames = self._skipped = 0
        self._labels = Counter[str]()

    def add(self, seen: Seen) -> None:
        """Counts a frame whose faces are known by now."""
        now, photo = time.perf_counter(), seen.photo
        self._last.append((now, now - seen.arrived, len(photo.faces)))
        self.frames += 1
        self._skipped = (photo.frame or 0) + 1 - self.frames
        self._labels.update(str(face.label_smoothed) for face in photo.faces)

    def speed(self) -> str:
        """Tells frames and faces a second, the latency from frame to label, and how many frames were skipped."""
        done, waits, faces = zip(*self._last, strict=True)
        rate = (len(done) - 1) / max(done[-1] - done[0], 1e-9)
        middle, most = np.percentile(waits, (50, 95)) * 1000
        return (
            f"{rate:.1f} frames/s, {rate * float(np.mean(faces)):.1f} faces/s, latency {middle:.0f} ms "
            f"(95 %: {most:.0f}), {self._skipped:,} skipped"
        )

    def summary(self, output: Path | None) -> str:
        """Summarises all frames, and names the table."""
        counts = f"{self.frames:,} frames\n{self._labels.total():,} faces: {listed(self._labels)}"
        return f"{counts}\nAt the end {self.speed()}" + (f"\nTable: {output}" if output else "")


def people(seen: Seen) -> str:
    """Lists a frame's people and their expressions on one line."""
    faces = (face.marked for face in seen.photo.faces)
    return ", ".join(f"{face.track} {face.label} {percent(face.probability)}" for face in faces) or "no face"
