"""How long live pictures take from frame to label, and how many there are a second; a clip played at its own speed.

python -m benchmarks.live clip.mp4 ...

A clip is scaled to 720 lines first. With --viewers N as many browsers ask for the page's pictures meanwhile.
"""

import http.client
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import av
import numpy as np

from benchmarks.machine import arguments, machine
from fer_vit.predict.live import watch
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.report.live import LivePage


def scale(path: Path, goal: Path, height: int = 720) -> None:
    """Writes a clip anew with so many lines, and the times that it has."""
    with av.open(str(path)) as source, av.open(str(goal), "w") as file:
        frames, stream = source.streams.video[0], file.add_stream("libx264", source.streams.video[0].average_rate)
        stream.height, stream.pix_fmt = height, "yuv420p"
        stream.width = round(frames.width * height / frames.height / 2) * 2
        stream.codec_context.time_base = frames.time_base
        for frame in source.decode(frames):
            small = frame.reformat(stream.width, height, "yuv420p")
            small.pts, small.time_base = frame.pts, frame.time_base
            file.mux(stream.encode(small))
        file.mux(stream.encode())


def look(page: LivePage) -> None:
    """Asks for one picture after another, as a browser does, until the server ends."""
    known = "-1"
    with suppress(OSError, http.client.HTTPException):
        while True:
            viewer = http.client.HTTPConnection("127.0.0.1", page.server_port)
            viewer.request("GET", f"/picture/{known}")
            answer = viewer.getresponse()
            answer.read()
            known = answer.getheader("X-Number") or known


def measure(model: Recognizer, clip: Path, viewers: int) -> str:
    """Plays a clip once; returns what it took. The first tenth, in which everything warms up, does not count."""
    waits, done, faces = [], [], 0
    with LivePage("127.0.0.1", 0) as page:
        for _ in range(viewers):
            Thread(target=look, args=(page,), daemon=True).start()
        for seen in watch(model, str(clip)):
            waits.append(time.perf_counter() - seen.arrived)
            done.append(time.perf_counter())
            faces += len(seen.photo.faces)
            page.show(seen.image, [face.marked for face in seen.photo.faces], "")
    warm = len(done) // 10
    middle, most = np.percentile(waits[warm:], (50, 95)) * 1000
    rate = (len(done) - 1 - warm) / max(done[-1] - done[warm], 1e-9)
    return (
        f"{len(done)} of {(seen.photo.frame or 0) + 1} frames, {faces} faces, "
        f"{rate:.1f} frames/s, latency {middle:.0f} ms (95 %: {most:.0f})"
    )


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("clips", nargs="+", type=Path)
    parser.add_argument("--viewers", nargs="+", type=int, default=[0, 1])
    args = parser.parse_args()
    print(machine())
    model = load(device="cpu")
    with TemporaryDirectory() as folder:
        scaled = Path(folder, "clip.mp4")
        for clip in args.clips:
            scale(clip, scaled)
            for viewers in args.viewers:
                print(f"{clip.name}, viewers {viewers}: {measure(model, scaled, viewers)}", flush=True)


if __name__ == "__main__":
    main()
