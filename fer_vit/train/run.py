"""Runs the Trainer: describes the network, and ends a run after a signal or a lost process."""

import copy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.flop_counter import FlopCounterMode

from fer_vit.errors import FerVitError, ModelError
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.train.checkpoints import EndedBySignal, newest_checkpoint
from fer_vit.train.log import log_once
from fer_vit.train.module import RegionViTModule


@torch.inference_mode()
def multiply_adds(net: RegionViT) -> int:
    """Counts the multiply-adds of products and convolutions for one face, with torch's counter.

    Other operations are not counted, although in additive attention the tanh takes longer than the
    products.
    """
    net = copy.deepcopy(net).cpu().eval()
    use_fused_attention(net, fused=False)  # not every version of torch counts the fused one
    size = net.config.img_size
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, 3, size, size), torch.zeros(1, net.layout.num_regions, 4))
    return int(counter.get_total_flops() // 2)


def describe_network(net: RegionViT) -> str:
    """Describes in one line the size of a model and its work for a face."""
    parameters = with_prefix(sum(parameter.numel() for parameter in net.parameters()))
    work = with_prefix(multiply_adds(net))
    return f"{parameters} parameters, {net.layout.num_tokens} tokens, {work} multiply-adds a face"


def with_prefix(number: int) -> str:
    """Returns a number in two or three digits with k, M or G."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * factor:
            value = number / factor
            digits = f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"
            return f"{digits} {prefix}"
    return str(number)


def run_trainer(verb: str, trainer: L.Trainer, model: RegionViTModule, **options: Any) -> None:
    """Runs the `verb` fit, validate or test of a Trainer.

    If this process fails, its child processes are ended: they would wait for it forever.

    Raises:
        FerVitError: Another process of the run died, or the checkpoint is damaged.
        SystemExit: A signal has ended the run.
    """
    if verb == "fit":
        log_once(f"RegionViT: {describe_network(model.net)}.")
    try:
        getattr(trainer, verb)(model, **options)
    except BaseException as error:
        end_children(trainer)
        if isinstance(error, AttributeError | LookupError | TypeError) and in_restoring(error):
            raise ModelError(
                f"{trainer.ckpt_path} cannot be restored ({type(error).__name__}: {error}). "
                "Choose a checkpoint that `fer-vit fit` wrote."
            ) from error
        received = ending_signal(error)
        is_lost = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
        if received is None and not is_lost:
            raise

        advice = ""
        last = last_checkpoint(trainer)
        if last and verb == "fit":
            advice = (
                f" To resume, run the same command; with `fer-vit fit`, add `--ckpt_path {last}`."
            )
        if received is None:
            raise FerVitError(
                f"Another process of this run died or no longer answers.{advice}"
            ) from error
        name = "Ctrl-C" if received == signal.SIGINT else received.name
        log_once(f"Ended by {name}.{advice}")
        sys.exit(128 + received)


# The methods with which Lightning's Trainer restores a checkpoint.
RESTORING = ("_restore_modules_and_callbacks", "restore_training_state")


def in_restoring(error: BaseException) -> bool:
    """Returns whether an error was raised while Lightning restored a checkpoint."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in RESTORING for frame, _ in frames)


def end_children(trainer: L.Trainer) -> None:
    """Ends the processes that this process has started."""
    # There is no list if torchrun or SLURM started the processes.
    processes = getattr(trainer.strategy.launcher, "procs", [])
    while processes:
        # The list is emptied: Lightning ends this process if a process on the list was killed.
        processes.pop().kill()


def ending_signal(error: BaseException) -> signal.Signals | None:
    """Returns the signal that has ended a run, if any."""
    if isinstance(error, EndedBySignal):
        return error.signal
    if isinstance(error, SIGTERMException):  # validate and test
        return signal.SIGTERM
    # Lightning turns Ctrl-C into a SystemExit.
    return signal.SIGINT if isinstance(error.__context__, KeyboardInterrupt) else None


def last_checkpoint(trainer: L.Trainer) -> Path | None:
    """Returns the newest checkpoint of a run."""
    folders = set()
    for callback in trainer.checkpoint_callbacks:
        dirpath = getattr(callback, "dirpath", None)
        if dirpath:
            folders.add(Path(dirpath))
    return newest_checkpoint(folders)
