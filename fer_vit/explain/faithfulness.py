"""How far an explanation can be trusted: does the prediction change in line with its scores?

B images, T tokens, R regions, S crop size, C classes.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import ConstantInputWarning, spearmanr
from torch import Tensor
from torch.nn.functional import one_hot

from fer_vit.explain.methods import Explanation, blur, covered, explain, explain_each
from fer_vit.explain.trace import Trace, drops, evaluating, masked_logits, trace, units
from fer_vit.model.attention import located_tokens
from fer_vit.model.region_vit import RegionViT

STEPS = [step / 10 for step in range(11)]
"""Fractions of the tokens or pixels that are taken away."""
GROUPS = 5
"""Groups of tokens that SaCo compares; few, since a face may have as few as eight tokens."""
DRAWS = 3
"""Explanations by the control `random` whose measures are averaged, to reduce noise."""
BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "blurred": blur,
    "mean colour": lambda image: image.mean((2, 3), keepdim=True).expand_as(image),
}
"""What pixels are replaced by."""
BETTER = {
    **{
        f"pixel {kind}, {base}": sign
        for base in BASELINES
        for kind, sign in (("deletion", -1), ("insertion", 1))
    },
    "deletion": -1,
    "insertion": 1,
    "region agreement": 1,
    "saco": 1,
}
"""The measures, and whether more (1) or less (-1) is better."""


@torch.no_grad()
def measure(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, methods: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """Measures how well methods explain the predicted class of each face: (B,) by method and name in `BETTER`.

    * deletion, insertion: Petsiuk et al., "RISE" (BMVC 2018): mean probability of the class while tokens are masked,
      or restored, in tenths, the highest scores first.
    * pixel deletion, pixel insertion: the same with the pixels that some token covers, replaced by a baseline;
      0 for the probability with all of them replaced, 1 for the whole face. NaN for faces that keep more than
      half of their probability when all are replaced: there is little that an explanation could point to.
    * region agreement: Spearman's rank correlation of the regions' shares with the falls when each is masked.
    * saco: Wu et al., "On the Faithfulness of Vision Transformer Explanations" (CVPR 2024), with tokens instead of
      pixels: whether groups with a higher mean score change the probability more, weighted by how much higher, in
      [-1, 1]. NaN for faces with fewer tokens than groups.
    """
    seen = trace(net, image, boxes, valid)
    label = seen.logits.argmax(-1)
    faces = _Faces(net, seen, label)
    direction = one_hot(label, seen.logits.shape[1]).float()
    result = {}
    with evaluating(net):
        falls = drops(net, seen.tokens, units(net.layout, seen.membership))[
            torch.arange(len(label)), :, label
        ]
        for method in methods:
            explained = explain_each(
                net, seen, method, direction.expand(DRAWS if method == "random" else 1, -1, -1)
            )
            found = [_measures(faces, one, falls) for one in explained]
            result[method] = {
                name: torch.stack([one[name] for one in found]).mean(0) for name in BETTER
            }
    return result


class _Faces(NamedTuple):
    """Traced faces. The methods return the probability (B,) of their class."""

    net: RegionViT
    seen: Trace
    label: Tensor  # the predicted class (B,)

    def probability(self, logits: Tensor) -> Tensor:
        return self.net.probabilities(logits).gather(1, self.label[:, None])[:, 0]

    def masked(self, hidden: Tensor) -> Tensor:
        """Masks the tokens that are `hidden` (B, T)."""
        return self.probability(masked_logits(self.net, self.seen.tokens, hidden))

    def shown(self, keep: Tensor, baseline: Tensor) -> Tensor:
        """Replaces all pixels by a baseline's, except for the ones to `keep` (B, S, S)."""
        image = torch.where(keep[:, None], self.seen.image, baseline)
        return self.probability(self.net.logits(image, self.seen.boxes, self.seen.valid))


