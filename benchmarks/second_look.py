"""Trains and measures the second look at uncertain faces, one more output of the landmark network.

python -m benchmarks.second_look --data DATA --output landmarks.onnx

The landmark network is not changed. A linear output reads its last features of the upright face,
which it computes anyway, and learns from candidates with a low score: true faces in composed
portraits and groups, in part covered or turned, and false ones in pictures of clothes and
backgrounds; a part is shrunk, blurred and compressed. A third of all pictures is held back, as in
`benchmarks.finder`. Only uncertain faces are looked at twice: far faces in clips of real people
have high scores, but look like few of the composed ones.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import onnx
from numpy.random import Generator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from benchmarks.finder import (
    ODD,
    Archive,
    Picture,
    group,
    held_back,
    matches,
    odd_portrait,
    pictures,
    portrait,
)
from benchmarks.machine import machine, run_main
from fer_vit.face.crop import warp
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import SURE_SCORE, YuNet
from fer_vit.face.landmarks import (
    FACE_OUTPUT,
    INPUT_SIDE,
    LANDMARKS_FILE,
    MIN_FACE_LOGIT,
    network_input,
    refine_landmarks,
)
from fer_vit.face.network import open_network
from fer_vit.face.yunet import yunet_path
from fer_vit.geometry import Array, Image, crop_matrix

LOWEST = 0.15  # score of the candidates that the output learns from
FEATURES = "view"  # the network's last map (80, 4, 4)
MINIMA = (0.5, 0.6, 0.7)


class Candidate(NamedTuple):
    """A face that the detector reports."""

    kind: str  # of the picture
    held_back: bool
    score: float
    true: bool
    features: Array  # (2, D) of the face and its mirror image


class Features:
    """The landmark network with its features as an output."""

    def __init__(self) -> None:
        model = onnx.load(LANDMARKS_FILE)
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(FEATURES))
        self.network = open_network(model.SerializeToString())

    def __call__(self, image: Image, faces: list[Detection]) -> Array:
        """Returns the features (F, 2, D) of upright faces and their mirror images."""
        cuts = []
        for face in refine_landmarks(image, faces):
            cut = network_input(warp(image, crop_matrix(face.landmarks, INPUT_SIDE), INPUT_SIDE))
            cuts += [cut, cut[..., ::-1]]
        (features,) = self.network.run([FEATURES], {"image": np.stack(cuts)})
        return np.asarray(features.reshape(len(faces), 2, -1), float)


def degrade(rng: Generator, picture: Picture) -> Picture:
    """Returns a picture that is shrunk, blurred, darkened or brightened, and compressed."""
    assert picture.boxes is not None
    least = 0.6 if picture.kind == "groups" else 0.3
    scale = rng.uniform(least, 1)
    image = cv2.resize(picture.image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    if rng.random() < 0.5:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 1.3))
    bright = image * rng.uniform(0.6, 1.1) + rng.uniform(-10, 25)
    quality = (cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(12, 60)))
    encoded = cv2.imencode(".jpg", bright.clip(0, 255).astype(np.uint8), quality)[1]
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    return picture._replace(image=np.asarray(decoded, np.uint8), boxes=picture.boxes * scale)


def more_pictures(data: Path, count: int) -> Iterator[Picture]:
    """Yields further pictures of the parts that are not held back, and copies of lower quality."""
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    backgrounds = Archive(data / "backgrounds.zip")
    hard = Archive(data / "clothes_hard.zip")
    for number in range(count):
        rng = np.random.default_rng([2, number])
        composed = [
            portrait(rng, heads, clothes, False, int(rng.integers(300, 1000))),
            group(rng, heads, backgrounds, False),
            odd_portrait(rng, heads, clothes, False, ODD[number % len(ODD)]),
        ]
        for picture in composed:
            yield picture
            yield degrade(rng, picture)
    rng = np.random.default_rng(2)
    none = np.zeros((0, 4))
    for archive in (clothes, backgrounds, hard):
        for index, name in enumerate(archive.names):
            if not held_back(name):
                picture = Picture("empty", False, archive.read(name), none, 0)
                yield degrade(rng, picture) if index % 2 else picture


def candidates(
    shown: Iterable[Picture], detector: YuNet, features: Features
) -> Iterator[Candidate]:
    """Yields the faces that the detector reports; in clips, whose faces are counted,
    the best ones are true.
    """
    for picture in shown:
        faces = detector.find(picture.image)
        if not faces:
            continue
        values = features(picture.image, faces)
        for index, (face, row) in enumerate(zip(faces, values, strict=True)):
            true = index < picture.count
            if picture.boxes is not None:
                true = any(matches(face, box) for box in picture.boxes)
            yield Candidate(picture.kind, picture.held_back, face.score, true, row)


def odd_pictures(data: Path, count: int) -> Iterator[Picture]:
    """Yields covered and turned portraits of the part that is held back."""
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    for number in range(count):
        rng = np.random.default_rng([4, number])
        picture = odd_portrait(rng, heads, clothes, True, ODD[number % len(ODD)])
        yield picture._replace(kind="covered or turned")


def learn(rows: list[Candidate]) -> tuple[Array, float]:
    """Returns weights (D,) and bias of the logit of a face."""
    inputs = np.concatenate([row.features for row in rows])  # (2 N, D)
    truth = np.repeat([row.true for row in rows], 2)
    scaler = StandardScaler()
    model = LogisticRegression(C=0.001, max_iter=1000, class_weight="balanced")
    model.fit(scaler.fit_transform(inputs), truth)
    scale = np.where(scaler.scale_ > 0, scaler.scale_, 1)
    weights = model.coef_[0] / scale
    return weights, float(model.intercept_[0] - weights @ scaler.mean_)


def write_output(weights: Array, bias: float, path: Path) -> None:
    """Writes the landmark network with the logit as its last output (B, 1)."""
    model = onnx.load(LANDMARKS_FILE)
    graph = model.graph
    for kind in (graph.node, graph.initializer, graph.output):
        for item in [item for item in kind if item.name.startswith(FACE_OUTPUT)]:
            kind.remove(item)
    for name, values in (("weight", weights[None]), ("bias", np.array([bias]))):
        array = values.astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(array, f"{FACE_OUTPUT}.{name}"))
    inputs = [FEATURES, f"{FACE_OUTPUT}.weight", f"{FACE_OUTPUT}.bias"]
    graph.node.append(
        onnx.helper.make_node("Gemm", inputs, [FACE_OUTPUT], f"{FACE_OUTPUT}.gemm", transB=1)
    )
    shape = ["faces", 1]
    graph.output.append(
        onnx.helper.make_tensor_value_info(FACE_OUTPUT, onnx.TensorProto.FLOAT, shape)
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)


def table(sets: dict[str, list[Candidate]], weights: Array, bias: float) -> str:
    """Returns how many uncertain faces the second look leaves, as Markdown."""
    lines = ["| minimum score | " + " | ".join(f"{name}: true, false" for name in sets) + " |"]
    lines.append("| ---: |" + " ---: |" * len(sets))
    for minimum in MINIMA:
        cells = []
        for rows in sets.values():
            kept = {True: 0, False: 0}
            count = {True: 0, False: 0}
            for row in rows:
                if minimum <= row.score < SURE_SCORE:
                    logit = float((row.features @ weights).mean() + bias)
                    count[row.true] += 1
                    kept[row.true] += logit >= MIN_FACE_LOGIT
            cells.append(f"{kept[True]} of {count[True]}, {kept[False]} of {count[False]}")
        lines.append(f"| {minimum:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(*, data: Path, output: Path | None = None, count: int = 120) -> None:
    """Trains the output, prints the tables and writes the network."""
    cv2.setNumThreads(1)
    print(machine())
    detector = YuNet(yunet_path(), LOWEST)
    features = Features()
    rows = [*candidates(pictures(data, 210), detector, features)]
    more = [*candidates(more_pictures(data, count), detector, features)]
    odd = [*candidates(odd_pictures(data, 2 * count), detector, features)]

    composed = [row for row in rows if row.kind != "clips"]
    learned = [row for row in composed + more if not row.held_back]
    weights, bias = learn(learned)
    print(f"{len(learned)} candidates to learn from, {sum(row.true for row in learned)} true")
    tested = [row for row in composed if row.held_back]
    truth = [row.true for row in tested]
    logits = [(row.features @ weights).mean() + bias for row in tested]
    print(
        f"AUC held back: score {roc_auc_score(truth, [row.score for row in tested]):.3f}, ", end=""
    )
    print(f"second look {roc_auc_score(truth, logits):.3f}")
    sets = {
        "held back": tested,
        "covered or turned": odd,
        "clips": [row for row in rows if row.kind == "clips"],
    }
    print(table(sets, weights, bias))
    if output is not None:
        write_output(weights, bias, output)


if __name__ == "__main__":
    run_main(main)
