"""Measures of faithfulness: how closely a prediction follows the scores of an explanation.

B images, T tokens, R regions, S crop size, C classes.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import ConstantInputWarning, spearmanr
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fer_vit.explain.attribution import Explanation, blur, explain, explain_each, inside
from fer_vit.explain.methods import MEASURED, find_method
from fer_vit.explain.trace import (
    Trace,
    evaluating,
    masked_outputs,
    output_decreases,
    region_units,
    trace,
)
from fer_vit.model.attention import located_tokens
from fer_vit.model.region_vit import RegionViT

# The fractions of tokens or pixels that are removed, or restored, in the points of a curve.
FRACTIONS = [tenths / 10 for tenths in range(11)]

# How many groups of tokens SaCo compares. Few, since a face may have only eight tokens.
TOKEN_GROUPS = 5

BASELINES: dict[str, Callable[[Tensor], Tensor]] = {  # the images that replace removed pixels
    "blurred": blur,
    "mean colour": lambda image: image.mean((2, 3), keepdim=True).expand_as(image),
}

# Whether a higher (1) or a lower (-1) value of each measure is better. Names include the baseline.
BETTER = {
    "pixel deletion, blurred": -1,
    "pixel insertion, blurred": 1,
    "pixel deletion, mean colour": -1,
    "pixel insertion, mean colour": 1,
    "deletion": -1,
    "insertion": 1,
    "region agreement": 1,
    "saco": 1,
}


@torch.no_grad()
def measure_methods(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, methods: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """Measures how well methods explain the predicted class of each face.

    * deletion, insertion: Petsiuk et al., "RISE" (BMVC 2018): the mean probability of the class
      while tokens are masked, or restored, in tenths, the highest scores first.
    * pixel deletion, pixel insertion: the same, with pixels that a baseline replaces instead of
      tokens. Only pixels under a token count. 0 is the probability with all these pixels replaced,
      1 the probability of the whole face. NaN for a face that keeps more than half of its
      probability when all these pixels are replaced: an explanation has little to explain.
    * region agreement: Spearman's rank correlation between the regions' shares and the falls of the
      logit when a region is masked.
    * saco: Wu et al., "On the Faithfulness of Vision Transformer Explanations" (CVPR 2024), with
      tokens instead of pixels, in [-1, 1]: whether groups of tokens with a higher mean score change
      the probability more, weighted by the difference of the scores. NaN for faces with fewer
      tokens than groups.

    Returns:
        The measures (B,) by method, and by name in `BETTER`.
    """
    traced = trace(net, image, boxes, valid)
    label = traced.logits.argmax(-1)  # (B,)
    direction = one_hot(label, traced.logits.shape[1]).float()  # (B, C)
    faces = _TracedFaces(net, traced, label)
    result = {}
    with evaluating(net):
        regions = region_units(net.layout, traced.membership)  # (B, R, T)
        all_decreases = output_decreases(net, traced.tokens, regions)  # (B, R, O)
        decreases = all_decreases[torch.arange(len(label)), :, label]  # (B, R)
        for method in methods:
            draws = find_method(method, MEASURED).draws
            explanations = explain_each(net, traced, method, direction.expand(draws, -1, -1))
            measured = [_measures(faces, explanation, decreases) for explanation in explanations]
            result[method] = _mean_measures(measured)
    return result


def _mean_measures(measured: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean (B,) of each measure over several explanations."""
    means = {}
    for name in BETTER:
        values = torch.stack([measures[name] for measures in measured])  # (draws, B)
        means[name] = values.mean(0)
    return means


