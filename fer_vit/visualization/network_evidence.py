"""Explains faces by a network of torch: with interactions, attention and terms.

Shapes: B faces, R regions, V views of attention, L attention heads, E explained scores of a face.
"""

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fer_vit.engine.torch_engine import to_inputs
from fer_vit.engine.torch_threads import few_threads
from fer_vit.explain.attribution import explain_each
from fer_vit.explain.methods import METHODS, find_method
from fer_vit.explain.trace import Trace, attention_views, interactions, trace
from fer_vit.faces import Crops
from fer_vit.geometry import Array
from fer_vit.model.additive import AdditiveHead
from fer_vit.model.attention import ATTENTION, has_bf16
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.explanations import attention_of, average_heat
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.explained_face import Evidence, FaceTerms
from fer_vit.visualization.explained_scores import ExplainOptions, Scores

VECTORS = 16  # vectors that a block stores for each token
# The memory for a value with its gradients. Measured with additive attention at 224 pixels.
VALUE_BYTES = 16


def explain_with_network(
    model: Recognizer, crops: Crops, options: ExplainOptions
) -> Iterator[Evidence]:
    """Yields the explanation of each crop, without charts."""
    for chunk in crops.split(faces_at_once(model.net, options.memory)):
        with few_threads(len(chunk)):
            traced = trace(model.net, *to_inputs(chunk, model.device))
            explained = list(explain_scores(model, traced, options))
        yield from explained


def faces_at_once(net: RegionViT, memory: int) -> int:
    """Returns how many faces can be explained together with `memory` bytes, at least one.

    Gradients need the values of all blocks. A block stores `VECTORS` vectors for each token, and
    numbers for each pair of tokens. With additive attention, it stores a vector for each pair (see
    `AdditiveAttention.score`).
    """
    blocks = len(net.vit.blocks)
    tokens = net.layout.num_tokens
    width = int(net.vit.embed_dim)
    pair = 4 * int(net.vit.blocks[0].attn.num_heads)
    if ATTENTION[net.config.attention].vector_pairs:
        pair = width
    values = blocks * tokens * (VECTORS * width + tokens * pair)
    return max(1, memory // (values * VALUE_BYTES))


def explain_scores(model: Recognizer, traced: Trace, options: ExplainOptions) -> Iterator[Evidence]:
    """Yields the explanation of each traced face, without charts."""
    net = model.net
    probabilities = net.probabilities(traced.logits)  # (B, C)
    scores = Scores(model, _array(probabilities), options)
    directions = torch.from_numpy(scores.directions).to(traced.outputs)  # (E, B, O)

    rounded = find_method(options.method, METHODS).can_be_rounded and has_bf16("cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
        explanations = explain_each(net, traced, options.method, directions)
    shares = _array(torch.stack([explanation.shares for explanation in explanations]))  # (E, B, R)
    heat = np.stack([average_heat(_array(explanation.heat)) for explanation in explanations])
    views = attention_views(traced)
    interacting = _array(interactions(net, traced))  # (B, R, R)
    terms = head_terms(net, traced)

    for row, ranking in enumerate(scores.order.tolist()):
        yield Evidence(
            order=ranking,
            targets=scores.attributed(row, shares[:, row], heat[:, row]),
            attention=attention_of(net, views, row),
            interactions=interacting[row],
            terms=terms[row],
        )


@torch.no_grad()
def head_terms(net: RegionViT, traced: Trace) -> list[Mapping[str, FaceTerms]]:
    """Returns the terms of the further heads for each face, by name of the head."""
    faces: list[dict[str, FaceTerms]] = [{} for _ in traced.logits]
    for name, head in net.heads.items():
        terms = cast(AdditiveHead, head).terms(traced.encoded)
        bias = _array(terms.bias)
        whole = _array(terms.face)  # (B, K)
        regions = _array(terms.regions)  # (B, R, K)
        for row, face in enumerate(faces):
            face[name] = FaceTerms(bias, whole[row], regions[row])
    return list(faces)


def _array(values: Tensor) -> Array:
    return values.detach().double().cpu().numpy()
