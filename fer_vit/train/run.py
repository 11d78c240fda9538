"""A run of the Trainer: its output, and its end after failures outside it."""

import signal
import sys
import time
from errno import ENOSPC
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.errors import FerVitError
from fer_vit.train.checkpoints import newest_checkpoint
from fer_vit.train.cost import describe

PATIENCE = 30
"""Seconds in which a process can detect that another is gone and report it."""
LOST = "Another process of this run died or no longer answers; its output may show why."


class PatientObserver(subprocess_script._ChildProcessObserver):
    """Lightning's observer of the processes that it started; it would kill this one before it can print advice."""

    def _terminate_all(self) -> None:
        time.sleep(PATIENCE)
        if self._child_processes:  # `run` empties the list when it ends the run itself
            print(f"fer-vit: error: {LOST} Resume from the last checkpoint.", file=sys.stderr, flush=True)
            super()._terminate_all()


def run(verb: str, trainer: L.Trainer, model: Any, **options: Any) -> None:
    """Runs fit, validate or test of the Trainer; a failing process kills its children, which would wait for it.

    Raises:
        FerVitError: Another process of the run is gone, or the disk is full.
        SystemExit: SIGTERM came, or Ctrl-C.
    """
    if verb == "fit":
        print_once(f"RegionViT: {describe(model.net)}.")
    subprocess_script._ChildProcessObserver = PatientObserver  # type: ignore[misc]
    try:
        getattr(trainer, verb)(model, **options)
    except BaseException as error:
        processes = getattr(trainer.strategy.launcher, "procs", [])  # absent if torchrun or SLURM started them
        while processes:  # emptied, so that `PatientObserver` lets this process print the reason
            processes.pop().kill()
        callbacks: list[Any] = trainer.checkpoint_callbacks
        last = newest_checkpoint({Path(callback.dirpath) for callback in callbacks if callback.dirpath})
        interrupted = isinstance(error.__context__, KeyboardInterrupt)  # Lightning makes a SystemExit of it
        if isinstance(error, SIGTERMException) or interrupted:
            advice = f" Resume with the same command; `fit` needs `--ckpt_path {last}`."
            print_once(f"Ended by {'Ctrl-C' if interrupted else 'SIGTERM'}.{advice if last and verb == 'fit' else ''}")
            sys.exit(128 + (signal.SIGINT if interrupted else signal.SIGTERM))
        if message := describe_failure(error, last):
            raise FerVitError(message) from error
        raise


def describe_failure(error: BaseException, last: Path | None) -> str | None:
    """Returns the message for a full disk or a lost process; None for any other error."""
    if isinstance(error, OSError) and error.errno == ENOSPC:  # of the logs: `AtomicCheckpointIO` has another message
        advice = f"Resume with `--ckpt_path {last}`" if last else "Start again"
        return f"Cannot write the logs ({error.strerror}). {advice} when there is room."
    if not dist.is_initialized() or not (isinstance(error, dist.DistError) or "gloo/transport" in str(error)):
        return None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun would end this process before it prints the reason
    advice = (
        f"Resume with the same options and `--ckpt_path {last}`." if last else "Start again: no checkpoint exists yet."
    )
    return f"{LOST} {advice}"


@rank_zero_only
def print_once(line: str) -> None:
    """Prints a line in process 0 only."""
    print(line)
