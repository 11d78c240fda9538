"""What following faces costs, and what smoothing does: labels kept, flicker, delay; on a drawn clip and on others.

python -m benchmarks.video clip.mp4 ...

In the drawn clip three people change their expression every 1.5 seconds, under noise and compression.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.machine import machine
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


def draw(path: Path, frames: int = 450) -> None:
    """Draws a clip of three people, 25 frames a second."""
    times, rng = [number / 25 for number in range(frames)], np.random.default_rng(0)
    people = [
        Actor(seed, lambda t, left=left: (left + 3 * t, 180, 150), mood)  # type: ignore[misc]
        for seed, left in ((7, 110), (21, 320), (33, 530))
    ]
    noisy = (
        (image + rng.integers(-12, 13, image.shape)).clip(0, 255).astype(np.uint8) for image, _ in scene(people, times)
    )
    write_video(path, noisy, times, options={"crf": "28", "bf": "3"})


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
    print(*following(runs), *smoothing(runs[5], drawn), sep="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", nargs="*", type=Path)
    clips: list[Path] = parser.parse_args(arguments).clips
    print(machine())
    model = load(device="cpu")
    with TemporaryDirectory() as folder:
        draw(Path(folder) / "drawn.mp4")
        report(model, Path(folder) / "drawn.mp4", drawn=True)
    for clip in clips:
        report(model, clip)


if __name__ == "__main__":
    main()
