"""Trains the face detector that comes with fer-vit, and writes it as ONNX for `cv2.FaceDetectorYN`.

python -m benchmarks.detector detector.onnx --faces fairface --backgrounds backgrounds --cache runs/detector

`--faces` is a folder of square face crops (FairFace), `--backgrounds` a folder of pictures without faces. YuNet finds
the boxes and landmarks of the crops once. Then faces of 10 to 300 pixels are pasted into the backgrounds while the
network trains. Interrupted training goes on where `--cache` holds a checkpoint. Every 20th crop and every 8th
background are held back for `benchmarks.detector_scores`.
"""

import math
import time
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnx
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.machine import arguments
from fer_vit.face.detect import yunet_path
from fer_vit.geometry import Array, Image, apply
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawing import draw_face

CROP, CANVAS, PAD = 112, 256, 32
STRIDES = (8, 16, 32)
RANGES = ((0, 52), (32, 128), (80, 10_000))
"""The sides of the faces, in pixels, that each stride learns; a side in two ranges belongs to both."""
DRAWN = 1500
VISIBLE = 0.65
"""The part of its box that a crop has to show."""
RAW = 0.7
"""The network's score that the file reports as 0.6, the minimum score in photos."""
HELD_CROPS, HELD_BACKGROUNDS = 20, 8
"""Every 20th crop and every 8th background are held back."""


# Data


class Data(NamedTuple):
    """Crops (N, 112, 112, 3) in BGR, their boxes and landmarks (N, 7, 2) in crop pixels, and backgrounds."""

    crops: Image
    points: Array
    backgrounds: list[Image]


def read_crops(folder: Path, cache: Path) -> tuple[Image, Array]:
    """Returns all crops, drawn faces at the end, and what YuNet finds in them: corners and landmarks, else NaN."""
    if not (cache / "points.npy").exists():
        paths, points = sorted(folder.rglob("*.jpg")), []
        detector = cv2.FaceDetectorYN.create(str(yunet_path()), "", (224, 224), 0.3)
        crops = np.lib.format.open_memmap(cache / "crops.npy", "w+", np.uint8, (len(paths) + DRAWN, CROP, CROP, 3))
        for row in tqdm(range(len(crops)), "YuNet finds faces", disable=None):
            if row < len(paths):
                crops[row] = cv2.resize(cv2.imread(str(paths[row])), (CROP, CROP))  # type: ignore[arg-type]
            else:
                crops[row] = draw_face(EXPRESSIONS[row % 8], row, CROP, colour=True)[0][..., ::-1]
            points.append(find_points(detector, crops[row]))
        np.save(cache / "points.npy", points)
    return np.load(cache / "crops.npy", mmap_mode="r"), np.load(cache / "points.npy")


def find_points(detector: Any, crop: Image) -> Array:
    """Returns the two corners and five landmarks (7, 2) that YuNet finds in a crop enlarged to 160 and padded."""
    large = cv2.resize(crop, (160, 160), interpolation=cv2.INTER_CUBIC)
    found = detector.detect(cv2.copyMakeBorder(large, PAD, PAD, PAD, PAD, cv2.BORDER_REPLICATE))[1]
    if found is None:
        return np.full((7, 2), np.nan)
    offset = found[:, :2] + found[:, 2:4] / 2 - 112
    rank = found[:, 14] * np.sqrt(found[:, 2] * found[:, 3]) * np.exp(-(offset**2).sum(1) / 2 / 60**2)
    points = found[rank.argmax(), :14].reshape(7, 2).astype(float)
    points[1] += points[0]
    return (points - PAD) * CROP / 160  # type: ignore[no-any-return]


