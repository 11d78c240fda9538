"""The training data of the built-in face detector: canvases with known faces, composed from crops and backgrounds.

Every 20th crop and every 4th background is held out; half of these crops and a third of these backgrounds are scored.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.face.detect import Face, yunet_path
from fer_vit.geometry import Array, Image, apply
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import draw_face

CROP, CANVAS, PAD = 112, 256, 32
DRAWN = 1500
VISIBLE = 0.65
"""The part of its box that a crop has to show."""


class Data(NamedTuple):
    """Crops (N, 112, 112, 3) in BGR, their boxes and landmarks (N, 7, 2) in crop pixels, and backgrounds."""

    crops: Image
    points: Array
    backgrounds: list[Image]


class Spot(NamedTuple):
    """A false detection in a background: the background's number, the centre and the side."""

    background: int
    centre: Array  # (2,) in its pixels
    side: float


def read_crops(folder: Path, cache: Path) -> tuple[Image, Array]:
    """Returns all crops, drawn faces at the end, and what YuNet finds in them: corners and landmarks, else NaN."""
    if not (cache / "points.npy").exists():
        paths, points = sorted(folder.rglob("*.jpg")), []
        detector = cv2.FaceDetectorYN.create(str(yunet_path()), "", (224, 224), 0.3)
        crops = np.lib.format.open_memmap(
            cache / "crops.npy", "w+", np.uint8, (len(paths) + DRAWN, CROP, CROP, 3)
        )
        for row in tqdm(range(len(crops)), "YuNet finds faces", disable=None):
            if row < len(paths):
                crops[row] = cv2.resize(cv2.imread(str(paths[row])), (CROP, CROP))
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
    rank = (
        found[:, 14] * np.sqrt(found[:, 2] * found[:, 3]) * np.exp(-(offset**2).sum(1) / 2 / 60**2)
    )
    points = found[rank.argmax(), :14].reshape(7, 2).astype(float)
    points[1] += points[0]
    return (points - PAD) * CROP / 160


def read_data(
    faces: Path, backgrounds: Path, cache: Path, part: Literal["train", "held out"]
) -> Data:
    """Returns the training data, or the held-out data that is scored."""
    crops, points = read_crops(faces, cache)
    box = points[:, :2]
    seen = np.diff(box.clip(0, CROP), axis=1).prod((1, 2)) > VISIBLE * np.diff(box, axis=1).prod(
        (1, 2)
    )  # not for NaN
    row, train = np.arange(len(crops)), part == "train"
    rows = np.flatnonzero(seen & (row % 20 > 0 if train else row % 40 == 0))
    paths = enumerate(sorted(backgrounds.glob("*.jpg")))
    chosen = [path for place, path in paths if (place % 4 > 0 if train else place % 24 in (0, 16))]
    return Data(crops[rows], points[rows], [cv2.imread(str(path)) for path in chosen])


def compose(data: Data, rng: Generator, spots: list[Spot]) -> tuple[Image, Array]:
    """Returns a canvas (256, 256, 3) and its faces (F, 7, 2) as corners and landmarks. `spots` are shown more often."""
    kind = rng.random()
    if kind < 0.12:
        canvas, points = close_up(data, rng)
        return change_colours(canvas, rng), points[None]
    if spots and rng.random() < 0.35:
        canvas = cut_spot(data, rng, spots[rng.integers(len(spots))])
    else:
        canvas = cut_background(data, rng, CANVAS, 0.35)
    sizes: Array = np.zeros(0)
    if kind > 0.32:
        top = rng.choice([32, 64, 130, 280], p=[0.35, 0.3, 0.22, 0.13])
        count = rng.integers(1, {32: 13, 64: 9, 130: 4, 280: 2}[int(top)])
        sizes = np.sort(np.exp(rng.uniform(np.log(10 if top < 200 else 100), np.log(top), count)))[
            ::-1
        ]
        if rng.random() < 0.3:  # a group: faces of nearly one size
            sizes = sizes[0] * rng.uniform(0.8, 1, count)
    taken: list[tuple[float, float, float]] = []
    faces = [
        paste_face(canvas, data, rng, float(size), centre)
        for size in sizes
        if (centre := find_room(rng, size, taken)) is not None
    ]
    for size in np.exp(rng.uniform(np.log(10), np.log(160), rng.integers(0, 4))):
        if (centre := find_room(rng, size, taken)) is not None:
            paste_tile(canvas, data, rng, size, centre)
    return change_colours(canvas, rng), np.array(faces).reshape(-1, 7, 2)


