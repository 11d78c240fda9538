"""Draws cartoons of faces.

A face is drawn in the frame of the face, without roll: origin at the upper left, lengths as
fractions of the image's side. Side -1 is the person's right (the smaller x), side 1 the left.
"""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike

from fer_vit.geometry import TEMPLATE, Array, Image, apply, move
from fer_vit.sources.movements import (
    BROW_RISE,
    EYE_OPENING,
    JITTER,
    LOOKS,
    MOVEMENT_RANGES,
    OPENED_LIPS,
    SNEERING_LIPS,
    Appearance,
    Parameters,
    draw_targets,
    expression_values,
)

Point = tuple[float, float]

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
BRUSH = 0.3 + 0.7 * np.sqrt(1 - STROKE**2)  # relative width along a stroke


def draw_face(
    expression: str, seed: int, size: int = 96, colour: bool = False
) -> tuple[Image, Array]:
    """Returns a drawn face (size, size, 3), RGB uint8, and the landmarks (5, 2) in pixels.

    The landmarks are the eyes' centres, the nose's tip and the mouth's corners; the corners move
    with the expression. The seed chooses person, pose, light and noise; the same arguments give the
    same bytes. Sizes from 48 to 448 look right.
    """
    face = draw(expression, seed, size, colour)
    return face.image, face.landmarks


class Drawing(NamedTuple):
    """A drawn face."""

    image: Image  # (size, size, 3)
    landmarks: Array  # (5, 2) in pixels
    targets: dict[str, float]  # the targets of further heads, by column


