"""The movements of drawn faces: the movements of each expression, and the targets of heads.

Two expressions of one person differ only in known regions (`differing_regions`), and at most one
pixel outside of the regions' boxes.
"""

from typing import NamedTuple

import numpy as np

from fer_vit.errors import FerVitError
from fer_vit.face.crop import REGIONS
from fer_vit.geometry import Array
from fer_vit.heads import MOVEMENTS, HeadOutputs, Output

Appearance = dict[str, float]


class Parameters(NamedTuple):
    """The movements of an expression: 0 is neutral, 1 or -1 the full movement.

    A name begins with the feature that moves. The movement stays inside the boxes of the regions
    with names that end with the feature.
    """

    brow_raise: float = 0.0
    brow_slope: float = 0.0  # inner ends move down, outer ends up
    brow_squeeze: float = 0.0  # inner ends move together
    eye_opening: float = 0.0
    nose_wrinkle: float = 0.0
    mouth_curve: float = 0.0  # both corners move up
    mouth_opening: float = 0.0
    mouth_width: float = 0.0
    mouth_asymmetry: float = 0.0  # only one corner moves up
    mouth_sneer: float = 0.0  # the upper lip moves up and shows the teeth


EXPRESSION_MOVEMENTS = {
    # Fewer movements than in real faces (anger does not narrow the eyes): with few moved regions,
    # the ground truth for explanations is sharp.
    "neutral": Parameters(),
    "happiness": Parameters(mouth_curve=1.0, mouth_opening=0.6, mouth_width=0.2),
    "surprise": Parameters(brow_raise=1.0, eye_opening=1.0, mouth_opening=1.0, mouth_width=-1.0),
    "sadness": Parameters(brow_slope=-0.9, mouth_curve=-0.9),
    "anger": Parameters(brow_raise=-0.4, brow_slope=1.0, brow_squeeze=1.0),
    "disgust": Parameters(nose_wrinkle=1.0, mouth_curve=-0.5, mouth_sneer=1.0),
    "fear": Parameters(brow_raise=0.7, brow_slope=-0.8, eye_opening=1.0),
    "contempt": Parameters(mouth_asymmetry=1.0),
}

# Smallest and largest movements of faces without an expression. Both ends have intensity 1.
MOVEMENT_RANGES = {
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

# largest difference between a person's parameters and `EXPRESSION_MOVEMENTS`; a person has the same
# difference in all expressions
JITTER = 0.18
BROW_RISE = 0.055  # how far fully raised brows move up
EYE_OPENING = 0.65  # relative growth in height of fully opened eyes
# how far the upper and the lower lip move away from the line between the lips
OPENED_LIPS = (0.065, 0.080)
SNEERING_LIPS = (0.045, 0.010)
LOOKS = {  # lowest and highest value of each property of a picture besides the expression
    # The place of the face in the image.
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
    "intensity": (0.65, 1.00),  # scale of the movements of an expression
    "side": (-1.0, 1.0),  # the sign is the side on which an asymmetric mouth rises
    # The light.
    "gain": (0.75, 1.05),
    "gradient_x": (-0.30, 0.30),
    "gradient_y": (-0.25, 0.25),
    "noise": (1.0, 7.0),  # standard deviation in grey levels
}


def differing_regions(first: str, second: str) -> frozenset[str]:
    """Returns the regions (`face.crop.REGIONS`) in which two expressions of one person differ."""
    features = set()
    for name, a, b in zip(
        Parameters._fields, expression_values(first), expression_values(second), strict=True
    ):
        if a != b:
            features.add(name.split("_")[0])

    # the names of regions end with the feature, such as left_brow
    regions = [region for region in REGIONS if region.endswith(tuple(features))]
    return frozenset(regions)


YAW_DEGREES = 1000  # a drawn yaw of 1 in degrees; drawn yaws are up to 0.022, or 22 degrees

# The movements of a drawn face that are targets. As in `Parameters`, a name begins with the feature
# that moves. A sneer is no target: a picture does not show the rest position of a person's lips, so
# a raised upper lip looks like a mouth that is curved and open.
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

DRAWN_OUTPUTS = HeadOutputs.of_names(
    {MOVEMENTS: DRAWN_MOVEMENTS, "pose": ["yaw", "roll"], "affect": ["valence", "arousal"]},
    "drawn",
)


def draw_targets(look: Appearance, movements: Parameters) -> dict[str, float]:
    """Returns the targets of a drawn face by column, from the movements that a picture shows.

    The target of a movement is the parameter divided by one end of `MOVEMENT_RANGES`, clipped to
    [0, 1]. Valence is the curve of the mouth minus the sneer. Arousal is the opening of the eyes
    plus the opening of the mouth, minus 1. Both are clipped to [-1, 1].
    """
    movements = shown_movements(look, movements)
    corner = "mouthCornerUpLeft" if look["side"] > 0 else "mouthCornerUpRight"
    sources = {
        # the parameter, and the end of the parameter's range (0: lowest, 1: highest)
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
    targets = dict.fromkeys(DRAWN_OUTPUTS.of_head(MOVEMENTS).columns, 0.0)
    for name, (parameter, end) in sources.items():
        intensity = getattr(movements, parameter) / MOVEMENT_RANGES[parameter][end]
        targets[Output(MOVEMENTS, name).column] = float(np.clip(intensity, 0, 1))
    targets["yaw"] = YAW_DEGREES * look["yaw"]
    targets["roll"] = look["roll"]
    targets["valence"] = float(np.clip(movements.mouth_curve - movements.mouth_sneer, -1, 1))
    targets["arousal"] = float(np.clip(movements.eye_opening + movements.mouth_opening - 1, -1, 1))
    return targets


def shown_movements(look: Appearance, movements: Parameters) -> Parameters:
    """Returns the movements that a picture shows.

    A picture does not show how high the brows of a person are at rest, and how open the eyes are:
    both are measured from the mean person. An open mouth is the gap between the lips; a sneer adds
    to the gap.
    """
    usual_y = float(np.mean(LOOKS["brow_y"]))
    usual_height = float(np.mean(LOOKS["eye_height"]))
    higher = (usual_y - look["brow_y"]) / BROW_RISE
    height = look["eye_height"] * (1 + EYE_OPENING * movements.eye_opening)
    gap = sum(OPENED_LIPS) * max(movements.mouth_opening, 0.0)
    gap += sum(SNEERING_LIPS) * max(movements.mouth_sneer, 0.0)
    return movements._replace(
        brow_raise=movements.brow_raise + higher,
        eye_opening=(height / usual_height - 1) / EYE_OPENING,
        mouth_opening=gap / sum(OPENED_LIPS),
    )


def expression_values(expression: str) -> Array:
    """Returns the movements (10,) of an expression, in the order of `Parameters`."""
    if expression not in EXPRESSION_MOVEMENTS:
        raise FerVitError(
            f"Expected one of the expressions {', '.join(EXPRESSION_MOVEMENTS)}, but got "
            f"`{expression}`."
        )
    return np.array(EXPRESSION_MOVEMENTS[expression])
