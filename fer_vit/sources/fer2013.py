"""FER2013: 35,887 faces of the ICML 2013 challenge, 48 x 48, grey.

Goodfellow et al. 2013, arXiv:1307.0414.

Either the table of the challenge (pixels become PNG images), or folders:

    fer2013.csv or icml_face_data.csv    emotion, pixels, Usage
    train/angry/*.jpg, test/angry/*.jpg  one folder for each class; no validation split
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.sources import folder
from fer_vit.sources.source import bad_line, not_found
from fer_vit.sources.splits import missing_splits
from fer_vit.sources.text_tables import read_text_table

# the expressions with the codes 0 to 6 in the table
LABELS = ("anger", "disgust", "fear", "happiness", "sadness", "surprise", "neutral")
LABEL_CODES = {str(number): name for number, name in enumerate(LABELS)}
TABLES = ("fer2013.csv", "icml_face_data.csv")
USAGE: dict[str, Split] = {"Training": "train", "PublicTest": "val", "PrivateTest": "test"}
PIXELS = 48  # the side of an image in pixels


def read(root: Path) -> Reading:
    """Reads FER2013 from a table, from the folder of the table, or from folders train and test.

    An image of a table has the name "file:line". With folders, a fixed tenth of train is held out
    as val.
    """
    tables = [root, *(root / name for name in TABLES)]
    for path in tables:
        if path.is_file():
            return _read_pixels_table(path)

    if not ((root / "train").is_dir() or (root / "test").is_dir()):
        raise not_found(root, f"{' or '.join(TABLES)}, or the folders train and test,")
    reading = folder.read(root)  # also holds out val if there is no val folder
    for name in reading.labels:
        if name not in LABELS:
            raise FerVitError(
                f"Expected FER2013's classes {', '.join(LABELS)} in {root}, but got `{name}`. Read "
                "another data set with `fer-vit prepare folder`."
            )
    return replace(reading, labels=LABELS)  # all seven labels, in the order of the table


def _read_pixels_table(path: Path) -> Reading:
    rows = []
    for line, cell in read_text_table(path, ("emotion", "pixels", "Usage")):
        label = LABEL_CODES.get(cell["emotion"])
        split = USAGE.get(cell["usage"])
        if label is None:
            raise bad_line(path, line, "an emotion from 0 to 6", cell["emotion"])
        if split is None:
            raise bad_line(path, line, f"a Usage from {', '.join(USAGE)}", cell["usage"])
        values = cell["pixels"].split()
        try:
            pixels = np.frombuffer(bytes(map(int, values)), np.uint8).reshape(PIXELS, PIXELS)
        except ValueError as error:
            actual = f"{len(values)} values: {cell['pixels']}"
            raise bad_line(path, line, f"{PIXELS**2} pixels from 0 to 255", actual) from error
        rows.append(Row(encode_png(pixels), f"{path.name}:{line}", split, label))
    if not rows:
        raise FerVitError(
            f"Expected faces in {path}, but got only a header. Restore the file as distributed."
        )
    return Reading(LABELS, rows, notes=missing_splits(rows, path))
