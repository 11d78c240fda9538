"""The camera page: the newest frame, its faces, and the speed. A browser requests one picture after another.

A slow browser requests fewer pictures, so that nothing piles up, and each viewer sees the newest one.
"""

import asyncio
import io
import time
from base64 import b64encode
from collections import Counter, deque
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pil

from fer_vit.report.overlay import draw_faces

if TYPE_CHECKING:  # this process needs no PyTorch
    from fer_vit.predict.live import Seen

PATIENCE = 10.0
"""Seconds that a browser waits for a new picture before it gets the old one."""
MAX_BARS = 8
"""Faces of which the page shows all expressions."""


class LivePage:
    """The newest frame and counts of all frames, shared by the thread that finds faces and the server.

    Attributes:
        recording: Name of the table that is written; None: nothing is recorded.
        stopped: Whether a viewer pressed "Stop".
        frames: Number of frames.
        labels: Number of faces by expression.
        speed: Frames and faces per second, latency from frame to label, and skipped frames, as text.
    """

    def __init__(self, recording: str | None = None) -> None:
        self.recording = recording
        self.stopped = False
        self.frames, self.labels, self.speed = 0, Counter[str](), ""
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=100)  # when done, latency, faces
        self._newest: tuple[int, Seen | None, str] = 0, None, ""
        self._drawn: dict[str, object] = {"number": 0}
        self._drawing = Lock()

    def show(self, seen: "Seen") -> None:
        """Counts a frame and replaces the picture on the page."""
        now, faces = time.perf_counter(), seen.photo.faces
        self.frames += 1
        self.labels.update(str(face.label_smoothed) for face in faces)
        self._recent.append((now, now - seen.arrived, len(faces)))
        done, latencies, counts = zip(*self._recent, strict=True)
        rate = (len(done) - 1) / max(done[-1] - done[0], 1e-9)
        median, high = np.percentile(latencies, (50, 95)) * 1000
        self.speed = (
            f"{rate:.1f} frames/s, {rate * float(np.mean(counts)):.1f} faces/s, latency {median:.0f} ms "
            f"(95 %: {high:.0f}), {(seen.photo.frame or 0) + 1 - self.frames:,} skipped"
        )
        self._newest = self.frames, seen, self.speed

    async def newest(self, known: int) -> dict[str, object]:
        """Waits for a picture whose number is not `known`; returns the content of the page as JSON values."""
        end = time.monotonic() + PATIENCE
        while not self.stopped and self._newest[0] in (0, known) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return await asyncio.to_thread(self._draw) | {"recording": self.recording, "stopped": self.stopped}

    def _draw(self) -> dict[str, object]:
        with self._drawing:  # once for all viewers
            number, seen, status = self._newest
            if seen and number != self._drawn["number"]:
                faces, buffer = seen.photo.faces, io.BytesIO()
                Pil.fromarray(draw_faces(seen.image, [face.marked for face in faces])).save(buffer, "JPEG", quality=85)
                self._drawn = {
                    "number": number,
                    "status": status,
                    "faces": [
                        {"track": face.track, "probabilities": face.smoothed or face.probabilities}
                        for face in faces[:MAX_BARS]
                    ],
                    "picture": b64encode(buffer.getvalue()).decode(),
                }
            return self._drawn
