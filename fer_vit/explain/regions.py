"""Explains scores by hiding one region after the other, for any engine.

B faces, S side of the crop, R regions, O raw outputs: C logits and the outputs of further heads.
"""

from collections.abc import Callable

import numpy as np

from fer_vit.geometry import Array, Float32Array, Image, Mask

# Computes the raw outputs (B, O) of faces whose images (B, S, S, 3), and which of their regions are
# present (B, R), are changed.
Network = Callable[[Image, Mask], Array]


def region_falls(
    network: Network, intact: Array, image: Image, boxes: Float32Array, valid: Mask
) -> Array:
    """Returns how far the raw outputs fall (B, R, O) when each region is hidden.

    The pixels in the box of a hidden region get the mean colour of the crop, and its tokens are
    left out. The fall is 0 for a missing region, and for an impossible class, whose logit is -inf.

    Args:
        network: The network.
        intact: The raw outputs (B, O) with all regions.
        image: The crops (B, S, S, 3), uint8.
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        valid: Which regions are present (B, R).
    """
    colour = image.mean((1, 2), keepdims=True).round().astype(np.uint8)  # (B, 1, 1, 3)
    centres = np.arange(image.shape[1]) + 0.5  # of the pixels in a row, (S,)
    falls = np.zeros((*valid.shape, intact.shape[1]))  # (B, R, O)
    for region in range(valid.shape[1]):
        left, top, right, bottom = boxes[:, region, :, None].swapaxes(0, 1)  # (B, 1) each
        across = (centres >= left) & (centres <= right)  # (B, S)
        down = (centres >= top) & (centres <= bottom)  # (B, S)
        inside = (down[:, :, None] & across[:, None])[..., None]  # (B, S, S, 1)
        hidden = np.where(inside, colour, image)  # (B, S, S, 3)
        others = valid.copy()
        others[:, region] = False
        with np.errstate(invalid="ignore"):  # -inf minus -inf
            fall = intact - network(hidden, others)  # (B, O)
        falls[:, region] = np.where(np.isneginf(intact), 0.0, fall)
    return np.where(valid[..., None], falls, 0.0)


def normalized_shares(falls: Array, directions: Array) -> Array:
    """Returns the share of each region in each score (E, B, R).

    Args:
        falls: How far the raw outputs fall without each region (B, R, O).
        directions: The weight of each raw output in E scores of each face (E, B, O).

    Returns:
        Shares whose absolute values sum to 1 for each score, or to 0.
    """
    shares = np.einsum("bro,ebo->ebr", falls, directions)
    return np.asarray(shares / np.abs(shares).sum(-1, keepdims=True).clip(min=1e-12))


def spread_shares(shares: Array, boxes: Float32Array, size: int, cells: int) -> Array:
    """Spreads the share (E, B, R) of each region uniformly over its box.

    Where boxes overlap, shares are added.

    Args:
        shares: The shares.
        boxes: Region boxes (B, R, 4), xyxy in crop pixels.
        size: The side of the crop in pixels.
        cells: The rows and columns of the result.

    Returns:
        Maps (E, B, cells, cells) of the crop.
    """
    edges = np.arange(cells + 1) * size / cells
    starts = np.maximum(boxes[..., None, :2], edges[:-1, None])  # (B, R, cells, 2), x and y
    ends = np.minimum(boxes[..., None, 2:], edges[1:, None])
    across, down = np.moveaxis((ends - starts).clip(min=0), -1, 0)  # (B, R, cells) pixels each
    area = (across.sum(-1) * down.sum(-1)).clip(min=1)  # (B, R)
    return np.asarray(np.einsum("ebr,bry,brx->ebyx", shares / area, down, across))
