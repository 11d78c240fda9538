"""The training data of the built-in face detector: face crops, and canvases with known faces composed from them.

Every 20th crop and 7 of 24 backgrounds are held back: to select weights and scores ("select"), and to measure the
result ("result").
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.face.detect import yunet_path
from fer_vit.geometry import Array, Image, apply
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawing import draw_face

CROP, CANVAS, PAD = 112, 256, 32
DRAWN = 1500
VISIBLE = 0.65
"""The part of its box that a crop has to show."""
Split = Literal["train", "select", "result"]
SPLITS: dict[int, Split] = {0: "result", 16: "result", 4: "select", 8: "select", 12: "select", 20: "select"}
"""The splits of backgrounds by their number modulo 24; the rest is for training."""


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


def read_data(faces: Path, backgrounds: Path, cache: Path, split: Split) -> Data:
    """Returns the data of a split."""
    crops, points = read_crops(faces, cache)
    box = points[:, :2]
    seen = np.diff(box.clip(0, CROP), axis=1).prod((1, 2)) > VISIBLE * np.diff(box, axis=1).prod((1, 2))  # not for NaN
    row = np.arange(len(crops))
    part = np.where(row % 20, "train", np.where(row % 40, "select", "result"))
    rows = np.flatnonzero(seen & (part == split))
    paths = sorted(backgrounds.glob("*.jpg"))
    chosen = [path for place, path in enumerate(paths) if SPLITS.get(place % 24, "train") == split]
    return Data(crops[rows], points[rows], [np.asarray(cv2.imread(str(path)), np.uint8) for path in chosen])


# Canvases


class Spot(NamedTuple):
    """A part of a background that a network takes for a face: the background's number, the centre and the side."""

    background: int
    centre: Array  # (2,) in its pixels
    side: float


def compose(data: Data, rng: Generator, spots: list[Spot]) -> tuple[Image, Array]:
    """Returns a canvas (256, 256, 3) and its faces (F, 7, 2) as corners and landmarks.

    Args:
        data: The crops and backgrounds.
        rng: Chooses everything.
        spots: Parts of backgrounds that are shown more often.
    """
    kind = rng.random()
    if kind < 0.12:
        canvas, faces = close_up(data, rng)
        return change_colours(canvas, rng), np.array(faces)
    if spots and rng.random() < 0.35:
        canvas = cut_spot(data, rng, spots[rng.integers(len(spots))])
    elif rng.random() < 0.25:
        canvas = mosaic(data, rng)
    else:
        canvas = cut_background(data.backgrounds[rng.integers(len(data.backgrounds))], rng)
    if rng.random() < 0.2:
        draw_clutter(canvas, rng)
    sizes: Array = np.zeros(0)
    if kind > 0.32:
        top = rng.choice([32, 64, 130, 280], p=[0.35, 0.3, 0.22, 0.13])
        count = rng.integers(1, {32: 13, 64: 9, 130: 4, 280: 2}[int(top)])
        sizes = np.sort(np.exp(rng.uniform(np.log(10 if top < 200 else 100), np.log(top), count)))[::-1]
        if rng.random() < 0.3:  # a group: faces of nearly one size
            sizes = sizes[0] * rng.uniform(0.8, 1, count)
    taken: list[tuple[float, float, float]] = []
    faces = [face for size in sizes if (face := paste_face(canvas, data, rng, float(size), taken)) is not None]
    for _ in range(rng.integers(0, 4)):
        size = float(np.exp(rng.uniform(np.log(10), np.log(160))))
        if (centre := find_room(rng, size, taken)) is not None:
            paste_tile(canvas, data, rng, size, centre)
    return change_colours(canvas, rng), np.array(faces).reshape(-1, 7, 2)


def cut_background(image: Image, rng: Generator) -> Image:
    """Returns a random cut of a background, mirrored and turned upside down at random."""
    height, width = image.shape[:2]
    side = int(min(height, width) * rng.uniform(0.35, 1))
    top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
    cut = cv2.resize(image[top : top + side, left : left + side], (CANVAS, CANVAS), interpolation=cv2.INTER_LINEAR)
    flip = rng.random()
    return np.ascontiguousarray(cut[:, ::-1] if flip < 0.5 else cut[::-1] if flip < 0.55 else cut)


