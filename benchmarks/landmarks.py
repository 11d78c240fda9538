"""Trains the landmark network and writes it as ONNX for OpenCV.

python -m benchmarks.landmarks landmarks.onnx data/ferplus.parquet data/fairface.parquet

The targets are YuNet's landmarks of unaltered faces; the inputs are the same faces turned, moved,
covered, blurred and shrunk. Each epoch is evaluated on FERPlus' validation faces with the same
augmentation.
"""

from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from tqdm import tqdm

from benchmarks.machine import run_main, write_onnx
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.data.transforms import Augment, AugmentConfig
from fer_vit.face.crop import CropSpec
from fer_vit.face.detection import best
from fer_vit.face.detectors import CROP_SCORE, YuNet
from fer_vit.face.image import decode_image
from fer_vit.face.landmarks import INPUT_SIDE, network_input
from fer_vit.face.yunet import yunet_path
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.processes import cores

SPEC = CropSpec(INPUT_SIDE)
CHANGES = AugmentConfig(
    degrees=45,
    scale=0.45,
    shift=0.15,
    brightness=0.3,
    contrast=0.4,
    gamma=0.5,
    blur=0.045,
    shrink=0.7,
    jpeg=0.8,
    erase=0.2,
    cover=0.4,
)
CUT = 0.2
"""Fraction of images that lose a part of a side."""


class Seen(Dataset[Array]):
    """YuNet's landmarks (5, 2) of a manifest's faces; NaN without a detection."""

    def __init__(self, rows: Manifest) -> None:
        self.rows = rows
        self.detector = YuNet(yunet_path(), CROP_SCORE)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Array:
        grey = cv2.cvtColor(decode_image(self.rows.image_bytes(row)), cv2.COLOR_RGB2GRAY)
        face = best(
            self.detector.find(np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), np.uint8))
        )
        return np.full((5, 2), np.nan) if face is None else face.landmarks


class Faces(Dataset[tuple[Tensor, Tensor]]):
    """Augmented faces of a manifest as network inputs,
    and their landmarks (5, 2) as fractions of the side.
    """

    def __init__(self, path: Path, split: Split) -> None:
        self.rows = Manifest.read(path).split(split)
        self.train = split == "train"
        self.augment = Augment(CHANGES)
        loader = DataLoader(Seen(self.rows), None, num_workers=cores())
        # (N, 5, 2)
        self.points = np.array(
            [*tqdm(loader, "YuNet finds landmarks", len(self.rows), disable=None)]
        )
        self.known = np.flatnonzero(np.isfinite(self.points).all((1, 2)))

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.known[index]
        seed = int(torch.randint(2**31, ()).item()) if self.train else int(row)
        image, points = cut(decode_image(self.rows.image_bytes(row)), self.points[row], seed)
        crop, points, *_ = self.augment(image, points, SPEC, seed)
        return torch.from_numpy(network_input(crop)), torch.from_numpy(points).float() / INPUT_SIDE


def cut(image: Image, points: Array, seed: int) -> tuple[Image, Array]:
    """Crops up to 40% off one side of some images, like a face at the border of a photo."""
    rng = np.random.default_rng([seed, 1])  # `Augment` draws from the seed itself
    height, width = image.shape[:2]
    part = rng.uniform(0, 0.4) * (rng.random() < CUT)
    left, top, right, bottom = (
        part * np.array([width, height] * 2) * np.eye(4)[rng.integers(4)]
    ).astype(int)
    return image[top : height - bottom, left : width - right], points - (left, top)


class Step(nn.Sequential):
    """A 3 x 3 convolution, batch norm and ReLU,
    with a residual connection if the shape stays the same.
    """

    def __init__(self, chans: int, out: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(chans, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
        )
        self.same = chans == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """Maps features (B, chans, H, W)."""
        y: Tensor = super().forward(x)
        return x + y if self.same else y


class Landmarks(nn.Module):
    """Predicts landmarks (B, 10) as fractions of the side, x and y in turn,
    from crops (B, 1, INPUT_SIDE, INPUT_SIDE).
    """

    def __init__(self) -> None:
        super().__init__()
        stages = [
            Step(1, 16, 2),
            Step(16, 32, 2),
            Step(32, 32),
            Step(32, 64, 2),
            Step(64, 64),
            Step(64, 64),
        ]
        self.features = nn.Sequential(*stages, Step(64, 80, 2), Step(80, 80), nn.Flatten())
        self.points = nn.Linear(80 * (INPUT_SIDE // 16) ** 2, 10)
        nn.init.zeros_(self.points.weight)
        self.points.bias.data = torch.tensor(TEMPLATE).flatten()

    def forward(self, image: Tensor) -> Tensor:
        """Returns the landmarks."""
        return self.points(self.features(image))  # type: ignore[no-any-return]


def loader(manifests: list[Path], split: Split, batch: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """Returns the augmented faces of a split;
    training faces are shuffled and augmented anew in each epoch.
    """
    train = split == "train"
    return DataLoader(
        ConcatDataset([Faces(path, split) for path in manifests]),
        batch,
        shuffle=train,
        num_workers=1,
        drop_last=train,
    )


def main(output: Path, ferplus: Path, fairface: Path, epochs: int = 9, batch: int = 128) -> None:
    """Trains and exports the network."""
    torch.manual_seed(0)
    net = Landmarks()
    faces = loader([ferplus, fairface], "train", batch)
    held_out = loader([ferplus], "val", batch)
    optimiser = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 3e-3, epochs * len(faces), pct_start=0.1
    )
    for epoch in range(epochs):
        net.train()
        for image, points in tqdm(faces, desc=f"epoch {epoch}", disable=None):
            loss = (net(image).view_as(points) - points).norm(dim=-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        net.eval()
        print(
            f"epoch {epoch}: mean distance on validation {error(net, held_out):.2%} of the side",
            flush=True,
        )
    faces_in_batch = {"image": {0: torch.export.Dim("faces")}}
    write_onnx(
        net, torch.zeros(2, 1, INPUT_SIDE, INPUT_SIDE), output, dynamic_shapes=faces_in_batch
    )


@torch.inference_mode()
def error(net: Landmarks, faces: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Returns the mean distance between predicted and true landmarks as a fraction of the side."""
    return (
        torch.cat([(net(image).view_as(points) - points).norm(dim=-1) for image, points in faces])
        .mean()
        .item()
    )


if __name__ == "__main__":
    run_main(main)
