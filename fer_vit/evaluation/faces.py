"""Labelled faces, their probabilities by a model, calibration, and corrupted images.

Corruptions cover, turn, blur or shrink faces, or change or remove landmarks. Every corrupted image
is processed like by `fer-vit predict --face crop`: face and landmarks are detected again.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor
from tqdm import tqdm

from fer_vit.conformal import in_set
from fer_vit.data.dataset import Batch, FaceDataset, crop_mirrored, face_batches
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.face.crop import cover_regions
from fer_vit.face.detectors import (
    DEFAULT,
    DETECTORS,
    Detector,
    LandmarksOnly,
    NoDetector,
    resized,
)
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import ImageError
from fer_vit.face.pose import head_pose
from fer_vit.faces import READ, PhotoInfo, no_faces
from fer_vit.geometry import TEMPLATE, Array, Image, IntArray, Mask
from fer_vit.heads import outputs_of, target_column
from fer_vit.labels import Merge, merge_names
from fer_vit.predict.photos import Item, Reader, as_samples, read_batches
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.processes import cores

Columns = dict[str, NDArray[np.object_]]  # cells by column name (N,); None is empty


@dataclass(frozen=True, eq=False)
class Outputs:
    """The K outputs of a head beside the expression,
    of which a model has values and the data targets.
    """

    names: list[str]
    values: Array  # (N, K); NaN for an image without a face
    targets: Array  # (N, K); NaN where they are unknown

    def take(self, which: NDArray[Any]) -> "Outputs":
        """Returns the outputs of some of the faces, by a mask or indices."""
        return Outputs(self.names, self.values[which], self.targets[which])


def pair_outputs(values: Mapping[str, Array], targets: Mapping[str, Array]) -> dict[str, Outputs]:
    """Returns by head the outputs that have values and targets, (N,) each, by column."""
    heads = {}
    for head, names in outputs_of([name for name in targets if name in values]).items():
        columns = [target_column(head, name) for name in names]
        heads[head] = Outputs(
            names,
            np.column_stack([values[name] for name in columns]),
            np.column_stack([targets[name] for name in columns]),
        )
    return heads


@dataclass(frozen=True, eq=False)
class Faces:
    """N faces with the probabilities of C expressions."""

    labels: list[str]  # the expressions
    paths: NDArray[np.object_]  # (N,), the image of each
    probabilities: Array  # (N, C), NaN for an image without a face
    detected: Mask  # (N,): the detector found the face, or was not used
    targets: Array | None  # (N, C), the fraction of the votes; None without labels
    columns: Columns  # everything else
    rows: IntArray  # (N,), the index in the manifest or table
    picture: Callable[[int], Image]  # reads the image of a row; raises FerVitError when it cannot
    facts: dict[str, str] = field(default_factory=dict)  # how the predictions were made
    notes: tuple[str, ...] = ()  # what was assumed and left out in reading
    heads: dict[str, Outputs] = field(default_factory=dict)  # further heads with targets

    def take(self, which: NDArray[Any]) -> "Faces":
        """Returns some of the faces, by a mask or indices."""
        return replace(
            self,
            paths=self.paths[which],
            probabilities=self.probabilities[which],
            detected=self.detected[which],
            targets=None if self.targets is None else self.targets[which],
            columns={name: cells[which] for name, cells in self.columns.items()},
            rows=self.rows[which],
            heads={head: outputs.take(which) for head, outputs in self.heads.items()},
        )

    @property
    def predicted(self) -> Mask:
        """Which faces have probabilities (N,)."""
        return np.isfinite(self.probabilities[:, 0])

    @cached_property
    def units(self) -> IntArray:
        """The person (column `person`), else the image, of each face as a number from 0 (N,)."""
        names = [f"image {path}" for path in self.paths]
        for row, person in enumerate(self.columns.get("person", self.paths)):
            if person is not None:
                names[row] = f"person {person}"
        return np.unique(names, return_inverse=True)[1]

    @property
    def clustered(self) -> bool:
        """Whether several faces belong to one person or image, so that they are not independent."""
        return len(np.unique(self.units)) < len(self.units)

    @cached_property
    def ambiguous(self) -> Array:
        """Ambiguity (N,): 0 for a prediction set with exactly one expression, 1 for more or none.

        NaN: it is unknown.
        """
        return self.columns.get("ambiguous", np.full(len(self.paths), None)).astype(float)

    @property
    def correct(self) -> Mask:
        """Which predictions equal the label, the expression with most votes (N,)."""
        assert self.targets is not None
        return np.asarray(self.probabilities.argmax(1) == self.targets.argmax(1))


def predict_manifest(model: Recognizer, rows: Manifest, split: Split) -> Faces:
    """Predicts the faces of one split.

    Raises:
        FerVitError: There is no face, or a label is missing or unknown.
    """
    if not len(rows):
        raise FerVitError(
            f"Expected faces in the {split} split of {rows.path}, but got none. "
            "Name another `--split`."
        )
    targets = rows.model_targets(model.labels)

    dataset = FaceDataset(rows, model.crop_spec)
    batches = face_batches(dataset, range(len(rows)), CHUNK, model.device)
    read = [model.read(batch) for batch in batches]
    probabilities = np.concatenate([shares for shares, _ in read])  # (N, C)
    values = np.concatenate([outputs for _, outputs in read])  # (N, K)
    by_column = dict(zip(model.outputs, values.T, strict=True))

    columns = {name: as_objects(cells) for name, cells in rows.describing_columns().items()}
    if model.thresholds:
        ambiguous = in_set(probabilities, model.thresholds).sum(1) != 1
        columns["ambiguous"] = as_objects(ambiguous.tolist())

    # a face that was taken whole has landmarks, but a score of 0
    has_landmarks = ~np.isnan(rows.landmarks()[:, 0, 0])
    has_score = np.array(rows.column("score"), float) != 0
    return Faces(
        labels=model.labels,
        paths=as_objects(rows.image_names()),
        probabilities=probabilities,
        detected=has_landmarks & has_score,
        targets=targets,
        columns=columns,
        rows=np.arange(len(rows)),
        picture=rows.image,
        facts=model.conditions,
        heads=pair_outputs(by_column, rows.target_values()),
    )


def as_objects(values: Sequence[object]) -> NDArray[np.object_]:
    """Returns values as an array of objects (N,)."""
    return np.fromiter(values, object, len(values))


class Merged(Recognizer):
    """A model with merged labels: their probabilities add up.

    They sum to 1 without the labels that are left out.
    """

    def __init__(self, model: Recognizer, merge: Merge) -> None:
        super().__init__(model.net, model.name)
        names, matrix = merge_names(model.labels, merge)
        self.labels = list(names)
        self.conditions = model.conditions
        self.matrix = torch.from_numpy(matrix).float().to(model.device)  # (C, N)

    def decide(self, logits: Tensor) -> Tensor:
        """Returns probabilities of the merged labels (B, N) for logits of the network (B, C)."""
        merged = super().decide(logits) @ self.matrix
        return merged / merged.sum(-1, keepdim=True)


@torch.inference_mode()
def predict_logits(model: Recognizer, batches: Iterable[Batch]) -> Tensor:
    """Returns the logits of the faces in batches (N, C), before the temperature."""
    logits = []
    for batch in batches:
        part = model.net.logits(batch.image, batch.boxes, batch.valid)  # (B, C)
        logits.append(part.float().cpu())
    return torch.cat(logits)


def evaluate_logits(
    model: Recognizer, manifest: str | Path, split: Split = "val", mirrored: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the logits of labelled faces, before the temperature, and their targets (N, C).

    Arguments and errors as for `labelled_batches`.
    """
    batches, targets = labelled_batches(model, manifest, split, mirrored)
    return predict_logits(model, batches), targets


