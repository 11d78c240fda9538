"""Measures whether the landmark network could separate faces from clothes by one more output.

python -m benchmarks.second_look --data DATA

The landmark network is not changed. A small head reads its last features and the detector's score, and learns from
candidates with a low score: true faces in composed portraits and groups, false ones in pictures of clothes and
backgrounds. A third of all pictures is held back, as in `benchmarks.finder`. The table compares false faces at the
same recall, without and with the second look.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import onnx
from numpy.random import Generator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.finder import (
    Archive,
    Picture,
    group,
    held_back,
    matches,
    pictures,
    portrait,
)
from benchmarks.machine import machine, run_main
from fer_vit.face.crop import warp
from fer_vit.face.detectors import FaceDetector
from fer_vit.face.landmarks import FILE, FILL, SIDE, network_input, refine_landmarks
from fer_vit.face.network import open_network
from fer_vit.face.yunet import yunet_path
from fer_vit.geometry import Array, Image, box_matrix, crop_matrix

LOWEST = 0.15  # score of the candidates that the head learns from
FEATURES = ("view", "add_2")  # the last map (80, 4, 4), and the one before (64, 8, 8)
SCORES = (0.5, 0.6, 0.7, 0.8)


class Candidate(NamedTuple):
    """What the detector reports."""

    kind: str  # of the picture
    held_back: bool
    score: float
    true: bool
    features: Array  # (D,)


class Features:
    """The landmark network with its features as outputs."""

    def __init__(self) -> None:
        model = onnx.load(FILE)
        for name in FEATURES:
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        self.network = open_network(model.SerializeToString())

    def __call__(self, image: Image, faces: list) -> Array:
        """Returns features (F, D) of faces: of the cut by the box and of the upright one, mirrored copies averaged."""
        refined = refine_landmarks(image, faces)
        parts = []
        for matrices in (
            [box_matrix(face.box, SIDE, FILL * SIDE / face.longer_side) for face in faces],
            [crop_matrix(face.landmarks, SIDE) for face in refined],
        ):
            cuts = np.stack([network_input(warp(image, matrix, SIDE)) for matrix in matrices])
            last, early = self.network.run([*FEATURES], {"image": cuts})
            mirrored_last, mirrored_early = self.network.run(
                [*FEATURES], {"image": np.ascontiguousarray(cuts[..., ::-1])}
            )
            last = last.reshape(-1, 80, 4, 4) + mirrored_last.reshape(-1, 80, 4, 4)[..., ::-1]
            pooled = (early + mirrored_early[..., ::-1]).mean((2, 3))
            parts += [last.reshape(len(faces), -1), pooled]
        return np.concatenate(parts, axis=1)


def more_pictures(data: Path, count: int) -> Iterator[Picture]:
    """Yields further pictures of the parts that are not held back."""
    heads, clothes = Archive(data / "fairface.zip"), Archive(data / "clothes.zip")
    backgrounds = Archive(data / "backgrounds.zip")
    for number in range(count):
        rng: Generator = np.random.default_rng([2, number])
        yield portrait(rng, heads, clothes, False, int(rng.integers(300, 1000)))
        yield group(rng, heads, backgrounds, False)
    none = np.zeros((0, 4))
    for archive in (clothes, backgrounds):
        for name in archive.names:
            yield Picture("empty", held_back(name), archive.read(name), none, 0)


def candidates(
    shown: Iterator[Picture], detector: FaceDetector, features: Features
) -> Iterator[Candidate]:
    """Yields the faces that the detector reports in pictures whose true faces are known."""
    for picture in shown:
        if picture.boxes is None:
            continue
        faces = detector(picture.image)
        if not faces:
            continue
        values = features(picture.image, faces)
        for face, row in zip(faces, values, strict=True):
            true = any(matches(face, box) for box in picture.boxes)
            yield Candidate(picture.kind, picture.held_back, face.score, true, row)


def inputs(rows: list[Candidate]) -> Array:
    """Returns the head's input (N, D + 1): features and the logit of the score."""
    score = np.array([row.score for row in rows]).clip(0.01, 0.99)
    features = np.array([row.features for row in rows])
    return np.column_stack([features, np.log(score / (1 - score))])


def same_recall(truth: Array, before: Array, after: Array, minimum: float) -> tuple[int, int, int]:
    """Returns found faces, false faces before, and false faces after at the threshold with the same recall."""
    found = int((before[truth] >= minimum).sum())
    false = int((before[~truth] >= minimum).sum())
    threshold = np.sort(after[truth])[::-1][found - 1]
    return found, false, int((after[~truth] >= threshold).sum())


def main(*, data: Path, count: int = 210) -> None:
    """Prints the table."""
    cv2.setNumThreads(1)
    print(machine())
    detector = FaceDetector(yunet_path(), LOWEST)
    features = Features()
    rows = [*candidates(pictures(data, count), detector, features)]
    more = [*candidates(more_pictures(data, count), detector, features)]
    learned = [row for row in rows + more if not row.held_back]
    tested = [row for row in rows if row.held_back]
    print(f"{len(learned)} candidates to learn from, {sum(row.true for row in learned)} true;")
    print(f"{len(tested)} held back, {sum(row.true for row in tested)} true")

    truth = np.array([row.true for row in tested])
    scores = np.array([row.score for row in tested])
    heads = {
        "logistic regression": LogisticRegression(C=0.001, max_iter=2000),
        "32 hidden units": MLPClassifier((32,), alpha=1.0, early_stopping=True, random_state=0),
    }
    print(f"AUC of the score: {roc_auc_score(truth, scores):.3f}")
    for name, head in heads.items():
        model = make_pipeline(StandardScaler(), head)
        model.fit(inputs(learned), [row.true for row in learned])
        after = model.predict_proba(inputs(tested))[:, 1]
        print(f"\n{name}: AUC {roc_auc_score(truth, after):.3f}")
        print("| minimum score | faces found | false by the score | false with the second look |")
        print("| ---: | ---: | ---: | ---: |")
        for minimum in SCORES:
            found, false, left = same_recall(truth, scores, after, minimum)
            print(f"| {minimum:g} | {found} of {truth.sum()} | {false} | {left} |")


if __name__ == "__main__":
    run_main(main)
