"""Explanations of predictions: attributions of faces, and their pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Pil

from fer_vit.engine.protocol import Engine, RawOutputs
from fer_vit.explain.methods import HEAT_GRID
from fer_vit.explain.regions import normalized_shares, region_falls, spread_shares
from fer_vit.extras import needed_by
from fer_vit.faces import Crops, Face
from fer_vit.geometry import Array, Image, Mask
from fer_vit.predict.photos import read_photo
from fer_vit.predict.plot import face_view, finish_figure
from fer_vit.report.explained_face import Attention, Attributed

if TYPE_CHECKING:
    from fer_vit.explain.trace import Views
    from fer_vit.model.region_vit import RegionViT

FACES_EXPLAINED_AT_ONCE = 8  # faces that are explained together
ARRAYS = ("probabilities", "heat", "shares", "scores")  # of `Explanations`


@dataclass(frozen=True, eq=False)
class Explanations:
    """Attributions of the predicted expressions of N faces; `Recognizer.explain` returns them.

    Attributes:
        faces: The faces, with the labels that they had when they were predicted.
        labels: The C expressions.
        regions: The names of R regions.
        probabilities: The probability of each expression (N, C).
        heat: The score of each pixel of the crop (N, S, S); negative scores are against the
            prediction.
        shares: The share of each region (N, R), 0 for a missing region. For each face, the absolute
            values of scores, of heat and of shares sum to 1, or to 0 if all are 0.
        scores: The score of each token (N, T). None with the method regions.
    """

    faces: Sequence[Face]
    labels: Sequence[str]
    regions: Sequence[str]
    probabilities: Array
    heat: Array
    shares: Array
    scores: Array | None = None

    def __len__(self) -> int:
        return len(self.faces)

    def plot(self, index: int = 0, file: str | Path | None = None) -> Pil.Image:
        """Draws a face with the heat map of its prediction and the largest shares of regions.

        Args:
            index: The index of the face.
            file: Where to save the picture (.svg, .pdf or .png).

        Raises:
            ImageError: The photo of the face can no longer be read.
            FerVitError: The file has another suffix.
        """
        with needed_by("A plot"):
            from fer_vit.report import face_figures  # not at the top: it needs matplotlib

        face = self.faces[index]
        # `face.label` may be the prediction of another model.
        label = int(self.probabilities[index].argmax())
        attributed = Attributed(
            name=self.labels[label],
            shares=self.shares[index],
            heat=average_heat(self.heat[index]),
            probability=float(self.probabilities[index, label]),
        )
        figure = face_figures.attribution_figure(
            face_view(face, read_photo(face)), attributed, self.regions
        )
        return finish_figure(figure, file)


def average_heat(heat: Array) -> Array:
    """Averages the heat of crops (..., S, S) to maps (..., HEAT_GRID, HEAT_GRID) for drawing."""
    size = heat.shape[-1]
    edges = np.arange(HEAT_GRID + 1) * size / HEAT_GRID
    pixels = np.arange(size)
    # (HEAT_GRID, S), how much of each cell is in each pixel of a row
    parts = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights = parts.clip(min=0) * HEAT_GRID / size
    return np.asarray(weights @ heat @ weights.T)


def hide_regions(engine: Engine, crops: Crops, raw: RawOutputs) -> Array:
    """Returns how far the raw outputs fall (B, R, O) when each region is hidden.

    Args:
        engine: What computes the network.
        crops: The crops of B faces.
        raw: The raw outputs for these crops.
    """

    def joined(raw: RawOutputs) -> Array:  # (B, O)
        return np.concatenate([raw.logits, *raw.heads.values()], axis=1).astype(float)

    def network(image: Image, valid: Mask) -> Array:
        return joined(engine.run(replace(crops, image=image, valid=valid)))

    return region_falls(network, joined(raw), crops.image, crops.boxes, crops.valid)


def explain_by_network(
    net: "RegionViT", device: str, crops: Crops, method: str
) -> dict[str, Array]:
    """Explains the predictions of a network for N crops; returns arrays of `Explanations`."""
    # not at the top: PyTorch may be missing
    from fer_vit.engine.torch_engine import to_inputs
    from fer_vit.explain.attribution import explain

    parts: dict[str, list[Array]] = {name: [] for name in ARRAYS}
    for chunk in crops.split(FACES_EXPLAINED_AT_ONCE):
        explanation = explain(net, *to_inputs(chunk, device), method)
        for name in ARRAYS:
            parts[name].append(getattr(explanation, name).double().cpu().numpy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def explain_by_regions(
    engine: Engine, crops: Crops, raw: RawOutputs, probabilities: Array
) -> dict[str, Array]:
    """Explains predictions by hiding regions, with any engine; returns arrays of `Explanations`.

    Args:
        engine: What computes the network.
        crops: The crops of N faces.
        raw: The raw outputs for these crops.
        probabilities: The probabilities (N, C) for these crops.
    """
    falls = hide_regions(engine, crops, raw)  # (N, R, O)
    direction = np.eye(falls.shape[2])[probabilities.argmax(1)]  # (N, O)
    shares = normalized_shares(falls, direction[None])  # (1, N, R)
    size = crops.image.shape[1]
    heat = spread_shares(shares, crops.boxes, size, cells=size)[0]  # (N, S, S)
    total = np.abs(heat).sum((1, 2), keepdims=True)
    return {
        "probabilities": probabilities,
        "heat": heat / total.clip(min=1e-12),
        "shares": shares[0],
    }


def attend_crop(net: "RegionViT", device: str, crops: Crops) -> Attention:
    """Returns the attention of a network on the crop of one face."""
    # not at the top: PyTorch may be missing
    from fer_vit.engine.torch_engine import to_inputs
    from fer_vit.explain.trace import attention_views, trace

    return attention_of(net, attention_views(trace(net, *to_inputs(crops, device))), row=0)


def attention_of(net: "RegionViT", views: "Views", row: int) -> Attention:
    """Returns the attention of a network on one face of a batch."""
    relations, output, patches, distance = (view[row].double().cpu().numpy() for view in views)
    return Attention(
        relations=relations,
        output=output,
        patches=patches,
        distance=distance,
        blocks=len(net.vit.blocks),
        region_tokens=net.layout.tokens_per_region,
    )
