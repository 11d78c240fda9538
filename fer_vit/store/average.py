"""Averages the weights of several models, for `export` with several checkpoints."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fer_vit.errors import ModelError
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import load_network


def average_networks(checkpoints: Sequence[str]) -> RegionViT:
    """Returns a network with the mean weights of several models, for example of several seeds.

    This is a "model soup" (Wortsman et al. 2022). Counters and `standardize` are from the first
    model. The average has neither calibration nor logit adjustment.

    Raises:
        FerVitError: A model cannot be loaded, or its architecture, labels or crops differ from the
            first model's.
    """
    nets = [load_network(checkpoint) for checkpoint in checkpoints]
    first = nets[0]
    for checkpoint, net in zip(checkpoints[1:], nets[1:], strict=True):
        net.config = replace(net.config, standardize=first.config.standardize)
        same = {"config": net.config == first.config}
        for field in ("labels", "outputs", "align", "template", "evened"):
            same[field] = getattr(net.settings, field) == getattr(first.settings, field)
        for field, equal in same.items():
            if not equal:
                raise ModelError(
                    f"{checkpoint} has another {field} than {checkpoints[0]}. "
                    "Average models of one configuration."
                )

    states = [net.state_dict() for net in nets]
    for key, value in states[0].items():
        if value.is_floating_point():
            weights = torch.stack([state[key].double() for state in states])
            value.copy_(weights.mean(0))

    # temperature, thresholds and adjustment were fitted to the logits of one model
    first.settings.temperature = 1.0
    first.settings.thresholds = {}
    first.adjust((), 0)
    return first
