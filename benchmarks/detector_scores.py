"""Compares the built-in face detector with YuNet (minimum score 0.7) on pictures that it has not been trained on.

python -m benchmarks.detector_scores --faces fairface --backgrounds backgrounds --cache runs/detector --clips clips

Group photos are composed from crops and backgrounds that `benchmarks.detector` holds back; their faces are known. In
clips and in skimage's photo of an astronaut the faces that YuNet finds are taken as true. `--split select` has other
crops and backgrounds and no clips: it is for choosing weights and the minimum score.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import skimage.data

from benchmarks.detector_canvases import Data, make_mask, matrix, paste, pick_face, read_data, turned
from benchmarks.machine import arguments, machine
from fer_vit.data.sample import Sample, collate
from fer_vit.face.crop import crop_face, place_regions
from fer_vit.face.detect import Detector, Face, FaceDetector, box_iou, refine_landmarks, resized, yunet_path
from fer_vit.geometry import Array, Image, apply
from fer_vit.predict.recognizer import Recognizer, load

PLAIN = (
    "brick.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png", "color.png", "grass.png",
    "gravel.png", "horse.png", "hubble_deep_field.jpg", "ihc.png", "logo.png", "microaneurysms.png", "moon.png",
    "motorcycle_left.png", "motorcycle_right.png", "page.png", "retina.jpg", "rocket.jpg", "text.png",
)  # fmt: skip
"""skimage's pictures without a face."""


