"""Averages the weights of several models, for `export` with several checkpoints."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fer_vit.errors import ModelError
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.model_folder import load_network

# Smallest cosine similarity of the first blocks of models that are averaged. Measured with the
# config `drawn` on 280 drawn faces: separate seeds -0.001 to 0.000; epochs 4 to 22 of one run 0.97
# to 1.00; a model and two runs of 10 epochs from it with other seeds 0.98; one seed with learning
# rates of 3e-4 and 1e-3 0.95. Two fine-tunes of the default model by the config `finetune` (12
# steps): 1.00.
MIN_KINSHIP = 0.5


def average_networks(checkpoints: Sequence[str]) -> RegionViT:
    """Returns a network with the mean weights of related models.

    This is a "model soup" (Wortsman et al. 2022): epochs of one run, or runs that started from the
    same model. Counters and `standardize` are from the first model. The average has neither
    calibration nor logit adjustment.

    Raises:
        FerVitError: A model cannot be loaded; its architecture, labels or crops differ from the
            first model's; or its weights are not related to the first model's.
    """
    nets = [load_network(checkpoint) for checkpoint in checkpoints]
    first = nets[0]
    for checkpoint, net in zip(checkpoints[1:], nets[1:], strict=True):
        net.config = replace(net.config, standardize=first.config.standardize)
        same = {"config": net.config == first.config}
        for field in ("labels", "outputs", "crop", "evened"):
            same[field] = getattr(net.settings, field) == getattr(first.settings, field)
        for field, equal in same.items():
            if not equal:
                raise ModelError(
                    f"{checkpoint} has a different {field} from {checkpoints[0]}. "
                    "Average models of one configuration."
                )
        # of the matrices alone: the weights of norms are near 1 in every network
        similarity = float(torch.cosine_similarity(_first_block(first), _first_block(net), dim=0))
        if similarity < MIN_KINSHIP:
            raise ModelError(
                f"{checkpoint} and {checkpoints[0]} are separate trainings (cosine of their first "
                f"blocks {similarity:.2f}, expected {MIN_KINSHIP} or more): their average would "
                "guess. Average epochs of one run, or runs with the same `--model.init`."
            )

    states = [net.state_dict() for net in nets]
    for key, value in states[0].items():
        if value.is_floating_point():
            weights = torch.stack([state[key].double() for state in states])
            value.copy_(weights.mean(0))

    # these were fitted to, or measured with, the weights of one model
    first.settings.temperature = 1.0
    first.settings.thresholds = {}
    first.settings.outputs = first.settings.outputs.with_r({})
    first.adjust((), 0)
    return first


def _first_block(net: RegionViT) -> Tensor:
    """Returns the matrices of the first block as one vector."""
    matrices = [
        value.double().flatten() for value in net.vit.blocks[0].parameters() if value.ndim > 1
    ]
    return torch.cat(matrices)
