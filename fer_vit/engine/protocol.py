"""What an engine is: crops in, raw outputs of a network out, both in NumPy."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fer_vit.conformal import Thresholds
from fer_vit.faces import Crops
from fer_vit.geometry import Float32Array


class RawOutputs(NamedTuple):
    """The raw outputs of a network for B faces."""

    logits: Float32Array  # (B, C), before the logit adjustment and the temperature
    features: Float32Array  # (B, D), the input of the classifier
    heads: dict[str, Float32Array]  # (B, K) of each further head, by name


@dataclass(frozen=True)
class Calibration:
    """What turns the logits of one engine into calibrated probabilities and prediction sets."""

    temperature: float
    thresholds: Thresholds = field(default_factory=dict)


class Engine(Protocol):
    """Computes a network.

    Attributes:
        device: Where the network computes, in torch's words, such as "cpu" or "cuda:1".
        width: The width D of the features.
        takes_regions: Whether the network takes the boxes of regions.
        calibration: The calibration of this engine. None: the calibration in the model's settings.
        fingerprint: The hash of the weights. It does not depend on the kind of engine.
    """

    device: str
    width: int
    takes_regions: bool
    calibration: Calibration | None

    @property
    def fingerprint(self) -> str:
        """The hash of the weights."""

    def run(self, crops: Crops) -> RawOutputs:
        """Returns the raw outputs for one or more crops."""