def group_photo(data: Data, rng: Generator) -> tuple[Image, list[Face]]:
    """Returns a photo (720, 960, 3) in RGB with 12 upright faces of 14 to 180 pixels."""
    photo = cv2.resize(
        data.backgrounds[rng.integers(len(data.backgrounds))],
        (960, 720),
        interpolation=cv2.INTER_CUBIC,
    )
    faces = []
    for cell in range(12):
        crop, points = pick_face(data, rng)
        size = float(np.exp(rng.uniform(np.log(14), np.log(180))))
        centre = np.array([cell % 4 * 240 + 120.0, cell // 4 * 240 + 120]) + rng.uniform(-20, 20, 2)
        to_photo = matrix(points, size, 0.0, centre)
        paste(photo, crop, make_mask(points, rng), to_photo)
        mapped = transform(points, to_photo)
        faces.append(Face(mapped[:2].ravel(), mapped[2:], 1.0))
    return np.ascontiguousarray(photo[..., ::-1]), faces


def cut_background(data: Data, rng: Generator, side: int, least: float) -> Image:
    """Returns a random cut of a background, from a fraction of `least` on, mirrored at random."""
    image = data.backgrounds[rng.integers(len(data.backgrounds))]
    length = int(min(image.shape[:2]) * rng.uniform(least, 1))
    top, left = (rng.integers(0, extent - length + 1) for extent in image.shape[:2])
    cut = cv2.resize(
        image[top : top + length, left : left + length],
        (side, side),
        interpolation=cv2.INTER_LINEAR,
    )
    return np.ascontiguousarray(cut[:, ::-1] if rng.random() < 0.5 else cut)


def cut_spot(data: Data, rng: Generator, spot: Spot) -> Image:
    """Returns a cut of a background that shows a spot at about its size, mirrored at random."""
    scale = float(np.exp(rng.normal(0, 0.25))) * max(1.0, 12 / spot.side)
    place = rng.uniform(0.25, 0.75, 2) * CANVAS
    to_canvas = np.column_stack([scale * np.eye(2), place - scale * spot.centre])
    canvas = warp(
        data.backgrounds[spot.background], to_canvas, (CANVAS, CANVAS), cv2.BORDER_REFLECT
    )
    return np.ascontiguousarray(canvas[:, ::-1] if rng.random() < 0.5 else canvas)


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
    return (
        (crop * light[..., None] * rng.uniform(0.85, 1.15, 3).astype(np.float32))
        .clip(0, 255)
        .astype(np.uint8)
    )


def transform(points: Array, to_canvas: Array) -> Array:
    """Maps points; the new box bounds the ellipse that fills the old box."""
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


def close_up(data: Data, rng: Generator) -> tuple[Image, Array]:
    """Returns a canvas that one crop fills, its face 100 to 300 pixels large, sometimes from very few pixels."""
    crop, points = pick_face(data, rng)
    size = rng.uniform(100, 300)
    room = max((CANVAS - size) / 2, 0.08 * size)
    to_canvas = matrix(points, size, draw_angle(rng), CANVAS / 2 + rng.uniform(-room, room, 2))
    if rng.random() < 0.4:
        crop = shrink(crop, int(rng.integers(40, CROP)))
    border = (cv2.BORDER_REPLICATE, cv2.BORDER_CONSTANT)[
        rng.integers(2)
    ]  # a reflection shows a second face
    return warp(crop, to_canvas, (CANVAS, CANVAS), border), transform(points, to_canvas)


def shrink(image: Image, side: int) -> Image:
    """Reduces a square image to fewer pixels and enlarges it again."""
    return cv2.resize(
        cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA), image.shape[1::-1]
    )


def warp(
    image: Any, to_canvas: Array, size: tuple[int, int], border: int = cv2.BORDER_CONSTANT
) -> Any:
    """Warps with pixel centres at +0.5."""
    moved = to_canvas.copy()
    moved[:, 2] += to_canvas[:, :2] @ (0.5, 0.5) - 0.5
    return cv2.warpAffine(image, moved, size, flags=cv2.INTER_LINEAR, borderMode=border)


def paste(canvas: Image, crop: Image, mask: NDArray[np.float32], to_canvas: Array) -> None:
    """Blends a crop into a canvas in place; a crop that becomes much smaller is first reduced by area averaging."""
    scale = float(np.hypot(*to_canvas[:, 0]))
    if scale < 0.7:
        small = max(8, round(CROP * scale * 1.1))
        crop, mask = (
            cv2.resize(part, (small, small), interpolation=cv2.INTER_AREA) for part in (crop, mask)
        )
        to_canvas = np.column_stack([to_canvas[:, :2] * CROP / small, to_canvas[:, 2]])
    side, extent = len(crop), np.array(canvas.shape[1::-1])
    corners = apply(to_canvas, np.array([(0, 0), (side, 0), (0, side), (side, side)]))
    low, high = (
        np.clip(edge, 0, extent).astype(int)
        for edge in (np.floor(corners.min(0)), np.ceil(corners.max(0)))
    )
    if (high <= low).any():
        return
    local = np.column_stack([to_canvas[:, :2], to_canvas[:, 2] - low])
    size = (int(high[0] - low[0]), int(high[1] - low[1]))
    place = canvas[low[1] : high[1], low[0] : high[0]]
    alpha = warp(mask, local, size)[..., None]
    place[:] = place + alpha * (
        warp(crop, local, size, cv2.BORDER_REPLICATE).astype(np.float32) - place
    )


def make_mask(points: Array, rng: Generator) -> NDArray[np.float32]:
    """Returns the mask of a face crop: an ellipse around the box, or most of the crop; its edge is hard or soft."""
    grid = np.arange(1, CROP, 2, dtype=np.float32)[:, None]
    if rng.random() < 0.5:
        centre, half = points[:2].mean(0), (points[1] - points[0]) / 2 * rng.uniform(1.1, 1.6, 2)
        across, along = (((grid - centre) / half) ** 2).astype(np.float32).T
        depth = 1 - np.sqrt(across + along[:, None])
    else:
        low, high = (
            points[0] * rng.uniform(0, 0.8),
            CROP - (CROP - points[1]) * rng.uniform(0, 0.8, 2),
        )
        across, along = (np.minimum(grid - low, high - grid) / CROP * 2).astype(np.float32).T
        depth = np.minimum(across, along[:, None])
    return cv2.resize((depth / np.float32(rng.choice([0.02, 0.1, 0.3]))).clip(0, 1), (CROP, CROP))


def find_room(rng: Generator, size: float, taken: list[tuple[float, float, float]]) -> Array | None:
    """Returns a centre for something of a size that keeps clear of what is there; None if there is no room."""
    edge = size * rng.uniform(0.3, 0.6)
    for _ in range(10):
        centre = (
            rng.uniform(edge, CANVAS - edge, 2) if edge < CANVAS / 2 else np.full(2, CANVAS / 2.0)
        )
        if all(np.abs(centre - (x, y)).max() > 0.65 * (size + other) for x, y, other in taken):
            taken.append((*centre, size))
            return centre
    return None


def paste_face(canvas: Image, data: Data, rng: Generator, size: float, centre: Array) -> Array:
    """Pastes a face into a canvas and returns its points there."""
    if rng.random() < 0.3:  # a body or hair
        paste_tile(
            canvas, data, rng, 1.8 * size, centre + np.array([0, size * rng.uniform(0, 1.3)])
        )
    crop, points = pick_face(data, rng)
    to_canvas = matrix(
        points, size, draw_angle(rng), centre, float(np.exp(rng.normal(-0.05, 0.12)))
    )
    paste(canvas, crop, make_mask(points, rng), to_canvas)
    if rng.random() < 0.12:  # a hand, a cup or another head covers a part
        away = rng.standard_normal(2)
        paste_tile(
            canvas,
            data,
            rng,
            0.7 * size,
            centre + away / np.hypot(*away) * size * rng.uniform(0.5, 0.8),
        )
    return transform(points, to_canvas)


def paste_tile(canvas: Image, data: Data, rng: Generator, size: float, centre: Array) -> None:
    """Pastes a piece of another background with the mask of a face, so that edges do not mean a face."""
    points = data.points[rng.integers(len(data.points))]
    tile = relight(cut_background(data, rng, CROP, 0.15), rng)
    paste(canvas, tile, make_mask(points, rng), matrix(points, size, draw_angle(rng), centre))


def change_colours(canvas: Image, rng: Generator) -> Image:
    """Changes tone, sharpness, noise and compression of some canvases, and takes the colour of some."""
    if rng.random() < 0.5:
        levels = 255 * (np.arange(256) / 255) ** np.exp(rng.uniform(-0.6, 0.6))
        levels = (levels - 128) * rng.uniform(0.6, 1.3) + 128 + rng.uniform(-40, 40)
        canvas = cv2.LUT(canvas, levels.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.25:
        canvas = cv2.cvtColor(cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    if rng.random() < 0.2:
        kernel = np.ones((1, n := int(rng.integers(3, 8)))) / n  # motion
        canvas = (
            lambda: cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.4, 1.8)),
            lambda: cv2.filter2D(canvas, -1, kernel),
            lambda: shrink(canvas, int(CANVAS * rng.uniform(0.45, 0.9))),
        )[rng.integers(3)]()
    if rng.random() < 0.12:
        noise = rng.standard_normal(canvas.shape, np.float32) * np.float32(rng.uniform(2, 14))
        canvas = (canvas + noise).clip(0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        quality = int(rng.integers(25, 90))
        canvas = cv2.imdecode(
            cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR
        )
    return canvas