def read_data(faces: Path, backgrounds: Path, cache: Path, held_back: bool = False) -> Data:
    """Returns the training data, or with `held_back` the rest."""
    crops, points = read_crops(faces, cache)
    box = points[:, :2]
    seen = np.diff(box.clip(0, CROP), axis=1).prod((1, 2)) > VISIBLE * np.diff(box, axis=1).prod((1, 2))  # not for NaN
    rows = np.flatnonzero(seen & ((np.arange(len(crops)) % HELD_CROPS == 0) == held_back))
    paths = [
        path
        for place, path in enumerate(sorted(backgrounds.glob("*.jpg")))
        if (place % HELD_BACKGROUNDS == 0) == held_back
    ]
    return Data(crops[rows], points[rows], [np.asarray(cv2.imread(str(path)), np.uint8) for path in paths])


# Canvases


def compose(data: Data, rng: Generator, weights: Array) -> tuple[Image, Array, int]:
    """Returns a canvas (256, 256, 3), its faces (F, 7, 2) as corners and landmarks, and its background's number or -1.

    Args:
        data: The crops and backgrounds.
        rng: Chooses everything.
        weights: How often each background is chosen: more often where the network saw faces in it.
    """
    chosen = int(rng.choice(len(weights), p=weights / weights.sum()))
    kind = rng.random()
    if kind < 0.15:
        chosen = -1
        canvas, faces = close_up(data, rng)
    else:
        canvas, faces = cut_background(data.backgrounds[chosen], rng), []
        if rng.random() < 0.3:
            canvas, chosen = mosaic(data, rng), -1
        if rng.random() < 0.2:
            draw_clutter(canvas, rng)
        sizes: Array = np.zeros(0)
        if kind > 0.28:
            top = rng.choice([24, 60, 130, 280], p=[0.25, 0.3, 0.3, 0.15])
            count = rng.integers(1, {24: 13, 60: 9, 130: 4, 280: 2}[int(top)])
            sizes = np.sort(np.exp(rng.uniform(np.log(10 if top < 200 else 100), np.log(top), count)))[::-1]
        taken: list[tuple[float, float, float]] = []
        for size in sizes:
            face = paste_face(canvas, data, rng, float(size), taken)
            faces += [] if face is None else [face]
        for _ in range(rng.integers(0, 4)):
            paste_tile(canvas, data, rng, taken)
    return change_colours(canvas, rng), np.array(faces).reshape(-1, 7, 2), chosen


def cut_background(image: Image, rng: Generator) -> Image:
    """Returns a random cut of a background, mirrored and turned upside down at random."""
    height, width = image.shape[:2]
    side = int(min(height, width) * rng.uniform(0.35, 1))
    top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
    cut = cv2.resize(image[top : top + side, left : left + side], (CANVAS, CANVAS), interpolation=cv2.INTER_LINEAR)
    flip = rng.random()
    return np.ascontiguousarray(cut[:, ::-1] if flip < 0.5 else cut[::-1] if flip < 0.55 else cut)


