"""Tokens without content, for masked pretraining.

B images, M tokens, D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Cover(NamedTuple):
    """Patch and region tokens whose content is hidden, but not their positions.

    Attributes:
        hidden: True for hidden tokens (B, M), patches before regions.
        token: What stands in for them (D,).
    """

    hidden: Tensor
    token: Tensor

    def over(self, x: Tensor, first: int) -> Tensor:
        """Covers the embeddings (B, m, D) of m tokens from the one with index `first` on."""
        return torch.where(self.hidden[:, first : first + x.shape[1], None], self.token.to(x.dtype), x)
