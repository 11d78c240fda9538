"""The lines of a training that has no progress bar, for example because it logs to a file."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fer_vit.train.log import log_once
from fer_vit.train.resuming import steps_left


class EpochLines(L.Callback):
    """Logs a line after each epoch: the loss, the monitored score and the time left."""

    def __init__(self) -> None:
        self.start = 0.0  # seconds
        self.first_step = 0
        self.losses: list[Tensor] = []  # of the steps of an epoch

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stores when and at which step the run starts."""
        self.start = time.monotonic()
        self.first_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stores the loss of a step."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self.losses.append(loss.detach())

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs the line of an epoch."""
        parts = []
        if self.losses:
            parts.append(f"loss {torch.stack(self.losses).mean().item():.4g}")
        self.losses = []
        monitored = {getattr(item, "monitor", None) for item in trainer.checkpoint_callbacks}
        for name, value in trainer.callback_metrics.items():
            if name in monitored:
                parts.append(f"{name} {value.item():.4g}")

        left = steps_left(trainer)
        made = trainer.global_step - self.first_step
        if made and left < float("inf"):
            seconds = (time.monotonic() - self.start) / made * left
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        limit = trainer.max_epochs
        total = f" of {limit}" if limit not in (None, -1) else ""
        log_once(f"Epoch {trainer.current_epoch + 1}{total}: {', '.join(parts)}")
