"""Folds: parts of the training faces, one of which a model leaves out, so that it can judge those faces as new ones."""

import re
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fer_vit.data.dataset import named_in_errors
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, short


def in_fold(rows: Manifest, fold: str) -> NDArray[np.bool_]:
    """Tells which rows (M,) are training faces in a fold, written as "0/3": the first of three.

    The bytes of an image decide (by their CRC-32): equal files share a fold, which is the same in every manifest. A
    copy that was saved anew may be in another (of FERPlus' training images about 3% have one).

    Raises:
        FerVitError: There is no such fold, or an image cannot be read.
    """
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", fold)
    if not match or not int(match[1]) < int(match[2]) > 1:
        raise FerVitError(f"Expected a fold such as 0/3, 1/3 or 2/3, but got {short(fold)}.")
    index, count = map(int, match.groups())
    found: NDArray[np.bool_] = rows.table["split"].to_numpy() == "train"
    faces = np.flatnonzero(found).tolist()
    for row in tqdm(faces, desc="folds", unit=" images", disable=None, leave=False, delay=1):
        with named_in_errors(rows.path, rows.name(row)):
            found[row] = crc32(rows.image_bytes(row)) % count == index
    return found
