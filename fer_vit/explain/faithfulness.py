"""How far an explanation can be trusted: does the prediction change as its scores say?

B images, T tokens, R regions, S crop size, C classes.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import ConstantInputWarning, spearmanr
from torch import Tensor
from torch.nn.functional import one_hot

from fer_vit.explain.methods import Control, Explanation, Method, explain, explain_each
from fer_vit.explain.regions import coverage, units
from fer_vit.explain.trace import Trace, drops, evaluating, masked_logits, trace
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout

STEPS = 10
"""Steps in which tokens or pixels are taken away."""
GROUPS = 5
"""Groups of tokens that SaCo compares; few, since a face may have as few as eight tokens."""

BETTER = {
    "deletion": -1,
    "insertion": 1,
    "pixel deletion": -1,
    "pixel insertion": 1,
    "region agreement": 1,
    "saco": 1,
}
"""The measures, and whether more (1) or less (-1) is better."""


@torch.no_grad()
def measure(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, methods: Sequence[Method | Control]
) -> dict[str, dict[str, Tensor]]:
    """Measures how well methods explain the predicted class of each face.

    * deletion, insertion: Petsiuk et al., "RISE" (BMVC 2018): mean probability of the class while tokens are masked,
      or restored, in tenths, the highest scores first. Low, or high, is good.
    * pixel deletion, pixel insertion: the same with pixels, replaced by those of a blurred face.
    * region agreement: Spearman's rank correlation of the regions' shares with the fall of the logit when each is
      masked.
    * saco: Wu et al., "On the Faithfulness of Vision Transformer Explanations" (CVPR 2024), with tokens instead of
      pixels: whether groups with a higher mean score change the probability more, weighted by how much higher, in
      [-1, 1]. NaN for faces with fewer tokens than groups.

    Arguments as for `explain`.

    Returns:
        By method, each measure (B,) by the names of `BETTER`; NaN for a face that has none.
    """
    seen = trace(net, image, boxes, valid)
    label = seen.logits.argmax(-1)
    faces = _Faces(net, seen, image, blur(image), boxes.masked_fill(~valid[..., None], 0.0), valid, label)
    with evaluating(net):
        falls = drops(net, seen.tokens, units(net.layout, seen.membership))[torch.arange(len(label)), :, label]
        return {method: _measures(faces, explain_each(net, seen, method)[0], falls) for method in methods}


class _Faces(NamedTuple):
    """Faces whose tokens or pixels are hidden, to see what is left of the class that was predicted."""

    net: RegionViT
    seen: Trace
    image: Tensor
    blurred: Tensor
    boxes: Tensor
    valid: Tensor
    label: Tensor

    def probability(self, logits: Tensor) -> Tensor:
        """The probability of the class (B,)."""
        return self.net.probabilities(logits).gather(1, self.label[:, None])[:, 0]

    def masked(self, hidden: Tensor) -> Tensor:
        """The probability (B,) without the tokens that are `hidden` (B, T)."""
        return self.probability(masked_logits(self.net, self.seen.tokens, hidden))

    def shown(self, keep: Tensor) -> Tensor:
        """The probability (B,) with all pixels blurred except for those to `keep` (B, S, S)."""
        image = torch.where(keep[:, None], self.image, self.blurred)
        return self.probability(self.net(image, self.boxes, self.valid))


def _measures(faces: _Faces, found: Explanation, falls: Tensor) -> dict[str, Tensor]:
    """Returns each measure of an explanation; `falls` (B, R) says how much the logit falls without each region."""
    net, steps = faces.net, [step / STEPS for step in range(STEPS + 1)]
    there = _located(net, found.scores, faces.seen.tokens.valid)
    count = there.sum(1, keepdim=True)
    ranks = _ranks(found.scores.masked_fill(~there, -torch.inf))  # missing tokens come last
    rank = ranks / count.clamp(min=1)  # in [0, 1]
    pixels = pixel_scores(net.layout, net.patch_size, found.scores, faces.boxes, net.config.img_size)
    pixel_rank = _ranks(pixels.flatten(1)).view_as(pixels) / pixels[0].numel()
    groups = [(ranks * GROUPS // count.clamp(min=1) == i) & there for i in range(GROUPS)]
    salience = torch.stack([(found.scores * group).sum(1) / group.sum(1).clamp(min=1) for group in groups], 1)
    intact = faces.probability(faces.seen.logits)
    effect = torch.stack([intact - faces.masked(group) for group in groups], 1)
    return {
        "deletion": _area([faces.masked((rank < step) & there) for step in steps]),
        "insertion": _area([faces.masked((rank >= step) & there) for step in steps]),
        "pixel deletion": _area([faces.shown(pixel_rank >= step) for step in steps]),
        "pixel insertion": _area([faces.shown(pixel_rank < step) for step in steps]),
        "region agreement": spearman(found.shares, falls, faces.valid),
        "saco": torch.where(count[:, 0] >= GROUPS, saco(salience, effect), torch.nan),
    }


def pixel_scores(layout: TokenLayout, patch_size: int, scores: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Spreads every token's score (B, T) evenly over the pixels (B, S, S) that it was cut from.

    Where tokens overlap, they add up. Boxes of regions (B, R, 4) are xyxy in crop pixels; `size` is S.
    """
    pixels = scores.new_zeros(len(scores), size, size)
    if layout.num_patches:
        heat = layout.patch_map(scores) / patch_size**2
        pixels += heat.repeat_interleave(patch_size, 1).repeat_interleave(patch_size, 2)
    if layout.num_regions:
        k = layout.region_grid
        cells = scores[:, layout.regions].view(len(scores), -1, k, k)
        start, side = boxes[..., :2], (boxes[..., 2:] - boxes[..., :2]) / k
        for row, column in np.ndindex(k, k):
            corner = start + side * side.new_tensor([column, row])
            covered = coverage((size, size), 1, torch.cat([corner, corner + side], -1))  # (B, R, S S)
            density = cells[:, :, row, column] / covered.sum(-1).clamp(min=1)
            pixels += (density[:, None] @ covered).view_as(pixels)
    return pixels


