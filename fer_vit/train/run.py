"""A run of the Trainer: its checkpoints, its output, and its end after failures outside it.

All of Lightning's private names that fer-vit uses are here, each with its reason.
"""

import copy
import io
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.strategies.launchers import subprocess_script
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.flop_counter import FlopCounterMode

from fer_vit.errors import FerVitError
from fer_vit.files import atomic_write, remove_stale
from fer_vit.model.attention import use_fused_attention
from fer_vit.model.region_vit import RegionViT


@torch.inference_mode()
def multiply_adds(net: RegionViT) -> int:
    """Counts the multiply-adds of matrix products and convolutions for one face, by torch's own counter.

    Other operations are not counted, though the tanh of additive attention takes longer than its products.
    """
    net = copy.deepcopy(net).cpu().eval()
    use_fused_attention(net, fused=False)  # not every version of torch counts the fused one
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, 3, net.config.img_size, net.config.img_size), torch.zeros(1, net.layout.num_regions, 4))
    return int(counter.get_total_flops() // 2)


def describe(net: RegionViT) -> str:
    """Describes in one line how large a model is and what a face costs."""
    parameters = sum(parameter.numel() for parameter in net.parameters())
    work = multiply_adds(net) / 1e6
    return f"{parameters / 1e6:.3g} M parameters, {net.layout.num_tokens} tokens, {work:.3g} M multiply-adds a face"


def has_bf16(accelerator: str) -> bool:
    """Whether the GPU, if one is used, or else the CPU has bfloat16 instructions."""
    if torch.cuda.is_available() and accelerator in ("auto", "gpu", "cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    names = ("avx512_bf16", "amx_bf16", "bf16")  # two of x86, one of ARM
    return torch.backends.mkldnn.is_available() and any(map(has.get, names))  # type: ignore[no-untyped-call]


PATIENCE = 30  # seconds in which a process can detect that another is gone and report it
LOST = "Another process of this run died or no longer answers; its output may show why."


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically: in a scratch folder beside the target, flushed to disk, then renamed.

    Lightning itself writes to $TMPDIR and moves the file, which across disks is a copy over the previous checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint; if that fails, the FerVitError names the newest one that exists."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        kept = newest_checkpoint([Path(path).parent])
        resume = f"The previous one is kept: resume with `--ckpt_path {kept}`" if kept else "Start again"
        data = io.BytesIO()
        torch.save(checkpoint, data)
        remove_stale(Path(path))
        with atomic_write(Path(path), advice=f"{resume} when there is room.") as file:
            file.write_bytes(data.getbuffer())


def newest_checkpoint(folders: Iterable[Path]) -> Path | None:
    """Returns the checkpoint to resume from: the newest last.ckpt, or else the newest of any name."""
    files = [path for folder in folders for path in folder.glob("*.ckpt") if path.exists()]
    return max(files, key=lambda path: (path.name == "last.ckpt", path.stat().st_mtime_ns), default=None)


class LastCheckpoint(ModelCheckpoint):
    """Keeps the newest epoch as last.ckpt, or the newest step when SIGTERM ends the run.

    ModelCheckpoint's own `save_last` keeps the last one that was among the best. Lightning saves nothing on SIGTERM,
    and processes that receive it at different steps wait for each other forever.
    """

    def __init__(self) -> None:
        super().__init__(filename="last", save_on_train_epoch_end=False, enable_version_counter=False)
        self.sigterm = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads nothing: Lightning would delete the file that a checkpoint names as its predecessor, anywhere."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Copies the best checkpoint into the folder of a resumed run; Lightning would lose its score."""
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if not (isinstance(callback, ModelCheckpoint) and callback.monitor and callback.save_top_k == 1 and state):
                continue  # also for this callback, whose predecessor is not needed
            best, folder = Path(state["best_model_path"]), Path(callback.dirpath or "")
            if best.is_file() and best.suffix == ".ckpt" and best.parent != folder:
                if trainer.is_global_zero:
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy(best, folder)
                copy, callback.best_model_score = str(folder / best.name), state["best_model_score"]
                callback.best_k_models, callback.kth_best_model_path = {copy: state["best_model_score"]}, copy
                callback.kth_value = state["best_model_score"]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Clears the signal of an earlier run."""
        super().setup(trainer, pl_module, stage)
        self.sigterm = False

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over SIGTERM from Lightning, which restores the handler at the end."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over SIGTERM in runs without a sanity check."""
        super().on_train_start(trainer, pl_module)
        self.on_sanity_check_start(trainer, pl_module)

    def _on_sigterm(self, *_: object) -> None:
        self.sigterm = True

    def _stop_together(self, trainer: L.Trainer) -> None:
        """Stops all processes at the same step; Lightning raises SIGTERMException where the run can resume."""
        if trainer.strategy.reduce_boolean_decision(self.sigterm, all=False):
            # Private: the flag that Lightning's own handler sets; there is no public way to set it.
            trainer._signal_connector.received_sigterm = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Checks for SIGTERM after each optimiser step."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if not accumulates(trainer):
            self._stop_together(trainer)

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: int
    ) -> None:
        """Checks for SIGTERM after each batch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not accumulates(trainer):
            self._stop_together(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves an epoch without validation."""
        super().on_train_epoch_end(trainer, pl_module)
        self._save_newest(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves the step at which SIGTERM stopped the run."""
        if not isinstance(exception, SIGTERMException):
            return
        if trainer.validating:
            # Lightning would resume with the next batch, but the metrics of earlier ones are lost: validate again.
            progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
            progress.reset()
            progress.increment_ready()
            progress.increment_started()
        self._save_newest(trainer)

    def _should_skip_saving_checkpoint(self, trainer: L.Trainer) -> bool:
        # Private: ModelCheckpoint's hooks call it during a run.
        return super()._should_skip_saving_checkpoint(trainer) or accumulates(trainer)

    def _save_newest(self, trainer: L.Trainer) -> None:
        # Private, all three: ModelCheckpoint's own hooks call them at the end of an epoch; here there is no hook.
        # `trainer.save_checkpoint` would not record which step was saved last, and save it twice.
        if not super()._should_skip_saving_checkpoint(trainer):  # a run may end amid a group
            self._save_checkpoint(trainer, self.format_checkpoint_name(self._monitor_candidates(trainer)))


def accumulates(trainer: L.Trainer) -> bool:
    """Whether the optimiser waits for more batches; a checkpoint would lack the gradients of earlier ones."""
    # Private: it counts accumulated batches, also in the last, incomplete group.
    return trainer.fit_loop._should_accumulate()


class PatientObserver(subprocess_script._ChildProcessObserver):
    """Lightning's observer of the processes that it started; it would kill this one before it can print advice."""

    def _terminate_all(self) -> None:
        time.sleep(PATIENCE)
        if self._child_processes:  # `run` empties the list when it ends the run itself
            print(f"fer-vit: error: {LOST} Resume from the last checkpoint.", file=sys.stderr, flush=True)
            super()._terminate_all()


def run(verb: str, trainer: L.Trainer, model: Any, **options: Any) -> None:
    """Runs fit, validate or test of the Trainer; a failing process kills its children, which would wait for it.

    Raises FerVitError when another process is gone or the disk is full, and SystemExit after SIGTERM or Ctrl-C.
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
    resume = f"Resume with the same options and `--ckpt_path {last}`."
    return f"{LOST} {resume if last else 'Start again: no checkpoint exists yet.'}"


@rank_zero_only
def print_once(line: str) -> None:
    """Prints a line in process 0 only."""
    print(line)
