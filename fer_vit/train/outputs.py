"""The outputs of further heads that model and data share, and the weights of their losses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fer_vit.errors import FerVitError, short
from fer_vit.heads import HEADS, merge_outputs

MAX_WEIGHT = 1e6  # largest weight of a head's loss


class SharedOutputs(NamedTuple):
    """The outputs of a head that both the model and the data have."""

    outputs: list[str]
    of_model: list[int]  # their indices among the outputs of the model
    of_data: list[int]  # their indices among the outputs of the data


def share_outputs(
    model: Mapping[str, Sequence[str]], data: Mapping[str, Sequence[str]]
) -> dict[str, SharedOutputs]:
    """Returns the outputs that a model and data share, by head."""
    shared = {}
    for head, outputs in model.items():
        columns = list(data.get(head, ()))
        common = [output for output in outputs if output in columns]
        if common:
            of_model = [list(outputs).index(output) for output in common]
            of_data = [columns.index(output) for output in common]
            shared[head] = SharedOutputs(common, of_model, of_data)
    return shared


def choose_heads(outputs: Mapping[str, object], weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the weight of each trained head; raises FerVitError if the data lacks a head."""
    for head, weight in weights.items():
        if not 0 <= weight <= MAX_WEIGHT:
            raise FerVitError(
                f"Expected the weight of {head} in `--model.head_weights` to be from 0 to "
                f"{MAX_WEIGHT:g}, but got {short(weight)}."
            )
        if head not in outputs:
            actual = ", ".join(outputs) or "no further head"
            raise FerVitError(
                f"Expected targets of {head} in the manifest (`--model.head_weights`), but it has "
                f"{actual}."
            )
    chosen = {head: weights.get(head, HEADS[head].weight) for head in outputs}
    return {head: weight for head, weight in chosen.items() if weight}


class HeadPlan(NamedTuple):
    """The further heads of a model, and which of their outputs are trained."""

    outputs: dict[str, list[str]]  # outputs of the model by head
    shared_outputs: dict[str, SharedOutputs]  # outputs of both model and data by head
    weights: dict[str, float]  # weight of the loss of each trained head


def plan_heads(
    outputs: Mapping[str, Sequence[str]] | None,
    data: Mapping[str, Sequence[str]],
    start: Mapping[str, Sequence[str]],
    weights: Mapping[str, float],
) -> HeadPlan:
    """Returns the heads of a model in training.

    Args:
        outputs: The model's outputs by head. None: the outputs of `start`, and of the heads that
            are trained.
        data: The outputs by head for which the data has targets.
        start: The outputs by head of the model from which the training starts.
        weights: The weights of the losses by head. Default: as in `HEADS`. 0 leaves a head out.

    Raises:
        FerVitError: A weight is out of range, or the data has no targets for its head.
    """
    trained = choose_heads(data, weights)
    if outputs is None:
        outputs = merge_outputs(start, {head: data[head] for head in trained})
    shared = share_outputs(outputs, data)
    return HeadPlan(
        outputs={head: list(names) for head, names in outputs.items()},
        shared_outputs=shared,
        weights={head: weight for head, weight in trained.items() if head in shared},
    )
