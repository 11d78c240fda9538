"""How faithful the explanations of a model are: means over faces, and their tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fer_vit.engine.torch_engine import to_inputs
from fer_vit.explain.faithfulness_measures import BETTER, measure_methods, randomised
from fer_vit.explain.methods import MEASURED, METHODS
from fer_vit.explain.terms import HIDING, Effects, agreement, region_effects
from fer_vit.faces import Crops
from fer_vit.geometry import Array, IntArray
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.table import markdown
from fer_vit.stats.bootstrap import MIN_UNITS, mean_intervals
from fer_vit.stats.estimate import Estimate, estimate_text, plain_estimates
from fer_vit.stats.means import mean_of_finite
from fer_vit.wording import counted

# Means over faces by method and measure.
MethodTable: TypeAlias = dict[str, dict[str, Estimate]]

# A batch of faces, and the name of the person or photo of each face.
MeasuredBatch: TypeAlias = tuple[Crops, list[str]]

MethodValues: TypeAlias = Mapping[str, Mapping[str, Tensor]]

# The names of the scores of terms; see `score_terms`.
TERMS = ("rank correlation", "in random order", "largest first", "first in random order")

# The number of faces, rounded up to a full batch, that are explained with shuffled weights. This is
# slow, because each block of the model needs another model with shuffled weights.
MAX_SHUFFLED = 200


@dataclass(frozen=True)
class TermScores:
    """How well the terms of a head predict the effect of hiding a region in one way."""

    scores: Mapping[str, Estimate]  # means over faces and outputs, by name in `TERMS`
    # means over faces, by output and name in `TERMS`; NaN without a value
    outputs: Mapping[str, Mapping[str, float]]


# The scores of the terms of a head, by how a region is hidden (`HIDING`).
HeadTerms: TypeAlias = dict[str, TermScores]


@dataclass(frozen=True)
class Faithfulness:
    """What `faithfulness` measures. Without a face, the tables are empty."""

    methods: MethodTable
    differences: MethodTable  # differences from the control `random`, which has no row
    shuffled: MethodTable  # results for a model with shuffled weights
    terms: dict[str, HeadTerms]  # the terms by further head; empty if no face has all regions


def score_methods(model: Recognizer, batches: Iterable[MeasuredBatch]) -> Faithfulness:
    """Measures the methods, explanations with shuffled weights, and the terms of further heads."""
    measured: list[MethodValues] = []
    shuffled: list[MethodValues] = []
    effects: list[dict[str, Effects]] = []
    units: list[str] = []  # the person or photo of each face
    effect_units: list[str] = []  # the person or photo of each face in `effects`
    net = model.net
    for batch, batch_units in batches:
        image, boxes, valid = to_inputs(batch, model.device)
        measured.append(measure_methods(net, image, boxes, valid, [*MEASURED]))
        if len(units) < MAX_SHUFFLED:
            by_method = {}
            for method in METHODS:
                by_method[method] = dict(randomised(net, image, boxes, valid, method))
            shuffled.append(by_method)
        whole = valid.all(1)
        if len(net.heads) and valid.shape[1] > 1 and whole.any():
            effects.append(region_effects(net, image[whole], boxes[whole], valid[whole]))
            effect_units += compress(batch_units, whole.tolist())
        units += batch_units

    differences = [subtract_random(batch) for batch in measured]
    terms = {}
    if effects:
        effect_numbers = number_units(effect_units)
        for head in net.heads:
            terms[head] = score_terms(model, head, effects, effect_numbers)
    unit_numbers = number_units(units)
    return Faithfulness(
        methods=average_batches(measured, unit_numbers),
        differences=average_batches(differences, unit_numbers),
        shuffled=average_batches(shuffled, unit_numbers),
        terms=terms,
    )


def number_units(names: Sequence[str]) -> IntArray:
    """Returns a number from 0 for the person or photo of each face (N,), by name."""
    return np.unique(names, return_inverse=True)[1]


def score_terms(
    model: Recognizer, head: str, batches: Sequence[Mapping[str, Effects]], units: IntArray
) -> HeadTerms:
    """Returns how well the terms of a head predict the effect of hiding a region.

    The controls are the terms of a face in random order. Means are over faces and outputs;
    intervals are over persons or photos. `units` (B,) is the number of each face's person or photo.
    """
    terms = gather([effects[head].terms for effects in batches])  # (B, R, K)
    shuffled = np.random.default_rng(0).permuted(terms, axis=1)
    scores: HeadTerms = {}
    for hidden, field in HIDING.items():
        changes = gather([getattr(effects[head], field) for effects in batches])
        predicted = agreement(terms, changes)  # (B, K) each
        control = agreement(shuffled, changes)
        columns = [predicted.correlation, control.correlation, predicted.first, control.first]
        means = np.column_stack([mean_of_finite(column, 1) for column in columns])  # (B, 4)
        outputs = {}
        for place, name in enumerate(model.outputs.of_head(head).names):
            of_output = [float(mean_of_finite(column[:, place], 0)) for column in columns]
            outputs[name] = dict(zip(TERMS, of_output, strict=True))
        estimates = mean_intervals(means, units)
        scores[hidden] = TermScores(dict(zip(TERMS, estimates, strict=True)), outputs)
    return scores


def gather(batches: Sequence[Tensor]) -> Array:
    """Joins the values (B, ...) of all batches in one array."""
    return torch.cat([*batches]).double().cpu().numpy()


def faithfulness_json(measured: Faithfulness) -> dict[str, object]:
    """Returns the results in the form of faithfulness.json."""
    terms: dict[str, dict[str, Mapping[str, object]]] = {}
    for head, ways in measured.terms.items():
        terms[head] = {}
        for hidden, row in ways.items():
            terms[head][hidden] = {**row.scores, "outputs": row.outputs}
    results = {
        "methods": measured.methods,
        "differences": measured.differences,
        "shuffled": measured.shuffled,
        "terms": terms,
    }
    return plain_estimates(results)


def faithfulness_text(measured: Faithfulness) -> str:
    """Returns the tables of methods and terms as Markdown, as in faithfulness.md."""
    text = methods_table(measured.differences, measured.methods["random"])
    few = []  # measures with too few persons or photos for an interval
    for name, result in measured.methods["random"].items():
        if result.low is None:
            few.append(f"{name}: {counted(result.n, 'face')}")
    if few:
        text += (
            f"\nFaces of fewer than {MIN_UNITS} persons or photos have no intervals. "
            f"{'; '.join(few)}.\n"
        )
    if measured.terms:
        text += f"\n{terms_table(measured.terms)}"
    return text


def methods_table(differences: MethodTable, random: Mapping[str, Estimate]) -> str:
    """Returns a table of measures as Markdown: a row for each method, then the control `random`.

    The row of a method has mean differences: the method less `random`.
    """
    head = ["less `random`"]
    for name, sign in BETTER.items():
        arrow = "↑" if sign > 0 else "↓"
        head.append(f"{name} {arrow}")

    rows = [head]
    for method, results in differences.items():
        row = [method]
        row += [estimate_text(results[name], "+.3f") for name in BETTER]
        rows.append(row)

    last = ["`random` itself"]
    last += [estimate_text(random[name], ".3f") for name in BETTER]
    rows.append(last)
    return markdown(rows)


def terms_table(terms: Mapping[str, HeadTerms]) -> str:
    """Returns a table of the scores of terms: a row for each head and way to hide a region."""
    rows = [["terms of regions", "faces", *TERMS]]
    for head, scores in terms.items():
        for hidden, row in scores.items():
            cells = [f"{head}, {hidden}", f"{row.scores[TERMS[0]].n:,}"]
            cells += [estimate_text(row.scores[name], ".2f") for name in TERMS]
            rows.append(cells)
    return markdown(rows)


def subtract_random(measured: MethodValues) -> MethodValues:
    """Subtracts the control `random` from each measure of each face."""
    control = measured["random"]
    differences: dict[str, dict[str, Tensor]] = {}
    for method, measures in measured.items():
        if method != "random":
            differences[method] = {name: measures[name] - control[name] for name in control}
    return differences


def average_batches(batches: list[MethodValues], units: IntArray) -> MethodTable:
    """Returns the mean over the faces of all batches with an interval, by method and measure.

    `units` is the number of each face's person or photo. It may be longer: only the first batches
    may have been measured.
    """
    table: MethodTable = {}
    if not batches:
        return table
    for method, measures in batches[0].items():
        table[method] = {}
        for name in measures:
            values = torch.cat([batch[method][name].double().cpu() for batch in batches])  # (N,)
            of_faces = units[: len(values)]
            table[method][name] = mean_intervals(values.numpy()[:, None], of_faces)[0]
    return table
