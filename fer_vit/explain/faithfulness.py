"""How far an explanation can be trusted: does the prediction change as its scores say?

B images, T tokens, R regions, S crop size, C classes.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fer_vit.explain.ablation import drops, masked_logits
from fer_vit.explain.methods import Explanation, Method, explain, explain_each
from fer_vit.explain.regions import coverage, units
from fer_vit.explain.trace import evaluating, trace
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import TokenLayout

STEPS = 10
"""Parts into which tokens or pixels are cut to be taken away one after the other."""
GROUPS = 5
"""Groups of tokens that SaCo compares: a face may have no more than eight."""

BETTER = {
    "deletion": -1,
    "insertion": 1,
    "pixel deletion": -1,
    "pixel insertion": 1,
    "region agreement": 1,
    "saco": 1,
}
"""The measures, and whether more (1) or less (-1) of them speaks for an explanation."""


@torch.no_grad()
def faithfulness(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, methods: Sequence[Method]
) -> dict[Method, dict[str, Tensor]]:
    """Measures how well methods explain the predicted class of each face.

    * deletion, insertion: Petsiuk et al., "RISE" (BMVC 2018): mean probability of the class while tokens are masked,
      or come back, in tenths, the highest scores first. Low, or high, is good.
    * pixel deletion, pixel insertion: the same with pixels, which give way to a blurred face.
    * region agreement: Spearman's rank correlation of the regions' shares with the fall of the logit when each is
      masked.
    * saco: Wu et al., "On the Faithfulness of Vision Transformer Explanations" (CVPR 2024), with tokens in the place of
      pixels: whether groups with a higher mean score change the probability more, weighted by how much higher, in
      [-1, 1]. NaN for faces with fewer tokens than groups.

    Args:
        net: The model; it is left as it is found.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are there (B, R).
        methods: Methods of `explain`.

    Returns:
        By method, each measure (B,) by the names of `BETTER`; NaN for a face that has none.
    """
    layout = net.layout
    seen = trace(net, image, boxes, valid)
    label = seen.logits.argmax(-1)
    direction = nn.functional.one_hot(label, seen.logits.shape[1]).float()
    whole = _of(net.probabilities(seen.logits), label)
    boxes = boxes.masked_fill(~valid[..., None], 0.0)
    blurred = blur(image)
    at = [step / STEPS for step in range(STEPS + 1)]
    there = torch.ones_like(seen.tokens.x[..., 0], dtype=torch.bool)
    if seen.tokens.valid is not None:
        there &= seen.tokens.valid
    there[:, : layout.num_prefix] = False
    count = there.sum(1, keepdim=True)

    def masked(hidden: Tensor) -> Tensor:
        return _of(net.probabilities(masked_logits(net, seen.tokens, hidden)), label)

    def shown(keep: Tensor) -> Tensor:
        return _of(net.probabilities(net(torch.where(keep[:, None], image, blurred), boxes, valid)), label)

    def measures(found: Explanation) -> dict[str, Tensor]:
        ranks = _ranks(found.scores.masked_fill(~there, -torch.inf))  # what is not there comes last
        part = ranks / count.clamp(min=1)
        pixels = pixel_scores(layout, net.patch_size, found.scores, boxes, net.config.img_size)
        pixel_part = _ranks(pixels.flatten(1)).view_as(pixels) / pixels[0].numel()
        groups = [(ranks * GROUPS // count.clamp(min=1) == i) & there for i in range(GROUPS)]
        salience = torch.stack([(found.scores * group).sum(1) / group.sum(1).clamp(min=1) for group in groups], 1)
        effect = torch.stack([whole - masked(group) for group in groups], 1)
        return {
            "deletion": _area([masked((part < share) & there) for share in at]),
            "insertion": _area([masked((part >= share) & there) for share in at]),
            "pixel deletion": _area([shown(pixel_part >= share) for share in at]),
            "pixel insertion": _area([shown(pixel_part < share) for share in at]),
            "region agreement": spearman(found.shares, falls, valid),
            "saco": torch.where(count[:, 0] >= GROUPS, saco(salience, effect), torch.nan),
        }

    with evaluating(net):
        falls = (drops(net, seen.tokens, units(layout, seen.parts)) * direction[:, None]).sum(-1)
        return {method: measures(explain_each(net, seen, method)[0]) for method in methods}


def pixel_scores(layout: TokenLayout, patch_size: int, scores: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Spreads every token's score evenly over the pixels that it was cut from; they add up where tokens overlap.

    Args:
        layout: Which token is which.
        patch_size: Side of a patch in crop pixels.
        scores: Of every token (B, T).
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        size: Side S of the crop.

    Returns:
        (B, S, S).
    """
    pixels = scores.new_zeros(len(scores), size, size)
    if layout.num_patches:
        heat = layout.patch_map(scores) / patch_size**2
        pixels += heat.repeat_interleave(patch_size, 1).repeat_interleave(patch_size, 2)
    if layout.num_regions:
        own = TokenLayout(0, (size, size), 0, 1)
        k = layout.region_grid
        cells = scores[:, layout.regions].view(len(scores), -1, k, k)
        left, top, right, bottom = boxes.unbind(-1)
        for row in range(k):
            for column in range(k):
                width, height = (right - left) / k, (bottom - top) / k
                x, y = left + column * width, top + row * height
                covered = coverage(own, 1, torch.stack([x, y, x + width, y + height], -1))  # (B, R, S S)
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
    found = []
    for x, y, there in zip(a, b, valid, strict=True):
        pair = torch.stack([_mean_ranks(x[there]), _mean_ranks(y[there])])
        spread = bool(there.sum() > 2) and bool((pair.std(1) > 0).all())
        found.append(torch.corrcoef(pair)[0, 1] if spread else pair.new_tensor(torch.nan))
    return torch.stack(found)


