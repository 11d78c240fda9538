"""An explained face: a `FaceView` says where it is, and an `Evidence` what explains it.

From these, `records` writes the page of a report, and `face_figures` draws figures.

Shapes: R regions, V views of attention, L attention heads, K outputs of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fer_vit.faces import Face
from fer_vit.geometry import Array, Image


@dataclass(frozen=True)
class FaceView:
    """The place of a face in a picture; `face` has the text that is written beside the face.

    `predict.plot.face_view` converts a `Face` to a view. `zoom` maps a view to a cut-out.
    """

    face: Face
    photo: Image  # the picture (H, W, 3), RGB uint8, of any size
    to_crop: Array  # matrix (2, 3) from the picture to crop pixels
    regions: dict[str, Array]  # box (4,) of each region that is drawn, xyxy in crop pixels
    # the detected box (4,), xyxy in pixels of the picture; None for a crop without landmarks
    box: Array | None = None
    name: str = ""  # path of the photo as the user should see it; untrusted text

    @property
    def where(self) -> str:
        """The face's number in its photo, from 0; in a video, the person's number and the time."""
        if self.face.track is None:
            return f"face {self.face.face}"
        minutes, seconds = divmod(round(self.face.seconds or 0.0, 1), 60)
        return f"person {self.face.track} at {minutes:.0f}:{seconds:04.1f}"


class Attention(NamedTuple):
    """Attention on a face in V views.

    The first view is the whole encoder. A view for each of L attention heads follows, then a view
    for each query.
    """

    # (V, R, R), how much each region (row) takes from each region (column), in [0, 1]
    relations: Array
    output: Array  # (V, R), how much the classified output takes from each region, in [0, 1]
    # (V, rows, columns), how much the classified output takes from each patch, in [0, 1]
    patches: Array
    # (L,), the mean distance between a token and the tokens that it attends to, in crop pixels
    distance: Array
    blocks: int = 1  # the number of blocks, which have equally many attention heads
    region_tokens: int = 1  # the number of tokens of each region


class Attributed(NamedTuple):
    """The attribution of a score, for a face or for a mean of faces."""

    # The name of the score. The score is an expression, the difference of two expressions, or an
    # output of a head.
    name: str
    shares: Array  # (R,), the signed share of each region
    heat: Array  # (rows, columns), the heat map of the crop
    probability: float | None = None  # the probability of an expression; None for other scores


class FaceTerms(NamedTuple):
    """The terms of an output head for a face; bias and terms add up to the raw outputs (K,)."""

    bias: Array  # (K,)
    face: Array  # (K,), the terms of the whole face
    regions: Array  # (R, K), the terms of each region


class Evidence(NamedTuple):
    """The explanation of a face, or of a mean of faces; a `FaceView` has the face.

    Only a network of torch has attention, interactions and terms.
    """

    order: Sequence[int]  # indices of the labels in descending order of probability
    targets: Sequence[Attributed]  # the explained scores; the predicted expression is the first
    attention: Attention | None = None
    # (R, R), symmetric, how much two regions interact, in logits of the predicted expression
    interactions: Array | None = None
    terms: Mapping[str, FaceTerms] = {}  # the terms of each further head, by name of the head
    charts: Mapping[str, Any] = {}  # JSON values of further charts, by name of the chart
