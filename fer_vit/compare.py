"""Compares the expressions of persons between conditions or groups: intervals and tests over persons, and a page.

Predictions are averaged by photo or clip, and these by person and condition.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil
from scipy import stats

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluate.faces import Faces
from fer_vit.evaluate.scores import holm
from fer_vit.evaluate.writer import Section, markdown_page, write_files
from fer_vit.geometry import Array, IntArray
from fer_vit.predict.people import People
from fer_vit.report.charts import intervals_figure
from fer_vit.report.draw import printable
from fer_vit.report.table import NOTHING, Interval, interval_text
from fer_vit.version import __version__

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


def intraclass_correlation(values: Array, person: IntArray) -> Interval:
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


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[dict[str, Any]]:
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
    condition: IntArray
    person: IntArray
    faces: IntArray
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


def average(values: Array, group: IntArray, groups: int) -> Array:
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


def clip_kinds(faces: Faces, observations: IntArray) -> list[Kind]:
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
            same = (one.path, one.track) == (after.path, after.track)
            passed[observation, label, following] += same and one.end == after.start
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


Means = dict[str, dict[str, Interval]]
"""Results by measure and condition."""
Tests = dict[str, dict[str, Any] | None]
"""Results of `compare_pair` or `mixed_model` by measure and pair of conditions."""
TESTED = ("t", "df", "p", "p corrected", "p by ranks", "g")


def write_comparison(folder: Path, facts: Mapping[str, str], study: Study) -> str:
    """Writes results.json, results.md and index.html to a folder; returns the methods, warnings and the folder's name.

    `facts` describe how the predictions were made.
    """
    sizes, text = study.counts(), methods(facts, study)
    rows = [["", *sizes[study.conditions[0]]], *([name, *map(str, row.values())] for name, row in sizes.items())]
    parts, results = [Section("Methods", text, rows)], {"methods": text, "conditions": sizes}
    for kind in study.kinds:
        means, tests = summarize(study, kind)
        parts += [means_section(kind.title, means, kind.form), *tests_section(kind.title, tests, kind.form)]
        results[kind.title] = {"means": means, "differences": tests}
    probability = study.kinds[0]
    members = {name: study.condition == index for index, name in enumerate(study.conditions)}
    results["ICC(1)"] = repeated = {
        name: {one: intraclass_correlation(values[rows], study.person[rows]) for one, rows in members.items()}
        for name, values in zip(probability.names, probability.values.T, strict=True)
    }
    if any(one["mean"] is not None for row in repeated.values() for one in row.values()):
        parts.append(means_section(f"{probability.title}: ICC(1)", repeated, ".2f"))
    if find_spec("statsmodels"):
        results["mixed model"] = tests = mixed_tests(study, probability)
        parts += tests_section(f"{probability.title}, mixed model", tests, probability.form)
    page = {"title": "Expressions by condition", "generator": "fer-vit compare"}
    markdown = markdown_page("Comparison", facts, parts)
    return f"{text}\n{write_files(folder, markdown, {**facts, **_plain(results)}, facts, parts, **page)}"


def _plain(results: Any) -> Any:
    """Returns results for JSON: intervals over persons name the number of these."""
    if not isinstance(results, dict):
        return results
    own = {"faces": "persons"} if "low" in results else {}
    return {own.get(name, name): _plain(value) for name, value in results.items()}


def methods(facts: Mapping[str, str], study: Study) -> str:
    """Returns the methods for a paper, with warnings of few persons and of faces left out."""
    settings = ", ".join(f"{name} {fact}" for name, fact in facts.items() if name != "data")
    mixed = "; mixed models have random intercepts and slopes of persons (statsmodels, REML)"
    few = [f"{name} ({sizes['persons']})" for name, sizes in study.counts().items() if sizes["persons"] < LEAST]
    lines = [
        f"Expressions were classified with fer-vit ({settings or 'settings unknown, since only Parquet records them'}) "
        f"and compared with fer-vit {__version__}. Faces were averaged by photo or clip, and these by person and "
        "condition. Means have 95% t intervals over persons. Conditions were compared by two-sided t tests, paired for "
        "persons in both and Welch's for different persons, corrected within each table by Holm, and by ranks "
        "(Wilcoxon; Mann and Whitney); g is Hedges' g by the pooled standard deviation"
        f"{mixed if find_spec('statsmodels') else ''}."
    ]
    lines += [f"Too few persons for intervals and tests, under {LEAST}: {', '.join(few)}."] if few else []
    lines += [f"Left out without condition or person: {study.left_out:,} faces."] if study.left_out else []
    return "\n".join(lines)


def summarize(study: Study, kind: Kind) -> tuple[Means, Tests]:
    """Returns means and tests of a kind; tests are paired if any person is in both conditions."""
    means, tests, cells = Means(), Tests(), study.cells(kind.values)
    present = np.isfinite(study.cells(np.ones((len(study.faces), 1))))[..., 0]
    for name, values in zip(kind.names, np.moveaxis(cells, 2, 0), strict=True):
        means[name] = {one: person_mean(column) for one, column in zip(study.conditions, values.T, strict=True)}
        for first, second in study.pairs:
            paired = bool((present[:, first] & present[:, second]).any())
            found = compare_pair(values[:, first], values[:, second], paired)
            tests[f"{name}: {study.conditions[second]} - {study.conditions[first]}"] = found
    return means, correct(tests)


def mixed_tests(study: Study, kind: Kind) -> Tests:
    """Returns the differences from the first condition by the mixed model."""
    tests, (first, *others) = Tests(), study.conditions
    for name, values in zip(kind.names, kind.values.T, strict=True):
        found = mixed_model(values, study.person, study.condition)
        tests |= {f"{name}: {other} - {first}": one for other, one in zip(others, found, strict=False)}
    return correct(tests)


def correct(tests: Tests) -> Tests:
    """Returns the tests with p-values corrected for their number."""
    p = iter(holm([test["p"] for test in tests.values() if test]))
    return {name: test and {**test, "p corrected": next(p)} for name, test in tests.items()}


def means_section(title: str, means: Means, form: str) -> Section:
    """Returns the table and the chart of some results."""
    rows = [[name, *(interval_text(one, form) for one in row.values())] for name, row in means.items()]
    lines = {printable(f"{name}, {condition}"): one for name, row in means.items() for condition, one in row.items()}
    head = ["", *next(iter(means.values()))]
    return Section(title, "", [head, *rows], Pil.fromarray(intervals_figure(lines, title)))


def tests_section(title: str, tests: Tests, form: str) -> list[Section]:
    """Returns the table of some tests; none if there are too few persons for all of them."""
    known = [test for test in tests.values() if test]
    columns = [name for name in TESTED if known and name in known[0]]
    rows = [
        [name, interval_text(test["difference"], f"+{form}"), *(f"{test[column]:.2g}" for column in columns)]
        if test
        else [name, *[NOTHING] * (len(columns) + 1)]
        for name, test in tests.items()
    ]
    return [Section(f"{title}: differences", "", [["", "difference", *columns], *rows])] if known else []
