"""Compares `predict` with a simple loop; measures start-up, memory and a plan for very many images.

python -m benchmarks.predicting data/ferplus.parquet photos --count 500

Makes the mixed photos of benchmarks/photos.py in the folder unless they are there. The loop reads a photo, finds its
faces with OpenCV's YuNet at the photo's own size, aligns each of them and calls the model with it. It runs a second
time with fer-vit's detector in it, which looks at most at 1,280 pixels and a second time at 224.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from tqdm import tqdm

from benchmarks.machine import PROGRAM, arguments, machine, peak, spread
from benchmarks.photos import face_images, mixed_photos
from fer_vit.face.crop import crop_face, place_regions
from fer_vit.face.detect import FaceDetector, refine_landmarks, yunet_path
from fer_vit.geometry import Array, Image
from fer_vit.predict.plan import Plan, open_or_create
from fer_vit.predict.recognizer import Recognizer, load


class PlainYuNet:
    """OpenCV's detector as in its documentation, at full image size."""

    def __init__(self) -> None:
        self.net = cv2.FaceDetectorYN.create(str(yunet_path()), "", (320, 320), 0.6)

    def __call__(self, image: Image) -> list[Array]:
        """Returns the landmarks (5, 2) of every face in an image (H, W, 3)."""
        self.net.setInputSize(image.shape[1::-1])
        found = self.net.detect(np.ascontiguousarray(image[..., ::-1]))[1]
        return [] if found is None else [face[4:14].reshape(5, 2).astype(float) for face in found]


@torch.inference_mode()
def loop(model: Recognizer, find: Callable[[Image], list[Array]], photos: list[Path]) -> int:
    """Detects and classifies faces one by one; returns the number of faces."""
    faces = 0
    for path in tqdm(photos, desc="loop", disable=None):
        image = cv2.imread(str(path))[..., ::-1]
        for landmarks in find(np.ascontiguousarray(image)):
            crop, points, _ = crop_face(image, landmarks, model.crop_spec, framed=False)
            boxes, valid = place_regions(points, model.crop_spec)
            pixels = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 255
            model(pixels, torch.from_numpy(boxes)[None], torch.from_numpy(valid)[None])
            faces += 1
    return faces


def predict(images: Path, output: Path, *options: object) -> float:
    """Returns the seconds of `fer-vit predict`."""
    start = time.perf_counter()
    words = [PROGRAM, "predict", images, "--output", output, *map(str, options)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def against_the_loop(photos: Path, rounds: int) -> None:
    """Prints photos per second of `predict` and two loops, measured in turns."""
    files = sorted(photos.glob("*.jpg"))
    model, own = load(), FaceDetector()
    finders = {
        "loop, photos at their own size": PlainYuNet(),
        "loop, fer-vit's detector": lambda image: [face.landmarks for face in refine_landmarks(image, own(image))],
    }
    found: dict[str, list[float]] = {name: [] for name in ("fer-vit predict", *finders)}
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            found["fer-vit predict"].append(len(files) / predict(photos, Path(folder, "faces.csv")))
        for name, find in finders.items():
            start = time.perf_counter()
            loop(model, find, files)
            found[name].append(len(files) / (time.perf_counter() - start))
    print(f"\n{len(files):,} mixed photos\n\n| | photos/s | predict is faster by |\n| --- | ---: | ---: |")
    for name, rates in found.items():
        ratios = [own_rate / rate for own_rate, rate in zip(found["fer-vit predict"], rates, strict=True)]
        print(f"| {name} | {spread(rates, 1)} | {spread(ratios)} |", flush=True)


def start_up(photos: Path, rounds: int) -> None:
    """Prints the seconds until the table of one photo exists and until the process ends."""
    one = sorted(photos.glob("*.jpg"))[0]
    there, ended = [], []
    with TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            table = Path(folder, f"{number}.csv")
            start = time.perf_counter()
            words = [PROGRAM, "predict", one, "--output", table]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
                while not table.exists() and process.poll() is None:  # it appears when it is whole
                    time.sleep(0.005)
                there.append(time.perf_counter() - start)
            if process.returncode:
                raise SystemExit(f"predict failed with status {process.returncode}")
            ended.append(time.perf_counter() - start)
    print(f"\none photo, from the command to its table: {spread(there[1:])} s, to the end: {spread(ended[1:])} s")


def memory(manifest: Path, counts: tuple[int, ...]) -> None:
    """Prints the peak memory of one process for growing numbers of face images."""
    with TemporaryDirectory() as folder:
        for count in counts:
            images = face_images(manifest, Path(folder, str(count)), count)
            took = predict(images, Path(folder, f"{count}.csv"), "--face", "crop", "--detector", "none")
            most = peak(RUSAGE_CHILDREN)
            print(f"{count:,} images of faces: at most {most:,.0f} MB, {count / took:,.0f} images/s", flush=True)


def simulation(images: int, part_size: int) -> None:
    """Prints time, size and memory of a plan for very many images, and the time to read a chunk."""
    with TemporaryDirectory() as folder:
        names = (Path(f"/data/photos/{number // 10_000:06d}/{number:010d}.jpg") for number in range(images))
        start = time.perf_counter()
        plan = open_or_create(Path(folder), names, part_size, {}, 0)
        made = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        start = time.perf_counter()
        plan = Plan(Path(folder))
        opened = time.perf_counter() - start
        start = time.perf_counter()
        plan.images(len(plan.chunks) // 2)
        looked = time.perf_counter() - start
    print(
        f"| {images:,} | {part_size:,} | {len(plan.chunks):,} | {made:.1f} s | {size / 1e6:,.0f} MB | {opened:.3f} s "
        f"| {looked:.3f} s | {peak():,.0f} MB |",
        flush=True,
    )


def main() -> None:
    """Runs the measurements."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=500, help="mixed photos")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=50_000, help="images of the memory figure")
    parser.add_argument("--simulate", type=int, default=0, help="only the plan of so many images")
    args = parser.parse_args()
    print(machine())
    if args.simulate:
        print("\n| images | a part | parts | made in | size | opened in | a part in | memory |\n" + "| ---: " * 8 + "|")
        simulation(args.simulate, max(1000, args.simulate // 10_000))
        return
    mixed_photos(args.manifest, args.photos, args.count)
    memory(args.manifest, (500, args.most))
    start_up(args.photos, args.rounds)
    against_the_loop(args.photos, args.rounds)


if __name__ == "__main__":
    main()
