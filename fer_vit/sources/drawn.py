"""Drawn faces, to try fer-vit without a data set: cartoons with exact landmarks and expressions.

Two expressions of one person differ in known regions (`differing_regions`), at most one pixel
outside their boxes. A face is drawn in its own frame, without roll: origin at the upper left,
lengths as fractions of the image's side. Side -1 is the person's right (the smaller x), side 1 the
left.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, check_number
from fer_vit.face.crop import REGIONS
from fer_vit.face.image import encode_png
from fer_vit.files import atomic_write, remove_stale
from fer_vit.geometry import TEMPLATE, Array, Image, apply, move
from fer_vit.heads import target_column
from fer_vit.labels import EXPRESSIONS

Look = dict[str, float]
Point = tuple[float, float]
Fill = Callable[[Array, ArrayLike], None]


class Parameters(NamedTuple):
    """The movements of an expression: 0 is neutral, 1 or -1 the full movement.

    A name begins with the feature that moves; it stays inside the boxes of the regions whose names
    end with it.
    """

    brow_raise: float = 0.0
    brow_slope: float = 0.0  # inner ends down, outer ends up
    brow_squeeze: float = 0.0  # inner ends move together
    eye_opening: float = 0.0
    nose_wrinkle: float = 0.0
    mouth_curve: float = 0.0  # corners up
    mouth_opening: float = 0.0
    mouth_width: float = 0.0
    mouth_asymmetry: float = 0.0  # only one corner up
    mouth_sneer: float = 0.0  # upper lip up, teeth bare


TABLE = {
    # Fewer movements than real faces (anger does not narrow the eyes): few regions make the ground
    # truth sharp.
    "neutral": Parameters(),
    "happiness": Parameters(mouth_curve=1.0, mouth_opening=0.6, mouth_width=0.2),
    "surprise": Parameters(brow_raise=1.0, eye_opening=1.0, mouth_opening=1.0, mouth_width=-1.0),
    "sadness": Parameters(brow_slope=-0.9, mouth_curve=-0.9),
    "anger": Parameters(brow_raise=-0.4, brow_slope=1.0, brow_squeeze=1.0),
    "disgust": Parameters(nose_wrinkle=1.0, mouth_curve=-0.5, mouth_sneer=1.0),
    "fear": Parameters(brow_raise=0.7, brow_slope=-0.8, eye_opening=1.0),
    "contempt": Parameters(mouth_asymmetry=1.0),
}
RANGES = {
    "brow_raise": (-0.6, 1.0),  # brows do not reach the eyes
    "brow_slope": (-1.0, 1.0),
    "brow_squeeze": (0.0, 3.0),
    "eye_opening": (0.0, 1.0),
    "nose_wrinkle": (0.0, 1.0),
    "mouth_curve": (-1.0, 1.0),
    "mouth_opening": (0.0, 1.0),
    "mouth_width": (-1.0, 0.3),
    "mouth_asymmetry": (0.0, 1.0),
    "mouth_sneer": (0.0, 1.0),
}
"""Smallest and largest movements of faces without an expression. The ends have intensity 1."""
# largest shift of a person's parameters from the table's, the same in all expressions of that
# person
JITTER = 0.18
BROW_RISE = 0.055  # of raised brows
EYE_OPENING = 0.65  # growth of the height of opened eyes
# how far the upper and the lower lip move away from the line between them
OPENED_LIPS = (0.065, 0.080)
SNEERING_LIPS = (0.045, 0.010)
LOOKS = {
    # How the face's frame lies in the image.
    "roll": (-12.0, 12.0),  # degrees
    "scale": (0.90, 1.04),
    "shift_x": (-0.04, 0.04),
    "shift_y": (-0.03, 0.03),
    "yaw": (-0.022, 0.022),  # how far head and features move apart
    # The person.
    "skin": (0.0, 1.0),  # light to dark
    "blush": (0.0, 0.25),
    "head_width": (0.36, 0.44),
    "chin": (0.955, 1.0),
    "jaw": (2.0, 2.7),  # exponent of the head's superellipse: round to square
    "hairline": (0.05, 0.12),
    "parting": (-0.25, 0.25),
    "fringe": (0.0, 0.10),
    "hair_volume": (1.05, 1.22),
    "hair_length": (0.05, 0.60),
    "eye_x": (0.187, 0.200),
    "eye_width": (0.058, 0.072),
    "eye_height": (0.031, 0.038),
    "iris": (0.026, 0.031),
    "gaze": (-0.010, 0.010),
    "brow_y": (0.264, 0.276),
    "brow_length": (0.070, 0.085),
    "brow_width": (0.020, 0.034),
    "brow_arch": (0.006, 0.022),
    "nose_y": (0.585, 0.605),
    "nose_width": (0.038, 0.056),
    "mouth_y": (0.754, 0.774),
    "mouth_width": (0.136, 0.152),
    "lip": (0.020, 0.030),
    "intensity": (0.65, 1.00),  # of every expression
    "side": (-1.0, 1.0),  # its sign is the side on which an asymmetric mouth rises
    # The light.
    "gain": (0.75, 1.05),
    "gradient_x": (-0.30, 0.30),
    "gradient_y": (-0.25, 0.25),
    "noise": (1.0, 7.0),  # standard deviation in grey levels
}
"""Lowest and highest value of everything in a picture except the expression."""

# colours, RGB from 0 to 255
SKINS = np.array(
    [(250, 220, 196), (240, 200, 165), (205, 150, 110), (150, 98, 68), (122, 80, 57)], float
)
HAIRS = np.array(
    [(35, 28, 26), (75, 48, 32), (125, 80, 45), (205, 160, 90), (165, 75, 40), (160, 160, 165)],
    float,
)
IRISES = np.array([(70, 45, 30), (60, 95, 135), (70, 105, 60), (95, 75, 45)], float)
LIP = np.array((175, 50, 60), float)
WHITE = np.array((250, 250, 250), float)
DARK = np.array((45, 20, 25), float)
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue

# outlines
ANGLE = np.linspace(0, 2 * np.pi, 49)
COS = np.cos(ANGLE)
SIN = np.sin(ANGLE)
STROKE = np.linspace(-1, 1, 25)
BRUSH = 0.3 + 0.7 * np.sqrt(1 - STROKE**2)  # width along a stroke


def differing_regions(first: str, second: str) -> frozenset[str]:
    """Returns the regions (`face.crop.REGIONS`) in which expressions of one person differ."""
    features = set()
    for name, a, b in zip(Parameters._fields, _values(first), _values(second), strict=True):
        if a != b:
            features.add(name.split("_")[0])

    # Regions of both sides end in the feature, such as left_brow.
    regions = [region for region in REGIONS if region.endswith(tuple(features))]
    return frozenset(regions)


def draw_face(
    expression: str, seed: int, size: int = 96, colour: bool = False
) -> tuple[Image, Array]:
    """Draws a face (size, size, 3), RGB uint8, and returns it with its landmarks (5, 2) in pixels.

    The landmarks are the eyes' centres, the nose's tip, and the mouth's corners, which move with
    the expression. The seed chooses person, pose, light and noise; the same arguments give the same
    bytes. Sizes from 48 to 448 look right.
    """
    face = draw(expression, seed, size, colour)
    return face.image, face.landmarks


class Drawing(NamedTuple):
    """A drawn face."""

    image: Image  # (size, size, 3)
    landmarks: Array  # (5, 2) in pixels
    targets: dict[str, float]  # of heads, by column


def draw(expression: str | None, seed: int, size: int = 96, colour: bool = False) -> Drawing:
    """Draws a face as `draw_face` does, with its targets.

    A face without an expression has movements that do not depend on one another, anywhere in
    `RANGES`.
    """
    rng = np.random.default_rng(seed)

    # the person, the background and the movements
    lowest, highest = np.array(list(LOOKS.values())).T
    look = dict(zip(LOOKS, rng.uniform(lowest, highest).tolist(), strict=True))
    shade = look["skin"] * (len(SKINS) - 1)
    skin = np.array([np.interp(shade, range(len(SKINS)), channel) for channel in SKINS.T])
    hair = rng.choice(HAIRS) * (1 - 0.6 * look["skin"])
    iris = rng.choice(IRISES)
    background = rng.uniform(60, 230, 3)
    if expression is None:
        lowest, highest = np.array([RANGES[name] for name in Parameters._fields]).T  # (10,) each
        values = rng.uniform(lowest, highest)
    else:
        full = _values(expression)  # (10,)
        values = look["intensity"] * full + rng.uniform(-JITTER, JITTER, full.shape)
    moved = Parameters._make(values.tolist())

    # the drawing, at twice the size
    canvas = np.empty((2 * size, 2 * size, 3), np.uint8)
    canvas[:] = background
    frame = move(1, look["roll"], look["scale"], look["shift_x"], look["shift_y"]) * size
    fill = partial(_fill, canvas, 2 * frame)
    _head(fill, look, skin, hair)
    right_eye = _eye(fill, look, moved, -1, skin, iris)
    left_eye = _eye(fill, look, moved, 1, skin, iris)
    _brows(fill, look, moved, np.minimum(hair, skin) * 0.5)
    nose = _nose(fill, look, moved, skin)
    right_corner, left_corner = _mouth(fill, look, moved, skin)
    landmarks = apply(frame, [right_eye, left_eye, nose, right_corner, left_corner])

    # the light
    image = cv2.resize(canvas, (size, size), interpolation=cv2.INTER_AREA).astype(float)
    if not colour:
        image = (image @ GREY)[..., None]  # (size, size, 1)
    away = (np.arange(size) + 0.5) / size - 0.5  # from the middle
    light = look["gain"] * (1 + look["gradient_x"] * away + look["gradient_y"] * away[:, None])
    noise = look["noise"] * rng.standard_normal((size, size, 1))
    pixels = (image * light[..., None] + noise).round().clip(0, 255).astype(np.uint8)
    lit = np.broadcast_to(pixels, (size, size, 3)).copy()
    return Drawing(lit, landmarks, draw_targets(look, moved))


UNLABELLED = "unlabelled"  # the folder of faces without an expression
YAW_DEGREES = 1000  # of a drawn yaw of 1: faces turn by up to 22 degrees
DRAWN_MOVEMENTS = (
    "browRaise",
    "browLower",
    "browSqueeze",
    "eyeWide",
    "noseWrinkle",
    "mouthSmile",
    "mouthFrown",
    "mouthOpen",
    "mouthCornerUpLeft",
    "mouthCornerUpRight",
)
"""Movements of a drawn face. As in `Parameters`, a name begins with the feature that moves.

