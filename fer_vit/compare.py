"""Compares the expressions of persons between conditions or groups: intervals and tests over persons, and a page.

Predictions are averaged by photo or clip, and these by person and condition.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations, groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil
from scipy import stats

from fer_vit.errors import FerVitError, short, suggest
from fer_vit.evaluate.faces import Faces
from fer_vit.evaluate.scores import holm
from fer_vit.evaluate.writer import Section, write_files
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.predict.people import Interval as Episode, People
from fer_vit.report.charts import intervals_figure
from fer_vit.report.draw import printable
from fer_vit.report.table import NOTHING, Interval, interval_text
from fer_vit.version import __version__

LEAST, EQUAL = 6, 1e-9
"""Fewer persons (with five pairs, no rank test reaches p < 0.05) and smaller differences have no intervals or tests."""


def interval(mean: float | None, bounds: Any, persons: int) -> Interval:
    """Returns a result with its low and high bound; it counts persons, not faces."""
    low, high = (float(bound) if np.isfinite(bound) else None for bound in bounds)
    return Interval(mean=mean, low=low, high=high, persons=persons)


def person_mean(values: Array, most: float = np.inf) -> Interval:
    """Returns the mean over persons (P,) of a measure from 0 to `most`, and its t interval; NaN do not count."""
    known = values[np.isfinite(values)]
    spread = len(known) >= LEAST and np.ptp(known) > EQUAL
    bounds = (
        np.clip(stats.ttest_1samp(known, 0).confidence_interval(), 0, most)
        if spread
        else (np.nan, np.nan)
    )
    return interval(float(known.mean()) if len(known) else None, bounds, len(known))


def compare_pair(first: Array, second: Array, paired: bool) -> dict[str, Any] | None:
    """Compares a measure of persons (P,) in two conditions, second minus first; NaN where a person has none.

    Returns the t test, paired or Welch's, with the interval of the `difference`; `p by ranks` (Wilcoxon, or Mann and
    Whitney); Hedges' `g` by the pooled deviation of the conditions; and the number of `persons` in each. None: too few
    persons, or no differences.
    """
    known = np.isfinite(first), np.isfinite(second)
    x, y = (
        (first[known[0] & known[1]], second[known[0] & known[1]])
        if paired
        else (first[known[0]], second[known[1]])
    )
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

    Shrout & Fleiss 1979; for unequal numbers of values with their adjusted mean. Unknown when fewer than `LEAST`
    persons have several values, or the values of each person are equal.
    """
    groups = [values[person == one] for one in np.unique(person)]
    sizes = np.array([len(group) for group in groups])
    if (sizes > 1).sum() < LEAST or sum(map(np.ptp, groups)) < EQUAL:
        return interval(None, (np.nan, np.nan), len(sizes))
    between, within = len(sizes) - 1, len(values) - len(sizes)
    size = (len(values) - (sizes**2).sum() / len(values)) / between
    ratio = stats.f_oneway(*groups).statistic
    ratios = ratio / np.array(
        [1, stats.f.ppf(0.975, between, within), 1 / stats.f.ppf(0.975, within, between)]
    )
    mean, *bounds = (ratios - 1) / (ratios + size - 1)
    return interval(float(mean), bounds, len(sizes))


def mixed_model(values: Array, person: IntArray, condition: IntArray) -> list[dict[str, Any]]:
    """Fits values (O,) by the condition (O,) with random effects of the person (O,), by REML with statsmodels.

    Persons with several values in a condition have random slopes besides intercepts: without slopes, 19 of 100
    simulated studies without a difference, in which persons respond differently, had p < 0.05.

    Returns for each condition but the first the `difference` from the first with its Wald interval, and its `p`. Empty:
    too few values, no spread, or the fit does not converge.
    """
    from statsmodels.regression.mixed_linear_model import (
        MixedLM,
    )  # only here: it may not be installed

    persons, cells = len(np.unique(person)), len({*zip(person, condition, strict=True)})
    if persons < LEAST or len(values) == persons or np.ptp(values) < EQUAL:
        return []
    effects = np.array([condition == index for index in range(condition.max() + 1)], float).T
    effects[:, 0] = 1
    # A variance between persons of 0 is a valid result. Effects that cannot be separated make a singular matrix.
    with warnings.catch_warnings(action="ignore"), suppress(np.linalg.LinAlgError):
        fit = MixedLM(
            values, effects, person, effects if persons < cells < len(values) else None
        ).fit(reml=True)
        rows = (
            [*zip(fit.fe_params, fit.conf_int(), fit.pvalues, strict=False)][1:]
            if fit.converged
            else []
        )
        return [
            {"difference": interval(float(mean), bounds, persons), "p": float(p)}
            for mean, bounds, p in rows
        ]
    return []


