"""What a prediction loses when tokens are masked: exact, because the model has a mask for what is not there.

B images, C classes, T tokens, U units: sets of tokens that are masked together.
"""

import torch
from torch import Tensor

from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import Tokens


def masked_logits(net: RegionViT, tokens: Tokens, hidden: Tensor) -> Tensor:
    """Logits (B, C) without the tokens that are `hidden` (B, T); class and register tokens always stay."""
    hidden = hidden.clone()
    hidden[:, : net.layout.num_prefix] = False
    valid = ~hidden if tokens.valid is None else tokens.valid & ~hidden
    return net.forward_head(net.forward_features(tokens._replace(valid=valid))).float()


def drops(net: RegionViT, tokens: Tokens, units: Tensor) -> Tensor:
    """How much the logits fall when each unit is masked alone.

    Args:
        net: The model, in evaluation mode.
        tokens: What enters its encoder.
        units: Which tokens belong to each unit (B, U, T).

    Returns:
        Falls (B, U, C), negative where a logit rises.
    """
    # Not the logits of a trace: other kernels may have computed them, and in bfloat16 the difference would count.
    intact = net.forward_head(net.forward_features(tokens)).float()
    falls = [intact - masked_logits(net, tokens, unit) for unit in units.unbind(1)]
    return torch.stack(falls, dim=1) if falls else intact.new_zeros(len(intact), 0, intact.shape[1])
