"""Starting a training from a trained model: which of its weights are taken, and which stay as they are."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.geometry import TEMPLATE
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import differing

Freeze = Literal["none", "stem", "encoder"]
HEAD = ("pool", "vit.head")
ROWS = ("vit.head.weight", "vit.head.bias", "pool.query")
"""Tensors with a row for each label."""


def model_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what `FERTask` takes from the arguments of another `RegionViT` unless told otherwise."""
    template = tuple((x, y) for x, y in settings.get("template", ())) or TEMPLATE
    return {"network": settings["config"], "align": settings.get("align", "landmarks"), "template": template}


@torch.no_grad()
def take_weights(net: RegionViT, settings: dict[str, Any], state: dict[str, Tensor], name: str | Path) -> str:
    """Copies every tensor of another network that fits, and of its head the rows of the labels that both have.

    Positions that are computed are not copied, and nothing of a head of another kind.

    Args:
        net: The network that is to start.
        settings: Arguments of `RegionViT` for the other; without labels it has no head.
        state: The other's state dict.
        name: What messages call the other.

    Returns:
        A line that says what was taken, what was not, and why.

    Raises:
        FerVitError: Less than nine tenths of the encoder's tensors fit, or some are not finite.
    """
    known = list(settings["labels"]) if settings["config"].head == net.config.head else []
    kept = [label for label in net.labels if label in known]
    computed = [key for key, value in net.named_parameters() if not value.requires_grad]
    mine = {key: value for key, value in net.state_dict().items() if key not in computed}
    theirs = {key: value for key, value in state.items() if key not in computed}
    encoder = [key for key in mine if not key.startswith(HEAD)]
    fitting = [key for key in encoder if key in theirs and theirs[key].shape == mine[key].shape]
    why = _why_not(net, settings, mine, theirs)
    if len(fitting) < 0.9 * len(encoder):
        raise FerVitError(
            f"Expected nine tenths of the encoder to fit {name}, but only {len(fitting)} of {len(encoder)} tensors "
            f"do{why}. Leave out the options of the network, or choose another model."
        )
    head = [key for key in mine if key.startswith(HEAD) and key in theirs] if kept else []
    if bad := next((key for key in fitting + head if not theirs[key].isfinite().all()), None):
        raise FerVitError(f"{name} holds weights that are not finite (`{bad}`), as after training that diverged.")
    for key in fitting + head:
        if key in ROWS:
            for label in kept:
                mine[key][net.labels.index(label)] = theirs[key][known.index(label)]
        else:
            mine[key].copy_(theirs[key])
    new = [label for label in net.labels if label not in kept]
    classes = [f"kept {', '.join(kept)}"] * bool(kept) + [f"new {', '.join(new)}"] * bool(new)
    return f"Started from {name}: {len(fitting)} of {len(encoder)} tensors of the encoder; {'; '.join(classes)}{why}."


def _why_not(net: RegionViT, settings: dict[str, Any], mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str:
    """Says which tensors of the encoder are not copied, and which settings differ; empty if none."""
    different = differing(mine, theirs)
    reasons = [f"{key} ({there} there, {here} here)" for key, here, there in different if not key.startswith(HEAD)]
    other = settings["config"]
    changed = [field.name for field in fields(other) if _differ(other, net.config, field.name)]
    parts = [f"not taken: {', '.join(reasons[:3])}" + f" and {len(reasons) - 3} more" * (len(reasons) > 3)]
    parts = parts * bool(reasons) + [f"settings of its own: {', '.join(changed)}"] * bool(changed)
    return "".join(f"; {part}" for part in parts)


def _differ(one: object, other: object, name: str) -> bool:
    first, second = getattr(one, name), getattr(other, name)
    return name != "pretrained" and (list(first) != list(second) if isinstance(first, tuple) else first != second)


def is_frozen(name: str, freeze: Freeze) -> bool:
    """Tells whether a parameter or module does not learn: in the patch embeddings, or anywhere before the head."""
    return {"none": False, "stem": "patch_embed" in name, "encoder": not name.startswith(HEAD)}[freeze]
