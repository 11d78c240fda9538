"""Samples per second and core of the input pipeline, against PIL and torchvision.transforms.v2 doing the same work.

python -m benchmarks.loading data/ferplus.parquet runs

Decode, align by the landmarks, mirror, turn, scale, shift, brightness and contrast, erase; image and landmarks. At 48
pixels the manifest's own PNGs, at 224 pixels JPEGs of 256 pixels made of them.
"""

import io
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from benchmarks.machine import arguments, in_turns, machine, ratios, spread
from fer_vit.data.dataset import FaceDataset
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row
from fer_vit.data.transforms import Augment, AugmentConfig
from fer_vit.data.writing import write_manifest
from fer_vit.face.crop import INTERPOLATION, CropSpec, crop_face
from fer_vit.face.image import decode_image
from fer_vit.geometry import apply, crop_matrix, invert
from fer_vit.processes import one_thread

FACES = 500


def enlarged(manifest: Manifest, path: Path, side: int) -> Manifest:
    """Writes a manifest of the first faces as larger JPEGs."""
    rows = []
    for row, points in enumerate(manifest.landmarks()[:FACES]):
        image = decode_image(manifest.image_bytes(row))
        large = cv2.resize(image, (side, side), interpolation=cv2.INTER_CUBIC)[..., ::-1]
        data = cv2.imencode(".jpg", large, (cv2.IMWRITE_JPEG_QUALITY, 90))[1].tobytes()
        rows.append(Row(data, f"{row}.jpg", "train", manifest.names[0], landmarks=points * side / len(image)))
    write_manifest(path, Reading(manifest.names, rows), "enlarged")
    return Manifest.read(path)


def torchvision_sample(manifest: Manifest, size: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """The same work by PIL and torchvision."""
    config, points = AugmentConfig(), manifest.landmarks()
    augment = v2.Compose(
        [
            v2.RandomHorizontalFlip(config.mirror),
            v2.RandomAffine(
                config.degrees,
                (config.shift, config.shift),
                (1 - config.scale, 1 + config.scale),
                interpolation=v2.InterpolationMode.BICUBIC,
            ),
            v2.RandomApply([v2.ColorJitter(config.brightness, config.contrast)], 0.8),
            v2.ToImage(),  # bicubic turns are PIL's alone, erasing is a tensor's
            v2.RandomErasing(config.erase, scale=(0.01, 0.12)),
        ]
    )

    def sample(row: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = Image.open(io.BytesIO(manifest.image_bytes(row))).convert("RGB")
        to_crop = crop_matrix(points[row], size)
        crop = image.transform((size, size), Image.Transform.AFFINE, invert(to_crop).ravel(), Image.Resampling.BICUBIC)
        there = torch.from_numpy(apply(to_crop, points[row])).float()
        landmarks = tv_tensors.KeyPoints(there, canvas_size=(size, size))  # type: ignore[call-overload]
        return augment(crop, landmarks)  # type: ignore[no-any-return]

    return sample


def compare(manifest: Manifest, size: int, rounds: int) -> None:
    """Prints samples per second of both."""
    ours = FaceDataset(manifest, CropSpec(size), Augment(AugmentConfig()))
    theirs = torchvision_sample(manifest, size)
    rows = cycle(range(FACES))
    works: dict[str, Callable[[], object]] = {
        "fer-vit": lambda: ours[next(rows)],
        "PIL + torchvision v2": lambda: theirs(next(rows)),
    }
    times = in_turns(works, rounds, 1.0)
    faster = [1 / part for part in ratios(times, "PIL + torchvision v2")["fer-vit"]]
    print(f"\n{size} px\n\n| | samples/s |\n| --- | ---: |")
    for name, seconds in times.items():
        print(f"| {name} | {spread([1 / second for second in seconds], 0)} |")
    print(f"\nfer-vit is faster by {spread(faster)} (wanted: 1.5)\n")
    profile(ours, manifest, size)


def profile(dataset: FaceDataset, manifest: Manifest, size: int) -> None:
    """Prints microseconds of a sample's parts."""
    data, points = manifest.image_bytes(0), manifest.landmarks()[0]
    image = decode_image(data)
    crop = crop_face(image, points, dataset.spec, framed=True)[0]
    assert dataset.augment is not None
    works: dict[str, Callable[[], object]] = {
        "row of the manifest": lambda: manifest.image_bytes(0),
        "decode": lambda: decode_image(data),
        "align": lambda: crop_face(image, points, dataset.spec, framed=True),
        "align and augment": lambda: dataset.augment(image, points, dataset.spec, 0),  # type: ignore[misc]
        "whole": lambda: dataset[0],
        "one warp": lambda: cv2.warpAffine(crop, np.eye(2, 3), (size, size), flags=INTERPOLATION),
    }
    print(
        "microseconds: "
        + ", ".join(f"{name} {spread([1e6 * t for t in ts], 0)}" for name, ts in in_turns(works, 3).items())
    )


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("folder", type=Path, help="where the manifest of larger faces is written")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    one_thread()
    torch.set_num_threads(1)
    print(machine())
    small = Manifest.read(args.manifest).split("train")
    small = Manifest(small.path, small.table.filter(small.table["landmarks"].is_valid()).slice(0, FACES), small.names)
    compare(small, 48, args.rounds)
    compare(enlarged(small, args.folder / "enlarged.parquet", 256), 224, args.rounds)


if __name__ == "__main__":
    main()
