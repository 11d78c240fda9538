"""The outputs of further heads that model and data share, and the weights of their losses."""

from collections.abc import Mapping
from typing import NamedTuple

from fer_vit.errors import FerVitError, short
from fer_vit.heads import HEADS, HeadOutputs

MAX_WEIGHT = 1e6  # largest weight of a head's loss


class SharedOutputs(NamedTuple):
    """The outputs of a head that both the model and the data have."""

    outputs: HeadOutputs
    of_model: list[int]  # their indices among the outputs of the model
    of_data: list[int]  # their indices among the outputs of the data


def choose_heads(data: HeadOutputs, weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the weight of each trained head; raises FerVitError if the data lacks a head."""
    for head, weight in weights.items():
        if not 0 <= weight <= MAX_WEIGHT:
            raise FerVitError(
                f"Expected the weight of {head} in `--model.head_weights` to be from 0 to "
                f"{MAX_WEIGHT:g}, but got {short(weight)}."
            )
        if head not in data.by_head:
            actual = ", ".join(data.by_head) or "no further head"
            raise FerVitError(
                f"Expected targets of {head} in the manifest (`--model.head_weights`), but it has "
                f"{actual}."
            )
    chosen = {head: weights.get(head, HEADS[head].weight) for head in data.by_head}
    return {head: weight for head, weight in chosen.items() if weight}


class HeadPlan(NamedTuple):
    """The further heads of a model, and which of their outputs are trained."""

    outputs: HeadOutputs  # of the model
    shared_outputs: dict[str, SharedOutputs]  # outputs of both model and data by head
    weights: dict[str, float]  # weight of the loss of each trained head


def plan_heads(
    outputs: HeadOutputs | None,
    data: HeadOutputs,
    start: HeadOutputs,
    weights: Mapping[str, float],
) -> HeadPlan:
    """Returns the heads of a model in training.

    Args:
        outputs: The model's outputs. None: the outputs of `start`, and of the heads that are
            trained.
        data: The outputs for which the data has targets.
        start: The outputs of the model from which the training starts.
        weights: The weights of the losses by head. Default: as in `HEADS`. 0 leaves a head out.

    Raises:
        FerVitError: A weight is out of range, or the data has no targets for its head.
    """
    trained = choose_heads(data, weights)
    if outputs is None:
        outputs = start.merged(data.of_head(*trained))
    shared = {}
    for head, of_head in outputs.shared(data).by_head.items():
        of_model = of_head.indices_in(outputs.of_head(head))
        of_data = of_head.indices_in(data.of_head(head))
        shared[head] = SharedOutputs(of_head, of_model, of_data)
    return HeadPlan(
        outputs=outputs,
        shared_outputs=shared,
        weights={head: weight for head, weight in trained.items() if head in shared},
    )
