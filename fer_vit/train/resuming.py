"""Compares the state of a resumed run with its settings.

`check_resumed` does so before the run has a folder, `steps_left` when it starts.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L

from fer_vit.errors import FerVitError, ModelError, short
from fer_vit.store.checkpoint import SECTIONS
from fer_vit.wording import counted


class FinishedError(FerVitError):
    """The run of a checkpoint has nothing left to train."""

    def __init__(self, message: str, best: Path | None) -> None:
        super().__init__(message)
        self.best = best  # the best checkpoint beside the resumed one


class Progress(NamedTuple):
    """How far a run is."""

    epochs: int  # number of finished epochs
    batches: int  # number of finished batches of the next epoch
    steps: int  # number of optimiser steps


def check_resumed(
    checkpoint: dict[str, Any],
    path: Path,
    trainer: L.Trainer,
    settings: Mapping[str, Any],
    groups: Sequence[dict[str, Any]] | None,
) -> None:
    """Raises FerVitError when a checkpoint cannot be resumed with the settings of a run.

    Args:
        checkpoint: The loaded checkpoint.
        path: The file of the checkpoint.
        trainer: The trainer of the run.
        settings: The settings of the task.
        groups: The optimiser's parameter groups of the run; None: a user's class has its optimiser.
    """
    saved = checkpoint["hyper_parameters"]
    teachers = saved.get("teachers")
    if teachers and settings.get("teachers") is None:
        raise FerVitError(
            f"{path} was trained with the teachers {short(teachers)}, but a checkpoint never names "
            "what is loaded. Name them again by `--model.teachers`; `--model.teachers []` goes on "
            "without."
        )

    try:
        progress = saved_progress(checkpoint)
        same_groups = True
        if groups is not None:
            saved_groups = checkpoint["optimizer_states"][0]["param_groups"]
            same_groups = _group_sizes(saved_groups) == _group_sizes(groups)
        missing = SECTIONS.keys() - checkpoint.keys()
        if missing:
            raise KeyError(*missing)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path} has no complete state of a run. Choose a checkpoint that `fer-vit fit` wrote, "
            f"or start a new run with `--model.init {path}` instead of `--ckpt_path`."
        ) from error

    if not same_groups:
        freeze = short(saved.get("freeze"))
        raise FerVitError(
            f"{path} was trained with other frozen parts (`--model.freeze {freeze}`), so that its "
            "optimiser does not fit. Resume with the same parts, or start a new run with "
            f"`--model.init {path}` instead of `--ckpt_path`."
        )

    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # a dry run sets its own limits
        return
    made = ""
    if _reached(progress.epochs, trainer.max_epochs):
        made = f"`--trainer.max_epochs` is {trainer.max_epochs}"
    if _reached(progress.steps, trainer.max_steps):
        made = f"`--trainer.max_steps` is {trainer.max_steps}"
    if made:
        best = saved_best(checkpoint, path.parent, trainer)
        raise FinishedError(
            f"Nothing is left to train: {path} has {counted(progress.epochs, 'epoch')} "
            f"({counted(progress.steps, 'step')}), and {made}. Use {best or path}, or raise the "
            "limit.",
            best,
        )


def _group_sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _reached(count: int, limit: int | None) -> bool:
    return limit not in (None, -1) and count >= limit


def saved_progress(checkpoint: dict[str, Any]) -> Progress:
    """Reads the progress from Lightning's state; raises an error of Python for another state."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs = loop["epoch_progress"]["current"]
    batches = loop["epoch_loop.batch_progress"]
    return progress_of(
        started=int(epochs["started"]),
        processed=int(epochs["processed"]),
        batches=int(batches["current"]["processed"]),
        is_last_batch=bool(batches["is_last_batch"]),
        steps=int(checkpoint["global_step"]),
    )


def progress_of(
    started: int, processed: int, batches: int, is_last_batch: bool, steps: int
) -> Progress:
    """Returns the progress by Lightning's counts.

    An epoch is finished with its last batch; Lightning counts it after the validation.
    """
    if is_last_batch:
        return Progress(started, 0, steps)
    return Progress(processed, batches, steps)


def steps_left(trainer: L.Trainer) -> float:
    """Returns how many optimiser steps a run will make from now on, at the start of its training.

    In a run that was not resumed, these are `trainer.estimated_stepping_batches`.
    """
    loop: Any = trainer.fit_loop
    epochs = loop.epoch_progress.current
    batches = loop.epoch_loop.batch_progress
    progress = progress_of(
        started=epochs.started,
        processed=epochs.processed,
        batches=batches.current.processed,
        is_last_batch=batches.is_last_batch,
        steps=trainer.global_step,
    )
    left = math.inf
    num_batches = trainer.num_training_batches  # infinite for a stream without a length
    if trainer.max_epochs not in (None, -1) and num_batches < math.inf:
        steps_per_epoch = math.ceil(num_batches / trainer.accumulate_grad_batches)
        made = progress.batches // trainer.accumulate_grad_batches
        left = (trainer.max_epochs - progress.epochs) * steps_per_epoch - made
    if trainer.max_steps != -1:
        left = min(left, trainer.max_steps - progress.steps)
    return left


def saved_best(checkpoint: dict[str, Any], folder: Path, trainer: L.Trainer) -> Path | None:
    """Returns the best checkpoint that a checkpoint records, if it is in `folder`."""
    for callback in trainer.checkpoint_callbacks:
        best = find_best(checkpoint["callbacks"].get(callback.state_key, {}), folder)
        if best:
            return best
    return None


def find_best(state: Mapping[str, Any], folder: Path) -> Path | None:
    """Returns the best checkpoint that the state of a callback records, if it is in `folder`.

    Only the name is read: the path in a checkpoint may lead anywhere, as a link may. `last.ckpt`
    is never the best: each epoch replaces it.
    """
    best = folder / Path(str(state.get("best_model_path") or "none")).name
    if best.suffix != ".ckpt" or best.name == "last.ckpt":
        return None
    # isfile is also false for a name that no file system allows
    return best if os.path.isfile(best) and not best.is_symlink() else None