class _TracedFaces(NamedTuple):
    """Traced faces, with the probability (B,) of the predicted class of each face."""

    net: RegionViT
    traced: Trace
    label: Tensor  # (B,), the predicted class

    def probability(self, logits: Tensor) -> Tensor:
        """Returns the probability (B,) of the predicted class by logits (B, C)."""
        return self.net.probabilities(logits).gather(1, self.label[:, None])[:, 0]

    def probability_without(self, hidden: Tensor) -> Tensor:
        """Returns the probability (B,) when the tokens `hidden` (B, T) are masked."""
        outputs = masked_outputs(self.net, self.traced.tokens, hidden)  # (B, O)
        return self.probability(outputs[:, : self.traced.logits.shape[1]])

    def probability_with_pixels(self, keep: Tensor, baseline: Tensor) -> Tensor:
        """Returns the probability (B,) when a baseline replaces all pixels but `keep` (B, S, S)."""
        image = torch.where(keep[:, None], self.traced.image, baseline)
        return self.probability(self.net.logits(image, self.traced.boxes, self.traced.valid))


def _measures(
    faces: _TracedFaces, explanation: Explanation, decreases: Tensor
) -> dict[str, Tensor]:
    """Returns each measure (B,) of an explanation, by name in `BETTER`.

    `decreases` (B, R) holds how far the logit falls when each region is masked.
    """
    scores = explanation.scores  # (B, T)
    located = located_tokens(faces.traced.tokens, faces.net.layout.num_prefix)  # (B, T)
    count = located.sum(1, keepdim=True)  # (B, 1)

    # ranks from 0; tokens that are not located come last
    ranks = _ranks(scores.masked_fill(~located, -torch.inf))  # (B, T)
    relative_ranks = ranks / count.clamp(min=1)  # (B, T), in [0, 1) for located tokens
    groups = []
    for number in range(TOKEN_GROUPS):
        group = (ranks * TOKEN_GROUPS // count.clamp(min=1) == number) & located  # (B, T)
        groups.append(group)

    # the mean score of each group, and the decrease of the probability without the group
    intact = faces.probability(faces.traced.logits)  # (B,)
    group_scores = [(scores * group).sum(1) / group.sum(1).clamp(min=1) for group in groups]
    group_decreases = [intact - faces.probability_without(group) for group in groups]
    coefficient = saco(torch.stack(group_scores, 1), torch.stack(group_decreases, 1))  # (B,)

    deletion = []
    insertion = []
    for fraction in FRACTIONS:
        first = relative_ranks < fraction  # (B, T), the tokens with the highest scores
        deletion.append(faces.probability_without(first & located))
        insertion.append(faces.probability_without(~first & located))
    return {
        **_pixel_measures(faces, explanation.heat),
        "deletion": _area(torch.stack(deletion)),
        "insertion": _area(torch.stack(insertion)),
        "region agreement": spearman(explanation.shares, decreases, faces.traced.valid),
        "saco": torch.where(count[:, 0] >= TOKEN_GROUPS, coefficient, torch.nan),
    }


def _pixel_measures(faces: _TracedFaces, heat: Tensor) -> dict[str, Tensor]:
    """Returns deletion and insertion (B,) of pixels for each baseline, by `heat` (B, S, S)."""
    traced = faces.traced
    is_seen = inside(traced.where, traced.image.shape[-1]).any(1)  # (B, S, S), under a token

    # in [0, 1) for pixels under a token, 1 or more for all other pixels
    ranks = _ranks(heat.masked_fill(~is_seen, -torch.inf).flatten(1)).view_as(heat)
    relative_ranks = ranks / is_seen.sum((1, 2), keepdim=True).clamp(min=1)

    measures = {}
    whole = faces.probability_with_pixels(torch.ones_like(is_seen), traced.image)  # (B,)
    for name, baseline in BASELINES.items():
        replacement = baseline(traced.image)  # (B, 3, S, S)
        empty = faces.probability_with_pixels(~is_seen, replacement)  # (B,)
        deleted = [whole]
        inserted = [empty]
        for fraction in FRACTIONS[1:-1]:
            first = relative_ranks < fraction  # (B, S, S), the pixels with the highest scores
            deleted.append(faces.probability_with_pixels(~first, replacement))
            inserted.append(faces.probability_with_pixels(first | ~is_seen, replacement))
        deleted.append(empty)
        inserted.append(whole)
        has_fallen = empty <= whole / 2  # (B,), see `measure_methods`
        for curve, probabilities in (("deletion", deleted), ("insertion", inserted)):
            area = _area(torch.stack(probabilities))  # (B,)
            relative_area = (area - empty) / (whole - empty)  # (B,)
            measures[f"pixel {curve}, {name}"] = torch.where(has_fallen, relative_area, torch.nan)
    return measures


def saco(salience: Tensor, decreases: Tensor) -> Tensor:
    """Returns the salience-guided faithfulness coefficient (B,) of G groups of tokens.

    `salience` (B, G) is the mean score of each group, highest first. `decreases` (B, G) holds how
    far the probability falls without each group.
    """
    difference = salience[:, :, None] - salience[:, None]  # (B, G, G)
    agree = torch.where(decreases[:, :, None] >= decreases[:, None], 1.0, -1.0)
    agreement = (difference * agree).triu(1).sum((1, 2))  # (B,)
    total = difference.abs().triu(1).sum((1, 2))
    return torch.where(total > 0, agreement / total.clamp(min=1e-12), torch.nan)


def spearman(a: Tensor, b: Tensor, valid: Tensor) -> Tensor:
    """Returns the rank correlation (B,) between values (B, R) of two kinds, where `valid` (B, R).

    NaN for fewer than three values, or if all values of a kind are equal.
    """
    first = a.double().cpu().numpy()
    second = b.double().cpu().numpy()
    present = valid.cpu().numpy()
    correlations = []
    with warnings.catch_warnings(action="ignore", category=ConstantInputWarning):
        for x, y, mask in zip(first, second, present, strict=True):
            correlation = np.nan
            if mask.sum() > 2:
                correlation = spearmanr(x[mask], y[mask]).statistic
            correlations.append(correlation)
    return torch.tensor(correlations, dtype=torch.float64)


@torch.no_grad()
def randomised(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: str, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Compares explanations while more and more weights of the model are shuffled: a sanity check.

    Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018). The classifier is shuffled
    first, then the pooling, each block from the last to the first, and the embeddings.

    Yields:
        The name of the part that was shuffled last, and the rank correlation (B,) of the tokens'
        scores with the scores by the intact model, for the class that the intact model predicts.
    """
    intact = explain(net, image, boxes, valid, method)
    label = intact.probabilities.argmax(-1)  # (B,)
    direction = one_hot(label, intact.probabilities.shape[1]).float()  # (B, C)
    located = located_tokens(net.tokenize(image, boxes, valid), net.layout.num_prefix)  # (B, T)

    # The copy is shuffled part by part, from the output to the input.
    shuffled = copy.deepcopy(net)
    modules: dict[str, nn.Module] = {"classifier": shuffled.vit.head, "pooling": shuffled.pool}
    for number in reversed(range(len(shuffled.vit.blocks))):
        modules[f"block {number}"] = shuffled.vit.blocks[number]
    modules["embeddings"] = shuffled  # the whole network, so all other parts are shuffled again

    generator = torch.Generator().manual_seed(seed)
    for name, module in modules.items():
        parameters = list(module.parameters())
        if not parameters:  # some poolings have no parameters
            continue
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
        scores = explain(shuffled, image, boxes, valid, method, direction).scores
        yield name, spearman(intact.scores, scores, located)


def _ranks(values: Tensor) -> Tensor:
    """Returns the ranks (B, M) in each row of values (B, M), 0 = highest; ties in random order."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randperm(values.shape[1], generator=generator).to(values.device)  # (M,)
    ranks: Tensor = values[:, mixed].argsort(dim=1, descending=True, stable=True).argsort(1)
    return ranks[:, mixed.argsort()]


def _area(curve: Tensor) -> Tensor:
    """Returns the area (B,) under curves (11, B) over `FRACTIONS`."""
    return torch.trapezoid(curve, dx=1 / (len(FRACTIONS) - 1), dim=0)
