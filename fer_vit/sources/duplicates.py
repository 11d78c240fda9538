"""Near-duplicates: the same picture again, encoded again, mirrored, shrunk, darker or slightly
shifted.

Data sets from the web repeat pictures across their splits and classes. A model's score on a picture
that it has learned does not measure new faces.

Two images are the same if grey thumbnails of the whole pictures correlate. Photos by a fixed camera
do so, too, because they show the same room. So where a face fills only a part of a picture, the
place of each face must correlate as well, in both pictures: found boxes of two copies differ by a
few pixels, but a place is the same in both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import CloseUp, Reading, Row
from fer_vit.face.crop import cut_out
from fer_vit.geometry import Array, Float32Array, Image, IntArray, Mask
from fer_vit.listing import counted, name_text

Duplicates = Literal["drop", "keep"]

SIDE = 24  # side of a thumbnail in pixels
CLOSE = 4 * SIDE  # side of a close-up, in which the face has half of it
FILLING = 0.75
"""From this share of the longer side, a face fills the picture."""
PART = SIDE // 4  # side of the parts that must be the same
CORRELATION = 0.97
"""Two pictures are the same from this correlation of their thumbnails.

Checked by eye: the same picture in 24 of 24 pairs of FERPlus from 0.97 to 0.98, and in 11 of 12
pairs of FairFace (4,000 faces against the others), where nearly all pairs below 0.97 are different
people. With a side of 16: 13 of 21.
"""
LOCAL = 0.3
"""Largest difference in a part of two copies, in units of the contrast.

At most 0.21 in copies of 300 faces of FERPlus and 300 of FairFace (JPEG of quality 40, half the
size, blurred, darker). Of the pairs of drawn faces that differ only in their expression, and
correlate, 87 % have more.
"""
BLOCK = 256  # images that are compared with all others at once
SHOWN = 3  # pairs with different labels that are named
MOST_WITHIN = 50_000
"""Training images up to which each is compared with each, which takes a minute;
its cost is their square.
"""
MANY = 0.2
"""From this share of a class, dropped images are reported as a warning."""
NEAR_DUPLICATE = "near-duplicate of a val or test image"


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with SIDE x SIDE pixels."""
    return bytes(_grey(image, SIDE).data)


def close_up(image: Image, box: Array) -> CloseUp | None:
    """Returns a face with box (4,) and half the box around it.

    None for a face that fills the image (H, W, 3), and for an image that is no larger than a
    close-up: it is the crop of a face.
    """
    height, width = image.shape[:2]
    side = max(box[2:] - box[:2])
    if side >= FILLING * max(height, width) or max(height, width) <= CLOSE:
        return None
    centre = (box[:2] + box[2:]) / 2
    square = np.hstack([centre - side / 2, centre + side / 2]) / [width, height, width, height]
    return CloseUp(bytes(_grey(cut_out(image, box)[0], CLOSE).data), tuple(square.tolist()))


def _grey(image: Image, side: int) -> Image:
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)