class Kind(NamedTuple):
    """Measures of one kind, such as the mean probability of each expression."""

    title: str
    form: str  # the format of the values
    values: dict[str, Array]  # by measure: (O,), of each photo or clip; NaN where there is none
    most: float = np.inf  # no value is larger


@dataclass(frozen=True, eq=False)
class Study:
    """Persons under C conditions, observed O times: in a photo or clip of a person in a condition."""

    conditions: dict[str, Mask]  # the observations in each (O,), the baseline first
    pairs: list[tuple[str, str]]  # the conditions to compare, the second minus the first
    person: IntArray  # (O,), an index
    faces: IntArray  # (O,), their number
    kinds: list[Kind]  # what was measured
    left_out: int  # number of faces without a condition or person

    def cells(self, values: Array) -> dict[str, Array]:
        """Returns the mean of observed values (O,) of each person (P,) by condition; NaN where there is none."""
        persons = self.person.max() + 1
        return {
            one: average(values[rows], self.person[rows], persons)
            for one, rows in self.conditions.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of persons, of photos or clips, and of faces in each condition."""
        counts = {}
        for name, rows in self.conditions.items():
            persons, faces = len(np.unique(self.person[rows])), int(self.faces[rows].sum())
            counts[name] = {"persons": persons, "photos or clips": int(rows.sum()), "faces": faces}
        return counts


def average(values: Array, group: IntArray, groups: int) -> Array:
    """Returns the mean (G,) of the values (N,) in each group (N,), of which NaN do not count."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(group, np.where(known, values, 0), groups)
            / np.bincount(group, known, groups)
        )


def make_study(faces: Faces, by: str, person: str, baseline: str | None) -> Study:
    """Averages faces by condition and person; raises FerVitError without two conditions or the baseline."""
    none = np.array(None)
    used = faces.predicted & (faces.columns[by] != none) & (faces.columns[person] != none)
    known = faces.take(used)
    names = sorted({*map(str, known.columns[by])}, key=lambda name: (name != baseline, name))
    if len(names) < 2 or baseline not in (None, names[0]):
        expected = f"the baseline {baseline} and others" if baseline else "two or more conditions"
        hint = suggest(baseline, names) if baseline else ""
        raise FerVitError(
            f"Expected {expected} in `{by}`, but got {short(', '.join(names)) or 'none'}.{hint}"
        )
    condition = np.array([names.index(str(cell)) for cell in known.columns[by]])
    owner, image = (
        np.unique(x.astype(str), return_inverse=True)[1]
        for x in (known.columns[person], known.paths)
    )
    keys = np.column_stack([owner, condition, image])
    observed, index, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)

    def observe(measures: Mapping[str, Array]) -> dict[str, Array]:
        return {name: average(values, index, len(observed)) for name, values in measures.items()}

    probabilities = dict(zip(known.labels, known.probabilities.T, strict=True))
    kinds = [Kind("Mean probability", ".3f", observe(probabilities), 1)]
    kinds.append(Kind("Share of faces with the label", ".1%", observe(label_shares(known)), 1))
    if "label_smoothed" in faces.columns:
        observations = np.full(len(used), -1)
        observations[used] = index
        kinds += clip_kinds(find_episodes(faces, observations), faces.labels, len(observed))
    conditions = {name: observed[:, 1] == place for place, name in enumerate(names)}
    pairs = [pair for pair in combinations(names, 2) if baseline in (None, pair[0])]
    return Study(
        conditions, pairs, observed[:, 0], sizes, kinds, int((faces.predicted & ~used).sum())
    )