A sneer has none: a picture does not show where the lips of a person rest, so that a raised upper
lip looks like a mouth that is curved and open.
"""
DRAWN_OUTPUTS = {
    "movements": list(DRAWN_MOVEMENTS),
    "pose": ["yaw", "roll"],
    "affect": ["valence", "arousal"],
}


def draw_targets(look: Look, moved: Parameters) -> dict[str, float]:
    """Returns the targets of a drawn face by column.

    They are the parameters of the drawing, as a picture shows them.

    A movement is the part of a parameter above 0 (or below), as a part of its range, at most 1.
    Valence is the curve of the mouth, less the sneer. Arousal is the mean of opened eyes and mouth,
    from -1 for neutral ones.
    """
    moved = shown_movements(look, moved)
    corner = "mouthCornerUpLeft" if look["side"] > 0 else "mouthCornerUpRight"
    sources = {
        # the parameter, and the end of its range
        "browRaise": ("brow_raise", 1),
        "browLower": ("brow_raise", 0),
        "browSqueeze": ("brow_squeeze", 1),
        "eyeWide": ("eye_opening", 1),
        "noseWrinkle": ("nose_wrinkle", 1),
        "mouthSmile": ("mouth_curve", 1),
        "mouthFrown": ("mouth_curve", 0),
        "mouthOpen": ("mouth_opening", 1),
        corner: ("mouth_asymmetry", 1),
    }
    targets = {target_column("movements", name): 0.0 for name in DRAWN_MOVEMENTS}
    for name, (parameter, end) in sources.items():
        intensity = getattr(moved, parameter) / RANGES[parameter][end]
        targets[target_column("movements", name)] = float(np.clip(intensity, 0, 1))
    targets["yaw"] = YAW_DEGREES * look["yaw"]
    targets["roll"] = look["roll"]
    targets["valence"] = float(np.clip(moved.mouth_curve - moved.mouth_sneer, -1, 1))
    targets["arousal"] = float(np.clip(moved.eye_opening + moved.mouth_opening - 1, -1, 1))
    return targets


def shown_movements(look: Look, moved: Parameters) -> Parameters:
    """Returns the movements that a picture shows.

    It does not show how high the brows of a person are at rest, and how open the eyes: both are
    measured from the mean person's. An open mouth is the gap between the lips, to which a sneer
    adds.
    """
    usual_y = float(np.mean(LOOKS["brow_y"]))
    usual_height = float(np.mean(LOOKS["eye_height"]))
    higher = (usual_y - look["brow_y"]) / BROW_RISE
    height = look["eye_height"] * (1 + EYE_OPENING * moved.eye_opening)
    gap = sum(OPENED_LIPS) * max(moved.mouth_opening, 0.0)
    gap += sum(SNEERING_LIPS) * max(moved.mouth_sneer, 0.0)
    return moved._replace(
        brow_raise=moved.brow_raise + higher,
        eye_opening=(height / usual_height - 1) / EYE_OPENING,
        mouth_opening=gap / sum(OPENED_LIPS),
    )


def _values(expression: str) -> Array:
    if expression not in TABLE:
        raise FerVitError(
            f"Expected one of the expressions {', '.join(TABLE)}, but got `{expression}`."
        )
    return np.array(TABLE[expression])


def _fill(canvas: Image, to_canvas: Array, outline: Array, colour: ArrayLike) -> None:
    """Fills a polygon with the outline (P, 2) in the face's frame.

    Everything is drawn by polygons: only they look the same in all sizes.
    """
    # OpenCV puts a pixel's centre at integer coordinates; they are passed in sixteenths of a pixel.
    points = apply(to_canvas, outline) - 0.5
    sixteenths = (points * 16).round().astype(np.int32)
    cv2.fillPoly(canvas, [sixteenths], np.asarray(colour).tolist(), cv2.LINE_AA, shift=4)


def _oval(
    x: float, y: float, width: float, up: float, down: float | None = None, power: float = 2.0
) -> Array:
    """A superellipse (49, 2) with half axes `width`, `up` and `down` (default: `up`).

    Rows 24 to 48 are the upper half.
    """
    if down is None:
        down = up
    across = np.sign(COS) * np.abs(COS) ** (2 / power)
    along = np.sign(SIN) * np.abs(SIN) ** (2 / power)
    return np.stack([x + width * across, y + along * np.where(SIN < 0, up, down)], axis=1)


def _stroke(x: Array, y: Array, width: float) -> Array:
    """A brush stroke along 25 points, thinner at the ends."""
    dx = np.gradient(x)
    dy = np.gradient(y)
    half = width / 2 * BRUSH / np.hypot(dx, dy)
    return _between(x - half * dy, y + half * dx, x + half * dy, y - half * dx)


def _between(x0: Array, y0: Array, x1: Array, y1: Array) -> Array:
    """The area between two curves."""
    x = np.concatenate([x0, x1[::-1]])
    y = np.concatenate([y0, y1[::-1]])
    return np.stack([x, y], axis=1)


def _blend(colour: Array, towards: Array, share: float) -> Array:
    return colour + min(max(share, 0.0), 1.0) * (towards - colour)


def _head(fill: Fill, look: Look, skin: Array, hair: Array) -> None:
    x = 0.5 - look["yaw"]
    ears_y = 0.47
    width = look["head_width"]

    volume = _oval(x, ears_y, width * look["hair_volume"], 0.53, look["hair_length"], power=2.6)
    fill(volume, hair * 0.8)
    neck = _oval(x, 1.1, 0.2, 0.3)
    fill(neck, skin * 0.75)
    for side in (-1, 1):
        ear = _oval(x + side * width, 0.5, 0.045, 0.08)
        fill(ear, skin * 0.88)
    face = _oval(x, ears_y, width, 0.48, look["chin"] - ears_y, look["jaw"])
    fill(face, skin)
    for side in (-1, 1):
        cheek = _oval(x + side * 0.25, 0.63, 0.07, 0.045)
        fill(cheek, _blend(skin, LIP, look["blush"]))

    crown = _oval(x, 0.4, width * 1.03, 0.44, power=look["jaw"])[24:]
    hairline = look["hairline"] + look["fringe"] * np.abs(STROKE - look["parting"])
    hairline += (0.4 - hairline) * STROKE**6  # down to the temples
    fill(_between(crown[:, 0], crown[:, 1], x + width * 1.03 * STROKE, hairline), hair)


def _eye(fill: Fill, look: Look, moved: Parameters, side: int, skin: Array, iris: Array) -> Point:
    x = 0.5 + 0.8 * look["yaw"] + side * look["eye_x"]
    y = TEMPLATE[0][1]
    width = look["eye_width"]
    height = look["eye_height"] * (1 + EYE_OPENING * moved.eye_opening)
    shape = _oval(x, y, width, height)
    fill(shape, WHITE)

    pupil = 0.55 * look["iris"]
    for radius, colour in ((look["iris"], iris), (pupil, DARK * 0.4)):
        disc = _oval(x + look["gaze"], y, radius, radius)
        lid = height * np.sqrt(1 - ((disc[:, 0] - x) / width) ** 2)
        disc[:, 1] = disc[:, 1].clip(y - lid, y + lid)  # the lids cover part of the iris
        fill(disc, colour)
    reflection = _oval(x + look["gaze"] - 0.009, y - 0.010, 0.007, 0.007)
    fill(reflection, WHITE)

    upper_lid = shape[24:]
    lower_lid = shape[:25]
    fill(_stroke(upper_lid[:, 0], upper_lid[:, 1], 0.020), skin * 0.25)
    fill(_stroke(lower_lid[:, 0], lower_lid[:, 1], 0.008), skin * 0.6)
    return x, y


def _brows(fill: Fill, look: Look, moved: Parameters, colour: Array) -> None:
    x = 0.5 + 0.8 * look["yaw"]
    # STROKE runs from the inner end to the outer.
    away = (
        look["eye_x"]
        + 0.008
        + look["brow_length"] * STROKE
        - 0.009 * moved.brow_squeeze * (1 - STROKE)
    )
    middle = look["brow_y"] - BROW_RISE * moved.brow_raise
    y = middle - 0.032 * moved.brow_slope * STROKE - look["brow_arch"] * (1 - STROKE**2)
    for side in (-1, 1):
        fill(_stroke(x + side * away, y, look["brow_width"]), colour)


def _nose(fill: Fill, look: Look, moved: Parameters, skin: Array) -> Point:
    x = 0.5 + 1.4 * look["yaw"]
    y = look["nose_y"]
    wrinkle = moved.nose_wrinkle
    tip = _oval(x, y - 0.005, 0.6 * look["nose_width"], 0.03)
    fill(tip, _blend(skin, WHITE, 0.15))

    wings_x = x + (look["nose_width"] + 0.008 * wrinkle) * STROKE
    wings_y = y + 0.022 - (0.022 + 0.012 * wrinkle) * STROKE**4
    fill(_stroke(wings_x, wings_y, 0.014), skin * 0.55)

    shade = _blend(skin, skin * 0.35, wrinkle)
    for side in (-1, 1):
        for start in (-0.115, -0.080):  # two folds beside the bridge
            fold_x = x + side * (0.040 + 0.028 * STROKE)
            fold_y = y + start + 0.016 * STROKE**2
            fill(_stroke(fold_x, fold_y, 0.012), shade)
        # from the wing down to the mouth
        fold_x = x + side * (0.082 + 0.028 * STROKE - 0.012 * STROKE**2)
        fold_y = y + 0.010 + 0.045 * STROKE
        fill(_stroke(fold_x, fold_y, 0.014), shade)
    return x, y


def _mouth(fill: Fill, look: Look, moved: Parameters, skin: Array) -> tuple[Point, Point]:
    t = -COS[:25]  # from the right corner, -1, to the left
    bow = SIN[:25]  # 0 at the corners, 1 in the middle
    x = 0.5 + 0.8 * look["yaw"] + look["mouth_width"] * (1 + 0.22 * moved.mouth_width) * t
    line = look["mouth_y"] + 0.070 * moved.mouth_curve * (0.5 - t**2)
    line -= 0.075 * moved.mouth_asymmetry * np.maximum(t * np.sign(look["side"]), 0) ** 2
    opening = max(moved.mouth_opening, 0.0)
    sneer = max(moved.mouth_sneer, 0.0)
    upper = line - (0.003 + OPENED_LIPS[0] * opening + SNEERING_LIPS[0] * sneer) * bow
    lower = line + (0.003 + OPENED_LIPS[1] * opening + SNEERING_LIPS[1] * sneer) * bow
    for edge in (upper, lower):
        fill(_stroke(x, edge, look["lip"]), _blend(skin * 0.75, LIP, 0.6))
    fill(_between(x, upper, x, lower), DARK)
    if opening + sneer > 2 * JITTER:  # a mouth opened by more than jitter
        fill(_between(x, upper, x, np.minimum(upper + 0.035 * bow, lower)), WHITE)
    return (float(x[0]), float(line[0])), (float(x[-1]), float(line[-1]))


def read(
    root: Path,
    count: int = 1200,
    seed: int = 0,
    size: int = 96,
    colour: bool = False,
    heads: bool = False,
) -> Reading:
    """Draws a data set into a folder: `<split>/<class>/<number>.png`, splits of 70, 15 and 15 %.

    Classes are balanced. Each image shows a different person. With `heads`, half of the faces are
    in `<split>/unlabelled`: they have no expression, and movements that do not depend on one
    another. Raises FerVitError when the folder holds other files or cannot be written.

    Args:
        root: The folder.
        count: For drawn: number of faces.
        seed: For drawn: the same seed draws the same faces.
        size: For drawn: side of the images in pixels.
        colour: For drawn: in colour rather than grey.
        heads: For drawn: add the targets of movements, pose and affect. Half of the faces then have
            no expression, and movements that do not depend on one another.
    """
    check_number("count", count, 1)
    check_number("seed", seed, 0)
    check_number("size", size, 1)
    remove_stale(root)

    reading = Reading(EXPRESSIONS, [])
    if heads:
        reading.outputs = DRAWN_OUTPUTS
    exists = root.is_file() or any(root.glob("*"))  # drawn by an earlier run
    with nullcontext(root) if exists else atomic_write(root) as folder:
        numbers = range(count)
        for number in tqdm(numbers, "draw", unit="face", disable=None, leave=False, delay=1):
            split = _split_of(number, count)
            label = label_of(number, heads)
            drawing = draw(label, seed * count + number, size, colour)
            pixels = drawing.image if colour else drawing.image[..., 0]
            data = encode_png(pixels)

            name = f"{split}/{label or UNLABELLED}/{number:05d}.png"
            path = folder / name
            if not exists:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            elif not path.is_file() or path.read_bytes() != data:
                raise FerVitError(f"{root} holds something else. Choose a new folder.")

            row = Row(root / name, name, split, label, landmarks=drawing.landmarks)
            if heads:
                row.targets = drawing.targets
            reading.rows.append(row)
    return reading


def label_of(number: int, heads: bool) -> str | None:
    """Returns the expression of a face; with heads, every second round has none."""
    turn, place = divmod(number, len(EXPRESSIONS))
    return None if heads and turn % 2 else EXPRESSIONS[place]


def _split_of(number: int, count: int) -> Split:
    """Returns the split of a face: the first 70 % are train, the next 15 % val, the rest test."""
    if number < 0.7 * count:
        return "train"
    return "val" if number < 0.85 * count else "test"
