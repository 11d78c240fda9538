"""Compares `predict` with a simple loop.

python -m benchmarks.predicting data/ferplus.parquet photos --count 500

Writes mixed photos to the folder unless they are there. The loop reads a photo, finds its faces
with YuNet at full size, aligns each face and calls the model. It runs a second time with fer-vit's
detector.
"""

import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from skimage import data
from tqdm import tqdm

from benchmarks.machine import PROGRAM, machine, ratios, run_main, spread
from fer_vit.data.manifest import Manifest
from fer_vit.face.crop import crop_face, place_regions
from fer_vit.face.detectors import YuNet
from fer_vit.face.image import decode_image
from fer_vit.face.landmarks import refine_landmarks
from fer_vit.face.yunet import yunet_path
from fer_vit.faces import Crops
from fer_vit.geometry import Array, Image
from fer_vit.predict.recognizer import Recognizer, load

SIZES = {(640, 480): 4, (1024, 768): 3, (1920, 1080): 2, (4032, 3024): 1}
"""Width and height of photos, and how many of ten photos have them."""
MAX_FACES = 5


def mixed_photos(manifest: Path, folder: Path, count: int) -> None:
    """Writes JPEGs: textures of scikit-image with zero to five faces. Existing files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    faces = Manifest.read(manifest).split("train")
    scenes = [data.coffee(), data.chelsea(), data.rocket(), data.hubble_deep_field()]
    sizes = [size for size, number in SIZES.items() for _ in range(number)]
    for place in tqdm(range(count), desc="photos", unit=" photos", disable=None):
        path = folder / f"{place:05d}.jpg"
        if path.exists():
            continue
        rng = np.random.default_rng(place)
        width, height = sizes[place % len(sizes)]
        photo = cv2.resize(
            scenes[rng.integers(len(scenes))], (width, height), interpolation=cv2.INTER_CUBIC
        )
        grain = rng.integers(-8, 8, photo.shape, dtype=np.int16)
        photo = np.clip(photo + grain, 0, 255).astype(np.uint8)
        for _ in range(rng.integers(MAX_FACES + 1)):
            paste(photo, decode_image(faces.image_bytes(int(rng.integers(len(faces))))), rng)
        cv2.imwrite(str(path), photo[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 90))


def paste(photo: Image, face: Image, rng: np.random.Generator) -> None:
    """Pastes a face at a random place, with a tenth to a third of the photo's height."""
    side = int(photo.shape[0] * rng.uniform(0.1, 0.33))
    height, width, _ = photo.shape
    left = int(rng.integers(width - side))
    top = int(rng.integers(height - side))
    photo[top : top + side, left : left + side] = cv2.resize(
        face, (side, side), interpolation=cv2.INTER_CUBIC
    )


def find_faces(yunet: cv2.FaceDetectorYN, image: Image) -> list[Array]:
    """Returns the landmarks (5, 2) of faces by OpenCV's detector as in its documentation,
    at full image size.
    """
    yunet.setInputSize(image.shape[1::-1])
    _, faces = yunet.detect(np.ascontiguousarray(image[..., ::-1]))  # (F, 15)
    if faces is None:
        return []
    return [face[4:14].reshape(5, 2).astype(float) for face in faces]


def loop(model: Recognizer, find: Callable[[Image], list[Array]], photos: list[Path]) -> int:
    """Detects and classifies faces one by one; returns the number of faces."""
    faces = 0
    for path in tqdm(photos, desc="loop", disable=None):
        image = cv2.imread(str(path))[..., ::-1]
        for landmarks in find(np.ascontiguousarray(image)):
            crop, points, to_crop, _ = crop_face(image, landmarks, model.crop_spec, framed=False)
            boxes, valid = place_regions(points, model.crop_spec)
            model.read(Crops(crop[None], boxes[None], valid[None], to_crop[None]))
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
    model = load()
    detector = YuNet(yunet_path())
    yunet = cv2.FaceDetectorYN.create(str(yunet_path()), "", (320, 320), 0.6)
    finders = {
        "loop, photos at their own size": partial(find_faces, yunet),
        "loop, fer-vit's detector": lambda image: [
            face.landmarks for face in refine_landmarks(image, detector.find(image))
        ],
    }
    rates: dict[str, list[float]] = {name: [] for name in ("fer-vit predict", *finders)}
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            seconds = predict(photos, Path(folder, "faces.csv"))
        rates["fer-vit predict"].append(len(files) / seconds)
        for name, find in finders.items():
            start = time.perf_counter()
            loop(model, find, files)
            seconds = time.perf_counter() - start
            rates[name].append(len(files) / seconds)
    print(f"\n{len(files):,} mixed photos\n")
    print("| | photos/s | predict is faster by |")
    print("| --- | ---: | ---: |")
    for name, relative in ratios(rates, "fer-vit predict").items():
        faster = [1 / ratio for ratio in relative]
        print(f"| {name} | {spread(rates[name], 1)} | {spread(faster)} |", flush=True)


def main(manifest: Path, photos: Path, count: int = 500, rounds: int = 3) -> None:
    """Runs the measurements."""
    print(machine())
    mixed_photos(manifest, photos, count)
    against_the_loop(photos, rounds)


if __name__ == "__main__":
    run_main(main)
