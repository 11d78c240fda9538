"""Near-duplicates: pictures encoded again, mirrored, shrunk, darker or slightly shifted.

Data sets from the web repeat pictures across their splits and classes. A model's score on a picture
that it has learned does not measure new faces.

Two images are the same if grey thumbnails of the whole pictures correlate. Photos by a fixed camera
do so, too, because they show the same room. So where a face fills only a part of a picture, the
place of each face must correlate as well, in both pictures: found boxes of two copies differ by a
few pixels, but a place is the same in both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.schema import CloseUp, Reading, Row
from fer_vit.face.crop import cut_out
from fer_vit.geometry import Array, Float32Array, Image, IntArray, Mask
from fer_vit.wording import counted, list_names

Duplicates = Literal["drop", "keep"]

THUMBNAIL_SIDE = 24  # side of a thumbnail in pixels
CLOSE_UP_SIDE = 4 * THUMBNAIL_SIDE  # side of a close-up, in which the face has half of it
FILLED_SHARE = 0.75  # from this share of the longer side, a face fills the picture
PART_SIDE = THUMBNAIL_SIDE // 4  # side of the parts that must be the same

# Two pictures are the same from this correlation of their thumbnails.
# Checked by eye: the same picture in 24 of 24 pairs of FERPlus from 0.97 to 0.98, and in 11 of 12
# pairs of FairFace (4,000 faces against the others), where nearly all pairs below 0.97 are
# different people. With a side of 16: 13 of 21.
SAME_CORRELATION = 0.97

# Largest difference in a part of two copies, in units of the contrast.
# At most 0.21 in copies of 300 faces of FERPlus and 300 of FairFace (JPEG of quality 40, half the
# size, blurred, darker). Of the pairs of drawn faces that differ only in their expression, and
# correlate, 87 % have more.
MAX_LOCAL_DIFFERENCE = 0.3

IMAGES_AT_ONCE = 256  # images that are compared with all others at once
SHOWN_PAIRS = 3  # pairs with different labels that are named

# Up to this many training images, each is compared with each. That takes a minute, and grows with
# the square.
MAX_COMPARED = 50_000

WARNED_SHARE = 0.2  # from this share of a class, dropped images are reported as a warning
NEAR_DUPLICATE = "near-duplicate of a val or test image"


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with THUMBNAIL_SIDE x THUMBNAIL_SIDE pixels."""
    return bytes(_grey(image, THUMBNAIL_SIDE).data)


def close_up(image: Image, box: Array) -> CloseUp | None:
    """Returns the close-up of a face: its box (4,), xyxy in pixels, and half of it around.

    None for a face that fills the image (H, W, 3), and for an image that is no larger than a
    close-up: such an image is the crop of a face.
    """
    height, width = image.shape[:2]
    longer = max(height, width)
    side = max(box[2:] - box[:2])
    if side >= FILLED_SHARE * longer or longer <= CLOSE_UP_SIDE:
        return None
    centre = (box[:2] + box[2:]) / 2
    corners = np.hstack([centre - side / 2, centre + side / 2])  # xyxy in pixels
    square = corners / [width, height, width, height]
    cut, _ = cut_out(image, box)
    return CloseUp(bytes(_grey(cut, CLOSE_UP_SIDE).data), tuple(square.tolist()))


def _grey(image: Image, side: int) -> Image:
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)


@dataclass(frozen=True)
class Pictures:
    """What is compared of N images."""

    thumbnails: Image  # (N, THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    close_ups: Image  # (N, CLOSE_UP_SIDE, CLOSE_UP_SIDE)
    # (N, 4) xyxy of the face in fractions of the picture; NaN: the whole picture is the face
    squares: Array

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Pictures":
        """Collects the thumbnails and close-ups of rows."""
        thumbnails = [row.thumbnail for row in rows]
        whole = CloseUp(pixels=bytes(CLOSE_UP_SIDE**2), square=(np.nan, np.nan, np.nan, np.nan))
        close_ups = [row.close_up or whole for row in rows]
        squares = np.array([close_up.square for close_up in close_ups], float)
        return cls(
            thumbnails=_stack(thumbnails, THUMBNAIL_SIDE),
            close_ups=_stack([close_up.pixels for close_up in close_ups], CLOSE_UP_SIDE),
            squares=squares.reshape(-1, 4),
        )

    def mirrored(self) -> "Pictures":
        """Returns the mirror images."""
        left, top, right, bottom = self.squares.T
        squares = np.stack([1 - right, top, 1 - left, bottom], axis=1)
        return Pictures(self.thumbnails[:, :, ::-1], self.close_ups[:, :, ::-1], squares)