def _measures(faces: _Faces, found: Explanation, falls: Tensor) -> dict[str, Tensor]:
    """Returns each measure of an explanation; `falls` (B, R) are the falls of the logit without each region."""
    there = located_tokens(faces.seen.tokens, faces.net.layout.num_prefix)
    count = there.sum(1, keepdim=True)
    ranks = _ranks(found.scores.masked_fill(~there, -torch.inf))  # missing tokens come last
    rank = ranks / count.clamp(min=1)  # in [0, 1]
    groups = [(ranks * GROUPS // count.clamp(min=1) == i) & there for i in range(GROUPS)]
    salience = torch.stack(
        [(found.scores * group).sum(1) / group.sum(1).clamp(min=1) for group in groups], 1
    )
    intact = faces.probability(faces.seen.logits)
    effect = torch.stack([intact - faces.masked(group) for group in groups], 1)
    return {
        "deletion": _area(torch.stack([faces.masked((rank < step) & there) for step in STEPS])),
        "insertion": _area(torch.stack([faces.masked((rank >= step) & there) for step in STEPS])),
        **_pixel_measures(faces, found.heat),
        "region agreement": spearman(found.shares, falls, faces.seen.valid),
        "saco": torch.where(count[:, 0] >= GROUPS, saco(salience, effect), torch.nan),
    }


def _pixel_measures(faces: _Faces, heat: Tensor) -> dict[str, Tensor]:
    """Returns deletion and insertion of pixels with their scores (B, S, S), by every baseline."""
    seen = faces.seen
    read = covered(seen.where, seen.image.shape[-1])
    ranks = _ranks(heat.masked_fill(~read, -torch.inf).flatten(1)).view_as(heat)
    rank = ranks / read.sum((1, 2), keepdim=True).clamp(
        min=1
    )  # in [0, 1) where a token reads, else 1 or more
    found = {}
    for name, baseline in BASELINES.items():
        other = baseline(seen.image)
        deletion = torch.stack([faces.shown(rank >= step, other) for step in STEPS])
        insertion = torch.stack([faces.shown((rank < step) | ~read, other) for step in STEPS])
        whole, empty = deletion[0], deletion[-1]
        for kind, curve in (("deletion", deletion), ("insertion", insertion)):
            area = (_area(curve) - empty) / (whole - empty)
            found[f"pixel {kind}, {name}"] = torch.where(empty <= whole / 2, area, torch.nan)
    return found


def saco(salience: Tensor, effect: Tensor) -> Tensor:
    """Salience-guided faithfulness coefficient (B,) of groups (B, G) in the order of their scores, highest first."""
    more = salience[:, :, None] - salience[:, None]  # (B, G, G)
    agree = torch.where(effect[:, :, None] >= effect[:, None], 1.0, -1.0)
    weight = more.abs().triu(1)
    total = weight.sum((1, 2))
    return torch.where(
        total > 0, (more * agree).triu(1).sum((1, 2)) / total.clamp(min=1e-12), torch.nan
    )


def spearman(a: Tensor, b: Tensor, valid: Tensor) -> Tensor:
    """Rank correlation (B,) of values (B, R) where valid (B, R); NaN for fewer than three or without spread."""
    rows = zip(
        *(values.double().cpu().numpy() for values in (a, b)), valid.cpu().numpy(), strict=True
    )
    with warnings.catch_warnings(action="ignore", category=ConstantInputWarning):
        found = [
            spearmanr(x[there], y[there]).statistic if there.sum() > 2 else np.nan
            for x, y, there in rows
        ]
    return torch.tensor(found, dtype=torch.float64)


@torch.no_grad()
def randomised(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: str, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Sanity check: does the explanation change with shuffled weights?

    Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018): classifier, pooling, block after block from the
    last to the first, then the embeddings too. Yields what was shuffled last, and the rank correlation (B,) of the
    tokens' scores with the scores by the intact model, for the class that the intact model predicts.
    """
    intact = explain(net, image, boxes, valid, method)
    label = intact.probabilities.argmax(-1)
    direction = one_hot(label, intact.probabilities.shape[1]).float()
    there = located_tokens(net.tokenize(image, boxes, valid), net.layout.num_prefix)
    shuffled = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)
    blocks = [(f"block {number}", block) for number, block in enumerate(shuffled.vit.blocks)]
    parts = [
        ("classifier", shuffled.vit.head),
        ("pooling", shuffled.pool),
        *reversed(blocks),
        ("embeddings", shuffled),
    ]
    for name, module in parts:
        for parameter in module.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
        if [*module.parameters()]:  # not every pooling has some
            scores = explain(shuffled, image, boxes, valid, method, direction).scores
            yield name, spearman(intact.scores, scores, there)


def _ranks(values: Tensor) -> Tensor:
    """0 for the highest value of each row (B, M), M - 1 for the lowest; ties are broken at random."""
    mixed = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(0)).to(
        values.device
    )
    ranks: Tensor = values[:, mixed].argsort(dim=1, descending=True, stable=True).argsort(1)
    return ranks[:, mixed.argsort()]


def _area(curve: Tensor) -> Tensor:
    return torch.trapezoid(curve, dx=1 / (len(STEPS) - 1), dim=0)
