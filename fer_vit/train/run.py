"""A run of the Trainer: what it prints, and how it ends when something outside it fails."""

import signal
import sys
from errno import ENOSPC
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.errors import FerVitError
from fer_vit.model.cost import describe
from fer_vit.train.checkpoints import newest_checkpoint

BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU features for bfloat16 products, by torch's names: two of x86, one of ARM."""


def run(verb: str, trainer: L.Trainer, model: Any, **options: Any) -> None:
    """Runs fit, validate or test of the Trainer; a failing process kills those it started, which would wait for it.

    Raises:
        FerVitError: Another process of the run is gone, or the disk is full.
        SystemExit: SIGTERM came.
    """
    if verb == "fit":
        print_once(f"RegionViT: {describe(model.net)}.")
    try:
        getattr(trainer, verb)(model, **options)
    except BaseException as error:
        processes = getattr(trainer.strategy.launcher, "procs", [])  # absent if torchrun or SLURM started them
        while processes:  # emptied, or Lightning would see a dead one and kill this process before it prints why
            processes.pop().kill()
        callbacks: list[Any] = trainer.checkpoint_callbacks
        last = newest_checkpoint({Path(callback.dirpath) for callback in callbacks if callback.dirpath})
        if isinstance(error, SIGTERMException):
            advice = f" Resume with the same options and `--ckpt_path {last}`." if last and verb == "fit" else ""
            print_once(f"Ended by SIGTERM.{advice}")
            sys.exit(128 + signal.SIGTERM)
        if message := describe_failure(error, last):
            raise FerVitError(message) from error
        raise


def describe_failure(error: BaseException, last: Path | None) -> str | None:
    """Returns the message for a full disk or a lost process; None for any other error."""
    if isinstance(error, OSError) and error.errno == ENOSPC:  # of the logs: `AtomicCheckpointIO` has its own message
        advice = f"Resume with `--ckpt_path {last}`" if last else "Start again"
        return f"Cannot write the logs ({error.strerror}). {advice} when there is room."
    if not dist.is_initialized() or not (isinstance(error, dist.DistError) or "gloo/transport" in str(error)):
        return None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun would end this process before it prints why
    advice = (
        f"Resume with the same options and `--ckpt_path {last}`." if last else "Start again: no checkpoint exists yet."
    )
    return f"Another process of this run died or no longer answers; its own output may say why. {advice}"


def has_bf16(accelerator: str) -> bool:
    """Tells whether the GPU, if there is one to use, or else the CPU has bfloat16 instructions."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return torch.backends.mkldnn.is_available() and any(has.get(name) for name in BF16)  # type: ignore[no-untyped-call]


@rank_zero_only
def print_once(line: str) -> None:
    """Prints a line in process 0 only."""
    print(line)