def mosaic(data: Data, rng: Generator) -> Image:
    """Returns a canvas of four backgrounds at half the size."""
    cuts = [cut_background(data.backgrounds[rng.integers(len(data.backgrounds))], rng) for _ in range(4)]
    small = [cv2.resize(cut, (CANVAS // 2, CANVAS // 2), interpolation=cv2.INTER_AREA) for cut in cuts]
    return np.vstack([np.hstack(small[:2]), np.hstack(small[2:])]).astype(np.uint8)


def draw_clutter(canvas: Image, rng: Generator) -> None:
    """Draws lines of text or dots into a canvas."""
    text = rng.random() < 0.5
    for _ in range(rng.integers(3, 12) if text else rng.integers(20, 120)):
        place, colour = rng.integers(0, CANVAS, 2).tolist(), rng.integers(0, 256, 3).tolist()
        if text:
            words = "".join(map(chr, rng.integers(32, 127, 40)))
            cv2.putText(canvas, words, (-place[0] // 2, place[1]), 0, rng.uniform(0.3, 1.2), colour, 1, cv2.LINE_AA)
        else:
            cv2.circle(canvas, place, int(rng.integers(0, 6)), colour, -1, cv2.LINE_AA)


def pick_face(data: Data, rng: Generator) -> tuple[Image, Array]:
    """Returns a relit face crop and its points, mirrored at random."""
    row = int(rng.integers(len(data.crops)))
    crop, points = data.crops[row], data.points[row].copy()
    if rng.random() < 0.5:
        crop = np.ascontiguousarray(crop[:, ::-1])
        points[:, 0] = CROP - points[:, 0]
        points = points[[0, 1, 3, 2, 4, 6, 5]]
        points[:2, 0] = points[1::-1, 0]
    return relight(crop, rng), points


def relight(crop: Image, rng: Generator) -> Image:
    """Changes gain, colour and direction of the light of some crops."""
    if rng.random() < 0.5:
        return crop
    ramp = np.linspace(-1, 1, CROP, dtype=np.float32)
    slope = rng.uniform(-0.5, 0.5, 2).astype(np.float32)
    light = rng.uniform(0.45, 1.35) * (1 + slope[0] * ramp + slope[1] * ramp[:, None])
    return (crop * light[..., None] * rng.uniform(0.85, 1.15, 3).astype(np.float32)).clip(0, 255).astype(np.uint8)


def turned(points: Array, to_canvas: Array) -> Array:
    """Maps points; the box is that of the ellipse that fills the old one."""
    mapped = apply(to_canvas, points)
    half, centre = (points[1] - points[0]) / 2, apply(to_canvas, points[:2].mean(0))
    reach = np.sqrt((to_canvas[:, :2] ** 2) @ half**2)
    mapped[:2] = centre - reach, centre + reach
    return mapped


def matrix(points: Array, size: float, angle: float, centre: Array) -> Array:
    """Returns the matrix (2, 3) that turns a crop's face to an angle (radians), a size and a place."""
    scale = size / np.sqrt(np.prod(points[1] - points[0]))
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([linear, centre - linear @ points[:2].mean(0)])


def draw_angle(rng: Generator) -> float:
    """Returns an angle of at most 42 degrees, most of them small."""
    return float(np.deg2rad(rng.normal(0, 8) if rng.random() < 0.55 else rng.uniform(-42, 42)))


def close_up(data: Data, rng: Generator) -> tuple[Image, list[Array]]:
    """Returns a canvas that one crop fills, its face 100 to 300 pixels large, sometimes from very few pixels."""
    crop, points = pick_face(data, rng)
    size = rng.uniform(100, 300)
    room = max((CANVAS - size) / 2, 0.08 * size)
    to_canvas = matrix(points, size, draw_angle(rng), CANVAS / 2 + rng.uniform(-room, room, 2))
    if rng.random() < 0.4:
        few = int(rng.integers(40, CROP))
        crop = cv2.resize(cv2.resize(crop, (few, few), interpolation=cv2.INTER_AREA), (CROP, CROP))
    border = (cv2.BORDER_REPLICATE, cv2.BORDER_REFLECT, cv2.BORDER_CONSTANT)[rng.integers(3)]
    canvas = warp_pixels(crop, to_canvas, (CANVAS, CANVAS), border)
    return np.asarray(canvas, np.uint8), [turned(points, to_canvas)]


def warp_pixels(image: Any, to_canvas: Array, size: tuple[int, int], border: int = cv2.BORDER_CONSTANT) -> Any:
    """Warps with pixel centres at +0.5."""
    moved = to_canvas.copy()
    moved[:, 2] += to_canvas[:, :2] @ (0.5, 0.5) - 0.5
    return cv2.warpAffine(image, moved, size, flags=cv2.INTER_LINEAR, borderMode=border)


def paste(canvas: Image, crop: Image, mask: NDArray[np.float32], to_canvas: Array) -> None:
    """Blends a crop into a canvas in place; a crop that becomes much smaller is first reduced by area averaging."""
    side = len(crop)
    scale = float(np.hypot(*to_canvas[:, 0]))
    if scale < 0.7:
        small = max(8, round(side * scale * 1.1))
        crop = cv2.resize(crop, (small, small), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
        mask = cv2.resize(mask, (small, small), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
        to_canvas = np.column_stack([to_canvas[:, :2] * side / small, to_canvas[:, 2]])
        side = small
    corners = apply(to_canvas, np.array([(0, 0), (side, 0), (0, side), (side, side)]))
    extent = np.array(canvas.shape[1::-1])
    low = np.floor(corners.min(0)).clip(0, extent).astype(int)
    high = np.ceil(corners.max(0)).clip(0, extent).astype(int)
    if (high <= low).any():
        return
    local = np.column_stack([to_canvas[:, :2], to_canvas[:, 2] - low])
    size = (int(high[0] - low[0]), int(high[1] - low[1]))
    alpha = warp_pixels(mask, local, size)[..., None]
    place = canvas[low[1] : high[1], low[0] : high[0]]
    place[:] = place + alpha * (warp_pixels(crop, local, size, cv2.BORDER_REPLICATE).astype(np.float32) - place)


def make_mask(points: Array, rng: Generator) -> NDArray[np.float32]:
    """Returns the mask of a face crop: an ellipse around the box, or most of the crop; its edge is hard or soft."""
    grid = np.arange(1, CROP, 2, dtype=np.float32)[:, None]
    if rng.random() < 0.5:
        centre, half = points[:2].mean(0), (points[1] - points[0]) / 2 * rng.uniform(1.1, 1.6, 2)
        across, along = (((grid - centre) / half) ** 2).astype(np.float32).T
        depth = 1 - np.sqrt(across + along[:, None])
    else:
        low, high = points[0] * rng.uniform(0, 0.8), CROP - (CROP - points[1]) * rng.uniform(0, 0.8, 2)
        across, along = (np.minimum(grid - low, high - grid) / CROP * 2).astype(np.float32).T
        depth = np.minimum(across, along[:, None])
    return cv2.resize((depth / np.float32(rng.choice([0.02, 0.1, 0.3]))).clip(0, 1), (CROP, CROP))  # type: ignore[return-value]


def find_room(rng: Generator, size: float, taken: list[tuple[float, float, float]]) -> Array | None:
    """Returns a centre for something of a size that keeps clear of what is there; None if there is no room."""
    edge = size * rng.uniform(0.3, 0.6)
    for _ in range(10):
        centre = rng.uniform(edge, CANVAS - edge, 2) if edge < CANVAS / 2 else np.full(2, CANVAS / 2.0)
        if all(np.abs(centre - (x, y)).max() > 0.65 * (size + other) for x, y, other in taken):
            taken.append((*centre, size))
            return centre
    return None


def paste_face(
    canvas: Image, data: Data, rng: Generator, size: float, taken: list[tuple[float, float, float]]
) -> Array | None:
    """Pastes a face of a size into a canvas; returns its points there, or None where there is no room."""
    if (centre := find_room(rng, size, taken)) is None:
        return None
    crop, points = pick_face(data, rng)
    to_canvas = matrix(points, size, draw_angle(rng), centre)
    paste(canvas, crop, make_mask(points, rng), to_canvas)
    return turned(points, to_canvas)


def paste_tile(canvas: Image, data: Data, rng: Generator, taken: list[tuple[float, float, float]]) -> None:
    """Pastes a piece of another background with the mask of a face, so that edges do not mean a face."""
    size = float(np.exp(rng.uniform(np.log(10), np.log(160))))
    if (centre := find_room(rng, size, taken)) is None:
        return
    points = data.points[rng.integers(len(data.points))]
    other = data.backgrounds[rng.integers(len(data.backgrounds))]
    side = int(min(other.shape[:2]) * rng.uniform(0.15, 1))
    top, left = rng.integers(0, other.shape[0] - side + 1), rng.integers(0, other.shape[1] - side + 1)
    tile = cv2.resize(other[top : top + side, left : left + side], (CROP, CROP), interpolation=cv2.INTER_LINEAR)
    to_canvas = matrix(points, size, draw_angle(rng), centre)
    paste(canvas, relight(np.asarray(tile, np.uint8), rng), make_mask(points, rng), to_canvas)


def change_colours(canvas: Image, rng: Generator) -> Image:
    """Changes tone, sharpness, noise and compression of some canvases, and takes the colour of some."""
    if rng.random() < 0.5:
        levels = 255 * (np.arange(256) / 255) ** np.exp(rng.uniform(-0.6, 0.6))
        levels = (levels - 128) * rng.uniform(0.6, 1.3) + 128 + rng.uniform(-40, 40)
        canvas = np.asarray(cv2.LUT(canvas, levels.clip(0, 255).astype(np.uint8)), np.uint8)
    if rng.random() < 0.25:
        canvas = np.asarray(cv2.cvtColor(cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR), np.uint8)
    if rng.random() < 0.12:
        canvas = np.asarray(cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.4, 1.8)), np.uint8)
    if rng.random() < 0.12:
        noise = rng.standard_normal(canvas.shape, np.float32) * np.float32(rng.uniform(2, 14))
        canvas = (canvas + noise).clip(0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        quality = int(rng.integers(25, 90))
        canvas = np.asarray(cv2.imdecode(cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], 1))
    return canvas


# Network


def conv(chans: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution with batch norm."""
    return nn.Sequential(
        nn.Conv2d(chans, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)
    )


class Separable(nn.Module):
    """A depthwise and a pointwise convolution, whose result is added to the input."""

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(chans, chans, groups=chans), nn.ReLU(), conv(chans, chans, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps features (B, chans, H, W)."""
        return F.relu(x + self.body(x))


def stage(chans: int, out: int, depth: int) -> nn.Sequential:
    """Halves the resolution, then refines."""
    return nn.Sequential(conv(chans, out, stride=2), nn.ReLU(), *[Separable(out) for _ in range(depth)])


class Network(nn.Module):
    """Scores, boxes and landmarks at strides 8, 16 and 32 of images (B, 3, H, W), BGR in [0, 1].

    Each of the three results is (B, 15, H / stride, W / stride): a score's logit, the box's centre and the logarithm of
    its sides, and five points. Lengths are in strides and places are relative to the cell's upper left corner, as
    `cv2.FaceDetectorYN` expects.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(stage(3, 16, 0), stage(16, 24, 0))
        chans, neck = (40, 64, 96), 48
        self.stages = nn.ModuleList([stage(24, 40, 2), stage(40, 64, 3), stage(64, 96, 3)])
        self.lateral = nn.ModuleList([conv(count, neck, 1) for count in chans])
        self.heads = nn.ModuleList([nn.Sequential(Separable(neck), nn.Conv2d(neck, 15, 1)) for _ in chans])
        for head in self.heads:
            nn.init.normal_(head[1].weight, std=0.01)
            head[1].bias.data = torch.tensor([-4.0, 0.5, 0.5, 1.0, 1.0, *[0.5] * 10])

    def forward(self, image: Tensor) -> list[Tensor]:
        """Returns the results of the three strides."""
        features, x = [], self.stem(image)
        for one in self.stages:
            features.append(x := one(x))
        results: list[Tensor] = []
        above: Tensor | None = None
        for feature, lateral, head in zip(features[::-1], self.lateral[::-1], self.heads[::-1], strict=True):
            x = lateral(feature)
            above = F.relu(x if above is None else x + F.interpolate(above, scale_factor=2.0))
            results.insert(0, head(above))
        return results


# Training


def cells() -> tuple[Array, Array]:
    """Returns the upper left corners (C, 2) in pixels and strides (C,) of all cells of a canvas."""
    corners = [
        np.stack(np.meshgrid(*[np.arange(0, CANVAS, stride)] * 2), -1).reshape(-1, 2).astype(float)
        for stride in STRIDES
    ]
    return np.concatenate(corners), np.repeat(STRIDES, [len(corner) for corner in corners]).astype(float)


CORNERS, STRIDE = cells()
LOW, HIGH = (np.repeat([r[i] for r in RANGES], [(CANVAS // s) ** 2 for s in STRIDES]) for i in (0, 1))


def assign(faces: Array) -> tuple[Array, Array, Array]:
    """Returns for each cell 1 for a face, 0 for none, -1 for neither; the face's points (C, 7, 2); 1 far from faces.

    The cells of a face are those around its centre at the strides of its size; at the next sizes they are neither.
    """
    labels, points = np.zeros(len(STRIDE), np.float32), np.zeros((len(STRIDE), 7, 2), np.float32)
    far = np.ones(len(STRIDE), np.float32)
    if len(faces):
        width, height = (faces[:, 1] - faces[:, 0]).T[..., None]  # (F, 1)
        size = np.sqrt(width * height)
        x, y = np.abs(CORNERS + STRIDE[:, None] / 2 - faces[:, :2].mean(1)[:, None]).transpose(2, 0, 1)
        inside = (x <= np.maximum(0.22 * width, 0.6 * STRIDE)) & (y <= np.maximum(0.22 * height, 0.6 * STRIDE))
        near = inside & (size >= LOW / 1.5) & (size < HIGH * 1.5)
        own = inside & (size >= LOW) & (size < HIGH)
        labels[near.any(0)] = -1
        nearest = np.where(own, np.maximum(x / width, y / height), np.inf).argmin(0)
        labels[own.any(0)] = 1
        points = faces[nearest].astype(np.float32)
        far = ((x > width) | (y > height)).all(0).astype(np.float32)
    return labels, points, far


def loss_of(results: list[Tensor], labels: Tensor, points: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the loss and the highest score (B,) of each canvas far from faces.

    Scores have the focal loss (Lin et al. 2017), boxes that of the generalised IoU (Rezatofighi et al. 2019),
    landmarks their distance in units of the face.
    """
    flat = torch.cat([result.permute(0, 2, 3, 1).flatten(1, 2) for result in results], 1).float()
    logit, true = flat[..., 0], labels.clamp(min=0)
    score = logit.sigmoid()
    each = F.binary_cross_entropy_with_logits(logit, true, reduction="none") * (score - true).abs() ** 2
    positive = labels == 1
    count = positive.sum().clamp(min=1)
    loss = (each * (labels >= 0)).sum() / count
    corner, stride = torch.from_numpy(CORNERS).float(), torch.from_numpy(STRIDE).float()
    found, target = flat[positive], points[positive]  # (P, 15), (P, 7, 2)
    corner, stride = (part.expand(len(labels), *part.shape)[positive] for part in (corner, stride))
    places = found[:, [1, 2, *range(5, 15)]].view(-1, 6, 2) * stride[:, None, None] + corner[:, None]
    half = found[:, 3:5].clamp(-3, 4).exp() * stride[:, None] / 2
    low, high = places[:, 0] - half, places[:, 0] + half
    common = (torch.minimum(high, target[:, 1]) - torch.maximum(low, target[:, 0])).clamp(min=0).prod(1)
    hull = (torch.maximum(high, target[:, 1]) - torch.minimum(low, target[:, 0])).prod(1)
    sides = target[:, 1] - target[:, 0]
    union = (high - low).prod(1) + sides.prod(1) - common
    giou = common / union - (hull - union) / hull
    distance = (places[:, 1:] - target[:, 2:]).abs().mean((1, 2)) / sides.prod(1).sqrt()
    loss = loss + (2 * (1 - giou).sum() + 2 * distance.sum()) / count
    return loss, (score * far).amax(1).detach()


def rate(step: int, steps: int) -> float:
    """The learning rate as a part of the highest: a warm-up, a plateau, and a linear descent from 45 % on."""
    return min((step + 1) / 300, 1.0, max((steps - step) / (0.55 * steps), 0.004))


def train(data: Data, cache: Path, steps: int, batch: int) -> Network:
    """Trains, with a checkpoint every 100 steps; returns the average of the network's weights over the last steps."""
    torch.manual_seed(0)
    net = Network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average, first = deepcopy(net).eval(), 0
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.02)
    weights = np.ones(len(data.backgrounds))
    if (checkpoint := cache / "checkpoint.pt").exists():
        state = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(state["net"])
        average.load_state_dict(state["average"])
        optimiser.load_state_dict(state["optimiser"])
        weights, first = state["weights"].numpy(), state["step"]
    began = time.monotonic()
    for step in range(first, steps):
        rng = np.random.default_rng([1, step])
        canvases, faces, chosen = zip(*[compose(data, rng, weights) for _ in range(batch)], strict=True)
        targets = [torch.from_numpy(np.stack(part)) for part in zip(*map(assign, faces), strict=True)]
        image = torch.from_numpy(np.stack(canvases)).permute(0, 3, 1, 2).float() / 255  # channels_last in memory
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * rate(step, steps)
        loss, worst = loss_of(net(image), *targets)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
        for one, number in zip(worst.tolist(), chosen, strict=True):
            if number >= 0:
                weights[number] += 0.3 * (0.1 + one - weights[number])
        decay = min(0.998, (step + 1) / (step + 20))
        for mean, now in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
            mean.copy_(mean * decay + now * (1 - decay) if mean.is_floating_point() else now)
        if step % 20 == 0:
            pace = (time.monotonic() - began) / (step - first + 1)
            print(
                f"step {step}: loss {loss.item():.3f}, highest false score {worst.mean():.3f}, {pace:.2f} s", flush=True
            )
        if (step + 1) % 100 == 0 or step + 1 == steps:
            state = {"net": net.state_dict(), "average": average.state_dict(), "optimiser": optimiser.state_dict()}
            torch.save(state | {"weights": torch.from_numpy(weights), "step": step + 1}, cache / "new.pt")
            (cache / "new.pt").replace(checkpoint)
    return average


def write(net: Network, path: Path) -> None:
    """Writes the network as ONNX with YuNet's results, without the exporter's notes, which name this machine's files.

    `cv2.FaceDetectorYN` scores a face by the root of the product of `cls` and `obj`, which here are the same.
    """
    net = deepcopy(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    net.stem[0][0][0].weight.data /= 255  # OpenCV's pixels
    for head in net.heads:
        head[1].bias.data[0] += math.log(0.6 / 0.4) - math.log(RAW / (1 - RAW))
    height, width = (torch.export.Dim(name, min=2, max=64) * 32 for name in ("h", "w"))
    names = [f"{kind}_{stride}" for kind in ("cls", "obj", "bbox", "kps") for stride in STRIDES]
    program = torch.onnx.export(
        Exported(net).eval(), (torch.zeros(1, 3, 640, 480),), dynamo=True, verbose=False, input_names=["input"],
        output_names=names, dynamic_shapes={"image": {2: height, 3: width}},
    )  # fmt: skip
    assert program is not None
    model = program.model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")
    onnx.save(model, path)


class Exported(nn.Module):
    """The network with YuNet's twelve results."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Returns scores (1, C, 1) twice, boxes (1, C, 4) and landmarks (1, C, 10), each at three strides."""
        flat = [result.permute(0, 2, 3, 1).reshape(1, -1, 15) for result in self.net(image)]
        scores = [part[..., :1].sigmoid() for part in flat]
        boxes, points = ([part[..., cut] for part in flat] for cut in (slice(1, 5), slice(5, 15)))
        return (*scores, *[torch.clone(score) for score in scores], *boxes, *points)


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("output", type=Path, help="the ONNX file")
    parser.add_argument("--faces", type=Path, required=True, help="folder of square face crops")
    parser.add_argument("--backgrounds", type=Path, required=True, help="folder of pictures without faces")
    parser.add_argument("--cache", type=Path, required=True, help="folder for crops, boxes and the checkpoint")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    data = read_data(args.faces, args.backgrounds, args.cache)
    print(f"{len(data.crops)} faces, {len(data.backgrounds)} backgrounds", flush=True)
    write(train(data, args.cache, args.steps, args.batch), args.output)


if __name__ == "__main__":
    cv2.setNumThreads(1)
    main()
