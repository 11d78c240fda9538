"""Test images: faces of a manifest, and photos of mixed sizes with pasted faces."""

from pathlib import Path

import cv2
import numpy as np
from skimage import data
from tqdm import tqdm

from fer_vit.data.manifest import Manifest
from fer_vit.face.image import decode_image
from fer_vit.geometry import Image

SIZES = {(640, 480): 4, (1024, 768): 3, (1920, 1080): 2, (4032, 3024): 1}
"""Width and height of photos, and how many of ten photos have them."""
MOST_FACES = 5


def mixed_photos(manifest: Path, folder: Path, count: int) -> None:
    """Writes JPEGs: textures of scikit-image with zero to five faces. Existing files stay.

    Args:
        manifest: Where the faces come from, from its train split.
        folder: Where the photos go.
        count: How many.
    """
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
        photo = cv2.resize(scenes[rng.integers(len(scenes))], (width, height), interpolation=cv2.INTER_CUBIC)
        photo = np.clip(photo + rng.integers(-8, 8, photo.shape, dtype=np.int16), 0, 255).astype(np.uint8)  # grain
        for _ in range(rng.integers(MOST_FACES + 1)):
            paste(photo, decode_image(faces.image_bytes(int(rng.integers(len(faces))))), rng)
        cv2.imwrite(str(path), photo[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 90))


def face_images(manifest: Path, folder: Path, count: int) -> Path:
    """Writes the first training faces of a manifest, repeatedly, and returns the folder."""
    rows = Manifest.read(manifest).split("train")
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06d}.png").write_bytes(rows.image_bytes(number % len(rows)))
    return folder


def paste(photo: Image, face: Image, rng: np.random.Generator) -> None:
    """Pastes a face at a random place, with a tenth to a third of the photo's height."""
    side = int(photo.shape[0] * rng.uniform(0.1, 0.33))
    left, top = (int(rng.integers(length - side)) for length in (photo.shape[1], photo.shape[0]))
    photo[top : top + side, left : left + side] = cv2.resize(face, (side, side), interpolation=cv2.INTER_CUBIC)
