"""What following faces costs, and what smoothing does: labels kept, flicker, delay; on a drawn clip and on others.

python -m benchmarks.video clip.mp4 ...
python -m benchmarks.video --speed [clip.mp4 ...] [--minutes 30]

In the drawn clip three people change their expression every 1.5 seconds, under noise and compression. The second
command times the whole of `fer-vit predict`, on a drawn minute of one face at 1280 x 720 and on other clips, and
compares the memory that a minute of a small clip takes with that of many minutes.
"""

import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import psutil

from benchmarks.hostile import run
from benchmarks.machine import PROGRAM, arguments, in_turns, machine, spread
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.predict.results import FaceResult
from fer_vit.predict.smoothing import smooth
from tests.helpers.videos import Actor, scene, write_video

MOODS = ("neutral", "happiness", "surprise", "sadness")
EVERY = (1, 5, 10)
CONSTANTS = (0.0, 0.1, 0.25, 0.5, 1.0)
Faces = dict[tuple[int | None, int | None], FaceResult]


def mood(seconds: float) -> str:
    """The expression of the drawn people at a time."""
    return MOODS[int(seconds / 1.5) % len(MOODS)]


def draw(path: Path, frames: int = 450, people: int = 3, height: int = 360) -> Path:
    """Draws a clip of people who walk slowly, 16:9, 25 frames a second."""
    times, rng, size = [number / 25 for number in range(frames)], np.random.default_rng(0), height / 360
    actors = [
        Actor(seed, lambda t, left=left: (size * (left + 3 * t), size * 180, size * 150), mood)  # type: ignore[misc]
        for seed, left in ((7, 110), (21, 320), (33, 530))[:people]
    ]
    noisy = (
        (image + rng.integers(-12, 13, image.shape)).clip(0, 255).astype(np.uint8)
        for image, _ in scene(actors, times, (height * 16 // 9, height))
    )
    return write_video(path, noisy, times, rate=Fraction(25), options={"crf": "28", "bf": "3"})


def repeat(path: Path, goal: Path, times: int) -> Path:
    """Joins copies of a clip into one, without decoding them."""
    with av.open(str(path)) as file, av.open(str(goal), "w") as joined:
        source = file.streams.video[0]
        copy, length = joined.add_stream_from_template(source), source.duration or 0
        for number in range(times):
            file.seek(0)
            for packet in file.demux(source):
                if packet.pts is not None and packet.dts is not None:
                    packet.pts, packet.dts, packet.stream = (
                        packet.pts + number * length,
                        packet.dts + number * length,
                        copy,
                    )
                    joined.mux(packet)
    return goal


def following(runs: dict[int, Faces]) -> list[str]:
    """Compares faces that were followed with those that were searched for in every frame."""
    lines = []
    for every in EVERY[1:]:
        both = [(face, runs[every][key]) for key, face in runs[1].items() if key in runs[every]]
        kept = np.mean([a.label == b.label for a, b in both])
        smoothed = np.mean([a.label_smoothed == b.label_smoothed for a, b in both])
        lines.append(
            f"detect_every {every}: {len(both)} of {len(runs[1])} faces in the same track, label kept {kept:.1%}, "
            f"smoothed {smoothed:.1%}"
        )
    return lines


def smoothing(faces: Faces, drawn: bool) -> list[str]:
    """Measures smoothed labels: changes a second and, where the truth is known, accuracy and delay in seconds."""
    lines = []
    for constant in CONSTANTS:
        for causal in (False, True) if constant else (False,):
            changes, seconds, right, delays = 0, 0.0, [], []
            for track in {face.track for face in faces.values()}:
                mine = [face for face in faces.values() if face.track == track]
                times = np.array([face.seconds for face in mine])
                labels = smoothed_labels(mine, times, constant, causal)
                changes, seconds = changes + int((np.diff(labels) != 0).sum()), seconds + float(times[-1] - times[0])
                truth = np.array([list(mine[0].probabilities).index(mood(t)) for t in times])
                right.append(float((labels == truth).mean()))
                found, true = times[1:][np.diff(labels) != 0], times[1:][np.diff(truth) != 0]
                delays += [found[np.abs(found - t).argmin()] - t for t in true if len(found)]
            line = f"constant {constant:g}{' causal' if causal else ''}: {changes / max(seconds, 1e-9):.2f} changes/s"
            delay = f"{np.median(delays):.2f} s" if delays else "unknown"
            known = f", accuracy {np.mean(right):.3f}, delay {delay}" if drawn else ""
            lines.append(line + known)
    return lines


def smoothed_labels(faces: Sequence[FaceResult], times: Array, constant: float, causal: bool) -> Array:
    """Returns the label of each face of a track as an index."""
    shares = np.array([[*face.probabilities.values()] for face in faces])
    return np.array([smooth(shares, time - times, constant, causal).argmax() for time in times])


def report(model: Recognizer, path: Path, drawn: bool = False) -> None:
    """Prints what one clip shows."""
    runs = {
        every: {(face.frame, face.track): face for face in model.predict(path, detect_every=every)} for every in EVERY
    }
    tracks = {every: len({track for _, track in faces}) for every, faces in runs.items()}
    print(f"\n{path.name}: tracks by detect_every {tracks}")
    print(*following(runs), sep="\n")
    for every, faces in runs.items():
        print(f"detect_every {every}", *smoothing(faces, drawn), sep="\n", flush=True)


def predict(path: Path, table: Path, detect_every: int = 5) -> list[str | Path]:
    """The command that predicts a clip."""
    return [PROGRAM, "predict", path, "--output", table, "--overwrite", "true", "--detect_every", str(detect_every)]


def anonymous(process: psutil.Process) -> int:
    """Bytes of a process without mapped files, which others on the machine may share or not."""
    info = process.memory_info()
    return int(info.rss - info.shared)


def speed(folder: Path, clips: Sequence[Path], minutes: int) -> None:
    """Prints frames a second of the whole command, with its start, and memory by length."""
    minute = repeat(draw(folder / "720p.mp4", 250, 1, 720), folder / "a minute at 720p.mp4", 6)
    for clip in (minute, *clips):
        with av.open(str(clip)) as file:
            frames = file.streams.video[0].frames
        works = {
            f"detect_every {every}": partial(
                subprocess.run, predict(clip, folder / "t.parquet", every), check=True, capture_output=True
            )
            for every in EVERY[:2]
        }
        for name, times in in_turns(works, rounds=3, least=1e-3).items():
            print(f"{clip.name}, {name}: {spread([frames / seconds for seconds in times], 1)} frames/s", flush=True)
    small = draw(folder / "small.mp4", 250, 1, 180)
    for length in (1, minutes):
        clip = repeat(small, folder / f"{length}.mp4", 6 * length)
        code, _, most, last = run(predict(clip, folder / "t.parquet"), 1e6, anonymous)
        if code:
            sys.exit(last)
        print(f"{length} min: {most / 1e6:,.0f} MB in all processes, files that they map aside", flush=True)


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("clips", nargs="*", type=Path)
    parser.add_argument("--speed", action="store_true", help="measure frames a second, and memory by length")
    parser.add_argument("--minutes", type=int, default=10, help="the longer one of the two lengths")
    args = parser.parse_args()
    print(machine())
    with TemporaryDirectory() as folder:
        if args.speed:
            return speed(Path(folder), args.clips, args.minutes)
        model = load(device="cpu")
        report(model, draw(Path(folder) / "drawn.mp4"), drawn=True)
        for clip in args.clips:
            report(model, clip)


if __name__ == "__main__":
    main()