def draw(expression: str | None, seed: int, size: int = 96, colour: bool = False) -> Drawing:
    """Draws a face as `draw_face` does, with targets.

    The movements of a face without an expression are independent of each other, and uniform in
    `MOVEMENT_RANGES`.
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
        ranges = np.array([MOVEMENT_RANGES[name] for name in Parameters._fields])  # (10, 2)
        lowest, highest = ranges.T
        values = rng.uniform(lowest, highest)
    else:
        full = expression_values(expression)  # (10,)
        values = look["intensity"] * full + rng.uniform(-JITTER, JITTER, full.shape)
    movements = Parameters._make(values.tolist())

    # the drawing, at twice the size
    canvas = np.empty((2 * size, 2 * size, 3), np.uint8)
    canvas[:] = background
    frame = move(1, look["roll"], look["scale"], look["shift_x"], look["shift_y"]) * size
    face = CartoonFace(canvas, 2 * frame, look, movements, skin, hair, iris)
    face.draw_head()
    right_eye = face.draw_eye(-1)
    left_eye = face.draw_eye(1)
    face.draw_brows()
    nose = face.draw_nose()
    right_corner, left_corner = face.draw_mouth()
    landmarks = apply(frame, [right_eye, left_eye, nose, right_corner, left_corner])

    # the light
    image = cv2.resize(canvas, (size, size), interpolation=cv2.INTER_AREA).astype(float)
    if not colour:
        image = (image @ GREY)[..., None]  # (size, size, 1)
    away = (np.arange(size) + 0.5) / size - 0.5  # (size,), distance from the middle
    light = look["gain"] * (1 + look["gradient_x"] * away + look["gradient_y"] * away[:, None])
    noise = look["noise"] * rng.standard_normal((size, size, 1))
    pixels = (image * light[..., None] + noise).round().clip(0, 255).astype(np.uint8)
    lit = np.broadcast_to(pixels, (size, size, 3)).copy()
    return Drawing(lit, landmarks, draw_targets(look, movements))


def _oval(
    x: float, y: float, width: float, up: float, down: float | None = None, power: float = 2.0
) -> Array:
    """Returns a superellipse (49, 2) with half axes `width`, `up` and `down` (None: `up`).

    Points 24 to 48 are the upper half.
    """
    if down is None:
        down = up
    across = np.sign(COS) * np.abs(COS) ** (2 / power)
    along = np.sign(SIN) * np.abs(SIN) ** (2 / power)
    return np.stack([x + width * across, y + along * np.where(SIN < 0, up, down)], axis=1)


def _stroke(x: Array, y: Array, width: float) -> Array:
    """Returns the outline (50, 2) of a brush stroke along 25 points, thinner at the ends."""
    dx = np.gradient(x)
    dy = np.gradient(y)
    half = width / 2 * BRUSH / np.hypot(dx, dy)
    return _area_between(x - half * dy, y + half * dx, x + half * dy, y - half * dx)


def _area_between(x0: Array, y0: Array, x1: Array, y1: Array) -> Array:
    """Returns the outline of the area between two curves."""
    x = np.concatenate([x0, x1[::-1]])
    y = np.concatenate([y0, y1[::-1]])
    return np.stack([x, y], axis=1)


def _blend(colour: Array, towards: Array, share: float) -> Array:
    return colour + min(max(share, 0.0), 1.0) * (towards - colour)


class CartoonFace(NamedTuple):
    """A face that is drawn part by part, from the back to the front.

    Lengths are fractions of the image's side; colours are RGB from 0 to 255.
    """

    canvas: Image  # the image on which the face is drawn
    to_canvas: Array  # (2, 3), the matrix from the frame of the face to pixels
    look: Appearance
    movements: Parameters
    skin: Array  # (3,), a colour
    hair: Array  # (3,), a colour
    iris: Array  # (3,), a colour

    def fill(self, outline: Array, colour: ArrayLike) -> None:
        """Fills a polygon with the outline (P, 2) in the frame of the face.

        Everything is drawn by polygons, since only polygons look the same in all sizes.
        """
        # OpenCV puts a pixel's centre at integer coordinates; with `shift=4`, it takes coordinates
        # in sixteenths of a pixel.
        points = apply(self.to_canvas, outline) - 0.5
        sixteenths = (points * 16).round().astype(np.int32)
        cv2.fillPoly(self.canvas, [sixteenths], np.asarray(colour).tolist(), cv2.LINE_AA, shift=4)

    def draw_head(self) -> None:
        """Draws hair, neck, ears, face and cheeks."""
        look = self.look
        skin = self.skin
        hair = self.hair
        x = 0.5 - look["yaw"]
        ears_y = 0.47
        width = look["head_width"]

        volume = _oval(x, ears_y, width * look["hair_volume"], 0.53, look["hair_length"], power=2.6)
        self.fill(volume, hair * 0.8)
        neck = _oval(x, 1.1, 0.2, 0.3)
        self.fill(neck, skin * 0.75)
        for side in (-1, 1):
            ear = _oval(x + side * width, 0.5, 0.045, 0.08)
            self.fill(ear, skin * 0.88)
        face = _oval(x, ears_y, width, 0.48, look["chin"] - ears_y, look["jaw"])
        self.fill(face, skin)
        for side in (-1, 1):
            cheek = _oval(x + side * 0.25, 0.63, 0.07, 0.045)
            self.fill(cheek, _blend(skin, LIP, look["blush"]))

        crown = _oval(x, 0.4, width * 1.03, 0.44, power=look["jaw"])[24:]
        hairline = look["hairline"] + look["fringe"] * np.abs(STROKE - look["parting"])
        hairline += (0.4 - hairline) * STROKE**6  # down to the temples
        self.fill(
            _area_between(crown[:, 0], crown[:, 1], x + width * 1.03 * STROKE, hairline), hair
        )

    def draw_eye(self, side: int) -> Point:
        """Draws an eye, and returns the centre of the eye."""
        look = self.look
        x = 0.5 + 0.8 * look["yaw"] + side * look["eye_x"]
        y = TEMPLATE[0][1]
        width = look["eye_width"]
        height = look["eye_height"] * (1 + EYE_OPENING * self.movements.eye_opening)
        shape = _oval(x, y, width, height)
        self.fill(shape, WHITE)

        pupil = 0.55 * look["iris"]
        for radius, colour in ((look["iris"], self.iris), (pupil, DARK * 0.4)):
            disc = _oval(x + look["gaze"], y, radius, radius)
            lid = height * np.sqrt(1 - ((disc[:, 0] - x) / width) ** 2)
            disc[:, 1] = disc[:, 1].clip(y - lid, y + lid)  # the lids cover part of the iris
            self.fill(disc, colour)
        reflection = _oval(x + look["gaze"] - 0.009, y - 0.010, 0.007, 0.007)
        self.fill(reflection, WHITE)

        upper_lid = shape[24:]
        lower_lid = shape[:25]
        self.fill(_stroke(upper_lid[:, 0], upper_lid[:, 1], 0.020), self.skin * 0.25)
        self.fill(_stroke(lower_lid[:, 0], lower_lid[:, 1], 0.008), self.skin * 0.6)
        return x, y

    def draw_brows(self) -> None:
        """Draws both brows."""
        look = self.look
        movements = self.movements
        colour = np.minimum(self.hair, self.skin) * 0.5
        x = 0.5 + 0.8 * look["yaw"]
        # STROKE runs from the inner to the outer end of a brow
        away = (
            look["eye_x"]
            + 0.008
            + look["brow_length"] * STROKE
            - 0.009 * movements.brow_squeeze * (1 - STROKE)
        )
        middle = look["brow_y"] - BROW_RISE * movements.brow_raise
        y = middle - 0.032 * movements.brow_slope * STROKE - look["brow_arch"] * (1 - STROKE**2)
        for side in (-1, 1):
            self.fill(_stroke(x + side * away, y, look["brow_width"]), colour)

    def draw_nose(self) -> Point:
        """Draws the nose with folds, and returns the tip of the nose."""
        look = self.look
        skin = self.skin
        x = 0.5 + 1.4 * look["yaw"]
        y = look["nose_y"]
        wrinkle = self.movements.nose_wrinkle
        tip = _oval(x, y - 0.005, 0.6 * look["nose_width"], 0.03)
        self.fill(tip, _blend(skin, WHITE, 0.15))

        wings_x = x + (look["nose_width"] + 0.008 * wrinkle) * STROKE
        wings_y = y + 0.022 - (0.022 + 0.012 * wrinkle) * STROKE**4
        self.fill(_stroke(wings_x, wings_y, 0.014), skin * 0.55)

        shade = _blend(skin, skin * 0.35, wrinkle)
        for side in (-1, 1):
            for start in (-0.115, -0.080):  # two folds beside the bridge
                fold_x = x + side * (0.040 + 0.028 * STROKE)
                fold_y = y + start + 0.016 * STROKE**2
                self.fill(_stroke(fold_x, fold_y, 0.012), shade)
            # the fold from the wing of the nose down to the mouth
            fold_x = x + side * (0.082 + 0.028 * STROKE - 0.012 * STROKE**2)
            fold_y = y + 0.010 + 0.045 * STROKE
            self.fill(_stroke(fold_x, fold_y, 0.014), shade)
        return x, y

    def draw_mouth(self) -> tuple[Point, Point]:
        """Draws the mouth, and returns the right and the left corner of the mouth."""
        look = self.look
        movements = self.movements
        t = -COS[:25]  # position in the mouth, from -1 at the right corner to 1 at the left
        bow = SIN[:25]  # 0 at the corners, 1 in the middle
        x = 0.5 + 0.8 * look["yaw"] + look["mouth_width"] * (1 + 0.22 * movements.mouth_width) * t
        line = look["mouth_y"] + 0.070 * movements.mouth_curve * (0.5 - t**2)
        line -= 0.075 * movements.mouth_asymmetry * np.maximum(t * np.sign(look["side"]), 0) ** 2
        opening = max(movements.mouth_opening, 0.0)
        sneer = max(movements.mouth_sneer, 0.0)
        upper = line - (0.003 + OPENED_LIPS[0] * opening + SNEERING_LIPS[0] * sneer) * bow
        lower = line + (0.003 + OPENED_LIPS[1] * opening + SNEERING_LIPS[1] * sneer) * bow
        for edge in (upper, lower):
            self.fill(_stroke(x, edge, look["lip"]), _blend(self.skin * 0.75, LIP, 0.6))
        self.fill(_area_between(x, upper, x, lower), DARK)
        if opening + sneer > 2 * JITTER:  # the mouth is open, not only by jitter
            self.fill(_area_between(x, upper, x, np.minimum(upper + 0.035 * bow, lower)), WHITE)
        return (float(x[0]), float(line[0])), (float(x[-1]), float(line[-1]))