@dataclass(frozen=True)
class Pictures:
    """What is compared of N images."""

    thumbnails: Image  # (N, SIDE, SIDE)
    close_ups: Image  # (N, CLOSE, CLOSE)
    # (N, 4) xyxy of the face in fractions of the picture; NaN: the whole picture is the face
    squares: Array

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Pictures":
        """Collects the thumbnails and close-ups of rows."""
        whole = bytes(CLOSE**2), (np.nan,) * 4
        views = [row.close_up or whole for row in rows]
        return cls(
            _stack([row.thumbnail for row in rows], SIDE),
            _stack([pixels for pixels, _ in views], CLOSE),
            np.array([square for _, square in views], float).reshape(-1, 4),
        )

    def mirrored(self) -> "Pictures":
        """Returns the mirror images."""
        squares = self.squares[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
        return Pictures(self.thumbnails[:, :, ::-1], self.close_ups[:, :, ::-1], squares)


def _stack(pixels: Sequence[bytes], side: int) -> Image:
    return np.frombuffer(b"".join(pixels), np.uint8).reshape(-1, side, side)


@dataclass
class Found:
    """The near-duplicates among the rows of a reading."""

    repeated: Mask  # (N,): rows with a near-duplicate on the other side of train
    conflicts: list[tuple[int, int]] = field(default_factory=list)  # the same picture, other labels
    complete: bool = (
        True  # whether near-duplicates within train were looked for, not only equal copies
    )


def find_near_duplicates(rows: Sequence[Row]) -> Found:
    """Finds rows with a near-duplicate on the other side of train, and pairs with different labels.

    Within more than MOST_WITHIN training images only equal copies are found.
    """
    trained = np.array([row.split == "train" for row in rows], bool)
    order = {label: number for number, label in enumerate({row.label: None for row in rows})}
    labels = np.array([order[row.label] for row in rows], int)

    complete = trained.sum() <= MOST_WITHIN
    found = Found(np.zeros(len(rows), bool), complete=bool(complete))
    place = np.argsort(trained, kind="stable")  # val and test first
    until = len(rows) if complete else int((~trained).sum())
    pictures = Pictures.of([rows[index] for index in place])
    for some, others in near_duplicates(pictures, trained[place], labels[place], until):
        first, second = place[some], place[others]
        across = trained[first] != trained[second]
        found.repeated[first[across]] = True
        found.repeated[second[across]] = True
        differ = labels[first] != labels[second]
        found.conflicts += zip(first[differ].tolist(), second[differ].tolist(), strict=True)
    if not complete:
        found.conflicts += _equal_copies(rows, trained)
    found.conflicts = sorted((min(pair), max(pair)) for pair in found.conflicts)
    return found


def _equal_copies(rows: Sequence[Row], trained: Mask) -> list[tuple[int, int]]:
    """Returns pairs of equal training pictures with different labels,
    each with the first of them.
    """
    first: dict[object, int] = {}
    pairs = []
    for index in np.flatnonzero(trained).tolist():
        row = rows[index]
        earlier = first.setdefault((row.thumbnail, row.close_up), index)
        if rows[earlier].label != row.label:
            pairs.append((earlier, index))
    return pairs


def handle_near_duplicates(reading: Reading, duplicates: Duplicates = "drop") -> Reading:
    """Returns a copy without training rows that have a near-duplicate in val or test, which are
    marked there.

    With "keep", training rows stay. Notes count what is left out of each class, and name pictures
    with several labels.
    """
    found = find_near_duplicates(reading.rows)
    rows, repeats = [], []
    for row, mark in zip(reading.rows, found.repeated.tolist(), strict=True):
        if row.split != "train":
            rows.append(replace(row, near_duplicate=mark))
            continue
        if mark:
            repeats.append(row)
        if not mark or duplicates == "keep":
            rows.append(row)
    dropped = Counter({NEAR_DUPLICATE: len(repeats)}) if duplicates == "drop" else Counter()
    return replace(
        reading,
        rows=rows,
        dropped=reading.dropped + dropped,
        notes=[*reading.notes, *_notes(reading.rows, repeats, found, duplicates)],
        warnings=[*reading.warnings, *_warnings(reading.rows, repeats, duplicates)],
    )


def _notes(
    rows: Sequence[Row],
    repeats: Sequence[Row],
    found: Found,
    duplicates: Duplicates,
) -> list[str]:
    """Returns notes about near-duplicates of each class, and about pictures with several labels."""
    notes = []
    if repeats:
        counts = Counter(label_text(row) for row in repeats)
        classes = ", ".join(f"{number:,} of {name}" for name, number in counts.most_common())
        done = "left out of train" if duplicates == "drop" else "kept in train"
        notes.append(f"Near-duplicates of val or test images, {done}: {classes}.")
    conflicts = found.conflicts
    if conflicts:
        pairs = [f"{_described(rows[i])} and {_described(rows[j])}" for i, j in conflicts[:SHOWN]]
        more = f", and {len(conflicts) - SHOWN:,} more" if len(conflicts) > SHOWN else ""
        notes.append(
            f"The same picture has different labels in {counted(len(conflicts), 'pair')}: "
            f"{'; '.join(pairs)}{more}."
        )
    if not found.complete:
        notes.append(
            "Within train, only equal copies with different labels are looked for: it has more "
            f"than {MOST_WITHIN:,} images."
        )
    return notes


def _warnings(rows: Sequence[Row], repeats: Sequence[Row], duplicates: Duplicates) -> list[str]:
    """Returns a warning about each class that loses a large share of its training images."""
    if duplicates == "keep":
        return []
    counts = Counter(label_text(row) for row in rows if row.split == "train")
    lost = Counter(label_text(row) for row in repeats)
    return [
        f"{number:,} of {counts[name]:,} training images of {name} are left out as near-duplicates "
        "of val or test images. Are these the same pictures? `--duplicates keep` keeps them."
        for name, number in lost.items()
        if number > MANY * counts[name]
    ]


def label_text(row: Row) -> str:
    """Returns a row's label, or a text for none."""
    return "(no label)" if row.label is None else row.label


def _described(row: Row) -> str:
    return f"{name_text([row.name])} ({row.split}, {label_text(row)})"


def near_duplicates(
    pictures: Pictures, trained: Mask, labels: IntArray, until: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields indices (K,) and (K,) of pairs of the same picture that matter, the first below
    `until`.

    These are pairs with only one image in `trained` (N,), or with different `labels` (N,).
    """
    plain, views = _standardise(pictures.thumbnails), (pictures, pictures.mirrored())
    targets = [_standardise(view.thumbnails) for view in views]
    blocks = range(0, until, BLOCK)
    for start in tqdm(blocks, "comparing images", unit="blocks", disable=None, delay=1):
        rows = np.arange(start, min(start + BLOCK, until))
        matters = (trained[rows, None] != trained[start:]) | (labels[rows, None] != labels[start:])
        matters &= rows[:, None] < np.arange(start, len(plain))
        same = np.zeros_like(matters)
        for view, vectors in zip(views, targets, strict=True):
            candidates = matters & ~same & (plain[rows] @ vectors[start:].T >= CORRELATION)
            candidates &= _faces_overlap(pictures.squares[rows], view.squares[start:])
            for i, j in np.argwhere(candidates).tolist():
                row, other = start + i, start + j
                # A crop that is also in another split must not be learned, also by another label.
                crops = np.isnan(pictures.squares[[row, other], 0]).all()
                across = crops and trained[row] != trained[other]
                same_label = bool(labels[row] == labels[other] or across)
                same[i, j] = same_face(pictures, row, view, other, same_label)
        first, second = np.nonzero(same)
        yield rows[first], second + start


def _faces_overlap(first: Array, second: Array) -> Mask:
    """Returns for which pairs of M faces (M, 4) and N faces (N, 4) each centre is near the other
    (M, N).

    A face without a square fills its picture: it overlaps with others like it, and with large
    faces.
    """
    fill = [_fills(squares) for squares in (first, second)]
    overlap = fill[0][:, None] & fill[1]
    near = np.ones_like(overlap)
    for x in (0, 1):
        centres = [(squares[:, x] + squares[:, x + 2]) / 2 for squares in (first, second)]
        sides = [squares[:, x + 2] - squares[:, x] for squares in (first, second)]
        distance = np.abs(centres[0][:, None] - centres[1])
        near &= distance < np.minimum(sides[0][:, None], sides[1]) / 2  # False for NaN
    return np.asarray(overlap | near)


def _fills(squares: Array) -> Mask:
    """Returns which faces (N, 4) fill more than about half of their picture."""
    sides = squares[:, 2:] - squares[:, :2]
    return np.asarray(np.isnan(sides[:, 0]) | (sides.max(1) >= FILLING - 0.1))


def same_face(first: Pictures, i: int, second: Pictures, j: int, same_label: bool) -> bool:
    """Returns whether two pictures, whose thumbnails correlate, are the same where each of them has
    its face.

    With different labels, each part of the face must be the same: one person may show both
    expressions.
    """
    for here, there, row, other in ((first, second, i, j), (second, first, j, i)):
        square = here.squares[row]
        if np.isnan(square[0]) or np.isnan(there.squares[other, 0]):
            views = here.thumbnails[row], there.thumbnails[other]
        else:
            views = _cut(here, row, square), _cut(there, other, square)
        vectors = _standardise(np.stack(views))
        correlation = float(vectors[0] @ vectors[1])
        if correlation < CORRELATION:
            return False
        if not same_label and local_difference(vectors, correlation) > LOCAL:
            return False
    return True


def local_difference(vectors: Float32Array, correlation: float) -> float:
    """Returns the largest difference of two pictures (2, SIDE * SIDE) in a part,
    in units of their contrast.
    """
    difference = SIDE * (vectors[0] - correlation * vectors[1]).reshape(SIDE, SIDE)
    parts = cv2.blur(difference**2, (PART, PART))[
        PART // 2 : -(PART // 2), PART // 2 : -(PART // 2)
    ]
    return float(np.sqrt(parts.max()))


def _cut(pictures: Pictures, row: int, place: Array) -> Image:
    """Cuts a place (4,) of a picture out of its close-up,
    which shows a square and half of it around.
    """
    square = pictures.squares[row]
    size = square[2:] - square[:2]
    scale = (place[2:] - place[:2]) / size  # pixels of the close-up for each of the result
    start = (place[:2] - square[:2] + size / 2) / (2 * size) * CLOSE
    matrix = np.column_stack([np.diag(scale), start + 0.5 * scale - 0.5])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    pixels = np.ascontiguousarray(pictures.close_ups[row])
    cut = cv2.warpAffine(
        pixels, matrix, (CLOSE // 2, CLOSE // 2), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(cv2.resize(cut, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def _standardise(pixels: Image) -> Float32Array:
    """Returns pictures as vectors (N, SIDE * SIDE) of mean 0 and length 1,
    whose products are correlations.
    """
    flat = pixels.reshape(-1, SIDE * SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    flat /= np.maximum(length, 1e-6)  # a uniform image correlates with none
    return flat
