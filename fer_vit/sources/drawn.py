"""Drawn faces, to try fer-vit without a data set: cartoons with exact landmarks and expressions.

`cartoon` draws a face; `movements` lists the movements of each expression.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

from tqdm import tqdm

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.files import atomic_write, clear_remains_of
from fer_vit.heads import NO_OUTPUTS
from fer_vit.labels import EXPRESSIONS
from fer_vit.options import Count, Interval, Number, takes
from fer_vit.sources.cartoon import draw
from fer_vit.sources.movements import DRAWN_OUTPUTS
from fer_vit.sources.source import SourceOptions

MAX_DRAWN_SIDE = 10_000  # the largest side of a drawn image in pixels

UNLABELLED = "unlabelled"  # the folder of faces without an expression


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(SourceOptions):
    """Options of the data set `drawn`."""

    count: Count = 1200
    """Number of faces."""
    seed: Number = 0
    """The same seed draws the same faces."""
    size: Annotated[int, Interval(ge=1, le=MAX_DRAWN_SIDE)] = 96
    """Side in pixels."""
    colour: bool = False
    """Draw in colour."""
    heads: bool = False
    """Add targets of movements, pose and affect. Half of the faces then have no expression."""


@takes(DrawnOptions)
def read(options: DrawnOptions) -> Reading:
    """Draws a data set into a folder: `<split>/<class>/<number>.png`, splits of 70, 15 and 15%.

    Classes are balanced. Each image shows a different person. With `heads`, half of the faces are
    in `<split>/unlabelled`: these faces have no expression, and movements that are independent of
    each other. Raises FerVitError when the folder holds other files or cannot be written.
    """
    root = options.root
    clear_remains_of(root)

    rows = []
    # If the folder exists, an earlier run has drawn the images, and they are only compared.
    exists = root.is_file() or any(root.glob("*"))
    with nullcontext(root) if exists else atomic_write(root) as folder:
        numbers = range(options.count)
        for number in tqdm(numbers, "draw", unit="face", disable=None, leave=False, delay=1):
            split = _split_of(number, options.count)
            label = label_of(number, options.heads)
            seed = options.seed * options.count + number
            drawing = draw(label, seed, options.size, options.colour)
            pixels = drawing.image if options.colour else drawing.image[..., 0]
            data = encode_png(pixels)

            name = f"{split}/{label or UNLABELLED}/{number:05d}.png"
            path = folder / name
            if not exists:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            elif not path.is_file() or path.read_bytes() != data:
                raise FerVitError(f"{root} holds something else. Choose a new folder.")

            row = Row(root / name, name, split, label, landmarks=drawing.landmarks)
            if options.heads:
                row.targets = drawing.targets
            rows.append(row)
    return Reading(EXPRESSIONS, rows, outputs=DRAWN_OUTPUTS if options.heads else NO_OUTPUTS)


def label_of(number: int, heads: bool) -> str | None:
    """Returns the expression of a face by the number of the face, in turn.

    With `heads`, every second round through the expressions has None.
    """
    turn, index = divmod(number, len(EXPRESSIONS))
    if heads and turn % 2 == 1:
        return None
    return EXPRESSIONS[index]


def _split_of(number: int, count: int) -> Split:
    """Returns the split of a face: the first 70% are train, the next 15% val, all others test."""
    if number < 0.7 * count:
        return "train"
    return "val" if number < 0.85 * count else "test"
