"""Photos for the page in the browser: one in the public domain in many forms, and drawn faces."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from fer_vit.face.image import read_image
from fer_vit.geometry import Image
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.cartoon import draw_face
from tests.helpers.photos import resized
from tests.helpers.servers import ROOT

SAMPLE = ROOT / "data" / "sample" / "astronaut.jpg"


def turned(image: Image, degrees: float, scale: float = 1.0) -> Image:
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, scale)
    turned = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT)
    return np.asarray(turned, np.uint8)


def crowd(seed: int, sides: list[int], size: tuple[int, int]) -> Image:
    """Drawn faces of some sides, side by side, in a picture (width, height)."""
    picture = np.full((size[1], size[0], 3), 120, np.uint8)
    left = 20
    for index, side in enumerate(sides):
        expression = EXPRESSIONS[(seed + index) % len(EXPRESSIONS)]
        face, _ = draw_face(expression, seed + index, side, colour=True)
        picture[40 : 40 + side, left : left + side] = face
        left += side + 20
    return picture


def pictures() -> Iterator[tuple[str, Image]]:
    """Yields 20 pictures with the names of their files."""
    photo = read_image(SAMPLE)  # (512, 512, 3), its face is at (178, 63) to (269, 177)
    face = photo[20:240, 120:340]
    yield "whole.png", photo
    yield "whole.jpg", photo
    yield "whole.webp", photo
    yield "small.png", resized(photo, 0.4)
    yield "tiny face.png", resized(photo, 0.2)
    yield "large.jpg", resized(photo, 2.5)
    yield "larger.png", resized(photo, 2.9)
    yield "close.png", resized(face, 3)
    yield "closest.jpg", resized(face[30:170, 40:180], 6)
    yield "mirrored.png", photo[:, ::-1]
    yield "turned left.png", turned(photo, 20)
    yield "turned right.png", turned(photo, -35, 1.2)
    yield "grey.png", np.repeat(cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)[..., None], 3, 2)
    yield "dark.png", (photo // 4).astype(np.uint8)
    yield "blurred.jpg", np.asarray(cv2.GaussianBlur(photo, (0, 0), 2.5), np.uint8)
    yield "wide.png", np.hstack([photo, photo[:, ::-1], photo])
    yield "narrow.png", photo[:, 150:300]
    yield "drawn.png", crowd(3, [220], (260, 300))
    yield "drawn crowd.png", crowd(5, [90, 140, 200, 120], (640, 300))
    yield "nobody.png", photo[300:, :100]


def write_photos(folder: Path) -> list[Path]:
    """Writes the pictures; returns the paths of the files."""
    paths = []
    for name, image in pictures():
        paths.append(folder / name)
        cv2.imwrite(str(paths[-1]), image[..., ::-1])
    return paths