def _stack(pixels: Sequence[bytes], side: int) -> Image:
    return np.frombuffer(b"".join(pixels), np.uint8).reshape(-1, side, side)


@dataclass
class NearDuplicates:
    """The near-duplicates among the rows of a reading."""

    # (N,): rows of train with a near-duplicate in val or test, and the reverse
    repeated: Mask
    conflicts: list[tuple[int, int]]  # pairs of rows: the same picture, different labels
    complete: bool  # whether near-duplicates within train were compared, not only equal copies


def find_near_duplicates(rows: Sequence[Row]) -> NearDuplicates:
    """Finds near-duplicates between train and other splits, and pairs with different labels.

    Within more than MAX_COMPARED training images, only equal copies are found.
    """
    in_train = np.array([row.split == "train" for row in rows], bool)  # (N,)
    label_ids: dict[str | None, int] = {}
    for row in rows:
        label_ids.setdefault(row.label, len(label_ids))
    labels = np.array([label_ids[row.label] for row in rows], int)  # (N,)

    # With val and test first, `until` can leave out the pairs within train.
    order = np.argsort(in_train, kind="stable")
    complete = bool(in_train.sum() <= MAX_COMPARED)
    until = len(rows) if complete else int((~in_train).sum())
    pictures = Pictures.of([rows[index] for index in order])

    repeated = np.zeros(len(rows), bool)
    conflicts: list[tuple[int, int]] = []
    for earlier, later in near_duplicates(pictures, in_train[order], labels[order], until):
        first = order[earlier]  # (K,)
        second = order[later]  # (K,)
        across = in_train[first] != in_train[second]
        repeated[first[across]] = True
        repeated[second[across]] = True
        differ = labels[first] != labels[second]
        conflicts += zip(first[differ].tolist(), second[differ].tolist(), strict=True)
    if not complete:
        conflicts += _equal_copies(rows, in_train)
    conflicts = sorted((min(pair), max(pair)) for pair in conflicts)
    return NearDuplicates(repeated, conflicts, complete)


def _equal_copies(rows: Sequence[Row], in_train: Mask) -> list[tuple[int, int]]:
    """Returns pairs of equal training pictures with different labels; the first is in each pair."""
    first: dict[object, int] = {}
    pairs = []
    for index in np.flatnonzero(in_train).tolist():
        row = rows[index]
        earlier = first.setdefault((row.thumbnail, row.close_up), index)
        if rows[earlier].label != row.label:
            pairs.append((earlier, index))
    return pairs


def handle_near_duplicates(reading: Reading, duplicates: Duplicates = "drop") -> Reading:
    """Returns a copy without training rows that have a near-duplicate in val or test.

    With "keep", these training rows stay. The rows of val and test are marked. Notes count what is
    left out of each class, and name pictures with several labels.
    """
    result = find_near_duplicates(reading.rows)
    rows = []
    repeats = []  # in train
    for row, repeated in zip(reading.rows, result.repeated.tolist(), strict=True):
        if row.split != "train":
            rows.append(replace(row, near_duplicate=repeated))
            continue
        if repeated:
            repeats.append(row)
        if not repeated or duplicates == "keep":
            rows.append(row)

    dropped = reading.dropped
    if duplicates == "drop":
        dropped = dropped + Counter({NEAR_DUPLICATE: len(repeats)})
    return replace(
        reading,
        rows=rows,
        dropped=dropped,
        notes=reading.notes + _notes(reading.rows, repeats, result, duplicates),
        warnings=reading.warnings + _class_warnings(reading.rows, repeats, duplicates),
    )


