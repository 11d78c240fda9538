"""The results of a study: means, tests of pairs of conditions, repeated measures and series."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from fer_vit.comparison.averages import average
from fer_vit.comparison.kinds import Kind
from fer_vit.comparison.series import (
    bin_values,
    leave_one_out,
    mean_course,
    pair_correlations,
    synchrony,
)
from fer_vit.comparison.statistics import (
    LEAST_PERSONS,
    Missing,
    PersonEstimate,
    PersonMean,
    Test,
    compare_pair,
    finite_or_none,
    intraclass_correlation,
    mixed_model,
    person_mean,
)
from fer_vit.comparison.study import Study
from fer_vit.evaluation.inference import holm
from fer_vit.evaluation.page import PageTable
from fer_vit.geometry import Array
from fer_vit.report.estimate import plain_estimates

Estimates = dict[str, dict[str, PersonEstimate]]  # results by measure and condition
Means = dict[str, dict[str, PersonMean]]  # by measure and condition


class Comparison(NamedTuple):
    """A test of a measure in two conditions, the second minus the first."""

    measure: str
    first: str
    second: str
    test: Test | Missing

    @property
    def name(self) -> str:
        """The name in tables and JSON."""
        return f"{self.measure}: {self.pair}"

    @property
    def pair(self) -> str:
        """The two conditions as a difference."""
        return f"{self.second} - {self.first}"


class Outcome(NamedTuple):
    """The results of measures of one kind."""

    kind: Kind
    means: Means
    comparisons: list[Comparison]

    def with_titles(self) -> "Outcome":
        """Returns the same with the measures as pages name them."""
        titles = self.kind.titles
        means = {titles[measure]: row for measure, row in self.means.items()}
        comparisons = []
        for comparison in self.comparisons:
            comparisons.append(comparison._replace(measure=titles[comparison.measure]))
        return self._replace(means=means, comparisons=comparisons)


@dataclass(frozen=True, eq=False)
class Courses:
    """Series of O photos or clips on a grid of T bins, and their synchrony."""

    step: float  # seconds of a bin
    series: Array  # (O, T, C), NaN in a bin without a face
    persons: dict[str, Array]  # by condition: (P, T, C), NaN for a person without values
    several: dict[str, int]  # by condition: persons with several clips, whose series are averaged
    correlations: dict[str, Array]  # by condition: (P, C), leave-one-out; empty if not requested
    synchrony: Estimates  # of each expression by condition; empty if not requested


@dataclass(frozen=True, eq=False)
class Results:
    """All results of a study."""

    outcomes: list[Outcome]
    repeated: Estimates  # ICC(1) of each expression by condition
    mixed: list[Comparison] | None  # None: statsmodels is not installed
    courses: Courses | None


def compute_results(study: Study, grid: float | None = None, sync: bool = False) -> Results:
    """Computes all results; `grid` are seconds of the bins of series, `sync` their synchrony."""
    courses = None if grid is None else compute_courses(study, grid, sync)
    expressions = study.kinds[0].values
    mixed = None
    if find_spec("statsmodels"):
        mixed = mixed_tests(study, study.kinds[0])
    return Results(
        outcomes=[compare_kind(study, kind) for kind in study.kinds],
        repeated=repeated_measures(study, expressions),
        mixed=mixed,
        courses=courses,
    )


def repeated_measures(study: Study, measures: Mapping[str, Array]) -> Estimates:
    """Returns the ICC(1) of measures (O,) by condition."""
    results: Estimates = {}
    for measure, values in measures.items():
        results[measure] = {}
        for condition, rows in study.conditions.items():
            correlation = intraclass_correlation(values[rows], study.person[rows])
            results[measure][condition] = correlation
    return results


def compare_kind(study: Study, kind: Kind) -> Outcome:
    """Returns the means of measures and the corrected tests of all pairs of conditions."""
    designs = [study.design(first, second) for first, second in study.pairs]
    means: Means = {}
    comparisons = []
    for measure, values in kind.values.items():
        cells = study.cells(values)
        means[measure] = {}
        for condition, persons in cells.items():
            means[measure][condition] = person_mean(persons, kind.least, kind.most)
        for (first, second), design in zip(study.pairs, designs, strict=True):
            x = np.where(design.persons, cells[first], np.nan)
            y = np.where(design.persons, cells[second], np.nan)
            test = limit_interval(compare_pair(x, y, design.paired), kind)
            comparisons.append(Comparison(measure, first, second, test))
    return Outcome(kind, means, correct(comparisons))


def limit_interval(test: Test | Missing, kind: Kind) -> Test | Missing:
    """Returns a test whose interval of the difference has no value that the measure cannot have."""
    if isinstance(test, Missing):
        return test
    most = kind.most - kind.least
    difference = test["difference"]
    low = max(difference.low, -most)
    high = min(difference.high, most)
    return test | {"difference": replace(difference, low=low, high=high)}


def mixed_tests(study: Study, kind: Kind) -> list[Comparison]:
    """Returns the differences of measures from the first condition by the mixed model."""
    baseline, *compared = study.conditions
    condition = np.array([*study.conditions.values()]).argmax(0)  # (O,)
    comparisons = []
    for measure, values in kind.values.items():
        tests = mixed_model(values, study.person, condition)
        for second, test in zip(compared, tests, strict=True):
            comparisons.append(Comparison(measure, baseline, second, limit_interval(test, kind)))
    return correct(comparisons)


def correct(comparisons: list[Comparison]) -> list[Comparison]:
    """Returns the comparisons with p-values corrected for the number of tests (Holm)."""
    values = []
    for comparison in comparisons:
        if not isinstance(comparison.test, Missing):
            values.append(comparison.test["p"])

    corrected = iter(holm(values))
    results = []
    for comparison in comparisons:
        test = comparison.test
        if not isinstance(test, Missing):
            test = test | {"p corrected": next(corrected)}
        results.append(comparison._replace(test=test))
    return results


def compute_courses(study: Study, grid: float, sync: bool) -> Courses:
    """Returns the series on a common grid, with `sync` their synchrony.

    Raises FerVitError when the grid does not fit the clips, see `count_bins`.
    """
    series = bin_values(study.probabilities, study.seconds, study.observation, grid)  # (O, T, C)
    persons = {}
    several = {}
    for name, rows in study.conditions.items():
        owner = study.person[rows]
        persons[name] = average(series[rows], owner, len(study.people))  # (P, T, C)
        several[name] = int((np.bincount(owner) > 1).sum())

    correlations: dict[str, Array] = {}
    means: Estimates = {}
    if sync:
        for name, cells in persons.items():
            columns = [leave_one_out(cells[:, :, index]) for index in range(len(study.labels))]
            correlations[name] = np.column_stack(columns)  # (P, C)
        for index, label in enumerate(study.labels):
            means[label] = {}
            for name, cells in persons.items():
                means[label][name] = synchrony(pair_correlations(cells[:, :, index]))
    return Courses(
        step=grid,
        series=series,
        persons=persons,
        several=several,
        correlations=correlations,
        synchrony=means,
    )


def as_json(study: Study, results: Results) -> dict[str, Any]:
    """Returns the results for JSON: means, differences, and the reasons of missing tests."""
    tables: dict[str, Any] = {"conditions": study.counts(), "designs": {}}
    for first, second in study.pairs:
        design = study.design(first, second)
        tables["designs"][f"{second} - {first}"] = {
            "paired": design.paired,
            "persons": int(design.persons.sum()),
            "left out": study.names(design.left_out),
        }
    for outcome in results.outcomes:
        table = {"means": outcome.means} | comparisons_json(outcome.comparisons)
        tables[outcome.kind.title] = table
    tables["ICC(1)"] = results.repeated
    if results.mixed is not None:
        mixed = comparisons_json(results.mixed)
        tables["mixed model"] = mixed["differences"]
        tables["mixed model, missing"] = mixed["missing"]
    if study.rest:
        tables["without rest"] = [*study.without_rest]
    if results.courses and results.courses.synchrony:
        tables["synchrony"] = results.courses.synchrony
    return plain_estimates(tables)


def comparisons_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """Returns the tests by name, null where missing, and the reasons of the missing ones."""
    differences: dict[str, Test | None] = {}
    missing = {}
    for comparison in comparisons:
        if isinstance(comparison.test, Missing):
            differences[comparison.name] = None
            missing[comparison.name] = comparison.test.reason
        else:
            differences[comparison.name] = comparison.test
    return {"differences": differences, "missing": missing}


def measure_rows(study: Study) -> PageTable:
    """Returns a row for each photo or clip of a person with all its measures; empty: no value.

    Their means by person and condition are what is compared.
    """
    columns: dict[str, type] = {"path": str, "condition": str, "person": str, "faces": int}
    measures: dict[str, Array] = {}
    for kind in study.kinds:
        for measure, values in kind.values.items():
            measures[kind.prefix + measure] = values
    columns |= dict.fromkeys(measures, float)

    conditions = _conditions(study)
    rows = []
    for index, path in enumerate(study.paths):
        row: dict[str, Any] = {
            "path": path,
            "condition": conditions[index],
            "person": study.people[study.person[index]],
            "faces": int(study.faces[index]),
        }
        for column, values in measures.items():
            row[column] = finite_or_none(values[index])
        rows.append(row)
    return PageTable(columns, rows)


def course_tables(study: Study, courses: Courses) -> dict[str, PageTable]:
    """Returns files with the series of clips, their means, and the synchrony of each person."""
    tables = {"grid.csv": clip_rows(study, courses), "grid_means.csv": mean_rows(study, courses)}
    if courses.correlations:
        tables["sync.csv"] = sync_rows(study, courses)
    return tables


def clip_rows(study: Study, courses: Courses) -> PageTable:
    """Returns a row for each bin of each clip up to its last face; empty where it has none."""
    columns: dict[str, type] = {"path": str, "condition": str, "person": str, "seconds": float}
    names = [f"p_{label}" for label in study.labels]
    columns |= dict.fromkeys(names, float)
    conditions = _conditions(study)
    rows = []
    for index, series in enumerate(courses.series):
        filled = np.isfinite(series[:, 0])  # (T,)
        bins = np.flatnonzero(filled).max(initial=-1) + 1
        for bin_index in range(bins):
            row: dict[str, Any] = {
                "path": study.paths[index],
                "condition": conditions[index],
                "person": study.people[study.person[index]],
                "seconds": bin_index * courses.step,
            }
            if filled[bin_index]:
                row |= dict(zip(names, series[bin_index].tolist(), strict=True))
            rows.append(row)
    return PageTable(columns, rows)


def _conditions(study: Study) -> list[str]:
    """Returns the condition of each observation (O,)."""
    names = list(study.conditions)
    indices = np.array([*study.conditions.values()]).argmax(0)  # (O,)
    return [names[index] for index in indices]


def mean_rows(study: Study, courses: Courses) -> PageTable:
    """Returns the mean of each expression over persons with its interval, by condition and bin."""
    columns: dict[str, type] = {
        "condition": str,
        "expression": str,
        "seconds": float,
        "mean": float,
        "low": float,
        "high": float,
        "persons": int,
    }
    rows = []
    for condition, cells in courses.persons.items():
        for index, label in enumerate(study.labels):
            mean, low, high, count = mean_course(cells[:, :, index])
            for bin_index in np.flatnonzero(count).tolist():
                rows.append(
                    {
                        "condition": condition,
                        "expression": label,
                        "seconds": bin_index * courses.step,
                        "mean": finite_or_none(mean[bin_index]),
                        "low": finite_or_none(low[bin_index]),
                        "high": finite_or_none(high[bin_index]),
                        "persons": int(count[bin_index]),
                    }
                )
    return PageTable(columns, rows)


def sync_rows(study: Study, courses: Courses) -> PageTable:
    """Returns the correlation of each person, expression and condition; empty if undefined."""
    columns: dict[str, type] = {
        "condition": str,
        "expression": str,
        "person": str,
        "correlation": float,
    }
    rows = []
    for condition, values in courses.correlations.items():
        present = np.unique(study.person[study.conditions[condition]])
        for index, label in enumerate(study.labels):
            for person in present:
                rows.append(
                    {
                        "condition": condition,
                        "expression": label,
                        "person": study.people[person],
                        "correlation": finite_or_none(values[person, index]),
                    }
                )
    return PageTable(columns, rows)


def few_persons(study: Study) -> list[str]:
    """Returns the conditions with fewer than `LEAST_PERSONS` persons, and their number."""
    texts = []
    for name, sizes in study.counts().items():
        if sizes["persons"] < LEAST_PERSONS:
            texts.append(f"{name} ({sizes['persons']})")
    return texts
