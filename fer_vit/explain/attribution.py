"""Attribution of a prediction to pixels, tokens and facial regions, by one of `METHODS`.

E directions, B images, C classes, O raw outputs: C logits and the outputs of further heads; H
attention heads of a block, T tokens, Q vectors per face (1 or C), R regions, S crop size, N boxes.

A direction (B, O) is the weight of each raw output in the score that is explained. Each method is
a function with its name in `MEASURED`, of a network, traced faces and directions (E, B, O).
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot, pad

from fer_vit.errors import FerVitError
from fer_vit.explain.methods import MEASURED, METHODS, find_method
from fer_vit.explain.regions import normalized_shares, region_falls
from fer_vit.explain.trace import (
    Trace,
    evaluating,
    no_autocast,
    output_decreases,
    overlaps,
    raw_outputs,
    region_means,
    region_units,
    rollout,
    trace,
)
from fer_vit.geometry import Array, Image, Mask
from fer_vit.heads import HEADS
from fer_vit.model.attention import located_tokens
from fer_vit.model.region_vit import RegionViT
from fer_vit.wording import join_names

PASSES = 8  # forward passes of integrated gradients, between the blurred face and the face


class Attribution(NamedTuple):
    """The result of a method for E directions, not normalised (see `Explanation`)."""

    scores: Tensor  # (E, B, T), the score of each token
    heat: Tensor  # (E, B, S, S), the heat of each pixel
    shares: Tensor  # (E, B, R), the share of each region


class Explanation(NamedTuple):
    """Attribution for a score; negative values count against the score.

    The absolute values of scores, of heat and of shares sum to 1 each, or to 0 if all are 0. The
    method "pixels" computes heat first. The score of a token is then the sum over the pixels of the
    token's box, and the share of a region the sum over the pixels that lie deepest in the region.
    Most other methods compute the scores of tokens first, and spread each score over the pixels of
    the token. The share of a region is then the mean score of the region's tokens and of the
    patches under the region; with "ablation", the fall of the score when these are masked; with
    "regions", its fall when the region's pixels are covered, too.
    """

    probabilities: Tensor  # (B, C)
    scores: Tensor  # (B, T), the score of each token
    heat: Tensor  # (B, S, S), the heat of each pixel
    shares: Tensor  # (B, R), the share of each region; 0 for a missing region


def explain(
    net: RegionViT,
    image: Tensor,
    boxes: Tensor,
    valid: Tensor,
    method: str = "pixels",
    direction: Tensor | None = None,
) -> Explanation:
    """Classifies faces and attributes a score to pixels and regions.

    Args:
        net: The model, which stays unchanged.
        image: Face crops (B, 3, S, S), RGB in [0, 1].
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are present (B, R).
        method: One of `MEASURED`.
        direction: Weights (B, C) of the logits, or (B, O) of all raw outputs, in the score that is
            explained. One-hot weights explain a class or an output of a further head; 1 and -1
            explain one class rather than another. None: the predicted class.

    Raises:
        FerVitError: The method is unknown.
    """
    traced = trace(net, image, boxes, valid)
    directions = None if direction is None else direction[None]  # (1, B, C)
    return explain_each(net, traced, method, directions)[0]


@torch.no_grad()
def explain_each(
    net: RegionViT, traced: Trace, method: str, directions: Tensor | None
) -> list[Explanation]:
    """Explains several scores of traced faces, by directions (E, B, C) or (E, B, O).

    Further arguments, and errors, are as for `explain`.
    """
    find_method(method, MEASURED)  # raises the error for an unknown name
    attribute = globals()[method]
    if directions is None:
        directions = one_hot(traced.logits.argmax(-1), traced.logits.shape[1]).float()[None]
    further = traced.outputs.shape[1] - directions.shape[2]  # how many outputs have no weight
    directions = pad(directions, (0, further))  # (E, B, O)
    attribution = attribute(net, traced, directions)
    scores = _normalized(attribution.scores)  # (E, B, T)
    heat = _normalized(attribution.heat)  # (E, B, S, S)
    shares = _normalized(attribution.shares)  # (E, B, R)
    probabilities = net.probabilities(traced.logits)  # (B, C)
    explanations = []
    for token_scores, pixel_heat, region_shares in zip(scores, heat, shares, strict=True):
        explanations.append(Explanation(probabilities, token_scores, pixel_heat, region_shares))
    return explanations


def _normalized(values: Tensor) -> Tensor:
    """Scales values (E, B, ...) so that the absolute values of each face sum to 1, or to 0."""
    return normalize(values.flatten(2), p=1, dim=2).view_as(values)


def pixels(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes to each pixel what it adds to the score, from the blurred face to the face.

    This is the method of integrated gradients.
    """
    with evaluating(net):
        maps = integrated_gradients(net, traced.image, traced.boxes, traced.valid, directions)
    maps = maps.float()  # (E, B, S, S)
    rows, columns = overlaps(traced.where, maps.shape[2:], 1)  # (B, T, S) each
    with no_autocast(maps):
        # a pixel at the edge of a box counts by the fraction inside
        scores = torch.einsum("bny,ebyx,bnx->ebn", rows, maps, columns)  # (E, B, T)
    shares = region_sums(maps, traced.boxes)  # (E, B, R)
    return Attribution(scores=scores, heat=maps, shares=shares)


