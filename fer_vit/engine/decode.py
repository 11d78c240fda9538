"""Converts the raw outputs of any engine to probabilities and to the values of further heads.

B faces, C expressions, K outputs of all further heads.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fer_vit.engine.protocol import RawOutputs
from fer_vit.geometry import Array, Float32Array, rotation
from fer_vit.heads import HEADS, Scale
from fer_vit.model_settings import ModelSettings


class Predictions(NamedTuple):
    """What a model predicts for B faces."""

    probabilities: Array  # (B, C), the probability of each expression
    # (B, K), the outputs of further heads, in the photo and in the order of the model's outputs
    outputs: Array
    features: Float32Array  # (B, D), the input of the classifier


def sigmoid(raw: Array) -> Array:
    """Returns the logistic function of raw outputs, without an overflow of `exp`."""
    return np.asarray(0.5 * (1 + np.tanh(raw / 2)))


def unchanged(raw: Array) -> Array:
    """Returns raw outputs, which are values already."""
    return raw


ACTIVATIONS: dict[Scale, Callable[[Array], Array]] = {  # as `losses.LOSSES` has them in torch
    "intensity": sigmoid,
    "number": unchanged,
    "signed": np.tanh,
}


def decode(
    raw: RawOutputs, to_crop: Array, settings: ModelSettings, offset: Array | None
) -> Predictions:
    """Converts the raw outputs of an engine to predictions.

    Args:
        raw: The raw outputs.
        to_crop: The matrices (B, 2, 3) from photo to crop pixels: roll is in the photo, not in the
            crop.
        settings: The settings of the model, with the temperature of the engine.
        offset: What is added to the logits (C,), see `ModelSettings.offset`. None: nothing.
    """
    logits = raw.logits.astype(float)
    if offset is not None:
        logits = logits + offset
    degrees = np.array([rotation(matrix) for matrix in to_crop])  # (B,)
    in_crop = [np.zeros((len(degrees), 0))]  # the result for a model without further heads
    for head in settings.outputs.by_head:
        in_crop.append(decode_head(head, raw.heads[head].astype(float)))
    return Predictions(
        probabilities=softmax(logits / settings.temperature),
        outputs=settings.outputs.in_photo(np.concatenate(in_crop, axis=1), degrees),
        features=raw.features,
    )


def decode_head(head: str, raw: Array) -> Array:
    """Converts the raw outputs of a head (B, K) to values in the head's unit."""
    entry = HEADS[head]
    return np.asarray(entry.middle + entry.step * ACTIVATIONS[entry.scale](raw))


def softmax(logits: Array) -> Array:
    """Returns the softmax of logits (B, C)."""
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))