def _notes(
    rows: Sequence[Row],
    repeats: Sequence[Row],
    result: NearDuplicates,
    duplicates: Duplicates,
) -> list[str]:
    """Returns notes about near-duplicates of each class, and about pictures with several labels."""
    notes = []
    if repeats:
        counts = Counter(label_text(row) for row in repeats)
        classes = ", ".join(f"{number:,} of {name}" for name, number in counts.most_common())
        outcome = "left out of train" if duplicates == "drop" else "kept in train"
        notes.append(f"Near-duplicates of val or test images, {outcome}: {classes}.")
    count = len(result.conflicts)
    if count:
        shown = result.conflicts[:SHOWN_PAIRS]
        pairs = [f"{_described(rows[i])} and {_described(rows[j])}" for i, j in shown]
        text = "; ".join(pairs)
        if count > SHOWN_PAIRS:
            text += f", and {count - SHOWN_PAIRS:,} more"
        pairs_text = counted(count, "pair")
        notes.append(f"The same picture has different labels in {pairs_text}: {text}.")
    if not result.complete:
        notes.append(
            "Within train, only equal copies with different labels are looked for: it has more "
            f"than {MAX_COMPARED:,} images."
        )
    return notes


def _class_warnings(
    rows: Sequence[Row], repeats: Sequence[Row], duplicates: Duplicates
) -> list[str]:
    """Returns a warning about each class that loses a large share of its training images."""
    if duplicates == "keep":
        return []
    counts = Counter(label_text(row) for row in rows if row.split == "train")
    lost = Counter(label_text(row) for row in repeats)
    warnings = []
    for name, dropped in lost.items():
        if dropped > WARNED_SHARE * counts[name]:
            warnings.append(
                f"{dropped:,} of {counts[name]:,} training images of {name} are left out as "
                "near-duplicates of val or test images. Are these the same pictures? "
                "`--duplicates keep` keeps them."
            )
    return warnings


def label_text(row: Row) -> str:
    """Returns a row's label, or a text for none."""
    return "(no label)" if row.label is None else row.label


def _described(row: Row) -> str:
    return f"{list_names([row.name])} ({row.split}, {label_text(row)})"


