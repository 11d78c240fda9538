"""How often the region that speaks most for an expression is one that truly tells it: drawn faces.

python -m benchmarks.truth --seeds 0 1

Two expressions of a drawn person differ in known regions. The network of the model that comes with fer-vit is trained
on drawn faces, each region hidden one time in five, and asked for new ones why it chose this expression rather than
another.
"""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import arguments
from fer_vit.explain.methods import Control, Method, explain_each
from fer_vit.explain.trace import trace
from fer_vit.face.crop import CropSpec, crop_face, place_regions
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import load
from fer_vit.sources.drawing import differing_regions, draw_face
from fer_vit.train.symmetry import make_symmetric, symmetric_step

TRAINING, NEW = range(1600), range(10_000, 10_160)
"""Seeds of the faces; those that are asked are of other people."""
CLASSES = len(EXPRESSIONS)
Faces = tuple[Tensor, Tensor, Tensor]


def drawn_faces(seeds: Sequence[int], config: RegionViTConfig) -> Faces:
    """Draws crops (B, 3, S, S), boxes (B, R, 4) and labels (B,), each of another person.

    They are cropped by the landmarks of the neutral face: corners of a mouth that move with the expression would turn
    and scale all the rest.
    """
    spec = CropSpec(config.img_size, config.regions)
    crops, boxes = [], []
    for seed in seeds:
        image, _ = draw_face(EXPRESSIONS[seed % CLASSES], seed, size=64)
        _, landmarks = draw_face("neutral", seed, size=64)
        crop, points, _ = crop_face(image, landmarks, spec, framed=False)
        crops.append(crop)
        boxes.append(place_regions(points, spec)[0])
    image = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255
    return image, torch.from_numpy(np.stack(boxes)), torch.tensor([seed % CLASSES for seed in seeds])


def trained(config: RegionViTConfig, seed: int, epochs: int, lr: float, symmetric: bool = False) -> RegionViT:
    """Trains a model on drawn faces, a symmetric one if asked to."""
    torch.manual_seed(seed)
    net = RegionViT(config, EXPRESSIONS)
    if symmetric:
        make_symmetric(net.state_dict())
    image, boxes, label = drawn_faces(TRAINING, config)
    batch = 40
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(label) // batch)
    for _ in range(epochs):
        for rows in torch.randperm(len(label)).split(batch):
            valid = torch.rand(batch, boxes.shape[1]) > 0.2
            loss = nn.functional.cross_entropy(net(image[rows], boxes[rows], valid), label[rows])
            optimizer.zero_grad()
            loss.backward()
            if symmetric:
                symmetric_step(net)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return net.eval()


def truth_first(net: RegionViT, method: Method | Control, faces: Faces) -> dict[str, float]:
    """How often the region with the largest share, for the label rather than another one, is one that differs.

    Returns:
        Over all other labels; over those that differ in the mouth alone, and in the eyes and brows alone. Over all
        "always the mouth" would be right nine times in ten.
    """
    image, boxes, label = faces
    seen = trace(net, image, boxes, torch.ones(boxes.shape[:2], dtype=torch.bool))
    one_hot = torch.eye(CLASSES)
    contrasts = torch.stack([one_hot[label] - one_hot[other] for other in range(CLASSES)])
    hits: dict[str, list[bool]] = {"all": [], "mouth": [], "eyes and brows": []}
    for other, found in zip(EXPRESSIONS, explain_each(net, seen, method, contrasts), strict=True):
        for number, first in zip(label.tolist(), found.shares.argmax(1).tolist(), strict=True):
            true = differing_regions(EXPRESSIONS[number], other) & set(net.config.regions)
            part = "mouth" if true == {"mouth"} else "eyes and brows" if true and not true & {"mouth", "nose"} else ""
            for name in {"all", part} & hits.keys() if true else ():
                hits[name].append(net.config.regions[first] in true)
    return {name: sum(each) / len(each) for name, each in hits.items()}


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    config = load().net.config
    faces = drawn_faces(NEW, config)
    print("| seed | method | all | mouth | eyes and brows |\n| --- | --- | ---: | ---: | ---: |")
    for seed in args.seeds:
        net = trained(config, seed, args.epochs, 6e-4, symmetric=True)
        for method in get_args(Method) + get_args(Control):
            rates = truth_first(net, method, faces).values()
            print(f"| {seed} | {method} | {' | '.join(f'{rate:.0%}' for rate in rates)} |", flush=True)


if __name__ == "__main__":
    main()