def labelled_batches(
    model: Recognizer,
    manifest: str | Path,
    split: Split = "val",
    mirrored: bool = False,
    max_faces: int | None = None,
) -> tuple[Iterator[Batch], Tensor]:
    """Returns batches of a manifest's labelled faces, and the votes for every class (N, C).

    Batches are ready for the model and show a progress bar. Votes are fractions. `max_faces`: at
    most this many, evenly spaced.

    Raises:
        FerVitError: The manifest does not exist or has other labels, or a row has none.
    """
    rows = Manifest.read(manifest, [split]).split(split)
    rows.check_labels(model.labels)
    targets = rows.targets()
    if targets is None or not len(rows):
        raise FerVitError(
            f"Expected rows with labels in the {split} split of {manifest}. Prepare it with labels."
        )

    number = min(max_faces or len(rows), len(rows))
    chosen = np.linspace(0, len(rows) - 1, number).round().astype(int).tolist()
    dataset = FaceDataset(rows, model.crop_spec, crop_mirrored if mirrored else None)
    batches = face_batches(dataset, chosen, CHUNK, model.device)
    return batches, torch.from_numpy(targets).float()[chosen]


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Returns the divisor of logits (N, C) with the lowest loss against class indices (N,).

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


EYES = ("right_eye", "left_eye")
MOUTH = ("mouth",)
UNALTERED = "unaltered"
MOST_TURNED = "heads turned most"
TURNED = 0.1  # fraction of the faces that count as turned heads
SIDE = 48  # blur and shifts of landmarks are given for a longer side of SIDE pixels, and scaled