def near_duplicates(
    pictures: Pictures, in_train: Mask, labels: IntArray, until: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields indices (K,) and (K,) of pairs of the same picture that matter.

    A pair matters if only one image is in `in_train` (N,), or if their `labels` (N,) differ. The
    first image of a pair lies before the second, and before `until`.
    """
    mirrored = pictures.mirrored()
    plain_vectors = _standardise(pictures.thumbnails)  # (N, THUMBNAIL_SIDE * THUMBNAIL_SIDE)
    mirrored_vectors = _standardise(mirrored.thumbnails)

    blocks = range(0, until, IMAGES_AT_ONCE)
    for start in tqdm(blocks, "comparing images", unit="blocks", disable=None, delay=1):
        # (M,), compared with all from `start`
        rows = np.arange(start, min(start + IMAGES_AT_ONCE, until))
        across = in_train[rows, None] != in_train[start:]  # (M, N - start)
        matters = across | (labels[rows, None] != labels[start:])
        matters &= rows[:, None] < np.arange(start, len(plain_vectors))

        same = np.zeros_like(matters)  # (M, N - start)
        for view, vectors in ((pictures, plain_vectors), (mirrored, mirrored_vectors)):
            correlations = plain_vectors[rows] @ vectors[start:].T
            candidates = matters & ~same & (correlations >= SAME_CORRELATION)
            pairs = np.argwhere(candidates)  # (K, 2), few of all pairs
            first_squares = pictures.squares[start + pairs[:, 0]]
            second_squares = view.squares[start + pairs[:, 1]]
            for i, j in pairs[_faces_overlap(first_squares, second_squares)].tolist():
                first = start + i
                second = start + j
                # A crop that is also in another split must not be learned, also by another label.
                crops = np.isnan(pictures.squares[[first, second], 0]).all()
                crops_across = crops and in_train[first] != in_train[second]
                same_label = bool(labels[first] == labels[second] or crops_across)
                same[i, j] = same_face(pictures, first, view, second, same_label)

        block_rows, columns = np.nonzero(same)
        yield rows[block_rows], start + columns


def _faces_overlap(first: Array, second: Array) -> Mask:
    """Returns for which of K pairs of faces (K, 4) and (K, 4) each centre is near the other (K,).

    A face without a square fills its picture: it overlaps with others like it, and with large
    faces.
    """
    large = _fills(first) & _fills(second)

    first_centres = (first[:, :2] + first[:, 2:]) / 2  # (K, 2)
    second_centres = (second[:, :2] + second[:, 2:]) / 2
    first_sides = first[:, 2:] - first[:, :2]
    second_sides = second[:, 2:] - second[:, :2]

    distances = np.abs(first_centres - second_centres)
    near = distances < np.minimum(first_sides, second_sides) / 2  # False for NaN
    return np.asarray(large | near.all(1))


def _fills(squares: Array) -> Mask:
    """Returns which faces (N, 4) fill more than about half of their picture."""
    sides = squares[:, 2:] - squares[:, :2]
    return np.asarray(np.isnan(sides[:, 0]) | (sides.max(1) >= FILLED_SHARE - 0.1))


def same_face(first: Pictures, i: int, second: Pictures, j: int, same_label: bool) -> bool:
    """Returns whether two pictures with similar thumbnails are the same where each has its face.

    With different labels, each part of the face must be the same: one person may show both
    expressions.
    """
    if not _same_at_face(first, i, second, j, same_label):
        return False
    return _same_at_face(second, j, first, i, same_label)


def _same_at_face(first: Pictures, i: int, second: Pictures, j: int, same_label: bool) -> bool:
    """Returns whether two pictures are the same where the first has its face."""
    square = first.squares[i]
    if np.isnan(square[0]) or np.isnan(second.squares[j, 0]):
        views = [first.thumbnails[i], second.thumbnails[j]]
    else:
        views = [_cut(first, i, square), _cut(second, j, square)]
    vectors = _standardise(np.stack(views))
    correlation = float(vectors[0] @ vectors[1])
    if correlation < SAME_CORRELATION:
        return False
    return same_label or local_difference(vectors, correlation) <= MAX_LOCAL_DIFFERENCE


def local_difference(vectors: Float32Array, correlation: float) -> float:
    """Returns the largest difference of two pictures in a part, in units of their contrast.

    Vectors (2, THUMBNAIL_SIDE * THUMBNAIL_SIDE) are the pictures' thumbnails, standardised.
    """
    residual = vectors[0] - correlation * vectors[1]
    difference = THUMBNAIL_SIDE * residual.reshape(THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    parts = cv2.blur(difference**2, (PART_SIDE, PART_SIDE))
    inside = slice(PART_SIDE // 2, -(PART_SIDE // 2))  # without parts that extend beyond the border
    return float(np.sqrt(parts[inside, inside].max()))


def _cut(pictures: Pictures, row: int, place: Array) -> Image:
    """Cuts a place (4,) of a picture out of its close-up.

    A close-up shows the square of a face and half of the square on each side.
    """
    square = pictures.squares[row]
    size = square[2:] - square[:2]
    scale = (place[2:] - place[:2]) / size  # pixels of the close-up for each of the result
    start = (place[:2] - square[:2] + size / 2) / (2 * size) * CLOSE_UP_SIDE
    matrix = np.column_stack([np.diag(scale), start + 0.5 * scale - 0.5])
    pixels = np.ascontiguousarray(pictures.close_ups[row])
    cut = cv2.warpAffine(
        pixels,
        matrix,
        (CLOSE_UP_SIDE // 2, CLOSE_UP_SIDE // 2),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    small = cv2.resize(cut, (THUMBNAIL_SIDE, THUMBNAIL_SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8)


def _standardise(pixels: Image) -> Float32Array:
    """Returns pictures (N, THUMBNAIL_SIDE, THUMBNAIL_SIDE) as vectors of mean 0 and length 1.

    The product of two vectors is the correlation of the pictures.
    """
    flat = pixels.reshape(-1, THUMBNAIL_SIDE * THUMBNAIL_SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    flat /= np.maximum(length, 1e-6)  # a uniform image correlates with none
    return flat
