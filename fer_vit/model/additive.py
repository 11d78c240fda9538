"""Additive output heads: each output is a sum of a term of the face and terms of the regions.

B images, T tokens, D width, R regions of k x k tokens, K outputs of a head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fer_vit.model.tokens import TokenLayout, Tokens


class Terms(NamedTuple):
    """The parts that add up to the raw outputs of an additive head."""

    bias: Tensor  # (K,)
    face: Tensor  # (B, K), the term of the mean of all tokens
    regions: Tensor  # (B, R, K), the term of each region; 0 for a missing region


class AdditiveHead(nn.Module):
    """Adds up a bias, a term of the face and a term of each region for each output.

    Output k is b_k + p_k . mean of all tokens + the sum over regions r of w_rk . x_r. Tokens have
    exchanged information in the encoder: the term of a region is not what hiding the region would
    change.
    """

    def __init__(self, outputs: int, regions: Sequence[str], layout: TokenLayout, dim: int) -> None:
        super().__init__()
        self.layout = layout
        self.region_names = tuple(regions)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.by_face = nn.Parameter(0.01 * torch.randn(dim, outputs))
        weights = {}
        for name in regions:
            weights[name] = 0.01 * torch.randn(layout.tokens_per_region, dim, outputs)
        self.by_region = nn.ParameterDict(weights)  # sorted by name

    def terms(self, tokens: Tokens) -> Terms:
        """Returns the terms of encoded tokens."""
        # N' <= N: hard attention may have removed patches
        located = tokens.x[:, self.layout.num_prefix :]  # (B, N' + R k^2, D)
        present = tokens.present()[:, self.layout.num_prefix :, None]  # (B, N' + R k^2, 1)
        present = present.to(located.dtype)
        located = located * present  # 0 for missing tokens
        mean = located.sum(1) / present.sum(1).clamp(min=1.0)  # (B, D)
        face_term = mean @ self.by_face  # (B, K)
        if not self.region_names:
            no_terms = face_term.new_zeros(face_term.shape[0], 0, face_term.shape[1])
            return Terms(self.bias, face_term, no_terms)

        regions = len(self.region_names)
        per_region = self.layout.tokens_per_region
        region_tokens = located[:, -regions * per_region :]  # (B, R k^2, D)
        region_tokens = region_tokens.reshape(located.shape[0], regions, per_region, -1)
        # (R, k^2, D, K)
        weights = torch.stack([self.by_region[name] for name in self.region_names])
        region_terms = torch.einsum("brtd,rtdk->brk", region_tokens, weights)
        return Terms(self.bias, face_term, region_terms)

    def forward(self, tokens: Tokens) -> Tensor:
        """Returns the raw outputs (B, K) of encoded tokens."""
        terms = self.terms(tokens)
        return terms.bias + terms.face + terms.regions.sum(1)
