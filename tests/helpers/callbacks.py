"""Callbacks that end a run, named on the command line."""

import os
import signal
import subprocess
import time
from typing import Any

from lightning.pytorch.callbacks import Callback


class Terminate(Callback):
    """Sends SIGTERM to this process, or to the second of two."""

    def __init__(self, epoch: int, batch: int, validating: bool = False) -> None:
        self.moment = epoch, batch, validating

    def _at(self, trainer: Any, batch: int) -> None:
        here = trainer.current_epoch, batch, trainer.validating
        if here == self.moment and trainer.global_rank == trainer.world_size - 1:
            self.terminate()

    def terminate(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._at(trainer, batch_idx)

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int, *_: int) -> None:
        self._at(trainer, batch_idx)


class TerminateAll(Terminate):
    """Another process sends it to all processes of the run, also to workers, as SLURM does."""

    def terminate(self) -> None:
        subprocess.run(["kill", "-TERM", "--", f"-{os.getpgid(0)}"], start_new_session=True, check=True)


class KillOne(Callback):
    """Kills the second process in the second epoch; the first is in a long step until Lightning's check every 5 s."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (1, 1):
            if trainer.global_rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(8)
