"""Starting a training from a trained model: copied weights, frozen parts."""

from collections.abc import Mapping
from dataclasses import asdict
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
    """Returns the arguments of another model that are defaults of `FERTask`."""
    template = settings.get("template") or TEMPLATE
    return {"network": settings["config"], "align": settings.get("align", "landmarks"), "template": template}


@torch.no_grad()
def take_weights(net: RegionViT, settings: dict[str, Any], state: dict[str, Tensor], name: str | Path) -> str:
    """Copies the tensors of another network that fit, and the rows of the head for labels that both have.

    Computed positions and heads of another kind are not copied.

    Args:
        net: The network to start.
        settings: Config and labels of the other network; without labels it has no head.
        state: State dict of the other network.
        name: Its name in messages.

    Returns:
        A line for the user: copied and other tensors, different settings.

    Raises:
        FerVitError: Less than nine tenths of the encoder's tensors fit, or some are not finite.
    """
    known = list(settings["labels"]) if settings["config"].pool == net.config.pool else []
    kept = [label for label in net.settings.labels if label in known]
    computed = [key for key, value in net.named_parameters() if not value.requires_grad]
    here = {key: value for key, value in net.state_dict().items() if key not in computed}
    there = {key: value for key, value in state.items() if key not in computed}
    encoder = [key for key in here if _in_encoder(key)]
    fitting = [key for key in encoder if key in there and there[key].shape == here[key].shape]
    why = _describe_differences(net, settings, here, there)
    if len(fitting) < 0.9 * len(encoder):
        raise FerVitError(
            f"Expected nine tenths of the encoder to fit {name}, but only {len(fitting)} of {len(encoder)} tensors "
            f"do{why}. Leave out the options of the network, or choose another model."
        )
    head = [key for key in here if not _in_encoder(key) and key in there] if kept else []
    if bad := next((key for key in fitting + head if not there[key].isfinite().all()), None):
        raise FerVitError(f"{name} holds weights that are not finite (`{bad}`), as after training that diverged.")
    for key in fitting + head:
        if key in ROWS:
            for label in kept:
                here[key][net.settings.labels.index(label)] = there[key][known.index(label)]
        else:
            here[key].copy_(there[key])
    new = [label for label in net.settings.labels if label not in kept]
    classes = [f"kept {', '.join(kept)}"] * bool(kept) + [f"new {', '.join(new)}"] * bool(new)
    return f"Started from {name}: {len(fitting)} of {len(encoder)} tensors of the encoder; {'; '.join(classes)}{why}."


def _describe_differences(
    net: RegionViT, settings: dict[str, Any], here: Mapping[str, Tensor], there: Mapping[str, Tensor]
) -> str:
    """Describes the tensors of the encoder that are not copied, and different settings; empty if none."""
    kinds = [f"{key} ({other} there, {own} here)" for key, own, other in differing(here, there) if _in_encoder(key)]
    before, now = asdict(settings["config"]), asdict(net.config)
    changed = [name for name in now if name != "pretrained" and before[name] != now[name]]
    more = f" and {len(kinds) - 3} more" * (len(kinds) > 3)
    return f"; not copied: {', '.join(kinds[:3])}{more}" * bool(kinds) + (
        f"; different settings: {', '.join(changed)}" * bool(changed)
    )


def _in_encoder(name: str) -> bool:
    return not name.startswith(HEAD)


def is_frozen(name: str, freeze: Freeze) -> bool:
    """Whether a parameter or module does not learn: in the patch embeddings, or anywhere before the head."""
    return {"none": False, "stem": "patch_embed" in name, "encoder": _in_encoder(name)}[freeze]
