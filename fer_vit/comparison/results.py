"""The results of a study: means, tests of pairs of conditions, repeated measures and series.

O photos or clips of P persons, T bins, C expressions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from fer_vit.comparison.kinds import MeasureKind
from fer_vit.comparison.study import Study
from fer_vit.geometry import Array
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.means import average
from fer_vit.stats.persons import (
    MeansTest,
    NoTest,
    PersonMean,
    compare_pair,
    intraclass_correlation,
    person_mean,
)
from fer_vit.stats.series import (
    bin_values,
)
from fer_vit.stats.tests import holm

ALPHA = 0.05  # a difference with a corrected p below `ALPHA` is clear

Estimates: TypeAlias = dict[str, dict[str, Estimate]]  # by measure, then by condition
Means: TypeAlias = dict[str, dict[str, PersonMean]]  # by measure, then by condition


@dataclass(frozen=True)
class Contrast:
    """The difference of a measure between two conditions: the second minus the first."""

    measure: str
    first: str
    second: str

    @property
    def name(self) -> str:
        """The name of the contrast in tables and JSON."""
        return f"{self.measure}: {self.pair}"

    @property
    def pair(self) -> str:
        """The two conditions as a difference."""
        return f"{self.second} - {self.first}"


@dataclass(frozen=True)
class ContrastTest(Contrast):
    """A contrast with its test."""

    test: MeansTest
    p_corrected: float  # p, corrected for the number of tests in a table: Holm 1979

    @property
    def is_clear(self) -> bool:
        """Whether the difference is clear: its corrected p is below `ALPHA`."""
        return self.p_corrected < ALPHA


@dataclass(frozen=True)
class ContrastWithoutTest(Contrast):
    """A contrast whose test is impossible."""

    reason: str


# A contrast with its test, or with the reason why there is none.
Comparison: TypeAlias = ContrastTest | ContrastWithoutTest


@dataclass(frozen=True)
class Outcome:
    """The results of measures of one kind."""

    kind: MeasureKind
    means: Means
    comparisons: list[Comparison]

    @property
    def tested(self) -> list[ContrastTest]:
        """The comparisons that have a test."""
        tested = []
        for comparison in self.comparisons:
            if isinstance(comparison, ContrastTest):
                tested.append(comparison)
        return tested

    def with_titles(self) -> "Outcome":
        """Returns the outcome with the names that measures have on pages."""
        titles = self.kind.titles
        means = {titles[measure]: row for measure, row in self.means.items()}
        comparisons = []
        for comparison in self.comparisons:
            comparisons.append(replace(comparison, measure=titles[comparison.measure]))
        return Outcome(self.kind, means, comparisons)


@dataclass(frozen=True, eq=False)
class Courses:
    """Series of probabilities in bins of time.

    Attributes:
        bin_seconds: The length of a bin.
        of_clips: The series of each photo or clip (O, T, C), NaN in a bin without a face.
        of_persons: The series of each person (P, T, C) by condition; NaN for a person without
            values.
        averaged_persons: The number of persons with several clips, by condition. The series of
            their clips are averaged.
    """

    bin_seconds: float
    of_clips: Array
    of_persons: dict[str, Array]
    averaged_persons: dict[str, int]


@dataclass(frozen=True, eq=False)
class Results:
    """All results of a study."""

    outcomes: list[Outcome]
    intraclass: Estimates  # ICC(1) by expression, then by condition
    courses: Courses | None  # None: not requested


def compute_results(study: Study, grid: float | None = None) -> Results:
    """Returns all results of a study.

    Args:
        study: The study.
        grid: The length of the bins of series, in seconds; None: no series.
    """
    expressions = study.kinds[0]
    outcomes = [compare_kind(study, kind) for kind in study.kinds]
    courses = None
    if grid is not None:
        courses = compute_courses(study, grid)
    return Results(
        outcomes=outcomes,
        intraclass=repeated_measures(study, expressions.values),
        courses=courses,
    )


def repeated_measures(study: Study, measures: Mapping[str, Array]) -> Estimates:
    """Returns the ICC(1) of measures (O,), by measure, then by condition."""
    results: Estimates = {}
    for measure, values in measures.items():
        results[measure] = {}
        for condition, rows in study.conditions.items():
            correlation = intraclass_correlation(values[rows], study.person[rows])
            results[measure][condition] = correlation
    return results


def compare_kind(study: Study, kind: MeasureKind) -> Outcome:
    """Returns the means of measures, and the corrected tests of all pairs of conditions."""
    designs = [study.design(first, second) for first, second in study.pairs]
    means: Means = {}
    contrasts = []
    tests: list[MeansTest | NoTest] = []
    for measure, values in kind.values.items():
        person_means = study.person_means(values, kind.period)
        means[measure] = {}
        for condition, of_persons in person_means.items():
            means[measure][condition] = person_mean(of_persons, kind.low, kind.high)
        for (first, second), design in zip(study.pairs, designs, strict=True):
            x = np.where(design.persons, person_means[first], np.nan)
            y = np.where(design.persons, person_means[second], np.nan)
            contrasts.append(Contrast(measure, first, second))
            tests.append(limit_interval(compare_pair(x, y, design.paired), kind))
    return Outcome(kind, means, correct(contrasts, tests))


def limit_interval(test: MeansTest | NoTest, kind: MeasureKind) -> MeansTest | NoTest:
    """Returns a test with its interval clipped to the differences that the measure can have."""
    if isinstance(test, NoTest):
        return test
    span = kind.high - kind.low
    low = max(test.difference.low, -span)
    high = min(test.difference.high, span)
    return replace(test, difference=replace(test.difference, low=low, high=high))


def correct(contrasts: Sequence[Contrast], tests: Sequence[MeansTest | NoTest]) -> list[Comparison]:
    """Returns contrasts with tests; p is corrected for the number of tests (Holm)."""
    corrected = iter(holm([test.p for test in tests if not isinstance(test, NoTest)]))
    comparisons: list[Comparison] = []
    for contrast, test in zip(contrasts, tests, strict=True):
        measure = contrast.measure
        first = contrast.first
        second = contrast.second
        if isinstance(test, NoTest):
            comparisons.append(ContrastWithoutTest(measure, first, second, test.reason))
        else:
            comparisons.append(ContrastTest(measure, first, second, test, next(corrected)))
    return comparisons


def compute_courses(study: Study, grid: float) -> Courses:
    """Returns the series in bins of `grid` seconds.

    Raises FerVitError when the grid does not fit the clips, see `count_bins`.
    """
    of_clips = bin_values(
        study.probabilities, study.seconds, study.observation_of_face, grid
    )  # (O, T, C)
    of_persons = {}
    averaged_persons = {}
    for condition, rows in study.conditions.items():
        person = study.person[rows]
        of_persons[condition] = average(
            of_clips[rows], person, len(study.person_names)
        )  # (P, T, C)
        averaged_persons[condition] = int((np.bincount(person) > 1).sum())

    return Courses(
        bin_seconds=grid,
        of_clips=of_clips,
        of_persons=of_persons,
        averaged_persons=averaged_persons,
    )