def relevance(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes by gradient times attention, from the score back to the model's tokens.

    Raises FerVitError for the outputs of further heads, which do not depend on the pooling.
    """
    classes = traced.logits.shape[1]
    if directions[..., classes:].any():
        names = join_names([name for name, method in METHODS.items() if method.explains_heads])
        raise FerVitError(
            f"The method relevance explains expressions alone. For {join_names(HEADS)} use {names}."
        )
    num_blocks = len(traced.attention)
    pool = traced.pooled.weights  # (B, H', Q, T)
    attended = list(traced.attention)
    if net.pool.per_expression:
        attended.append(pool)
    scores = []
    for direction in directions[..., :classes]:  # (B, C)
        gradients = torch.autograd.grad(
            traced.logits, attended, direction.to(traced.logits), retain_graph=True
        )
        pool_gradient = None
        if net.pool.per_expression:
            pool_gradient = gradients[num_blocks]
        token_scores = relevance_flow(
            traced.attention, gradients[:num_blocks], pool, pool_gradient
        )  # (B, T)
        scores.append(token_scores)
    return from_tokens(net, traced, torch.stack(scores))


def ablation(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes to a region the fall of the score without its tokens and the patches under it."""
    together = region_units(net.layout, traced.membership)  # (B, R, T)
    with evaluating(net):
        decreases = output_decreases(net, traced.tokens, together)  # (B, R, O)
    with no_autocast(decreases):
        shares = torch.einsum("bro,ebo->ebr", decreases, directions.to(decreases))
    scores = _mean_of_regions(shares, together)
    heat = spread(scores, traced.where, traced.image.shape[-1])
    return Attribution(scores, heat, shares)


def regions(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes to a region the fall of the score when its pixels and its tokens are hidden."""
    device = traced.image.device

    def network(image: Image, valid: Mask) -> Array:
        changed = torch.from_numpy(image).permute(0, 3, 1, 2).to(device).float() / 255
        tokens = net.tokenize(changed, traced.boxes, torch.from_numpy(valid).to(device))
        return raw_outputs(net, net.encode(tokens)).double().cpu().numpy()

    image = (255 * traced.image).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    boxes = traced.boxes.cpu().numpy()
    valid = traced.valid.cpu().numpy()
    with evaluating(net):
        falls = region_falls(network, network(image, valid), image, boxes, valid)  # (B, R, O)
    of_regions = normalized_shares(falls, directions.double().cpu().numpy())
    shares = torch.from_numpy(of_regions).to(device, torch.float32)
    scores = _mean_of_regions(shares, region_units(net.layout, traced.membership))
    heat = spread(shares, traced.boxes, traced.image.shape[-1])
    return Attribution(scores, heat, shares)


def _mean_of_regions(shares: Tensor, tokens: Tensor) -> Tensor:
    """Returns scores of tokens (E, B, T): means of the shares (E, B, R) of their regions.

    `tokens` (B, R, T) says which tokens belong to each region.
    """
    with no_autocast(shares):
        total = torch.einsum("ebr,brt->ebt", shares, tokens.float())
        return total / tokens.sum(1).clamp(min=1)


def random(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes random scores in [-1, 1]; the seed depends on the faces alone."""
    tokens = traced.tokens.x  # (B, T, D)
    seed = zlib.crc32(tokens.detach().float().cpu().numpy().tobytes())
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(len(directions), *tokens.shape[:2], generator=generator) - 1
    return from_tokens(net, traced, scores.to(tokens.device))


def centre(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes by a Gaussian around the centre of the crop."""
    half = net.config.img_size / 2
    distances = (traced.tokens.centres.float() - half).norm(dim=-1) / half  # (B, T)
    scores = (-2 * distances.square()).exp()
    return from_tokens(net, traced, scores.expand(len(directions), -1, -1))


def attention(net: RegionViT, traced: Trace, directions: Tensor) -> Attribution:
    """Attributes by attention rollout: how tokens exchange information.

    The scores are the same for each direction.
    """
    scores = rollout(traced)  # (B, T)
    return from_tokens(net, traced, scores.expand(len(directions), -1, -1))


def from_tokens(net: RegionViT, traced: Trace, scores: Tensor) -> Attribution:
    """Returns the attribution for scores of all tokens (E, B, T).

    The scores of tokens without a position in the face become 0.
    """
    located = located_tokens(traced.tokens, net.layout.num_prefix)  # (B, T)
    scores = scores.masked_fill(~located, 0.0)
    heat = spread(scores, traced.where, traced.image.shape[-1])  # (E, B, S, S)
    # means, since sums would favour large regions, which cover many patches
    means = [region_means(traced.membership, values) for values in scores]
    return Attribution(scores, heat, torch.stack(means))


def relevance_flow(
    attentions: Sequence[Tensor],
    gradients: Sequence[Tensor],
    pool: Tensor,
    pool_gradient: Tensor | None,
) -> Tensor:
    """Accumulates gradient times attention over blocks.

    Chefer, Gur & Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers" (ICCV 2021): equations 5 and 6 for the encoder, equation 10 for
    the cross-attention of a decoder. The normalisation of equations 8 and 9, and the self-attention
    of the queries, are left out, as queries are the same for each face. The paper keeps the
    positive part; here, the negated score also gives the negative part.

    Args:
        attentions: Attention weights (B, H, T, T) of each block.
        gradients: The gradients of the score by `attentions`.
        pool: Weights (B, H', Q, T) of the pooling.
        pool_gradient: The gradient of the score by `pool`. None: the weights alone are used.

    Returns:
        Attribution (B, T) for a score, minus the attribution for the negated score.
    """

    def flow(sign: float) -> Tensor:
        start = pool.float()  # (B, H', Q, T)
        if pool_gradient is not None:
            start = (sign * pool_gradient.float() * pool.float()).clamp(min=0)
        row = start.mean(1).sum(1, keepdim=True)  # (B, 1, T)
        for weights, gradient in zip(reversed(attentions), reversed(gradients), strict=True):
            step = (sign * gradient.float() * weights.float()).clamp(min=0).mean(1)  # (B, T, T)
            row = row + row @ step
        return row[:, 0]

    with no_autocast(pool):
        return flow(1.0) - flow(-1.0)


def integrated_gradients(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, directions: Tensor
) -> Tensor:
    """Returns how much each pixel (E, B, S, S) adds to a score, from the blurred face to the face.

    Sundararajan, Taly & Yan, "Axiomatic Attribution for Deep Networks" (ICML 2017), with the
    points of `integration_points`. The sum over all pixels is about the score of the face minus the
    score of the blurred face.
    """
    start = blur(image)
    totals = image.new_zeros(*directions.shape[:2], *image.shape[2:])  # (E, B, S, S)
    with torch.enable_grad():
        for fraction, weight in integration_points(PASSES):
            between = torch.lerp(start, image, fraction).requires_grad_()
            encoded = net.encode(net.tokenize(between, boxes, valid))
            outputs = raw_outputs(net, encoded)  # (B, O)
            for index, direction in enumerate(directions):  # (B, O)
                (gradient,) = torch.autograd.grad(
                    outputs, between, direction.to(outputs), retain_graph=True
                )
                totals[index] += weight * ((image - start) * gradient).sum(1)
    return totals


def integration_points(num_points: int) -> list[tuple[float, float]]:
    """Returns fractions of the way from the blurred face to the face, each with a weight.

    The square roots of the fractions are Gauss-Legendre points. So points are denser near the
    blurred face, where scores change most. Bhat & Raychowdhury, "Non-uniform interpolation in
    integrated gradients for low-latency explainable-AI" (ISCAS 2023), choose the points by the
    change of the score.
    """
    # points in (-1, 1), and weights that sum to 2
    points, weights = np.polynomial.legendre.leggauss(num_points)
    roots = (points + 1) / 2
    # d(root^2) = 2 root d(root), and d(root) = d(point) / 2
    return list(zip((roots**2).tolist(), (weights * roots).tolist(), strict=True))


def blur(image: Tensor) -> Tensor:
    """Blurs faces (B, 3, S, S) beyond recognition, by a Gaussian with a sigma of S / 8."""
    size = image.shape[-1]
    sigma = size / 8
    position = torch.arange(size, device=image.device)
    distance = position[:, None] - position  # (S, S)
    weights = (-(distance / sigma).square() / 2).exp()
    weights = (weights / weights.sum(1, keepdim=True)).to(image.dtype)
    with no_autocast(image):
        return weights @ image @ weights.T


def region_sums(maps: Tensor, boxes: Tensor) -> Tensor:
    """Adds up the scores of pixels (E, B, S, S) by region; returns (E, B, R).

    Boxes (B, R, 4) of the regions are xyxy in pixels. A pixel counts for the box in which the pixel
    lies deepest: the depth is 0 at the edge of a box, and 1 in the middle. Boxes with equal depth,
    up to rounding errors, share the pixel, so that a face and its mirror image agree.
    """
    start, stop = boxes.float()[..., None].tensor_split(2, dim=2)  # (B, R, 2, 1), x and y
    middle = (start + stop) / 2
    centres = torch.arange(maps.shape[-1], device=boxes.device) + 0.5
    # the distance from the middle: 0 in the middle, 1 at the edge
    away = (centres - middle).abs() * 2 / (stop - start).clamp(min=1e-6)  # (B, R, 2, S)
    away_x, away_y = away.unbind(2)  # (B, R, S) each
    depth = 1 - torch.maximum(away_y[..., None], away_x[:, :, None])  # (B, R, S, S)

    outside = pad(depth, (0, 0, 0, 0, 1, 0))  # (B, 1 + R, S, S), a first box of depth 0
    largest = outside.amax(1, keepdim=True)  # (B, 1, S, S), also without regions
    deepest = (depth >= largest - 1e-5).float()
    part = deepest / deepest.sum(1, keepdim=True).clamp(min=1)  # (B, R, S, S)
    with no_autocast(maps):
        return torch.einsum("bryx,ebyx->ebr", part, maps)


def spread(scores: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Spreads the score of each box (E, B, N) uniformly over the box; returns pixels (E, B, S, S).

    Boxes (B, N, 4) are xyxy in pixels. Where boxes overlap, the scores are added.
    """
    rows, columns = overlaps(boxes, (size, size), 1)  # (B, N, S) each
    area = (rows.sum(-1) * columns.sum(-1)).clamp(min=1)  # (B, N)
    density = scores / area
    with no_autocast(scores):
        return torch.einsum("ebn,bny,bnx->ebyx", density, rows, columns)


def inside(boxes: Tensor, size: int) -> Tensor:
    """Returns masks (B, N, S, S) of the pixels that lie in each box (B, N, 4), xyxy in pixels.

    A pixel lies in a box if its centre does, or is on the edge: pixel 0 has its centre at 0.5. So a
    box from 0 to 2.5 has three pixels in a row.
    """
    centres = torch.arange(size, device=boxes.device) + 0.5
    left, top, right, bottom = boxes.float()[..., None].unbind(2)  # (B, N, 1) each
    across = (centres >= left) & (centres <= right)  # (B, N, S)
    down = (centres >= top) & (centres <= bottom)
    return down[..., None] & across[..., None, :]