@torch.no_grad()
def randomised(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: Method, seed: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Sanity check: does the explanation change when the model forgets what it learned?

    Adebayo et al., "Sanity Checks for Saliency Maps" (NeurIPS 2018): the weights of the classifier, the pooling, and
    block after block from the last to the first are shuffled. A method that still says the same explains the faces, not
    the model.

    Yields:
        What was randomised last, and the rank correlation (B,) of the tokens' scores with those of the whole model, for
        the class that the whole model predicts.
    """
    first = explain(net, image, boxes, valid, method)
    label = first.probabilities.argmax(-1)
    direction = nn.functional.one_hot(label, first.probabilities.shape[1]).float()
    present = net.tokenize(image, boxes, valid).valid
    places = torch.ones_like(first.scores, dtype=torch.bool) if present is None else present.clone()
    places[:, : net.layout.num_prefix] = False
    other = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)
    blocks = [(f"block {number}", block) for number, block in enumerate(other.vit.blocks)]
    parts = [("classifier", other.vit.head), ("pooling", other.pool), *reversed(blocks)]
    for name, module in parts:
        parameters = list(module.parameters())
        if not parameters:  # not every pooling learns
            continue
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
        scores = explain(other, image, boxes, valid, method, direction).scores
        yield name, spearman(first.scores, scores, places)


def blur(image: Tensor) -> Tensor:
    """Blurs faces (B, 3, S, S) until no expression is left: a Gaussian of an eighth of their side."""
    size = image.shape[-1]
    at = torch.arange(size, device=image.device)
    weights = (-((at[:, None] - at) / (size / 8)).square() / 2).exp()
    weights = (weights / weights.sum(1, keepdim=True)).to(image.dtype)
    return weights @ image @ weights.T


def _of(probabilities: Tensor, label: Tensor) -> Tensor:
    return probabilities.gather(1, label[:, None])[:, 0]


def _ranks(values: Tensor) -> Tensor:
    """0 for the highest value of each row (B, M), M - 1 for the lowest; equal ones come in random order."""
    mixed = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values.device)
    ranks: Tensor = values[:, mixed].argsort(dim=1, descending=True, stable=True).argsort(1)
    return ranks[:, mixed.argsort()]


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks (M,), equal values sharing theirs."""
    return ((values[:, None] > values).sum(1) + (values[:, None] >= values).sum(1)).double() / 2


def _area(curve: list[Tensor]) -> Tensor:
    return torch.trapezoid(torch.stack(curve), dx=1 / (len(curve) - 1), dim=0)
