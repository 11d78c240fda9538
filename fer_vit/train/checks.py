"""Checks before a training that heads have targets, and that the best epoch can be chosen."""

from collections.abc import Mapping, Sequence

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.train.metrics import EXPRESSION_METRICS, log_name
from fer_vit.train.trained_heads import TrainedHead
from fer_vit.wording import list_names


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


def check_monitored(manifest: Manifest, monitored: set[str], trained: Sequence[str]) -> None:
    """Raises FerVitError when the best epoch cannot be chosen.

    Args:
        manifest: The faces.
        monitored: The names of the metrics that callbacks compare to save checkpoints.
        trained: The further heads that are trained.
    """
    for name in monitored:
        head = str(name).removeprefix("val/").partition("_")[0]
        if head in HEADS and head not in trained:
            names = ", ".join((EXPRESSION, *trained))
            raise FerVitError(
                f"{name} is monitored, but {head} is not trained, only {names}. Choose another "
                "measure by `--checkpoint.monitor`, or add targets."
            )
    lacking = monitored & {f"val/{name}" for name in EXPRESSION_METRICS}
    if lacking and not manifest.split("val").has_labels:
        remedy = "Add labelled faces by `fer-vit prepare --add`."
        if trained:
            head = trained[0]
            measure = f"val/{log_name(head, HEADS[head].measures[0])}"
            remedy = (
                "Choose the best epoch by another measure, such as "
                f"`--checkpoint.monitor {measure}`."
            )
        raise FerVitError(
            f"{manifest.path} has no val face with a label, so {min(lacking)} does not "
            f"exist. {remedy}"
        )
