"""What wrong landmarks cost: a model on changed faces with YuNet's landmarks, with fer-vit's, and with the true ones.

python -m benchmarks.landmark_sources ferplus.parquet ferplus-fairface-small

The true landmarks are those that YuNet sees in the image as it is, moved along with the change.
"""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from benchmarks.landmarks import seen
from benchmarks.machine import arguments, machine
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import collate
from fer_vit.evaluate.hard import AS_THEY_ARE, SIDE, Change, same, trials
from fer_vit.face.detect import CROP_SCORE, Face, YuNet, best, nothing, whole
from fer_vit.face.image import decode_image
from fer_vit.geometry import TEMPLATE, Array, Image, apply
from fer_vit.predict.photos import PhotoDataset
from fer_vit.predict.recognizer import CHUNK, Recognizer, load
from fer_vit.report.table import markdown


def moved(points: Array, change: Change, before: Image, after: Image) -> Array:
    """Returns where the landmarks (5, 2) of an image are after a change, if it turns or shrinks the image."""
    height, width = before.shape[:2]
    degrees = getattr(change, "keywords", {}).get("degrees", 0)
    turned = apply(cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.0), points)
    return turned * after.shape[1] / width


def yunet(detector: YuNet, image: Image) -> Array:
    """Returns where YuNet sees the landmarks of the face in an image; an average face's where it sees none."""
    face = best(detector(image))
    return np.array(TEMPLATE) * image.shape[1::-1] if face is None else face.landmarks


def right(model: Recognizer, images: list[Image], landmarks: Array, truth: Array) -> float:
    """Returns the share of faces (N) that a model names right, given their landmarks (N, 5, 2)."""
    photos, said = PhotoDataset(images, model.crop_spec, "crop", None), []
    for start in range(0, len(images), CHUNK):
        some = zip(images[start : start + CHUNK], landmarks[start : start + CHUNK], strict=True)
        faces = [photos.samples(image, 1, [Face(np.zeros(4), points, 1.0)], "")[0] for image, points in some]
        said += model.probabilities(collate(faces).ready(model.device))
    return float((np.array(said).argmax(1) == truth).mean())


def judged(model: Recognizer, images: list[Image], points: Array, truth: Array, name: str, change: Change) -> list[str]:
    """Returns a row of the table: accuracy, and the median distance from the true landmarks in 48ths of the image."""
    detector = YuNet(min_score=CROP_SCORE)
    changed = [np.ascontiguousarray(change(image, at)) for image, at in zip(images, points, strict=True)]
    pairs = zip(points, images, changed, strict=True)
    true = np.array([moved(at, change, before, after) for at, before, after in pairs])
    finders: tuple[Callable[[Image], Array], ...] = (
        lambda image: yunet(detector, image),
        lambda image: whole(image).landmarks,
    )
    sides = np.array([max(image.shape[:2]) for image in changed])
    cells = [name]
    for find in finders:
        found = np.array([find(image) for image in changed])
        away = np.linalg.norm(found - true, axis=2).mean(1) / sides * SIDE
        cells.append(f"{100 * right(model, changed, found, truth):.1f} ({np.median(away):.1f})")
    return [*cells, f"{100 * right(model, changed, true, truth):.1f}"]


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path, help="FERPlus, as `fer-vit prepare` wrote it")
    parser.add_argument("model", help="a folder, a checkpoint or a name out of `fer-vit models`")
    parser.add_argument("--step", type=int, default=4, help="take every so many of the validation images")
    args = parser.parse_args()
    rows = Manifest.read(args.manifest, ["val"]).split("val")
    rows = rows.select(np.arange(len(rows)) % args.step == 0)
    points = seen(rows)
    known = np.isfinite(points).all((1, 2))
    targets = rows.targets()
    assert targets is not None
    images = [decode_image(rows.image_bytes(int(row))) for row in np.flatnonzero(known)]
    model, table = load(args.model, "cpu"), []
    changes = {name: trial.changes[0] for name, trial in trials(nothing).items() if trial.changes != [same]}
    for name, change in tqdm({AS_THEY_ARE: same, **changes}.items(), disable=None):
        table.append(judged(model, images, points[known], targets[known].argmax(1), name, change))
    print(f"{machine()}; {len(images):,} faces\n")
    print(markdown([["image", "YuNet's", "fer-vit's", "true"], *table]))


if __name__ == "__main__":
    main()
