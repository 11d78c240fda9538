"""Whether a face keeps its label when the same picture is duller, smaller, compressed, lit otherwise or mirrored.

python -m benchmarks.agreement fairface.parquet ferplus-small

No labels are needed. Each changed picture goes the way of `fer-vit predict --face crop`, through the detector as well.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil
from PIL import ImageEnhance
from scipy.stats import binomtest

from benchmarks.machine import arguments, machine
from fer_vit.data.manifest import Manifest
from fer_vit.face.image import decode_image
from fer_vit.geometry import Image
from fer_vit.predict.recognizer import Recognizer, load

JPEG = (cv2.IMWRITE_JPEG_QUALITY, 30)
WARM = np.array((1.15, 1.0, 0.8))
"""Factors of red, green and blue under a light bulb."""


class Kept(NamedTuple):
    """How many of some faces keep their label, and the mean of each face's largest change of a probability."""

    kept: int
    faces: int
    change: float


def enhance(image: Image, kind: Callable[[Pil.Image], Any], factor: float) -> Image:
    """Scales a property by one of Pillow's enhancers."""
    return np.asarray(kind(Pil.fromarray(image)).enhance(factor), np.uint8)


def gamma(image: Image, power: float) -> Image:
    """Raises brightness in [0, 1] to a power; below 1 the picture becomes brighter."""
    return (255 * (image / 255) ** power).round().astype(np.uint8)


CHANGES: dict[str, Callable[[Image], Image]] = {
    "half the contrast": lambda image: enhance(image, ImageEnhance.Contrast, 0.5),
    "40 px": lambda image: cv2.resize(image, (40, 40), interpolation=cv2.INTER_AREA),
    "JPEG, quality 30": lambda image: decode_image(cv2.imencode(".jpg", image[..., ::-1], JPEG)[1].tobytes()),
    "gamma 0.7": lambda image: gamma(image, 0.7),
    "gamma 1.5": lambda image: gamma(image, 1.5),
    "warm light": lambda image: (image * WARM).clip(0, 255).round().astype(np.uint8),
    "mirrored": lambda image: np.ascontiguousarray(image[:, ::-1]),
    "grey": lambda image: enhance(image, ImageEnhance.Color, 0.0),
    "saturation x 1.5": lambda image: enhance(image, ImageEnhance.Color, 1.5),
}


def some_faces(manifest: Path, count: int = 300) -> list[Image]:
    """Returns images of a manifest, drawn at random and always the same."""
    rows = Manifest.read(manifest)
    drawn = np.random.default_rng(0).permutation(len(rows))[:count]
    return [decode_image(rows.image_bytes(int(row))) for row in drawn]


def agreement(model: Recognizer, images: Sequence[Image]) -> dict[str, Kept]:
    """Compares what a model says of face crops before and after each change."""
    before = probabilities(model, images)
    found: dict[str, Kept] = {}
    for name, change in CHANGES.items():
        after = probabilities(model, [change(image) for image in images])
        same = int((before.argmax(1) == after.argmax(1)).sum())
        found[name] = Kept(same, len(images), float(np.abs(before - after).max(1).mean()))
    return found


def probabilities(model: Recognizer, images: Sequence[Image]) -> NDArray[np.float64]:
    """Returns each crop's probabilities (N, C)."""
    return np.array([list(face.probabilities.values()) for face in model.predict(images, face="crop")])


def markdown(found: dict[str, Kept]) -> str:
    """The table of a model card, with 95 % intervals by Wilson (1927)."""
    lines = ["| the same face, changed | label kept | mean largest change of a probability |", "| --- | ---: | ---: |"]
    for name, (kept, faces, change) in found.items():
        low, high = binomtest(kept, faces).proportion_ci(method="wilson")
        lines.append(f"| {name} | {kept / faces:.1%} ({low:.1%} to {high:.1%}) | {change:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path, help="face crops, for example those of `fer-vit prepare fairface`")
    parser.add_argument("model", help="a folder, a checkpoint or a name out of `fer-vit models`")
    parser.add_argument("--faces", type=int, default=300, help="how many of the images, drawn at random")
    args = parser.parse_args()
    found = agreement(load(args.model, "cpu"), some_faces(args.manifest, args.faces))
    print(f"{machine()}\n\n{markdown(found)}")


if __name__ == "__main__":
    main()
