"""Fits prior, temperature and thresholds to a trained model, for `export --calibrate`."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from fer_vit.conformal import fit_thresholds
from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest, identity_hash
from fer_vit.data.schema import Split
from fer_vit.engine.decode import softmax
from fer_vit.engine.protocol import Calibration
from fer_vit.errors import FerVitError
from fer_vit.faces import Crops
from fer_vit.geometry import IntArray
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer
from fer_vit.stats.scores import score_once
from fer_vit.train.task import log_prior

# The smallest number of faces for the temperature, and for the thresholds. Few faces give extreme
# values.
MIN_CALIBRATION_FACES = 100


class LabelledCrops(NamedTuple):
    """N labelled faces of a manifest."""

    manifest: Manifest  # these faces
    batches: Iterator[Crops]  # reading them shows a progress bar
    target: Tensor  # (N, C), the fraction of votes by class


def labelled_batches(
    model: Recognizer,
    manifest: Manifest,
    split: Split = "val",
    max_faces: int | None = None,
) -> LabelledCrops:
    """Returns a manifest's labelled faces, at most `max_faces`, evenly spaced in the manifest.

    Raises:
        FerVitError: The manifest has other labels than the model, or no row has a label.
    """
    labelled = manifest.labelled(split)
    labelled.check_labels(model.labels)
    if max_faces is not None and max_faces < len(labelled):
        rows = np.linspace(0, len(labelled) - 1, max_faces).round().astype(int)
        labelled = labelled.select(np.isin(np.arange(len(labelled)), rows))
    targets = labelled.targets()
    if targets is None or not len(labelled):
        raise FerVitError(
            f"Expected rows with labels in the {split} split of {labelled.path}. "
            "Prepare it with labels."
        )
    dataset = FaceDataset(labelled, model.crop_spec)
    batches = face_crops(dataset, range(len(labelled)), FACES_PER_PASS)
    return LabelledCrops(labelled, batches, torch.from_numpy(targets).float())


def calibrate_model(model: Recognizer, manifest: Manifest, strength: float) -> str:
    """Stores training prior, logit adjustment, temperature and thresholds in a model.

    One half of the val faces is for the temperature. The other half is for the thresholds, because
    thresholds need faces on which nothing else was fitted. No person is in both halves. (The best
    epoch of the model was chosen on both halves.)

    Args:
        model: The model. The settings of its network are changed.
        manifest: The val faces are for the calibration, and the training faces for the prior.
        strength: The strength of the logit adjustment, from 0 (none) to 1.

    Returns:
        A report.
    """
    net = model.net
    # a class without training faces is an error before the faces are predicted
    prior = expected_prior(training_prior(manifest, strength), net.settings.evened)
    net.adjust((), 0)
    faces, batches, target = labelled_batches(model, manifest)  # target: (N, C)
    first, second = calibration_halves(faces)
    logits = predict_logits(model, batches)  # (N, C)
    truth = target.argmax(-1)  # (N,)
    report = ""

    # The adjustment is first, because temperature and thresholds are fitted to adjusted logits.
    net.adjust(prior, strength)
    offset = net.settings.offset()
    if offset is not None:
        before = summary(model, logits, target)
        logits = logits + torch.from_numpy(offset)
        after = summary(model, logits, target)
        report += f"On {len(truth)} val faces: {after}; before {before}.\n"

    calibration = fit_calibration(logits, truth, (first, second))
    net.settings.temperature = calibration.temperature
    net.settings.thresholds = calibration.thresholds

    thresholds = [
        f"{limits[0]:.3f} for {coverage}%" for coverage, limits in net.settings.thresholds.items()
    ]
    report += f"Temperature: {net.settings.temperature:.3f}. "
    report += f"Thresholds of prediction sets: {', '.join(thresholds)}."
    if min(len(first), len(second)) < MIN_CALIBRATION_FACES:
        report += (
            f" The temperature is from {len(first)} faces, the thresholds from {len(second)}: "
            f"use at least {MIN_CALIBRATION_FACES} for each, of many persons."
        )
    return report


def predict_logits(model: Recognizer, batches: Iterable[Crops]) -> Tensor:
    """Returns the logits (N, C) of all faces of the batches, before the logit adjustment."""
    return torch.cat([torch.from_numpy(model.engine.run(batch).logits) for batch in batches])


def fit_calibration(
    logits: Tensor, truth: Tensor, halves: tuple[IntArray, IntArray]
) -> Calibration:
    """Fits the temperature to one half of N faces and the thresholds to the other.

    Args:
        logits: The logits (N, C), with the logit adjustment.
        truth: The index of the true label (N,).
        halves: The result of `calibration_halves`.
    """
    first, second = halves
    temperature = fit_temperature(logits[first], truth[first])
    probabilities = softmax(logits[second].double().numpy() / temperature)
    return Calibration(temperature, fit_thresholds(probabilities, truth[second].numpy()))


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """Returns the divisor of the logits (N, C) that minimizes the loss for class indices (N,).

    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
    """
    logits = logits.double()

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), target))

    bounds = (math.log(0.05), math.log(20))
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)


def calibration_halves(manifest: Manifest) -> tuple[IntArray, IntArray]:
    """Returns the indices of two halves of N faces. Neither half is empty.

    All faces of a person are in one half; without persons, identical files are in one half. Persons
    are assigned by descending number of faces, each to the half with fewer faces so far. So the
    sizes differ by at most the faces of one person. Persons with equally many faces are in the
    order of `identity_hash`, so the halves are the same in each calibration on these faces.

    Raises:
        FerVitError: All faces are of one person, or all files are identical.
    """
    hashes = identity_hash(manifest, np.arange(len(manifest)))  # (N,)
    _, person, sizes = np.unique(hashes, return_inverse=True, return_counts=True)  # (P,) persons
    if len(sizes) < 2:
        raise FerVitError(
            f"Expected val faces of two or more persons in {manifest.path}, because one half fits "
            "the temperature and the other the thresholds, but got one. Add faces of others."
        )

    is_second = np.zeros(len(sizes), bool)  # (P,)
    assigned = [0, 0]  # faces in each half
    for index in np.argsort(-sizes, kind="stable").tolist():
        half = int(assigned[1] < assigned[0])
        is_second[index] = half == 1
        assigned[half] += int(sizes[index])
    return np.flatnonzero(~is_second[person]), np.flatnonzero(is_second[person])


def training_prior(manifest: Manifest, strength: float) -> list[float]:
    """Returns the share of each label among the training faces (C,); empty without labels.

    Raises:
        FerVitError: A label has no training face, and `strength` is above 0.
    """
    train = manifest.split("train")
    counts = np.zeros(len(train.labels))  # (C,)
    targets = train.targets(partial=True)
    if targets is not None:
        counts = np.nansum(targets, axis=0)

    if strength and not counts.all():
        missing = [label for label, count in zip(train.labels, counts, strict=True) if not count]
        raise FerVitError(
            f"{train.path} has no training face of {', '.join(missing)}: "
            "`--logit_adjust` needs some of each."
        )
    if not counts.any():
        return []
    return log_prior(torch.from_numpy(counts)).exp().tolist()


def expected_prior(shares: Sequence[float], evened: float) -> list[float]:
    """Returns the shares of the classes (C,) that a network expects after training.

    Args:
        shares: The shares of the classes in the training faces (C,); empty: unknown.
        evened: How far training evened out the shares, see `ModelSettings`.
    """
    if not shares:
        return []
    return (torch.tensor(shares).log() * (1 - evened)).softmax(-1).tolist()


def summary(model: Recognizer, logits: Tensor, target: Tensor) -> str:
    """Returns accuracy and UAR of logits (N, C) for targets (N, C), shares of labels, as text."""
    probabilities = logits.softmax(-1).double().numpy()
    result = score_once(probabilities, target.numpy(), model.labels)
    return f"accuracy {result['accuracy']:.1%}, UAR {result['UAR']:.1%}"
