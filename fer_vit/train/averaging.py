"""The callback EMA: an exponential moving average of the weights in training."""

from functools import partial

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Averages weights exponentially over the steps of a training, on the model's device.

    At step n, the average keeps min(decay, (1 + n) / (10 + n)) of its value, so that the first
    steps soon lose weight. With a decay of 0.998 from the start, the average was 15 points behind
    the newest weights after six epochs on FERPlus.

    Args:
        decay: The largest share of the average that is kept at a step.
    """

    def __init__(self, decay: float = 0.999) -> None:
        super().__init__(avg_fn=partial(moving_average, decay=decay))

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Creates the average on the model's device."""
        # Lightning would move the model only later.
        pl_module.to(trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)


def moving_average(average: Tensor, newest: Tensor, count: Tensor, decay: float) -> Tensor:
    """Returns an average (...) moved towards the newest value (...), after `count` moves.

    Counters are not averaged: the newest value is returned.
    """
    if not average.is_floating_point():
        return newest
    decay_now = ((1 + count) / (10 + count)).clamp(max=decay)  # stays on the device
    return torch.lerp(newest, average, decay_now.to(average.dtype))
