"""Explanations of predictions: attributions of faces, and their pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pil
from torch import Tensor

from fer_vit.engine.torch_engine import to_inputs
from fer_vit.explain.methods import average_heat, explain
from fer_vit.explain.trace import attention_views, trace
from fer_vit.face.finder import Crops
from fer_vit.faces import Face
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.plot import face_view, finish_figure, read_photo
from fer_vit.report.draw import Attention

FACES_EXPLAINED_AT_ONCE = 8  # faces that are explained together


@dataclass(frozen=True, eq=False)
class Explanations:
    """Attributions of the predicted expressions of N faces; `Recognizer.explain` returns them.

    Attributes:
        faces: The faces, with the labels that they had when they were predicted.
        labels: The C expressions.
        regions: The names of R regions.
        probabilities: The probability of each expression (N, C).
        scores: The score of each token (N, T); negative scores are against the prediction.
        heat: The score of each pixel of the crop (N, S, S).
        shares: The share of each region (N, R), 0 for a missing region. For each face, the absolute
            values of scores, of heat and of shares sum to 1, or to 0 if all are 0.
    """

    faces: Sequence[Face]
    labels: Sequence[str]
    regions: Sequence[str]
    probabilities: Tensor
    scores: Tensor
    heat: Tensor
    shares: Tensor

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
        from fer_vit.report import face_figures  # not at the top: matplotlib takes a second to load
        from fer_vit.report.records import Attributed

        face = self.faces[index]
        # `face.label` may be the prediction of another model.
        label = int(self.probabilities[index].argmax())
        heat = average_heat(self.heat[index])  # (rows, columns)
        attributed = Attributed(
            name=self.labels[label],
            shares=_to_array(self.shares[index]),
            heat=_to_array(heat),
            probability=float(self.probabilities[index, label]),
        )
        figure = face_figures.attribution_figure(
            face_view(face, read_photo(face)), attributed, self.regions
        )
        return finish_figure(figure, file)


def explain_crops(
    net: RegionViT, device: str, faces: Sequence[Face], crops: Crops, method: str
) -> Explanations:
    """Explains the predictions of a network for faces and their crops.

    Raises FerVitError when the method is unknown.
    """
    chunks = []
    for chunk in crops.split(FACES_EXPLAINED_AT_ONCE):
        chunks.append(explain(net, *to_inputs(chunk, device), method))
    return Explanations(
        faces=faces,
        labels=net.settings.labels,
        regions=net.settings.crop.regions,
        probabilities=torch.cat([chunk.probabilities for chunk in chunks]),
        scores=torch.cat([chunk.scores for chunk in chunks]),
        heat=torch.cat([chunk.heat for chunk in chunks]),
        shares=torch.cat([chunk.shares for chunk in chunks]),
    )


def attend_crop(net: RegionViT, device: str, crops: Crops) -> Attention:
    """Returns the attention of a network on the crop of one face."""
    views = attention_views(trace(net, *to_inputs(crops, device)))
    return Attention(
        relations=_to_array(views.relations[0]),
        output=_to_array(views.output[0]),
        patches=_to_array(views.patches[0]),
        distance=_to_array(views.distance[0]),
    )


def _to_array(values: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return values.double().cpu().numpy()
