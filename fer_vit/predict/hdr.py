"""Converts HDR frames to SDR, as players show them on an SDR screen.

The curves of ITU-R BT.2100 are applied, then a knee compresses bright light.
"""

from functools import cache

import cv2
import numpy as np

from fer_vit.geometry import Array, Float32Array, Image

# Transfer characteristics of HDR frames (ITU-T H.273).
PQ = 16
HLG = 18
PEAK = 1000.0  # cd/m2 of the brightest light; brighter light is cut off
WHITE_NITS = 203.0  # cd/m2 of white in SDR (ITU-R BT.2408)
KNEE = 0.5  # fraction of white in SDR above which light is compressed
GAMMA = 2.4  # gamma of an SDR screen (ITU-R BT.1886)
LINES_AT_ONCE = 32  # lines that are converted together, to stay in the processor's cache

# The matrix from linear RGB with the primaries of HDR to linear RGB of SDR (ITU-R BT.2087).
BT2020_TO_BT709 = np.array(
    [
        [1.6605, -0.5876, -0.0728],
        [-0.1246, 1.1329, -0.0083],
        [-0.0182, -0.1006, 1.1187],
    ],
    np.float32,
)


def to_sdr(image: Image, transfer: int) -> Image:
    """Converts RGB uint8 (H, W, 3) with the transfer `PQ` or `HLG` to SDR.

    Other images come back unchanged.
    """
    if transfer not in (PQ, HLG):
        return image
    converted = np.empty_like(image)
    for top in range(0, len(image), LINES_AT_ONCE):
        block = slice(top, top + LINES_AT_ONCE)
        # (lines, W, 3) float32, linear
        light = cv2.LUT(image[block], _light_of_codes(transfer))
        light = np.maximum(cv2.transform(light, BT2020_TO_BT709), 0)
        # The square root spreads dark light over 8 bits nearly as a screen's gamma does.
        roots = cv2.convertScaleAbs(cv2.sqrt(light), alpha=255)
        converted[block] = cv2.LUT(roots, _codes_of_roots())
    return converted


@cache
def _light_of_codes(transfer: int) -> Float32Array:
    """Returns the linear light (256,) of 8-bit codes, 1 for white in SDR, after the knee."""
    codes = np.arange(256) / 255
    nits = _pq_light(codes) if transfer == PQ else _hlg_light(codes)
    return _compress(nits / WHITE_NITS).astype(np.float32)


@cache
def _codes_of_roots() -> Image:
    """Returns the 8-bit codes (256,) for square roots of light, by the gamma of an SDR screen."""
    roots = np.arange(256) / 255
    return np.rint(255 * roots ** (2 / GAMMA)).astype(np.uint8)


def _pq_light(codes: Array) -> Array:
    """Returns the light in cd/m2 of PQ codes in [0, 1] (SMPTE ST 2084)."""
    m1 = 2610 / 16384
    m2 = 2523 / 32
    c1 = 3424 / 4096
    c2 = 2413 / 128
    c3 = 2392 / 128
    power = codes ** (1 / m2)
    return np.asarray(10_000 * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1))


def _hlg_light(codes: Array) -> Array:
    """Returns the light in cd/m2 of HLG codes in [0, 1] (ARIB STD-B67) on a screen of `PEAK`."""
    a = 0.17883277
    b = 0.28466892
    c = 0.55991073
    scene = np.where(codes <= 0.5, codes**2 / 3, (np.exp((codes - c) / a) + b) / 12)
    return np.asarray(PEAK * scene**1.2)


def _compress(light: Array) -> Array:
    """Compresses light (256,), 1 for white in SDR, above the knee so that `PEAK` becomes 1.

    The curve is "mobius" of FFmpeg's filter `tonemap`.
    """
    peak = PEAK / WHITE_NITS
    shift = -(KNEE**2) * (peak - 1) / (KNEE**2 - 2 * KNEE + peak)
    scale = (KNEE**2 - 2 * KNEE * peak + peak) / (peak - 1)
    factor = (scale + KNEE) ** 2 / (scale - shift)
    bright = factor * (light + shift) / (light + scale)
    return np.where(light <= KNEE, light, bright).clip(0, 1)
