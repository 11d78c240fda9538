"""Near-duplicates: pictures encoded again, mirrored, shrunk, darker or slightly shifted.

Data sets from the web repeat pictures across splits and classes. If a model has learned a picture,
the score on the picture does not measure performance on new faces.

Two images are the same if the grey thumbnails of the whole pictures correlate. Thumbnails of photos
by a fixed camera also correlate, because these photos show the same room. So if a face fills only a
part of a picture, both pictures must also correlate inside the box of the face. Detected boxes of
two copies differ by a few pixels, so the same box is cut out of both pictures.
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
CLOSE_UP_SIDE = 4 * THUMBNAIL_SIDE  # side of a close-up in pixels; the face has half of the side
FILLED_SHARE = 0.75  # a face with this share of the longer side, or more, fills the picture
PART_SIDE = THUMBNAIL_SIDE // 4  # side in pixels of the parts of a thumbnail that must be the same

# Least correlation between the thumbnails of the same picture. Checked by eye: from 0.97 to 0.98,
# 24 of 24 pairs of FERPlus show the same picture, and 11 of 12 pairs of FairFace (4,000 faces
# compared with all other faces). Below 0.97, nearly all pairs of FairFace show different people.
# With thumbnails of 16 x 16 pixels, 13 of 21 pairs show the same picture.
SAME_CORRELATION = 0.97

# Largest difference in a part of two copies, in units of the contrast. Copies of 300 faces of
# FERPlus and 300 faces of FairFace (JPEG of quality 40, half the size, blurred, darker) differ by
# at most 0.21. 87% of the pairs of drawn faces that correlate, but have different expressions,
# differ by more than 0.3.
MAX_LOCAL_DIFFERENCE = 0.3

IMAGES_AT_ONCE = 256  # how many images are compared with all other images at once
SHOWN_PAIRS = 3  # how many pairs with different labels a note names

# Up to this many training images, each pair of training images is compared. That takes a minute;
# the time grows with the square of the number of images.
MAX_COMPARED = 50_000

WARNED_SHARE = 0.2  # a warning reports classes with more than this share of images dropped
NEAR_DUPLICATE = "near-duplicate of a val or test image"


def thumbnail(image: Image) -> bytes:
    """Returns a grey copy of an image (H, W, 3) with THUMBNAIL_SIDE x THUMBNAIL_SIDE pixels."""
    return bytes(_grey(image, THUMBNAIL_SIDE).data)


def close_up(image: Image, box: Array) -> CloseUp | None:
    """Returns the close-up of a face: the box (4,), xyxy in pixels, with a margin of half its side.

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
    """The reduced pictures of N images, for comparing them."""

    thumbnails: Image  # (N, THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    close_ups: Image  # (N, CLOSE_UP_SIDE, CLOSE_UP_SIDE)
    # (N, 4), the squares of the faces, xyxy as fractions of the picture's sides; NaN: the face
    # fills the picture
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

    # (N,), which rows of train have a near-duplicate in val or test, and the reverse
    repeated: Mask
    conflicts: list[tuple[int, int]]  # pairs of rows with the same picture and different labels
    complete: bool  # whether near-duplicates within train were compared, not only equal copies


def detect_near_duplicates(rows: Sequence[Row]) -> NearDuplicates:
    """Detects near-duplicates between train and other splits, and pairs with different labels.

    If train has more than MAX_COMPARED images, only equal copies are found within train.
    """
    in_train = np.array([row.split == "train" for row in rows], bool)  # (N,)
    label_ids: dict[str | None, int] = {}
    for row in rows:
        label_ids.setdefault(row.label, len(label_ids))
    labels = np.array([label_ids[row.label] for row in rows], int)  # (N,)

    # val and test come first, so that `until` can leave out the pairs within train
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
    """Returns pairs of equal training pictures with different labels, by index of the rows.

    Each pair consists of the first copy of a picture and a later one.
    """
    first: dict[object, int] = {}
    pairs = []
    for index in np.flatnonzero(in_train).tolist():
        row = rows[index]
        earlier = first.setdefault((row.thumbnail, row.close_up), index)
        if rows[earlier].label != row.label:
            pairs.append((earlier, index))
    return pairs


def handle_near_duplicates(reading: Reading, duplicates: Duplicates = "drop") -> Reading:
    """Returns the reading without training rows that have a near-duplicate in val or test.

    With "keep", these training rows stay. `near_duplicate` of the rows of val and test is set.
    Notes count the rows that are left out of each class, and name pictures with several labels.
    """
    result = detect_near_duplicates(reading.rows)
    rows = []
    repeats = []  # the training rows with a near-duplicate
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
    """Returns the label of a row, or a text for a row without a label."""
    return "(no label)" if row.label is None else row.label