Change = Callable[[Image, Array], Image]  # changes an image, given its landmarks (5, 2)


@dataclass(frozen=True, eq=False)
class CorruptedCrops:
    """Reads the crops of a manifest by the index of their row, changes them and finds their faces.

    Attributes:
        rows: The manifest.
        landmarks: Of its rows (M, 5, 2); an average face replaces NaN.
        finder: Finds the face in a crop.
        change: Changes the image.
        shift: Of each landmark in a random direction, as a fraction of the image's longer side.
    """

    rows: Manifest
    landmarks: Array
    finder: FaceFinder
    change: Change | None = None
    shift: float = 0.0

    def name(self, index: int) -> str:
        """Returns the name of a row in messages."""
        return f"image {index}"

    def read_items(self, index: int) -> Iterator[Item]:
        """Yields the face of a row as a crop; the status has the reason if there is none."""
        info = PhotoInfo(self.name(index), index=index)
        try:
            yield self.read(info)
        except ImageError as error:
            yield no_faces([replace(info, status=str(error))]), []
        except (cv2.error, MemoryError):  # from an image of an odd shape, or a huge one
            yield no_faces([replace(info, status="the image cannot be processed")]), []

    def read(self, info: PhotoInfo) -> Item:
        """Returns the face of a row, and its crop. The same image gets the same shifts."""
        image = self.changed_image(info.index)
        faces = self.finder.find(image, info)
        if self.shift:
            rng = np.random.default_rng(zlib.crc32(image.tobytes()))
            angle = rng.uniform(0, 2 * np.pi, 5)
            direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (5, 2)
            steps = self.shift * max(image.shape[:2]) * direction
            faces = replace(faces, landmarks=faces.landmarks + steps)
        return faces, as_samples(self.finder.crop(image, faces), info.path)

    def changed_image(self, index: int) -> Image:
        """Returns the image of a row after the change."""
        image = self.rows.image(index)
        if self.change is None:
            return image
        points = self.landmarks[index]  # (5, 2)
        if not np.isfinite(points).all():
            points = np.array(TEMPLATE) * image.shape[1::-1]
        return self.change(image, points)


def turn(image: Image, landmarks: Array, degrees: float) -> Image:
    """Turns an image about its middle, counter-clockwise; the border is repeated."""
    height, width = image.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, degrees, 1.0)
    turned = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(turned, np.uint8)