def saco(salience: Tensor, effect: Tensor) -> Tensor:
    """Salience-guided faithfulness coefficient (B,) of groups (B, G) in the order of their scores, highest first."""
    more = salience[:, :, None] - salience[:, None]  # (B, G, G)
    agree = torch.where(effect[:, :, None] >= effect[:, None], 1.0, -1.0)
    weight = more.abs().triu(1)
    total = weight.sum((1, 2))
    return torch.where(total > 0, (more * agree).triu(1).sum((1, 2)) / total.clamp(min=1e-12), torch.nan)


def spearman(a: Tensor, b: Tensor, valid: Tensor) -> Tensor:
    """Rank correlation (B,) of values (B, R) where valid (B, R); NaN for fewer than three or without spread."""
    rows = zip(*(values.double().cpu().numpy() for values in (a, b)), valid.cpu().numpy(), strict=True)
    with warnings.catch_warnings(action="ignore", category=ConstantInputWarning):
        found = [spearmanr(x[there], y[there]).statistic if there.sum() > 2 else np.nan for x, y, there in rows]
    return torch.tensor(found, dtype=torch.float64)


@torch.no_grad()
def randomised(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: Method | Control, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Sanity check: does the explanation change when the model forgets what it learned?

    Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018): the weights of the classifier, the pooling, and
    block after block from the last to the first are shuffled. A method whose explanation stays the same explains the
    faces, not the model.

    Yields:
        What was shuffled last, and the rank correlation (B,) of the tokens' scores with those of the intact model, for
        the class that the intact model predicts.
    """
    intact = explain(net, image, boxes, valid, method)
    label = intact.probabilities.argmax(-1)
    direction = one_hot(label, intact.probabilities.shape[1]).float()
    there = _located(net, intact.scores, net.tokenize(image, boxes, valid).valid)
    shuffled = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)
    blocks = [(f"block {number}", block) for number, block in enumerate(shuffled.vit.blocks)]
    for name, module in [("classifier", shuffled.vit.head), ("pooling", shuffled.pool), *reversed(blocks)]:
        if not (parameters := list(module.parameters())):  # not every pooling has parameters
            continue
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
        scores = explain(shuffled, image, boxes, valid, method, direction).scores
        yield name, spearman(intact.scores, scores, there)


def _located(net: RegionViT, scores: Tensor, valid: Tensor | None) -> Tensor:
    """Which tokens (B, T) are present and have a position in the face, unlike class and register tokens."""
    located = torch.ones_like(scores, dtype=torch.bool) if valid is None else valid.clone()
    located[:, : net.layout.num_prefix] = False
    return located


def blur(image: Tensor) -> Tensor:
    """Blurs faces (B, 3, S, S) beyond recognition, by a Gaussian with a sigma of an eighth of their side."""
    size = image.shape[-1]
    at = torch.arange(size, device=image.device)
    weights = (-((at[:, None] - at) / (size / 8)).square() / 2).exp()
    weights = (weights / weights.sum(1, keepdim=True)).to(image.dtype)
    return weights @ image @ weights.T


def _ranks(values: Tensor) -> Tensor:
    """0 for the highest value of each row (B, M), M - 1 for the lowest; ties are broken at random."""
    mixed = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)
    ranks: Tensor = values[:, mixed].argsort(dim=1, descending=True, stable=True).argsort(1)
    return ranks[:, mixed.argsort()]


def _area(curve: list[Tensor]) -> Tensor:
    return torch.trapezoid(torch.stack(curve), dx=1 / (len(curve) - 1), dim=0)