def _described(row: Row) -> str:
    return f"{list_names([row.name])} ({row.split}, {label_text(row)})"


def near_duplicates(
    pictures: Pictures, in_train: Mask, labels: IntArray, until: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yields the indices (K,) and (K,) of pairs of the same picture, block by block.

    Pairs are yielded if one image is in train and the other is not, by `in_train` (N,), or if the
    labels differ, by `labels` (N,). The first index of a pair is below the second, and below
    `until`.
    """
    mirrored = pictures.mirrored()
    plain_vectors = _standardise(pictures.thumbnails)  # (N, THUMBNAIL_SIDE * THUMBNAIL_SIDE)
    mirrored_vectors = _standardise(mirrored.thumbnails)

    blocks = range(0, until, IMAGES_AT_ONCE)
    for start in tqdm(blocks, "comparing images", unit="blocks", disable=None, delay=1):
        # (M,), the images that are compared with all images from `start`
        rows = np.arange(start, min(start + IMAGES_AT_ONCE, until))
        across = in_train[rows, None] != in_train[start:]  # (M, N - start)
        matters = across | (labels[rows, None] != labels[start:])
        matters &= rows[:, None] < np.arange(start, len(plain_vectors))

        same = np.zeros_like(matters)  # (M, N - start)
        for view, vectors in ((pictures, plain_vectors), (mirrored, mirrored_vectors)):
            correlations = plain_vectors[rows] @ vectors[start:].T
            candidates = matters & ~same & (correlations >= SAME_CORRELATION)
            pairs = np.argwhere(candidates)  # (K, 2)
            first_squares = pictures.squares[start + pairs[:, 0]]
            second_squares = view.squares[start + pairs[:, 1]]
            for i, j in pairs[_faces_overlap(first_squares, second_squares)].tolist():
                first = start + i
                second = start + j
                # For crops in train and in another split, the less strict comparison is used, as if
                # the labels were equal: such a picture must not be learned under any label.
                crops = np.isnan(pictures.squares[[first, second], 0]).all()
                crops_across = crops and in_train[first] != in_train[second]
                same_label = bool(labels[first] == labels[second] or crops_across)
                same[i, j] = same_face(pictures, first, view, second, same_label)

        block_rows, columns = np.nonzero(same)
        yield rows[block_rows], start + columns


def _faces_overlap(first: Array, second: Array) -> Mask:
    """Returns a mask (K,) of the pairs of faces, in squares (K, 4) and (K, 4), with near centres.

    A face without a square fills the picture. Two faces that fill their pictures, or nearly so,
    also count as overlapping.
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
    """Returns a mask (N,) of the squares (N, 4) that fill about half of the picture or more."""
    sides = squares[:, 2:] - squares[:, :2]
    return np.asarray(np.isnan(sides[:, 0]) | (sides.max(1) >= FILLED_SHARE - 0.1))


def same_face(first: Pictures, i: int, second: Pictures, j: int, same_label: bool) -> bool:
    """Returns whether two pictures with similar thumbnails are the same in the square of each face.

    With different labels, each part of the face must be the same: the pictures may show two
    expressions of one person.
    """
    if not _same_at_face(first, i, second, j, same_label):
        return False
    return _same_at_face(second, j, first, i, same_label)


def _same_at_face(first: Pictures, i: int, second: Pictures, j: int, same_label: bool) -> bool:
    """Returns whether two pictures are the same in the square of the first picture's face."""
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
    """Returns the largest difference between two pictures in a part, in units of the contrast.

    `vectors` (2, THUMBNAIL_SIDE * THUMBNAIL_SIDE) are the standardised thumbnails of the pictures.
    """
    residual = vectors[0] - correlation * vectors[1]
    difference = THUMBNAIL_SIDE * residual.reshape(THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    parts = cv2.blur(difference**2, (PART_SIDE, PART_SIDE))
    inside = slice(PART_SIDE // 2, -(PART_SIDE // 2))  # leaves out parts that cross the border
    return float(np.sqrt(parts[inside, inside].max()))


def _cut(pictures: Pictures, row: int, place: Array) -> Image:
    """Cuts a place (4,), xyxy as fractions of a picture's sides, out of the picture's close-up.

    A close-up shows the square of a face, with a margin of half the side.
    """
    square = pictures.squares[row]
    size = square[2:] - square[:2]
    scale = (place[2:] - place[:2]) / size  # pixels of the close-up per pixel of the result
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
    """Returns pictures (N, THUMBNAIL_SIDE, THUMBNAIL_SIDE) as vectors with mean 0 and length 1.

    The product of two vectors is the correlation between the pictures.
    """
    flat = pixels.reshape(-1, THUMBNAIL_SIDE * THUMBNAIL_SIDE).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    flat /= np.maximum(length, 1e-6)  # a uniform image correlates with no image
    return flat
