"""Measures `predict` for a clip: wall and CPU time of the command, and CPU time by stage.

python -m benchmarks.clips clip.mp4

The stages run one after another in this process, and the command runs them side by side. So the
slowest of decoding, finding and the network is the least time a frame on many cores.
"""

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2

from benchmarks.machine import PROGRAM, machine, run_main, spread
from fer_vit.faces import Crops, PhotoInfo, join_crops
from fer_vit.predict.frames import Frame, read_frames
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import make_finder
from fer_vit.predict.recognizer import FACES_PER_PASS, load
from fer_vit.predict.video import track_faces

CPU = dict[str, float]  # CPU seconds by stage


@contextmanager
def stage(seconds: CPU, name: str) -> Iterator[None]:
    """Adds the CPU time of a block, in all threads of this process, to a stage."""
    start = time.process_time()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.process_time() - start


def command_seconds(clip: Path, precision: str) -> tuple[float, float]:
    """Returns wall and CPU seconds of `fer-vit predict`, start-up and worker process included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        words = [PROGRAM, "predict", clip, "--output", Path(folder, "a.csv")]
        subprocess.run([*words, "--precision", precision], check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def stage_seconds(clip: Path, precision: str) -> tuple[CPU, int]:
    """Returns the CPU seconds of each stage, and the number of frames."""
    cv2.setNumThreads(1)  # as in the worker process
    options = PhotoOptions()
    model = load(precision=precision)
    finder = make_finder(model.crop_spec, options)
    seconds: CPU = {}

    def frames() -> Iterator[Frame]:
        reading = read_frames(clip)
        while True:
            with stage(seconds, "decode"):
                frame = next(reading, None)
            if frame is None:
                return
            yield frame

    crops: list[Crops] = []
    count = 0
    with stage(seconds, "decode, find and crop"):
        tracked = track_faces(finder, frames(), PhotoInfo(str(clip)), options.detect_every, True)
        for faces in tracked:
            if faces.crops:
                crops.append(faces.crops)
            count += 1
    with stage(seconds, "network"):
        for part in join_crops(crops).split(FACES_PER_PASS):
            model.read(part)
    seconds["find and crop"] = seconds.pop("decode, find and crop") - seconds["decode"]
    return seconds, count


def main(clip: Path, precision: str = "float32", rounds: int = 3) -> None:
    """Runs the measurements."""
    print(machine())
    walls = []
    cpus = []
    for _ in range(rounds):
        wall, cpu = command_seconds(clip, precision)
        walls.append(wall)
        cpus.append(cpu)
    seconds, count = stage_seconds(clip, precision)
    print(f"\n{clip.name}: {count:,} frames, {precision}\n")
    print(f"command: {spread(walls, 1)} s, {spread(cpus, 1)} s of CPU time")
    print(f"frames/s: {spread([count / wall for wall in walls], 1)}\n")
    print("| stage | CPU ms a frame |")
    print("| --- | ---: |")
    for name, total in seconds.items():
        print(f"| {name} | {1000 * total / count:.2f} |", flush=True)


if __name__ == "__main__":
    run_main(main)
