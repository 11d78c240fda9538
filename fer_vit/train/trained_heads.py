"""The further heads of a model in training: the outputs that model and data share, and weights."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, short
from fer_vit.heads import HEADS, HeadOutputs
from fer_vit.wording import list_names

MAX_WEIGHT = 1e6  # largest weight of a head's loss


class TrainedHead(NamedTuple):
    """The outputs of a head that both the model and the data have, and how much they count."""

    outputs: HeadOutputs
    of_model: list[int]  # their indices among the head's outputs of the model
    of_data: list[int]  # their indices among the head's outputs of the data
    weight: float  # the weight of the loss


def plan_heads(
    outputs: HeadOutputs | None,
    data: HeadOutputs,
    start: HeadOutputs,
    weights: Mapping[str, float],
) -> tuple[HeadOutputs, dict[str, TrainedHead]]:
    """Returns the outputs of a model in training, and the heads that are trained, by name.

    Args:
        outputs: The model's outputs. None: the outputs of `start`, and of the heads that are
            trained.
        data: The outputs for which the data has targets.
        start: The outputs of the model from which the training starts.
        weights: The weights of the losses by head. Default: as in `HEADS`. 0 leaves a head out.

    Raises:
        FerVitError: A weight is out of range, or the data has no targets for its head.
    """
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
    used = {head: weights.get(head, HEADS[head].weight) for head in data.by_head}
    learned = data.of_head(*(head for head, weight in used.items() if weight))
    if outputs is None:
        outputs = start.merged(learned)
    trained = {}
    for head, shared in outputs.shared(learned).by_head.items():
        of_model = shared.indices_in(outputs.of_head(head))
        of_data = shared.indices_in(data.of_head(head))
        trained[head] = TrainedHead(shared, of_model, of_data, used[head])
    return outputs, trained


def check_learnable(
    manifest: Manifest, trained: Mapping[str, TrainedHead], *, has_teachers: bool
) -> None:
    """Raises FerVitError when a head or the expression has no targets.

    Args:
        manifest: The faces.
        trained: The further heads that are trained.
        has_teachers: Whether other models predict the expression of the training faces.
    """
    train = manifest.split("train")
    if not len(train):  # a user's data module reads them elsewhere
        return
    targets = train.head_targets()
    for head, of_head in trained.items():
        empty = []
        for output, index in zip(of_head.outputs, of_head.of_data, strict=True):
            if np.isnan(targets[head][:, index]).all():
                empty.append(output.column)
        if empty:
            raise FerVitError(
                f"{manifest.path}: expected training faces with targets of {head}, but they "
                f"have none of {list_names(empty, limit=6)}. Prepare it without these columns, "
                f"or give {head} a weight of 0 in `--model.head_weights`."
            )
    if not (train.has_labels or has_teachers):
        raise FerVitError(
            f"{manifest.path} has no training face with a label, so expressions would be "
            "predicted at random. Add labelled faces by `fer-vit prepare --add`, or a teacher "
            "by `--model.teachers`."
        )
