"""All heads learn drawn faces, whose movements, pose, valence and arousal are known exactly."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fer_vit.data.dataset import FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import write_manifest
from fer_vit.geometry import Array
from fer_vit.model.region_vit import RegionViT
from fer_vit.sources import drawn, movements
from fer_vit.store.model_folder import load_network
from tests.helpers.commands import fit
from tests.train.test_heads import validate

pytestmark = pytest.mark.slow  # a model is trained
FACES = 2000
EPOCHS = 16  # number of epochs in the config
FEATURES = ("brow", "eye", "nose", "mouth")
LEAST = {"yaw": 0.9}
"""Least agreement of outputs if it is not 0.95. The boxes of regions hardly show the outline of the
head, against which features move with the yaw.
"""


class Learned(NamedTuple):
    """What a model has learned, on new faces."""

    agreement: dict[str, float]  # r of each output; CCC of valence and arousal
    own_first: dict[str, float]  # see `own_first`


def learn(manifest: Path, folder: Path, seed: int) -> Learned:
    """Trains a model with the config `drawn_heads`."""
    options = [f"--seed_everything={seed}", "--data.num_workers=0"]
    options.append(f"--trainer.check_val_every_n_epoch={EPOCHS}")  # once, at the end
    checkpoint = fit(manifest, folder, "--config=drawn_heads", *options)
    logs = validate(checkpoint, manifest, folder)
    agreement = {}
    for head in movements.DRAWN_OUTPUTS.by_head:
        for row in csv.DictReader((logs / f"val_{head}.csv").open()):
            agreement[row["output"]] = float(row.get("r") or row["CCC"])

    net = load_network(checkpoint)
    terms, targets = region_terms(net, Manifest.read(manifest).split("val"))
    return Learned(agreement, own_first(terms, targets, net.config.regions))


def region_terms(net: RegionViT, faces: Manifest) -> tuple[Array, Array]:
    """Returns the terms (B, R, K) of the regions for the K movements, and the targets (B, K)."""
    spec = net.settings.crop
    dataset = FaceDataset(faces, spec)
    batch = collate([dataset[row] for row in range(len(faces))]).ready(torch.device("cpu"))
    with torch.inference_mode():
        tokens = net.encode(net.tokenize(batch.image, batch.boxes, batch.valid))
        terms = net.heads["movements"].terms(tokens).regions
    return terms.numpy(), batch.targets["movements"].numpy()


def own_first(terms: Array, targets: Array, regions: Sequence[str]) -> dict[str, float]:
    """Returns for each movement the share of the faces with a strong one whose first region is one
    in which it is drawn.

    A strong one is a standard deviation above the mean. The first region has the largest term, less
    the mean over all faces.
    """
    terms = terms - terms.mean(0)
    least = targets.mean(0) + targets.std(0)  # (K,)
    shares = {}
    for index, name in enumerate(movements.DRAWN_MOVEMENTS):
        feature = next(part for part in FEATURES if name.startswith(part))
        first = terms[targets[:, index] >= least[index], :, index].argmax(1)
        shares[name] = float(np.mean([regions[region].endswith(feature) for region in first]))
    return shares


def draw_faces(folder: Path) -> Path:
    """Writes a manifest of drawn faces with all heads."""
    path = folder / "faces.parquet"
    reading = drawn.read(folder / "faces", count=FACES, heads=True)
    write_manifest(path, reading, "drawn")
    return path


def test_all_heads_learn_drawn_faces(tmp_path: Path) -> None:
    learned = learn(draw_faces(tmp_path), tmp_path, seed=0)
    for name, value in learned.agreement.items():
        assert value >= LEAST.get(name, 0.95), name
    for name, share in learned.own_first.items():
        assert share >= 0.95, name
