"""Drawn faces, to try fer-vit without a data set: see `drawing`."""

from contextlib import nullcontext
from pathlib import Path

from tqdm import tqdm

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, check_number
from fer_vit.face.image import encode_png
from fer_vit.files import atomic_write, remove_stale
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawing import draw_face


def read(root: Path, count: int = 1200, seed: int = 0, size: int = 96, colour: bool = False) -> Reading:
    """Draws a data set into a folder: `<split>/<class>/<number>.png`, classes balanced, splits 70, 15 and 15 %.

    Each image shows another person. The folder is new or empty, or already holds the same images. Raises FerVitError
    when the folder holds something else or cannot be written, or a number is too small.

    Args:
        root: The folder.
        count: For drawn: number of faces.
        seed: For drawn: the same seed draws the same faces.
        size: For drawn: side of the images in pixels.
        colour: For drawn: in colour rather than grey.
    """
    for name, number, least in (("count", count, 1), ("seed", seed, 0), ("size", size, 1)):
        check_number(name, number, least)
    rows = []
    remove_stale(root)
    drawn = root.is_file() or (root.exists() and any(root.iterdir()))  # by an earlier run
    with nullcontext(root) if drawn else atomic_write(root) as folder:
        for number in tqdm(range(count), desc="draw", unit="face", disable=None, leave=False, delay=1):
            split: Split = "train" if number < 0.7 * count else "val" if number < 0.85 * count else "test"
            label = EXPRESSIONS[number % len(EXPRESSIONS)]
            name = f"{split}/{label}/{number:05d}.png"
            image, landmarks = draw_face(label, seed * count + number, size, colour)
            data, path = encode_png(image if colour else image[..., 0]), folder / name
            if not drawn:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            elif not path.is_file() or path.read_bytes() != data:
                raise FerVitError(f"{root} holds something else. Choose a new folder.")
            rows.append(Row(root / name, name, split, label, landmarks=landmarks))
    return Reading(EXPRESSIONS, rows)
