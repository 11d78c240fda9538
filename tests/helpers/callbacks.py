"""Callbacks that end a run, named on the command line."""

import os
import signal
import time
from typing import Any

from lightning.pytorch.callbacks import Callback


class Terminate(Callback):
    """Sends a signal to this process, or to the second of two."""

    def __init__(self, epoch: int, batch: int, name: str = "SIGTERM") -> None:
        self.moment = epoch, batch
        self.number = signal.Signals[name]

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if (
            trainer.current_epoch,
            batch_idx,
        ) == self.moment and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), self.number)


class KillOne(Callback):
    """Kills the second process in the second epoch;
    the first is in a long step until Lightning's check every 5 s.
    """

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.current_epoch, batch_idx) == (1, 1):
            if trainer.global_rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(8)