def blur(image: Image, landmarks: Array, sigma: float) -> Image:
    """Blurs an image by a Gaussian of `sigma` pixels of `SIDE`."""
    pixels = sigma * max(image.shape[:2]) / SIDE
    return np.asarray(cv2.GaussianBlur(image, (0, 0), pixels), np.uint8)


def shrink(image: Image, landmarks: Array, side: int) -> Image:
    """Makes an image's longer side `side` pixels long."""
    return resized(image, side)


class Corruption(NamedTuple):
    """How images are corrupted and processed."""

    changes: Sequence[Change | None]  # their results are averaged; None changes nothing
    detector: Detector
    shift: float = 0.0  # see `CorruptedCrops`


def corruptions(detector: Detector) -> dict[str, Corruption]:
    """Returns every corruption by name; `detector` is used unless the name excludes it."""
    changes: dict[str, list[Change | None]] = {
        UNALTERED: [None],
        "eyes covered": [partial(cover_regions, regions=EYES)],
        "mouth covered": [partial(cover_regions, regions=MOUTH)],
        "turned by 15 degrees": [partial(turn, degrees=15), partial(turn, degrees=-15)],
        "turned by 30 degrees": [partial(turn, degrees=30), partial(turn, degrees=-30)],
        "blurred (sigma 1.5 px)": [partial(blur, sigma=1.5)],
        "24 px": [partial(shrink, side=24)],
    }
    table = {name: Corruption(change, detector) for name, change in changes.items()}
    table["no detector"] = Corruption([None], LandmarksOnly())
    table["landmarks 2 px off"] = Corruption([None], detector, shift=2 / SIDE)
    table["landmarks 4 px off"] = Corruption([None], detector, shift=4 / SIDE)
    table["no landmarks"] = Corruption([None], NoDetector())
    return table


def measure_robustness(
    model: Recognizer, rows: Manifest, truth: IntArray, only: Sequence[str] = ()
) -> dict[str, Array]:
    """Returns the accuracy on crops by corruption: (N,), NaN where a face does not count.

    Args:
        model: The model.
        rows: The crops.
        truth: The index of the label of each crop (N,).
        only: The names of the corruptions. Default: all.
    """
    landmarks = rows.landmarks()  # (N, 5, 2)
    known = np.isfinite(landmarks).all((1, 2))  # (N,)
    table = corruptions(DETECTORS[DEFAULT].load(DETECTORS[DEFAULT].crop_score))
    names = [name for name in table if not only or name in only]

    hits: dict[str, Array] = {}
    for name in tqdm(names, "robustness", disable=None):
        corruption = table[name]
        correct = []
        for change in corruption.changes:
            finder = FaceFinder(model.crop_spec, "crop", corruption.detector)
            crops = CorruptedCrops(rows, landmarks, finder, change, corruption.shift)
            correct.append(predict_labels(model, crops, len(rows)) == truth)
        hits[name] = np.mean(correct, axis=0)

        if name == UNALTERED and known.any():
            yaw = np.full(len(rows), np.nan)
            yaw[known] = [_yaw(points) for points in landmarks[known]]
            most_turned = yaw >= np.nanquantile(yaw, 1 - TURNED)
            hits[MOST_TURNED] = np.where(most_turned, hits[name], np.nan)
    return hits


def _yaw(landmarks: Array) -> float:
    """Returns by how many degrees a head with landmarks (5, 2) is turned to either side.

    NaN: it has no pose.
    """
    pose = head_pose(landmarks)
    return np.nan if pose is None else abs(pose.yaw)


def predict_labels(model: Recognizer, reader: Reader, number: int) -> IntArray:
    """Returns the index of the predicted label of each of N crops of one face (N,)."""
    labels: list[int] = []
    for faces, batch in read_batches(reader, range(number), CHUNK, cores() - 1):
        for info in faces.infos:
            if info.status not in READ:
                raise FerVitError(f"{info.path}: {info.status}.")
        if batch is not None:
            for face in model.probabilities(batch.ready(model.device)):
                labels.append(int(np.argmax(face)))
    return np.array(labels)
