"""Robustness: predictions of corrupted images, and their accuracy and errors as rows.

Corruptions cover, turn, blur or shrink faces, or shift or remove landmarks. Every corrupted image
is processed as by `fer-vit predict --face crop`: its face and landmarks are detected again.

N faces, V variants of a corruption, C classes, K outputs of a head.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation.evaluation_rows import ALTERED, FACES, count_row
from fer_vit.evaluation.predicted_manifest import ManifestFaces
from fer_vit.face.crop import cover_regions
from fer_vit.face.detectors import (
    DEFAULT_DETECTOR,
    DETECTORS,
    Detector,
    LandmarksOnly,
    NoDetector,
    resized,
)
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import ImageError
from fer_vit.face.pose import head_pose
from fer_vit.faces import READ_STATUSES, Faces, PhotoInfo, no_faces
from fer_vit.geometry import TEMPLATE, Array, Image, IntArray, Mask
from fer_vit.heads import EXPRESSION, HeadOutputs, Output
from fer_vit.labels import Merge, find_label, merge_names, merge_probabilities
from fer_vit.predict.reading import Reader, read_batches
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from fer_vit.processes import cores
from fer_vit.stats.bootstrap import Scale, mean_intervals
from fer_vit.stats.hypothesis_tests import PairedTest, compare_means
from fer_vit.stats.means import mean_of_finite
from fer_vit.stats.results import Row
from fer_vit.tables.labelled import Labelled

EYE_REGIONS = ("right_eye", "left_eye")
MOUTH_REGIONS = ("mouth",)
UNALTERED = "unaltered"
MOST_TURNED = "heads turned most"
TURNED_SHARE = 0.1  # fraction of all faces that count as turned most

# Blur and shifts of landmarks are in pixels of an image with this longer side, in pixels.
NOMINAL_SIDE = 48

Change = Callable[[Image, Array], Image]  # returns a changed image; takes its landmarks (5, 2), too


@dataclass(frozen=True, eq=False)
class CorruptedCrops:
    """Reads the crops of a manifest by row index, changes them, and finds their faces.

    Attributes:
        rows: The manifest.
        landmarks: The landmarks of the rows (M, 5, 2); an average face replaces NaN.
        finder: The finder of the face in a crop.
        change: The change of the image; None: no change.
        shift: The distance by which each landmark is moved in a random direction, as a fraction of
            the image's longer side.
    """

    rows: Manifest
    landmarks: Array
    finder: FaceFinder
    change: Change | None = None
    shift: float = 0.0

    def name(self, index: int) -> str:
        """Returns the name of a row in messages."""
        return f"image {index}"

    def read_faces(self, index: int) -> Iterator[Faces]:
        """Yields the face of a row with its crop; without a face, the status has the reason."""
        info = PhotoInfo(self.name(index), index=index)
        try:
            yield self.read(info)
        except ImageError as error:
            yield no_faces([replace(info, status=str(error))])
        except (cv2.error, MemoryError):  # an image with an unusual shape, or a huge image
            yield no_faces([replace(info, status="the image cannot be processed")])

    def read(self, info: PhotoInfo) -> Faces:
        """Returns the face of a row with its crop; the same image always gets the same shifts."""
        image = self.changed_image(info.index)
        faces = self.finder.find(image, info)
        if self.shift:
            rng = np.random.default_rng(zlib.crc32(image.tobytes()))
            angle = rng.uniform(0, 2 * np.pi, 5)
            direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (5, 2)
            steps = self.shift * max(image.shape[:2]) * direction
            faces = replace(faces, landmarks=faces.landmarks + steps)
        return self.finder.crop(image, faces)

    def changed_image(self, index: int) -> Image:
        """Returns the image of a row after the change."""
        image = self.rows.image(index)
        if self.change is None:
            return image
        points = self.landmarks[index]  # (5, 2)
        if not np.isfinite(points).all():
            points = np.array(TEMPLATE) * image.shape[1::-1]
        return self.change(image, points)


def turn_image(image: Image, landmarks: Array, degrees: float) -> Image:
    """Returns an image (H, W, 3), turned counter-clockwise about its middle, border repeated."""
    height, width = image.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1.0)
    turned = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(turned, np.uint8)


def blur_image(image: Image, landmarks: Array, sigma: float) -> Image:
    """Returns an image (H, W, 3), blurred by a Gaussian; `sigma` is for `NOMINAL_SIDE`."""
    pixels = sigma * max(image.shape[:2]) / NOMINAL_SIDE
    return np.asarray(cv2.GaussianBlur(image, (0, 0), pixels), np.uint8)


def shrink_image(image: Image, landmarks: Array, side: int) -> Image:
    """Returns an image (H, W, 3), shrunk so that its longer side has `side` pixels."""
    return resized(image, side)


class Variant(NamedTuple):
    """A change of an image."""

    change: Change | None  # None: no change
    turned: float = 0.0  # degrees by which the change turns faces clockwise


class Corruption(NamedTuple):
    """How images are corrupted and processed."""

    variants: Sequence[Variant]  # results are averaged over the variants
    detector: Detector
    shift: float = 0.0  # see `CorruptedCrops`


def corruptions(detector: Detector) -> dict[str, Corruption]:
    """Returns every corruption by name; only "no detector" and "no landmarks" skip `detector`."""
    same = [Variant(None)]
    variants = {
        UNALTERED: same,
        "eyes covered": [Variant(partial(cover_regions, regions=EYE_REGIONS))],
        "mouth covered": [Variant(partial(cover_regions, regions=MOUTH_REGIONS))],
        "turned by 15 degrees": both_turns(15),
        "turned by 30 degrees": both_turns(30),
        "blurred (sigma 1.5 px)": [Variant(partial(blur_image, sigma=1.5))],
        "24 px": [Variant(partial(shrink_image, side=24))],
    }
    table = {name: Corruption(changes, detector) for name, changes in variants.items()}
    table["no detector"] = Corruption(same, LandmarksOnly())
    table["landmarks 2 px off"] = Corruption(same, detector, shift=2 / NOMINAL_SIDE)
    table["landmarks 4 px off"] = Corruption(same, detector, shift=4 / NOMINAL_SIDE)
    table["no landmarks"] = Corruption(same, NoDetector())
    return table


def both_turns(degrees: float) -> list[Variant]:
    """Returns the turns by `degrees`, counter-clockwise and clockwise."""
    return [
        Variant(partial(turn_image, degrees=degrees), turned=-degrees),
        Variant(partial(turn_image, degrees=-degrees), turned=degrees),
    ]


class Altered(NamedTuple):
    """Predictions of N faces that are corrupted in one way."""

    counts: Mask  # (N,), whether each face counts
    probabilities: Array  # (V, N, C)
    values: Array  # (V, N, K), the `Recognizer.outputs`, turned back to the unaltered image


class AlteredFaces(NamedTuple):
    """Predictions of N faces by corruption."""

    outputs: HeadOutputs
    readings: Mapping[str, Altered]

    def hits(self, truth: IntArray, labelled: Mask) -> dict[str, Array]:
        """Returns the share of variants that predict the label of each face (M,), by corruption.

        `labelled` (N,) has whether each face is one of the M labelled faces; `truth` (M,) is the
        index of each label. The share is NaN if a face does not count.
        """
        hits = {}
        for name, reading in self.readings.items():
            correct = reading.probabilities[:, labelled].argmax(-1) == truth  # (V, M)
            hits[name] = np.where(reading.counts[labelled], correct.mean(0), np.nan)
        return hits


def read_altered(
    model: Recognizer,
    rows: Manifest,
    only: Sequence[str] = (),
    merge: Merge | None = None,
    labels: Sequence[str] | None = None,
) -> AlteredFaces:
    """Predicts crops, corrupted in each way.

    Args:
        model: The model.
        rows: The crops.
        only: The names of the corruptions. Default: all.
        merge: The new label of each label of the model, see `open_manifest`.
        labels: The order of the labels. Default: the order of the model, after `merge`.
    """
    landmarks = rows.landmarks()  # (N, 5, 2)
    model_labels: Sequence[str] = model.labels
    matrix = None
    if merge is not None:
        model_labels, matrix = merge_names(model.labels, merge)  # (C, M)
    order = [find_label(label, model_labels, "The first model") for label in labels or ()]
    table = corruptions(DETECTORS[DEFAULT_DETECTOR].load(DETECTORS[DEFAULT_DETECTOR].crop_score))
    names = [name for name in table if not only or name in only]

    readings: dict[str, Altered] = {}
    every = np.ones(len(rows), bool)
    for name in tqdm(names, "robustness", disable=None):
        corruption = table[name]
        probabilities = []
        values = []
        for variant in corruption.variants:
            finder = FaceFinder(model.crop_spec, "crop", corruption.detector)
            crops = CorruptedCrops(
                rows=rows,
                landmarks=landmarks,
                finder=finder,
                change=variant.change,
                shift=corruption.shift,
            )
            shares, outputs = read_crops(model, crops, len(rows))
            if matrix is not None:
                shares = merge_probabilities(shares, matrix)
            probabilities.append(shares[:, order] if labels else shares)
            turned = np.full(len(outputs), variant.turned)  # degrees
            values.append(model.outputs.in_photo(outputs, turned))
        readings[name] = Altered(every, np.stack(probabilities), np.stack(values))

        if name == UNALTERED:
            most_turned = find_most_turned(landmarks)
            if most_turned.any():
                readings[MOST_TURNED] = readings[name]._replace(counts=most_turned)
    return AlteredFaces(model.outputs, readings)


def find_most_turned(landmarks: Array) -> Mask:
    """Returns whether each head (N,) is among those turned most to a side.

    `landmarks` are (N, 5, 2), NaN where unknown.
    """
    yaw = np.full(len(landmarks), np.nan)
    for row in np.flatnonzero(np.isfinite(landmarks).all((1, 2))):
        pose = head_pose(landmarks[row])
        if pose is not None:
            yaw[row] = abs(pose.yaw)
    if np.isnan(yaw).all():
        return np.zeros(len(landmarks), bool)
    return np.asarray(yaw >= np.nanquantile(yaw, 1 - TURNED_SHARE))


def read_crops(model: Recognizer, reader: Reader, num_crops: int) -> tuple[Array, Array]:
    """Returns the probabilities (N, C) and the outputs (N, K) of N crops with one face each."""
    probabilities = []
    values = []
    for faces in read_batches(reader, range(num_crops), FACES_PER_PASS, cores() - 1):
        for info in faces.infos:
            if info.status not in READ_STATUSES:
                raise FerVitError(f"{info.path}: {info.status}.")
        if faces.crops is not None:
            read = model.read(faces.crops)
            probabilities.append(read.probabilities)
            values.append(read.outputs)
    return np.concatenate(probabilities), np.concatenate(values)


# -------------------------------------------------------------------------------------------- rows


def score_robustness(faces: ManifestFaces, second: Labelled | None = None) -> list[Row]:
    """Predicts altered images, and returns the accuracy and the errors of further heads on them.

    Args:
        faces: The faces of a manifest.
        second: The same faces with another model; None: no comparison.
    """
    if not faces.outputs:
        faces = faces.take(faces.labelled)
    other = None
    if isinstance(second, ManifestFaces):
        labels = None if faces.targets is None else faces.labels  # hits need the order of the truth
        other = read_images(second, faces.rows, labels)
    return score_altered(faces, read_images(faces, faces.rows), other)


def score_altered(
    faces: Labelled, altered: AlteredFaces, other: AlteredFaces | None = None
) -> list[Row]:
    """Returns the accuracy, and the errors of further heads, on altered images.

    Args:
        faces: The faces (N). A face without a label counts for further heads only.
        altered: Their predictions by corruption.
        other: The predictions of another model; None: no comparison.
    """
    rows = []
    if faces.targets is not None:
        labelled = faces.take(faces.labelled)
        assert labelled.targets is not None
        truth = labelled.targets.argmax(1)  # (M,), the index of each label
        hits = altered.hits(truth, faces.labelled)  # (M,), by corruption
        other_hits = None if other is None else other.hits(truth, faces.labelled)
        rows += altered_rows(EXPRESSION, "accuracy", hits, labelled.units, other_hits)

    for head, outputs in groupby(faces.outputs, lambda output: output.head):
        # two models are compared over the outputs that both have
        shared = [output for output in outputs if other is None or output in other.outputs]
        errors = face_errors(faces, shared, altered)
        other_errors = None if other is None else face_errors(faces, shared, other)
        rows += altered_rows(head, "error", errors, faces.units, other_errors)
    return rows


def read_images(
    faces: ManifestFaces, rows: IntArray, labels: Sequence[str] | None = None
) -> AlteredFaces:
    """Predicts rows of the manifest of some faces, altered in each way.

    `labels` is the order of the labels. Default: that of `faces`.
    """
    chosen = faces.manifest.select(np.isin(np.arange(len(faces.manifest)), rows))
    return read_altered(faces.model, chosen, merge=faces.merge, labels=labels)


def face_errors(
    faces: Labelled, outputs: Sequence[Output], altered: AlteredFaces
) -> Mapping[str, Array]:
    """Returns the mean absolute error of each face over outputs and variants (N,), by corruption.

    An error is NaN if no output has a target, or the face does not count.
    """
    errors = {}
    for name, reading in altered.readings.items():
        deviations = []
        for output in outputs:
            targets = faces.outputs[output].targets  # (N,)
            values = reading.values[:, :, altered.outputs.outputs.index(output)]  # (V, N)
            near = output.kind.near(values, np.broadcast_to(targets, values.shape))
            deviations.append(np.abs(near - targets))
        means = mean_of_finite(np.concatenate(deviations), axis=0)
        errors[name] = np.where(reading.counts, means, np.nan)
    return errors


def altered_rows(
    part: str,
    measure: str,
    values: Mapping[str, Array],
    units: IntArray | None = None,
    others: Mapping[str, Array] | None = None,
) -> list[Row]:
    """Returns, by corruption, a mean, its change, and its difference from another model's mean.

    The p-values have Holm's correction for the number of corruptions.

    Args:
        part: The expression or a further head.
        measure: The name of the mean: "accuracy" for hits (0 or 1), or "error".
        values: The hits or errors (N,) by corruption.
        units: The person or photo of each face (N,), as for `score_intervals`.
        others: The values of another model, of the same kind; None: no comparison.
    """
    scale: Scale = "share" if measure == "accuracy" else "number"
    change_scale: Scale = "difference" if measure == "accuracy" else "number"
    columns = np.column_stack([*values.values()])  # (N, corruptions)
    means = mean_intervals(columns, units, scale)
    changes = mean_intervals(columns - values[UNALTERED][:, None], units, change_scale)
    compared: Sequence[PairedTest | None] = [None] * len(values)
    if others is not None:
        other_columns = np.column_stack([others[name] for name in values])  # (N, corruptions)
        compared = compare_means(columns, other_columns, units, scale)

    rows = []
    for name, mean, change, test in zip(values, means, changes, compared, strict=True):
        rows.append(count_row(part, ALTERED, name, FACES, mean.n))
        rows.append(Row(part, ALTERED, name, measure, mean))
        if name not in (UNALTERED, MOST_TURNED):  # the images are unaltered
            rows.append(Row(part, ALTERED, name, "difference", change))
        if test is not None:
            rows.append(Row(part, ALTERED, name, "the other model", test.second))
            rows.append(Row(part, ALTERED, name, "difference from it", test.difference, test.p))
    return rows
