"""Compares the state of a resumed run with its settings.

`check_resumed` does so before the run has a folder, `steps_left` when it starts.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

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
    optimizer: AdamW | None,
) -> None:
    """Raises FerVitError when a checkpoint cannot be resumed with the settings of a run.

    Args:
        checkpoint: The loaded checkpoint.
        path: The file of the checkpoint.
        trainer: The trainer of the run.
        settings: The settings of the task.
        optimizer: A new optimiser as the run has it; None: a user's class has its optimiser.
    """
    teachers = checkpoint["hyper_parameters"].get("teachers")
    if teachers and settings.get("teachers") is None:
        raise FerVitError(
            f"{path} was trained with the teachers {short(teachers)}, but a checkpoint never names "
            "what is loaded. Name them again by `--model.teachers`; `--model.teachers []` goes on "
            "without."
        )

    check_state(checkpoint, path, trainer, optimizer)

    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # a dry run sets its own limits
        return
    progress = read_progress(checkpoint["loops"]["fit_loop"], checkpoint["global_step"])
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


def check_state(
    checkpoint: dict[str, Any], path: Path, trainer: L.Trainer, optimizer: AdamW | None
) -> None:
    """Raises FerVitError when the state of a run is damaged, or of a run with other frozen parts.

    The arguments are those of `check_resumed`.
    """
    try:
        missing = SECTIONS.keys() - checkpoint.keys()
        if missing:
            raise KeyError(*missing)
        same_groups = True
        if optimizer is not None:
            saved_groups = checkpoint["optimizer_states"][0]["param_groups"]
            same_groups = _group_sizes(saved_groups) == _group_sizes(optimizer.param_groups)
        damage = find_damage(checkpoint, trainer, optimizer) if same_groups else ""
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path} has no complete state of a run. Choose a checkpoint that `fer-vit fit` wrote, "
            f"or start a new run with `--model.init {path}` instead of `--ckpt_path`."
        ) from error

    if not same_groups:
        freeze = short(checkpoint["hyper_parameters"].get("freeze"))
        raise FerVitError(
            f"{path} was trained with other frozen parts (`--model.freeze {freeze}`), so that its "
            "optimiser does not fit. Resume with the same parts, or start a new run with "
            f"`--model.init {path}` instead of `--ckpt_path`."
        )
    if damage:
        raise ModelError(
            f"{path} is damaged: expected {damage}. Choose a checkpoint that `fer-vit fit` "
            f"wrote, or start a new run with `--model.init {path}` instead of `--ckpt_path`."
        )


def _group_sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def find_damage(checkpoint: dict[str, Any], trainer: L.Trainer, optimizer: AdamW | None) -> str:
    """Describes a value of a checkpoint that is missing, or of another type than in a new run.

    torch and Lightning check few of these values when they restore a run, and fail at a later step.
    The settings of AdamW do not count: those of the new run are used.

    Returns:
        The end of a sentence; empty if every value is there.
    """
    new: dict[str, Any] = {"loops": {"fit_loop": trainer.fit_loop.state_dict()}, "global_step": 0}
    saved = {name: checkpoint[name] for name in new}
    if optimizer is not None:
        schedule = LambdaLR(optimizer, lambda step: 1.0)  # its state has no values of the function
        new["lr_schedulers"] = [schedule.state_dict()]
        # torch adds what an earlier version of torch did not save
        schedule.load_state_dict(checkpoint["lr_schedulers"][0])
        saved["lr_schedulers"] = [schedule.state_dict()]

        # AdamW's values for each parameter, which a new optimiser has from its first step on
        state = checkpoint["optimizer_states"][0]["state"]
        expected_state = {}
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        for number, value in enumerate(parameters):
            if number in state:
                zero = torch.tensor(0.0)
                expected_state[number] = {"step": zero, "exp_avg": value, "exp_avg_sq": value}
        new["optimizer_states"] = [{"state": expected_state}]
        saved["optimizer_states"] = [{"state": state}]

    saved_types = _types(saved)
    for place, expected in _types(new).items():
        actual = saved_types.get(place, "nothing")
        if actual != expected:
            return f"{place} to be {expected}, but got {actual}"
    return ""


def _types(state: Any, place: str = "") -> dict[str, str]:
    """Returns the type of each value in nested dictionaries and lists, by its place.

    For example, `lr_schedulers.0.last_epoch` is `int`. The type of a tensor has its shape.
    """
    if isinstance(state, Tensor):
        return {place: f"tensor {tuple(state.shape)}"}
    if isinstance(state, list | tuple):
        state = dict(enumerate(state))
    if not isinstance(state, dict):
        is_huge = isinstance(state, int) and state.bit_length() > 63
        return {place: "huge" if is_huge else type(state).__name__}
    types: dict[str, str] = {}
    for key, value in state.items():
        types |= _types(value, f"{place}.{key}" if place else str(key))
    return types


def _reached(count: int, limit: int | None) -> bool:
    return limit not in (None, -1) and count >= limit


def read_progress(fit_loop: Mapping[str, Any], steps: int) -> Progress:
    """Returns the progress by the state of Lightning's fit loop.

    An epoch is finished with its last batch; Lightning counts it after the validation.
    """
    epochs = fit_loop["epoch_progress"]["current"]
    batches = fit_loop["epoch_loop.batch_progress"]
    if batches["is_last_batch"]:
        return Progress(epochs["started"], 0, steps)
    return Progress(epochs["processed"], batches["current"]["processed"], steps)


def steps_left(trainer: L.Trainer) -> float:
    """Returns how many optimiser steps a run will make from now on, at the start of its training.

    In a run that was not resumed, these are `trainer.estimated_stepping_batches`.
    """
    progress = read_progress(trainer.fit_loop.state_dict(), trainer.global_step)
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
