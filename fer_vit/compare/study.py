"""Predictions averaged by photo or clip, by person and condition; intervals and tests over persons."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluate.faces import Faces
from fer_vit.geometry import Array
from fer_vit.predict.people import People
from fer_vit.report.table import Interval

LEAST, EQUAL = 6, 1e-9
"""Fewer persons (with five pairs, no rank test reaches p < 0.05) and smaller differences have no intervals or tests."""


def interval(mean: float | None, bounds: Any, persons: int) -> Interval:
    """Returns a result over persons; `bounds` are its low and high end."""
    low, high = (float(bound) if np.isfinite(bound) else None for bound in bounds)
    return Interval(mean=mean, low=low, high=high, faces=persons)


def person_mean(values: Array) -> Interval:
    """Returns the mean over persons (P,) of a measure that is not negative, and its t interval; NaN do not count."""
    known = values[np.isfinite(values)]
    spread = len(known) >= LEAST and np.ptp(known) > EQUAL
    bounds = np.clip(stats.ttest_1samp(known, 0).confidence_interval(), 0, None) if spread else (np.nan, np.nan)
    return interval(float(known.mean()) if len(known) else None, bounds, len(known))


def compare_pair(first: Array, second: Array, paired: bool) -> dict[str, Any] | None:
    """Compares a measure of persons (P,) in two conditions; NaN where a person has none.

    Returns:
        The `difference` second minus first with the interval of the t test, paired or Welch's; `t`, `df` and `p`;
        `p by ranks` (Wilcoxon, or Mann and Whitney); Hedges' `g` by the pooled deviation of the conditions; and the
        number of `persons` in each. None: too few persons, or no differences.
    """
    known = np.isfinite(first), np.isfinite(second)
    x, y = (first[known[0] & known[1]], second[known[0] & known[1]]) if paired else (first[known[0]], second[known[1]])
    sizes = np.array([len(x), len(y)])
    if sizes.min() < LEAST or (np.ptp(y - x) if paired else max(np.ptp(x), np.ptp(y))) < EQUAL:
        return None
    test = stats.ttest_rel(y, x) if paired else stats.ttest_ind(y, x, equal_var=False)
    ranks = stats.wilcoxon(y, x) if paired else stats.mannwhitneyu(y, x)
    deviation = np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=sizes - 1))
    difference = float(y.mean() - x.mean())
    return {
        "difference": interval(difference, test.confidence_interval(), int(sizes.min())),
        "t": float(test.statistic),
        "df": float(test.df),
        "p": float(test.pvalue),
        "p by ranks": float(ranks.pvalue),
        "g": float(difference / deviation * (1 - 3 / (4 * sizes.sum() - 9))),
        "persons": sizes.tolist(),
    }


def intraclass_correlation(values: Array, person: NDArray[np.int64]) -> Interval:
    """Returns ICC(1) of values (O,) of persons (O,): the share of the variance that lies between persons.

    Shrout & Fleiss 1979; for different numbers of values with their adjusted mean. Unknown where fewer than
    `LEAST` persons have several values, or these do not differ.
    """
    groups = [values[person == one] for one in np.unique(person)]
    sizes = np.array([len(group) for group in groups])
    if (sizes > 1).sum() < LEAST or sum(map(np.ptp, groups)) < EQUAL:
        return interval(None, (np.nan, np.nan), len(sizes))
    between, within = len(sizes) - 1, len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    ratios = ratio / np.array([1, stats.f.ppf(0.975, between, within), 1 / stats.f.ppf(0.975, within, between)])
    mean, *bounds = (ratios - 1) / (ratios + size - 1)
    return interval(float(mean), bounds, len(sizes))


def mixed_model(values: Array, person: NDArray[np.int64], condition: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Fits values (O,) by the condition (O,) with random effects of the person (O,), by REML with statsmodels.

    Persons with several values in a condition have random slopes besides intercepts: without slopes, 19 of 100
    simulated studies without a difference, in which persons respond differently, had p < 0.05.

    Returns:
        For each condition but the first the `difference` from the first with its Wald interval, and its `p`. Empty: too
        few values, no spread, or the fit does not converge.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM  # only here: it may not be installed

    persons, cells = len(np.unique(person)), len({*zip(person, condition, strict=True)})
    if persons < LEAST or len(values) == persons or np.ptp(values) < EQUAL:
        return []
    effects = np.array([condition == index for index in range(condition.max() + 1)], float).T
    effects[:, 0] = 1
    with warnings.catch_warnings(action="ignore"):  # a variance between persons of 0 is a valid result
        fit = MixedLM(values, effects, person, effects if persons < cells < len(values) else None).fit(reml=True)
    rows = [*zip(fit.fe_params, fit.conf_int(), fit.pvalues, strict=False)][1:] if fit.converged else []
    return [{"difference": interval(float(mean), bounds, persons), "p": float(p)} for mean, bounds, p in rows]


class Kind(NamedTuple):
    """M measures of one kind, their values for O photos or clips (O, M), NaN where there is none, and their format."""

    title: str
    names: Sequence[str]
    values: Array
    form: str


@dataclass(frozen=True, eq=False)
class Study:
    """Persons under C conditions, observed O times: in a photo or clip of a person in a condition.

    Attributes:
        conditions: Their names, the baseline first.
        pairs: Indices of the conditions to compare, the second minus the first.
        condition: Index of the condition of each observation (O,).
        person: Index of its person (O,).
        faces: Its number of faces (O,).
        kinds: What was measured.
        left_out: Number of faces without a condition or person.
    """

    conditions: list[str]
    pairs: list[tuple[int, int]]
    condition: NDArray[np.int64]
    person: NDArray[np.int64]
    faces: NDArray[np.int64]
    kinds: list[Kind]
    left_out: int

    def cells(self, values: Array) -> Array:
        """Returns the mean of observed values (O, M) by person and condition (P, C, M); NaN where there is none."""
        persons, conditions = int(self.person.max()) + 1, len(self.conditions)
        means = average(values, self.person * conditions + self.condition, persons * conditions)
        return means.reshape(persons, conditions, -1)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of persons, of photos or clips, and of faces in each condition."""
        rows = [self.condition == index for index in range(len(self.conditions))]
        counts = [(len(np.unique(self.person[row])), int(row.sum()), int(self.faces[row].sum())) for row in rows]
        names = ("persons", "photos or clips", "faces")
        return {one: dict(zip(names, sizes, strict=True)) for one, sizes in zip(self.conditions, counts, strict=True)}