def group_photo(data: Data, rng: np.random.Generator, tilt: float) -> tuple[Image, list[Face]]:
    """Returns a photo (720, 960, 3) with 12 faces of 14 to 180 pixels, turned by `tilt` degrees to a side."""
    background = data.backgrounds[rng.integers(len(data.backgrounds))]
    photo = np.asarray(cv2.resize(background, (960, 720), interpolation=cv2.INTER_CUBIC), np.uint8)
    faces = []
    for cell in rng.permutation(12):
        crop, points = pick_face(data, rng)
        size = float(np.exp(rng.uniform(np.log(14), np.log(180))))
        centre = np.array([cell % 4 * 240 + 120.0, cell // 4 * 240 + 120]) + rng.uniform(-20, 20, 2)
        to_photo = matrix(points, size, float(np.deg2rad(rng.choice([-tilt, tilt]))), centre)
        paste(photo, crop, make_mask(points, rng), to_photo)
        mapped = turned(points, to_photo)
        faces.append(Face(mapped[:2].ravel(), mapped[2:], 1.0))
    return np.ascontiguousarray(photo[..., ::-1]), faces


def frames(clips: Path, step: int = 8) -> Iterator[Image]:
    """Yields every `step`th frame of the clips."""
    for path in sorted(clips.glob("*.mp4")):
        video, number = cv2.VideoCapture(str(path)), 0
        while (read := video.read())[0]:
            if number % step == 0:
                yield np.ascontiguousarray(read[1][..., ::-1])
            number += 1


def turn(image: Image, degrees: float) -> tuple[Image, Array]:
    """Returns an image turned about its middle, on a canvas that holds all of it, and the matrix (2, 3)."""
    height, width = image.shape[:2]
    angle = np.deg2rad(degrees)
    linear = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    size = np.ceil(np.abs(linear) @ (width, height)).astype(int)
    move = np.column_stack([linear, size / 2 - linear @ (width / 2, height / 2)])
    return np.asarray(cv2.warpAffine(image, move, size.tolist(), borderValue=(128,) * 3), np.uint8), move


def side(face: Face) -> float:
    """Returns the side of a square as large as a face's box."""
    return float(np.sqrt(np.prod(face.box[2:] - face.box[:2])))


def match(found: list[Face], true: list[Face]) -> list[float]:
    """Returns for each true face its overlap with the nearest face found."""
    return [max((box_iou(face, other) for other in found), default=0.0) for face in true]


def recall(detector: Detector, photos: list[tuple[Image, list[Face]]], least: float) -> tuple[int, int, list[float]]:
    """Returns how many faces of at least `least` pixels are found, of how many, and the overlaps of their boxes."""
    overlaps = [
        value
        for image, true in photos
        for face, value in zip(true, match(detector(image), true), strict=True)
        if side(face) >= least
    ]
    found = [value for value in overlaps if value >= 0.5]
    return len(found), len(overlaps), found


def extra(detector: Detector, photos: list[tuple[Image, list[Face]]]) -> int:
    """Returns how many faces are found where there is none."""
    return sum(value < 0.3 for image, true in photos for value in match(true, detector(image)))


def turned_recall(detector: Detector, photos: list[tuple[Image, list[Face]]], degrees: float) -> tuple[int, int]:
    """Returns how many faces are found in turned photos, of how many: their middles lie in boxes of half to double."""
    hits = total = 0
    for image, true in photos:
        photo, move = turn(image, degrees)
        found = detector(photo)
        for face in true:
            middle = apply(move, (face.box[:2] + face.box[2:]) / 2)
            near = (f for f in found if (f.box[:2] <= middle).all() and (middle <= f.box[2:]).all())
            hits += any(0.5 <= side(other) / side(face) <= 2 for other in near)
            total += 1
    return hits, total


def labels(model: Recognizer, image: Image, faces: list[Face]) -> list[str]:
    """Returns the predicted expressions of faces."""
    spec, samples = model.crop_spec, []
    for face in refine_landmarks(image, faces):
        crop, points, to_crop = crop_face(image, face.landmarks, spec, framed=False)
        samples.append(Sample(crop, *place_regions(points, spec), None, 0, "", to_crop))
    shares = model.probabilities(collate(samples).ready(model.device)) if samples else []
    return [max(zip(share, model.labels, strict=True))[1] for share in shares]


def changed_labels(model: Recognizer, ours: Detector, theirs: Detector, images: list[Image]) -> tuple[int, int]:
    """Returns how many predicted expressions differ between two detectors, of how many faces that both find."""
    changed = total = 0
    for image in images:
        first, second = theirs(image), ours(image)
        pairs = [(a, max(second, key=lambda b: box_iou(a, b))) for a in first if max(match(second, [a])) >= 0.5]
        before, after = (labels(model, image, [pair[k] for pair in pairs]) for k in (0, 1))
        changed += sum(a != b for a, b in zip(before, after, strict=True))
        total += len(pairs)
    return changed, total


def cpu_times(works: dict[str, Callable[[], Any]], rounds: int = 31) -> dict[str, float]:
    """Returns the median processor seconds of alternating calls."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            work()
            taken[name].append(time.process_time() - began)
    return {name: median(values[1:]) for name, values in taken.items()}


def without_faces(data: Data, split: str) -> list[Image]:
    """Returns the backgrounds of a split; "result" has skimage's pictures without a face, too."""
    folder = Path(skimage.data.__file__).parent
    more = [np.asarray(cv2.imread(str(folder / name)), np.uint8) for name in PLAIN if split == "result"]
    return [np.ascontiguousarray(image[..., ::-1]) for image in (*data.backgrounds, *more)]


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    for name in ("faces", "backgrounds", "cache", "clips"):
        parser.add_argument(f"--{name}", type=Path, required=name != "clips")
    parser.add_argument("--detector", type=Path, default=FaceDetector().path, help="the ONNX file")
    parser.add_argument("--scores", type=float, nargs="+", default=[0.6], help="the lowest scores of a face")
    parser.add_argument("--photos", type=int, default=60)
    parser.add_argument("--split", choices=("select", "result"), default="result")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    print(machine())
    data = read_data(args.faces, args.backgrounds, args.cache, args.split)
    rng = np.random.default_rng(0)
    built_in = {f"built-in at {score:g}": FaceDetector(args.detector, score) for score in args.scores}
    detectors = {"YuNet": FaceDetector(yunet_path(), 0.7), **built_in}
    groups = {tilt: [group_photo(data, rng, tilt) for _ in range(args.photos)] for tilt in (0, 30)}
    for tilt, photos in groups.items():
        compare(f"composed, turned by {tilt} degrees", detectors, photos)
    plain = without_faces(data, args.split)
    for size in (320, 640, 1280):
        counts = {
            who: (sum(len(detector(resized(image, size))) for image in plain), len(plain))
            for who, detector in detectors.items()
        }
        print(f"images without faces, {size} px:", tell(counts), flush=True)
    if args.split == "result":
        compare_results(detectors, args.clips, groups[0])


def compare_results(detectors: dict[str, FaceDetector], folder: Path, groups: list[tuple[Image, list[Face]]]) -> None:
    """Prints the scores in clips, changed labels and times."""
    clips = {size: find_true(detectors["YuNet"], folder, size) for size in (320, 640, 1280)}
    for size, photos in clips.items():
        compare(f"clips and astronaut, {size} px", detectors, photos)
    for degrees in (-30, 30):
        shares = {who: turned_recall(detector, clips[640], degrees) for who, detector in detectors.items()}
        print(f"clips turned by {degrees} degrees:", tell(shares), flush=True)
    model = load(device="cpu")
    for name, some in {"clips": clips[640], "composed": groups}.items():
        changed = {
            who: changed_labels(model, detector, detectors["YuNet"], [image for image, _ in some])
            for who, detector in detectors.items()
            if who != "YuNet"
        }
        print(f"labels changed, {name}:", tell(changed), flush=True)
    compare_times(detectors, resized(groups[0][0], 640))


def find_true(detector: Detector, folder: Path, size: int) -> list[tuple[Image, list[Face]]]:
    """Returns frames and skimage's astronaut with a longer side of `size`, and the faces that a detector finds."""
    images = [resized(image, size) for image in (*frames(folder), skimage.data.astronaut())]
    return [(image, detector(image)) for image in images]


def tell(shares: dict[str, tuple[int, int]]) -> str:
    """Returns counts and percentages as text."""
    return ", ".join(f"{who} {count}/{total} = {count / total:.1%}" for who, (count, total) in shares.items())


def compare(name: str, detectors: dict[str, FaceDetector], photos: list[tuple[Image, list[Face]]]) -> None:
    """Prints the recall, overlap and extra faces of detectors."""
    for least in (14, 24):
        found = {who: recall(detector, photos, least) for who, detector in detectors.items()}
        shares = tell({who: (hits, total) for who, (hits, total, _) in found.items()})
        overlaps = ", ".join(f"{median(values):.3f}" for *_, values in found.values() if values)
        print(f"{name}, faces >= {least} px: {shares}; median IoU {overlaps}")
    print(
        f"{name}, extra: " + ", ".join(f"{who} {extra(detector, photos)}" for who, detector in detectors.items()),
        flush=True,
    )


def compare_times(detectors: dict[str, FaceDetector], photo: Image) -> None:
    """Prints the processor time of detectors for a photo."""
    size = photo.shape[1::-1]
    nets = {who: cv2.FaceDetectorYN.create(str(d.path), "", size, d.min_score) for who, d in detectors.items()}
    works: dict[str, dict[str, Callable[[], Any]]] = {
        "network alone": {who: partial(net.detect, photo) for who, net in nets.items()},
        "with the copy of 224 px": {who: partial(detector, photo) for who, detector in detectors.items()},
    }
    for name, calls in works.items():
        times = ", ".join(f"{who} {1e3 * taken:.1f} ms" for who, taken in cpu_times(calls).items())
        print(f"CPU time at {size[0]} x {size[1]}, {name}: {times}")


if __name__ == "__main__":
    main()