def cut_spot(data: Data, rng: Generator, spot: Spot) -> Image:
    """Returns a cut of a background that shows a spot at about its size, mirrored at random."""
    scale = float(np.exp(rng.normal(0, 0.25))) * max(1.0, 12 / spot.side)
    place = rng.uniform(0.25, 0.75, 2) * CANVAS
    to_canvas = np.column_stack([scale * np.eye(2), place - scale * spot.centre])
    canvas = warp_pixels(data.backgrounds[spot.background], to_canvas, (CANVAS, CANVAS), cv2.BORDER_REFLECT)
    return np.ascontiguousarray(canvas[:, ::-1] if rng.random() < 0.5 else canvas)


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


def matrix(points: Array, size: float, angle: float, centre: Array, stretch: float = 1.0) -> Array:
    """Returns the matrix (2, 3) that turns a crop's face to an angle (radians), a size, a place and a stretch in x."""
    scale = size / np.sqrt(np.prod(points[1] - points[0]))
    linear = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = scale * linear * [np.sqrt(stretch), 1 / np.sqrt(stretch)]
    return np.column_stack([linear, centre - linear @ points[:2].mean(0)])


def draw_angle(rng: Generator) -> float:
    """Returns an angle of at most 45 degrees, half of them small."""
    return float(np.deg2rad(rng.normal(0, 8) if rng.random() < 0.5 else rng.uniform(-45, 45)))


def close_up(data: Data, rng: Generator) -> tuple[Image, list[Array]]:
    """Returns a canvas that one crop fills, its face 100 to 300 pixels large, sometimes from very few pixels."""
    crop, points = pick_face(data, rng)
    size = rng.uniform(100, 300)
    room = max((CANVAS - size) / 2, 0.08 * size)
    to_canvas = matrix(points, size, draw_angle(rng), CANVAS / 2 + rng.uniform(-room, room, 2))
    if rng.random() < 0.4:
        few = int(rng.integers(40, CROP))
        crop = cv2.resize(cv2.resize(crop, (few, few), interpolation=cv2.INTER_AREA), (CROP, CROP))
    border = (cv2.BORDER_REPLICATE, cv2.BORDER_CONSTANT)[rng.integers(2)]  # a reflection shows a second face
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
    if rng.random() < 0.3:  # a body or hair
        paste_tile(canvas, data, rng, 1.8 * size, centre + np.array([0, size * rng.uniform(0, 1.3)]))
    crop, points = pick_face(data, rng)
    to_canvas = matrix(points, size, draw_angle(rng), centre, float(np.exp(rng.normal(-0.05, 0.12))))
    paste(canvas, crop, make_mask(points, rng), to_canvas)
    if rng.random() < 0.12:  # a hand, a cup or another head covers a part
        away = rng.standard_normal(2)
        paste_tile(canvas, data, rng, 0.7 * size, centre + away / np.hypot(*away) * size * rng.uniform(0.5, 0.8))
    return turned(points, to_canvas)


def paste_tile(canvas: Image, data: Data, rng: Generator, size: float, centre: Array) -> None:
    """Pastes a piece of another background with the mask of a face, so that edges do not mean a face."""
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
    if rng.random() < 0.2:
        canvas = soften(canvas, rng)
    if rng.random() < 0.12:
        noise = rng.standard_normal(canvas.shape, np.float32) * np.float32(rng.uniform(2, 14))
        canvas = (canvas + noise).clip(0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        quality = int(rng.integers(25, 90))
        canvas = np.asarray(cv2.imdecode(cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], 1))
    return canvas


def soften(canvas: Image, rng: Generator) -> Image:
    """Blurs a canvas: out of focus, by motion, or from fewer pixels."""
    kind = rng.integers(3)
    if kind == 0:
        return np.asarray(cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.4, 1.8)), np.uint8)
    if kind == 1:
        length = int(rng.integers(3, 8))
        kernel = np.diag(np.ones(length)) if rng.random() < 0.5 else np.ones((1, length))
        return np.asarray(cv2.filter2D(canvas, -1, kernel / length), np.uint8)
    few = int(CANVAS * rng.uniform(0.45, 0.9))
    small = cv2.resize(canvas, (few, few), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, (CANVAS, CANVAS), interpolation=cv2.INTER_LINEAR), np.uint8)