def average(values: Array, group: NDArray[np.int64], groups: int) -> Array:
    """Returns the mean (G, M) of the values (N, M) in each group (N,), of which NaN do not count."""
    sums, counts = np.zeros((2, groups, values.shape[1]))
    np.add.at(sums, group, np.nan_to_num(values))
    np.add.at(counts, group, ~np.isnan(values))
    with np.errstate(invalid="ignore"):
        means: Array = sums / counts
    return means


def make_study(faces: Faces, by: str, person: str, baseline: str | None) -> Study:
    """Averages faces by the columns `by`, for the condition, and `person`.

    Raises:
        FerVitError: There are fewer than two conditions, or no such baseline.
    """
    used = faces.predicted & (faces.columns[by] != np.array(None)) & (faces.columns[person] != np.array(None))
    known = faces.take(used)
    names = sorted({*map(str, known.columns[by])})
    if len(names) < 2 or (baseline or names[0]) not in names:
        expected = f"the baseline {baseline} and others" if baseline else "two or more conditions"
        hint = suggest(baseline, names) if baseline else ""
        raise FerVitError(f"Expected {expected} in `{by}`, but got {short(', '.join(names)) or 'none'}.{hint}")
    names.sort(key=lambda name: name != baseline)
    pairs = [pair for pair in combinations(range(len(names)), 2) if not (baseline and pair[0])]
    condition = np.array([names.index(str(name)) for name in known.columns[by]])
    owner, image = (np.unique(x.astype(str), return_inverse=True)[1] for x in (known.columns[person], known.paths))
    keys = np.column_stack([owner, condition, image])
    observed, index, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    labels = known.columns.get("label", np.array(known.labels, object)[known.probabilities.argmax(1)])
    smoothed = known.columns.get("label_smoothed", labels)
    labels = np.where(smoothed == np.array(None), labels, smoothed)
    shares = np.array([np.where(labels == np.array(None), np.nan, labels == name) for name in known.labels], float).T
    kinds = [
        Kind("Mean probability", known.labels, average(known.probabilities, index, len(observed)), ".3f"),
        Kind("Share of faces with the label", known.labels, average(shares, index, len(observed)), ".1%"),
    ]
    if "label_smoothed" in faces.columns:
        observations = np.full(len(used), -1)
        observations[used] = index
        kinds += clip_kinds(faces, observations)
    return Study(names, pairs, observed[:, 1], observed[:, 0], sizes, kinds, int((faces.predicted & ~used).sum()))


def clip_kinds(faces: Faces, observations: NDArray[np.int64]) -> list[Kind]:
    """Returns seconds per episode (an uninterrupted expression), and episodes and transitions per minute.

    Args:
        faces: All rows of the table, in its order.
        observations: The observation of each row, from 0; -1 for none. An episode ends with it.
    """
    people, cells = People(), zip(*faces.columns.values(), strict=True)
    rows = [dict(zip(faces.columns, row, strict=True)) for row in cells]
    tracks = 1 + max((row["track"] or 0 for row in rows), default=0)
    for row, observation in zip(rows, observations.tolist(), strict=True):
        row["track"] = observation * tracks + (row["track"] or 0)
    for _, frame in groupby(rows, itemgetter("path", "frame")):
        people.add([*frame])
    classes, number = len(faces.labels), observations.max() + 1
    (count, total), passed = np.zeros((2, number, classes)), np.zeros((number, classes, classes))
    episodes = [(one, one.track // tracks, faces.labels.index(one.label)) for one in people.intervals()]
    for (one, observation, label), (after, _, following) in pairwise([*episodes, *episodes[:1]]):
        if observation >= 0:
            count[observation, label] += 1
            total[observation, label] += one.end - one.start
            passed[observation, label, following] += one[:2] == after[:2] and one.end == after.start
    pairs = np.argwhere(passed.any(0))
    names = [" to ".join(faces.labels[label] for label in pair) for pair in pairs]
    with np.errstate(invalid="ignore"):
        minutes = total.sum(1, keepdims=True) / 60
        kinds = [
            Kind("Seconds per episode", faces.labels, total / count, ".2f"),
            Kind("Episodes per minute", faces.labels, count / minutes, ".2f"),
            Kind("Transitions per minute", names, passed[:, pairs[:, 0], pairs[:, 1]] / minutes, ".2f"),
        ]
    return [kind for kind in kinds if kind.names]
