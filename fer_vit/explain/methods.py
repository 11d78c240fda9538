"""Which pixels, patches and facial regions speak for a prediction, by any of several methods.

B images, C classes, T tokens, R regions, S crop size.
"""

import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fer_vit.errors import FerVitError
from fer_vit.explain.attention import raw, relevance, rollout
from fer_vit.explain.pixels import box_sums, integrated_gradients, region_sums, spread
from fer_vit.explain.regions import region_means, token_boxes, units
from fer_vit.explain.trace import Trace, drops, evaluating, trace
from fer_vit.model.pooling import located_tokens
from fer_vit.model.region_vit import RegionViT

CLASS_SPECIFIC = ("pixels", "relevance", "ablation")
"""Methods that depend on the class that they explain."""
Method = Literal["pixels", "relevance", "ablation", "rollout", "raw"]
Control = Literal["random", "centre"]
"""Baselines for the methods: scores that know nothing of the model."""


class Explanation(NamedTuple):
    """What speaks for a score and, by methods that can tell, against it (negative).

    The absolute values of scores, heat and shares sum to 1 each, or to 0 where nothing speaks.

    Attributes:
        probabilities: (B, C).
        scores: Of every token (B, T); by "pixels" the sum over the pixels that it was cut from.
        heat: Of every pixel (B, S, S); by other methods tokens' scores, spread over the pixels that they were cut from.
        shares: Of every region (B, R), 0 for a missing one. By "pixels" the sum over the pixels of its box that lie
            deeper in no other; by "ablation" the fall when its tokens, and the patches under it, are masked; else the
            mean score of these.
    """

    probabilities: Tensor
    scores: Tensor
    heat: Tensor
    shares: Tensor


def explain(
    net: RegionViT,
    image: Tensor,
    boxes: Tensor,
    valid: Tensor,
    method: Method | Control = "pixels",
    direction: Tensor | None = None,
) -> Explanation:
    """Classifies faces and scores which pixels and regions speak for the prediction.

    Args:
        net: The model; it is left unchanged.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are present (B, R).
        method: "pixels", integrated gradients of the image; "relevance", gradient times attention through all blocks;
            "ablation", the fall of the score when a region's tokens, and the patches under it, are masked; "rollout",
            attention through all blocks; "raw", attention of the last one; and two controls, "random" and "centre".
        direction: Weights (B, C) of the logits in the score that is explained: one-hot for a class, 1 and -1 for one
            class rather than another. None: the predicted class.
    """
    seen = trace(net, image, boxes, valid)
    return explain_each(net, seen, method, None if direction is None else direction[None])[0]


@torch.no_grad()
def explain_each(
    net: RegionViT, seen: Trace, method: Method | Control, directions: Tensor | None = None
) -> list[Explanation]:
    """Explains several scores (E, B, C) of faces that the model has `seen`; other arguments as for `explain`.

    Raises:
        FerVitError: There is no such method.
    """
    known = get_args(Method) + get_args(Control)
    if method not in known:
        raise FerVitError(f"Expected method to be one of {', '.join(known)}, but got {method}.")
    if directions is None:
        directions = one_hot(seen.logits.argmax(-1), seen.logits.shape[1]).float()[None]
    probabilities = net.probabilities(seen.logits)
    where = token_boxes(net.layout, net.patch_size, seen.tokens.centres, seen.boxes)
    if method == "pixels":
        with evaluating(net):
            maps = integrated_gradients(net, seen.image, seen.boxes, seen.valid, directions).float()
        sums = region_sums(maps, seen.boxes)
        found = [(box_sums(heat, where), heat, shares) for heat, shares in zip(maps, sums, strict=True)]
    else:
        each = ablated(net, seen, directions) if method == "ablation" else attributed(net, seen, directions, method)
        found = [(scores, spread(scores, where, net.config.img_size), shares) for scores, shares in each]
    return [
        Explanation(probabilities, *(normalize(values.flatten(1), p=1).view_as(values) for values in one))
        for one in found
    ]


def attributed(
    net: RegionViT, seen: Trace, directions: Tensor, method: Method | Control
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields scores of tokens (B, T) and shares of regions (B, R) by a method that has a score for every token."""
    located = located_tokens(seen.tokens, net.layout.num_prefix)
    for scores in token_scores(net, seen, directions, method):
        scores = scores.masked_fill(~located, 0.0)
        # A sum would favour large regions, which cover many patches.
        yield scores, region_means(seen.membership, scores)


def token_scores(net: RegionViT, seen: Trace, directions: Tensor, method: Method | Control) -> Iterator[Tensor]:
    """Yields scores of every token (B, T) for each direction (E, B, C)."""
    tokens, pool = seen.tokens, seen.pooled.weights
    if method == "random":
        # Signed, as methods are. Seeded by the faces: they always get the same numbers.
        generator = torch.Generator().manual_seed(zlib.crc32(tokens.x.detach().float().cpu().numpy().tobytes()))
        yield from (2 * torch.rand(len(directions), *tokens.x.shape[:2], generator=generator) - 1).to(tokens.x.device)
        return
    if method == "centre":
        half = net.config.img_size / 2
        distances = (tokens.centres.float() - half).norm(dim=-1) / half
        yield from (-2 * distances.square()).exp().expand(len(directions), -1, -1)
        return
    with_pool = [pool] if net.config.head == "query" else []
    for direction in directions:
        if method == "relevance":
            attended = [*seen.attention, *with_pool]
            gradients = torch.autograd.grad(seen.logits, attended, direction.to(seen.logits), retain_graph=True)
            depth = len(seen.attention)
            yield relevance(seen.attention, gradients[:depth], pool, *gradients[depth:])
        else:
            # With a query per expression: where the queries of this score attended.
            weights = pool.mean(1)  # (B, Q, T)
            one = weights[:, 0] if weights.shape[1] == 1 else (direction.abs()[..., None] * weights).sum(1)
            yield (rollout if method == "rollout" else raw)(seen.attention, one)


def ablated(net: RegionViT, seen: Trace, directions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields scores of tokens (B, T) and shares of regions (B, R) by `drops`.

    A region's share is the fall when all of its tokens and patches are masked together; a token's score is the mean
    fall of the regions that it belongs to, 0 outside all of them.
    """
    together = units(net.layout, seen.membership)  # (B, R, T)
    with evaluating(net):
        falls = drops(net, seen.tokens, together)  # (B, R, C)
    for direction in directions:
        fall = (falls * direction[:, None]).sum(-1)
        yield (fall[..., None] * together).sum(1) / together.sum(1).clamp(min=1), fall