def label_shares(faces: Faces) -> dict[str, Array]:
    """Returns by label whether each face has it (N,), smoothed where it is of a clip; NaN without a label."""
    labels = faces.columns.get(
        "label", np.array(faces.labels, object)[faces.probabilities.argmax(1)]
    )
    smoothed = faces.columns.get("label_smoothed", labels)
    labels = np.where(smoothed == np.array(None), labels, smoothed)
    return {
        name: np.where(labels == np.array(None), np.nan, labels == name).astype(float)
        for name in faces.labels
    }


def find_episodes(faces: Faces, observations: IntArray) -> list[tuple[int, Episode]]:
    """Returns the uninterrupted expressions in clips, each with the observation (-1: none) of its rows."""
    people, track = People(), np.array([track or 0 for track in faces.columns["track"]])
    tracks = track.max() + 1
    columns = faces.columns | {"track": observations * tracks + track}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for _, frame in groupby(rows, itemgetter("path", "frame")):
        people.add([*frame])
    return [(one.track // tracks, one) for one in people.intervals() if one.track >= 0]


def clip_kinds(
    episodes: Sequence[tuple[int, Episode]], labels: Sequence[str], number: int
) -> list[Kind]:
    """Returns seconds per episode, and episodes and transitions per minute, of a number of observations."""
    seconds, count = (
        dict(zip(labels, np.zeros((len(labels), number)), strict=True)) for _ in range(2)
    )
    passed = {f"{one} to {other}": np.zeros(number) for one, other in product(labels, repeat=2)}
    for (observation, one), (_, after) in pairwise([*episodes, *episodes[:1]]):
        count[one.label][observation] += 1
        seconds[one.label][observation] += one.end - one.start
        if (one.path, one.track, one.end) == (after.path, after.track, after.start):
            passed[f"{one.label} to {after.label}"][observation] += 1
    with np.errstate(invalid="ignore"):
        minutes = sum(seconds.values()) / 60
        kinds = [
            Kind(
                "Seconds per episode",
                ".2f",
                {name: total / count[name] for name, total in seconds.items()},
            ),
            Kind(
                "Episodes per minute",
                ".2f",
                {name: times / minutes for name, times in count.items()},
            ),
            Kind(
                "Transitions per minute",
                ".2f",
                {name: n / minutes for name, n in passed.items() if n.any()},
            ),
        ]
    return [kind for kind in kinds if kind.values]


Means = dict[str, dict[str, Interval]]  # results by measure and condition
Tests = dict[
    str, dict[str, Any] | None
]  # results of `compare_pair` or `mixed_model` by measure and pair of conditions
TESTED = ("t", "df", "p", "p corrected", "p by ranks", "g")


def write_comparison(folder: Path, facts: Mapping[str, str], study: Study) -> str:
    """Writes results.json, results.md and index.html; returns methods and warnings."""
    sizes, text = study.counts(), methods(facts, study)
    rows = [
        ["", *next(iter(sizes.values()))],
        *([name, *map(str, row.values())] for name, row in sizes.items()),
    ]
    parts, results = [Section("Methods", text, rows)], {"methods": text, "conditions": sizes}
    for kind in study.kinds:
        cells = {name: study.cells(values) for name, values in kind.values.items()}
        means = {
            name: {one: person_mean(values, kind.most) for one, values in row.items()}
            for name, row in cells.items()
        }
        tests = pair_tests(study, cells)
        parts += [
            means_section(kind.title, means, kind.form),
            *tests_section(kind.title, tests, kind.form),
        ]
        results[kind.title] = {"means": means, "differences": tests}
    title, form, measures, _ = study.kinds[0]
    results["ICC(1)"] = repeated = {
        name: {
            one: intraclass_correlation(values[rows], study.person[rows])
            for one, rows in study.conditions.items()
        }
        for name, values in measures.items()
    }
    if any(one["mean"] is not None for row in repeated.values() for one in row.values()):
        parts.append(means_section(f"{title}: ICC(1)", repeated, ".2f"))
    if find_spec("statsmodels"):
        results["mixed model"] = tests = mixed_tests(study, measures)
        parts += tests_section(f"{title}, mixed model", tests, form)
    page: dict[str, Any] = {"title": "Expressions by condition", "generator": "fer-vit compare"}
    page |= {"facts": facts, "sections": parts}
    _, written = write_files(folder, "Comparison", {**facts, **results}, **page)
    return f"{text}\n{written}"


def methods(facts: Mapping[str, str], study: Study) -> str:
    """Returns the methods for a paper, with warnings of few persons and of faces left out."""
    settings = ", ".join(f"{name} {fact}" for name, fact in facts.items() if name != "data")
    mixed = "; mixed models have random intercepts and slopes of persons (statsmodels, REML)"
    few = [
        f"{name} ({sizes['persons']})"
        for name, sizes in study.counts().items()
        if sizes["persons"] < LEAST
    ]
    lines = [
        f"Expressions were classified with fer-vit ({settings or 'settings unknown, since only Parquet records them'}) "
        f"and compared with fer-vit {__version__}. Faces were averaged by photo or clip, and these by person and "
        "condition. Means have 95% t intervals over persons. Conditions were compared by two-sided t tests, paired for "
        "persons in both and Welch's for different persons, with Holm's correction within each table, and by rank "
        "tests (Wilcoxon or Mann-Whitney) without correction; g is Hedges' g by the pooled standard deviation"
        f"{mixed if find_spec('statsmodels') else ''}."
    ]
    lines += (
        [f"Too few persons for intervals and tests, under {LEAST}: {', '.join(few)}."]
        if few
        else []
    )
    lines += (
        [f"Left out without condition or person: {study.left_out:,} faces."]
        if study.left_out
        else []
    )
    return "\n".join(lines)


def pair_tests(study: Study, cells: dict[str, dict[str, Array]]) -> Tests:
    """Returns the tests of pairs of conditions, by `Study.cells` of measures; paired if any person is in both."""
    tests = Tests()
    for name, row in cells.items():
        for first, second in study.pairs:
            persons = [{*study.person[study.conditions[one]]} for one in (first, second)]
            paired = not persons[0].isdisjoint(persons[1])
            tests[f"{name}: {second} - {first}"] = compare_pair(row[first], row[second], paired)
    return correct(tests)


def mixed_tests(study: Study, measures: dict[str, Array]) -> Tests:
    """Returns the differences of measures (O,) from the first condition by the mixed model."""
    tests, (first, *others) = Tests(), study.conditions
    condition = np.array([*study.conditions.values()]).argmax(0)
    for name, values in measures.items():
        found = dict(zip(others, mixed_model(values, study.person, condition), strict=False))
        tests |= {f"{name}: {other} - {first}": found.get(other) for other in others}
    return correct(tests)


def correct(tests: Tests) -> Tests:
    """Returns the tests with p-values corrected for their number."""
    p = iter(holm([test["p"] for test in tests.values() if test]))
    return {name: test and {**test, "p corrected": next(p)} for name, test in tests.items()}


def means_section(title: str, means: Means, form: str) -> Section:
    """Returns the table and the chart of some results."""
    rows = [
        [name, *(interval_text(one, form) for one in row.values())] for name, row in means.items()
    ]
    lines = {
        printable(f"{name}, {condition}"): one
        for name, row in means.items()
        for condition, one in row.items()
    }
    head = ["", *next(iter(means.values()))]
    return Section(title, "", [head, *rows], Pil.fromarray(intervals_figure(lines, title)))


def tests_section(title: str, tests: Tests, form: str) -> list[Section]:
    """Returns the table of some tests; none if there are too few persons for all of them."""
    known = [test for test in tests.values() if test]
    if not known:
        return []
    columns = [name for name in TESTED if name in known[0]]
    rows = [["", "difference", *columns]]
    for name, test in tests.items():
        numbers = (
            [f"{test[column]:.2g}" for column in columns] if test else [NOTHING] * len(columns)
        )
        rows.append(
            [name, interval_text(test["difference"], f"+{form}") if test else NOTHING, *numbers]
        )
    text = (
        "A dash: too few values, no spread, or a model that does not converge."
        if len(known) < len(tests)
        else ""
    )
    return [Section(f"{title}: differences", text, rows)]
