"""A run of the Trainer: its checkpoints, its output, and its end after failures outside it.

All of Lightning's private names that fer-vit uses are here, each with its reason.
"""

import copy
import io
import math
import shutil
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.flop_counter import FlopCounterMode

from fer_vit.errors import FerVitError
from fer_vit.files import atomic_write, remove_stale
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.signals import handle_ending
from fer_vit.store.folder import load_checkpoint


@torch.inference_mode()
def multiply_adds(net: RegionViT) -> int:
    """Counts the multiply-adds of matrix products and convolutions for one face, by torch's own counter.

    Other operations are not counted, though the tanh of additive attention takes longer than its products.
    """
    net = copy.deepcopy(net).cpu().eval()
    use_fused_attention(net, fused=False)  # not every version of torch counts the fused one
    with FlopCounterMode(display=False) as counter:
        net(
            torch.zeros(1, 3, net.config.img_size, net.config.img_size),
            torch.zeros(1, net.layout.num_regions, 4),
        )
    return int(counter.get_total_flops() // 2)


def describe(net: RegionViT) -> str:
    """Describes in one line how large a model is and what a face costs."""
    parameters = sum(parameter.numel() for parameter in net.parameters())
    work = with_prefix(multiply_adds(net))
    return f"{with_prefix(parameters)} parameters, {net.layout.num_tokens} tokens, {work} multiply-adds a face"


def with_prefix(number: int) -> str:
    """Returns a number in two or three digits with k, M or G."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * factor:
            value = number / factor
            return f"{value:.0f} {prefix}" if value >= 99.5 else f"{value:.3g} {prefix}"
    return str(number)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: in a scratch folder beside the target, flushed to disk, then renamed.

    Lightning itself writes to $TMPDIR and moves the file, which across disks is a copy over the previous checkpoint.
    """

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Loads a checkpoint on the CPU as untrusted: Lightning's own loading has no limits."""
        return load_checkpoint(Path(path))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint; if that fails, the FerVitError names the newest one that exists."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        kept = newest_checkpoint([Path(path).parent])
        resume = (
            f"The previous one is kept: resume with `--ckpt_path {kept}`" if kept else "Start again"
        )
        data = io.BytesIO()
        torch.save(checkpoint, data)
        remove_stale(Path(path))
        with atomic_write(Path(path), advice=f"{resume} when there is room.") as file:
            file.write_bytes(data.getbuffer())


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """Returns the checkpoint to resume from: the newest last.ckpt, or else the newest of any name."""
    files = [path for folder in folders for path in folder.glob("*.ckpt") if path.exists()]
    return max(
        files, key=lambda path: (path.name == "last.ckpt", path.stat().st_mtime_ns), default=None
    )


class LastCheckpoint(ModelCheckpoint):
    """Keeps the newest epoch or validation as last.ckpt, or the newest step when a signal ends the run.

    ModelCheckpoint's own `save_last` keeps the last one that was among the best. Lightning saves nothing on SIGTERM,
    and processes that receive it at different steps wait for each other forever.
    """

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_exception=True, enable_version_counter=False)
        self.signal: signal.Signals | None = None  # that ends the run

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads nothing: Lightning would delete the file that a checkpoint names as its predecessor, anywhere."""

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Copies the best checkpoint into the folder of a resumed run; Lightning would lose its score.

        It is searched beside the resumed checkpoint: the path that a checkpoint names may lead anywhere.
        """
        source = Path(str(trainer.ckpt_path)).parent
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if not (isinstance(callback, ModelCheckpoint) and state):
                continue
            if trainer.is_global_zero:
                remove_stale(source / f"{callback.filename or 'best'}.ckpt")
            if callback.monitor and callback.save_top_k == 1:
                state.update(_resumed_state(state, callback, source, trainer.is_global_zero))
            elif callback is not self:
                state.update(best_model_path="")

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals that end a run from Lightning, which restores the handlers at the end."""
        if threading.current_thread() is threading.main_thread():
            handle_ending(lambda number: setattr(self, "signal", number))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals in runs without a sanity check."""
        super().on_train_start(trainer, pl_module)
        self.on_sanity_check_start(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stops all processes after the same optimiser step; Lightning raises SIGTERMException where a run can resume.

        Private: a checkpoint amid accumulated batches would lack their gradients, and only Lightning's own handler sets
        the flag.
        """
        if not trainer.fit_loop._should_accumulate():
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the epoch; stops after it if its validation followed the last step."""
        super().on_train_epoch_end(trainer, pl_module)
        self._stop_together(trainer)

    def _stop_together(self, trainer: L.Trainer) -> None:
        self._take_over(trainer)
        trainer._signal_connector.received_sigterm = trainer.strategy.reduce_boolean_decision(
            self.signal is not None, all=False
        )

    def _take_over(self, trainer: L.Trainer) -> None:
        """Notes a SIGTERM that Lightning's handler has received earlier."""
        if trainer._signal_connector.received_sigterm and self.signal is None:
            self.signal = signal.SIGTERM

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Lets a validation finish, because Lightning cannot resume one; the run ends after the next step or epoch."""
        self._take_over(trainer)
        trainer._signal_connector.received_sigterm = False

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Saves the step at which a signal stopped the run."""
        if isinstance(exception, SIGTERMException):
            super().on_exception(trainer, pl_module, exception)

    def _should_skip_saving_checkpoint(self, trainer: L.Trainer) -> bool:
        # Private, both: a validation may lie amid accumulated batches.
        return (
            super()._should_skip_saving_checkpoint(trainer) or trainer.fit_loop._should_accumulate()
        )

    def _should_save_on_train_epoch_end(self, trainer: L.Trainer) -> bool:
        # Private: saves epochs without validation, too, and epochs with one after `checkpoint` has recorded its score.
        return not trainer.validating or super()._should_save_on_train_epoch_end(trainer)


def _resumed_state(
    state: dict[str, Any], callback: ModelCheckpoint, source: Path, copy_file: bool
) -> dict[str, Any]:
    """Returns the state of a callback that keeps the best checkpoint of a run resumed from the folder `source`."""
    folder, best = Path(callback.dirpath or ""), source / Path(state["best_model_path"]).name
    score = plausible_score(state.get("best_model_score"), callback.monitor or "")
    path = ""
    if score is not None and best.suffix == ".ckpt" and best.is_file():
        path = str(folder / best.name)
        if copy_file and best.parent.resolve() != folder.resolve():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(best, path)
    elif state["best_model_path"]:
        print_once(
            f"No best checkpoint is beside the resumed one in {source}: the search starts over."
        )
    return {
        "dirpath": callback.dirpath,
        "best_model_path": path,
        "best_model_score": score if path else None,
        "best_k_models": {path: score} if path else {},
        "kth_best_model_path": path,
        "kth_value": score
        if path
        else torch.tensor(math.inf if callback.mode == "min" else -math.inf),
    }


def plausible_score(score: Any, monitor: str) -> torch.Tensor | None:
    """Returns a finite score that the metric can have, else None: it may be from an untrusted checkpoint."""
    try:
        value = float(score)
    except (TypeError, ValueError, RuntimeError):
        return None
    in_range = 0 <= value <= 1 or monitor.rpartition("/")[2] not in SHARES
    return torch.tensor(value) if math.isfinite(value) and in_range else None


SHARES = ("accuracy", "accuracy_without_near_duplicates", "uar", "f1", "ece")
"""Metrics from 0 to 1."""


def run(verb: str, trainer: L.Trainer, model: Any, **options: Any) -> None:
    """Runs fit, validate or test; a failing process kills its children, which would wait. SystemExit after a signal."""
    if verb == "fit":
        print_once(f"RegionViT: {describe(model.net)}.")
    try:
        getattr(trainer, verb)(model, **options)
    except BaseException as error:
        processes = getattr(
            trainer.strategy.launcher, "procs", []
        )  # absent if torchrun or SLURM started them
        while (
            processes
        ):  # emptied, because Lightning kills this process when it finds a killed one among them
            processes.pop().kill()
        interrupted = isinstance(
            error.__context__, KeyboardInterrupt
        )  # Lightning makes a SystemExit of it
        lost = is_lost_process(error)
        if not (lost or interrupted or isinstance(error, SIGTERMException)):
            raise
        last = last_checkpoint(trainer)
        advice = (
            f" Resume with the same command; `fit` needs `--ckpt_path {last}`."
            if last and verb == "fit"
            else ""
        )
        if lost:
            raise FerVitError(
                f"Another process of this run died or no longer answers.{advice}"
            ) from error
        number = signal.SIGINT if interrupted else ending_signal(trainer)
        print_once(f"Ended by {'Ctrl-C' if interrupted else number.name}.{advice}")
        sys.exit(128 + number)


def ending_signal(trainer: L.Trainer) -> signal.Signals:
    """Returns the signal that has ended a run; SIGTERM if only another process has received it."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, LastCheckpoint) and callback.signal is not None:
            return callback.signal
    return signal.SIGTERM


def is_lost_process(error: BaseException) -> bool:
    """Returns whether another process of a run is gone."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def last_checkpoint(trainer: L.Trainer) -> Path | None:
    """Returns the newest checkpoint of a run."""
    callbacks: list[Any] = trainer.checkpoint_callbacks
    return newest_checkpoint({Path(callback.dirpath) for callback in callbacks if callback.dirpath})


print_once = rank_zero_only(print)
"""Prints in process 0 only."""
