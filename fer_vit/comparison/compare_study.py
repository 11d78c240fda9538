"""Compares the conditions of a study: means, tests of pairs, repeated measures and series, as rows.

O photos or clips of P persons, T bins, L expressions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from fer_vit.comparison.comparison_results import Comparison
from fer_vit.comparison.comparison_rows import (
    CONDITIONS,
    DF,
    DIFFERENCE,
    DIFFERENCES,
    EPISODES,
    FACES,
    FIRST,
    INTRACLASS,
    MEAN,
    MEANS,
    PAIRED,
    PERSONS,
    PHOTOS,
    RANKS,
    ROOM,
    SD,
    SECOND,
    WELCH,
    WITHOUT_FACE,
    G,
    T,
    count_row,
)
from fer_vit.comparison.episodes import SECONDS
from fer_vit.comparison.measures import Measure, probability_kind
from fer_vit.comparison.study import Courses, Pair, Study
from fer_vit.heads import WEAK
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.hypothesis_tests import holm
from fer_vit.stats.means import average
from fer_vit.stats.persons import (
    MeansTest,
    NoTest,
    PersonMean,
    compare_pair,
    intraclass_correlation,
    person_mean,
)
from fer_vit.stats.results import Row
from fer_vit.stats.series import bin_values


def compare_conditions(study: Study, grid: float | None = None) -> Comparison:
    """Returns the results of a study.

    Args:
        study: The study.
        grid: The length of the bins of series, in seconds; None: no series.

    Raises:
        FerVitError: The grid does not fit the clips, see `count_bins`.
    """
    tested = []
    for family in study.families:
        tested += compare_family(study, family)
    agreement = []
    for measure in study.measures.get(probability_kind(study.rest), ()):
        agreement += repeated_measures(study, measure)
    return Comparison(
        facts=study.facts,
        rows=(*count_faces(study), *count_all_episodes(study), *tested, *agreement),
        notes=study.notes,
        study=study,
        courses=None if grid is None else compute_courses(study, grid),
    )


def count_faces(study: Study) -> list[Row]:
    """Returns the numbers of persons, photos or clips, and faces of each condition."""
    observations = study.observations
    rows = []
    for condition, member in study.members.items():
        numbers = {
            PERSONS: len(np.unique(observations.person[member])),
            PHOTOS: int(member.sum()),
            FACES: int(observations.face_counts[member].sum()),
            WITHOUT_FACE: study.without_face.get(condition, 0),
        }
        rows += [count_row(CONDITIONS, condition, name, count) for name, count in numbers.items()]
    return rows


def count_all_episodes(study: Study) -> list[Row]:
    """Returns the numbers of episodes of each condition, and the time in sight that they need."""
    rows = []
    for condition, counts in study.episodes.items():
        rows += [count_row(EPISODES, condition, name, count) for name, count in counts.items()]
    for label, seconds in study.rooms.items():
        room = Estimate(seconds if isfinite(seconds) else None)
        rows.append(Row(SECONDS.prefix + label, EPISODES, "", ROOM, room))
    return rows


def compare_family(study: Study, measures: Sequence[Measure]) -> list[Row]:
    """Returns the means of measures in each condition, and their tests for all pairs of conditions.

    The p-values of differences are corrected for the number of tests (Holm 1979). A weak measure
    that was not planned has none.
    """
    means: dict[Measure, dict[str, PersonMean]] = {}
    tests: dict[Measure, dict[Pair, MeansTest | NoTest]] = {}
    p = {}
    for measure in measures:
        of_persons = study.person_means(measure)  # (P,) by condition
        means[measure] = {}
        for condition, numbers in of_persons.items():
            means[measure][condition] = person_mean(numbers, measure.kind.low, measure.kind.high)
        tests[measure] = {}
        for pair, design in study.designs.items():
            first = np.where(design.persons, of_persons[pair.first], np.nan)
            second = np.where(design.persons, of_persons[pair.second], np.nan)
            test = compare_pair(first, second, design.paired)
            tests[measure][pair] = test
            if isinstance(test, MeansTest) and not study.is_aside(measure):
                p[measure, pair] = test.p
    corrected = dict(zip(p, holm([*p.values()]), strict=True))

    rows = []
    for measure in measures:
        rows += rows_of_means(measure, means[measure])
        for pair, test in tests[measure].items():
            rows += rows_of_test(measure, pair, test, corrected.get((measure, pair)))
    return rows


def rows_of_means(measure: Measure, means: Mapping[str, PersonMean]) -> list[Row]:
    """Returns the means of a measure by condition, with the standard deviations over persons."""
    rows = []
    for condition, mean in means.items():
        deviation = Estimate(mean.sd, n=mean.n, over="persons")
        rows.append(Row(measure.column, MEANS, condition, MEAN, mean))
        rows.append(Row(measure.column, MEANS, condition, SD, deviation))
    return rows


def rows_of_test(
    measure: Measure, pair: Pair, test: MeansTest | NoTest, corrected: float | None
) -> list[Row]:
    """Returns the numbers of a test, the difference first, with its `corrected` p.

    The interval is clipped to the differences that the measure can have.
    """

    def row(name: str, estimate: Estimate, p: float | None = None, note: str = "") -> Row:
        return Row(measure.column, DIFFERENCES, pair.name, name, estimate, p, note)

    if isinstance(test, NoTest):
        return [row(DIFFERENCE, Estimate(None), note=test.reason)]
    span = measure.kind.high - measure.kind.low
    low = max(test.difference.low, -span)
    high = min(test.difference.high, span)
    difference = replace(test.difference, low=low, high=high)

    def number(mean: float | None) -> Estimate:
        return Estimate(mean, n=difference.n, over="persons")

    return [
        row(DIFFERENCE, difference, corrected, WEAK if corrected is None else ""),
        row(T, number(test.t), test.p, PAIRED if test.paired else WELCH),
        row(DF, number(test.df)),
        row(RANKS, number(None), test.p_by_ranks),
        row(G, number(test.g)),
        row(FIRST, number(test.num_first)),
        row(SECOND, number(test.num_second)),
    ]


def repeated_measures(study: Study, measure: Measure) -> list[Row]:
    """Returns the ICC(1) of a measure in each condition."""
    rows = []
    for condition, member in study.members.items():
        person = study.observations.person[member]
        correlation = intraclass_correlation(measure.values[member], person)
        rows.append(Row(measure.column, INTRACLASS, condition, INTRACLASS, correlation))
    return rows


def compute_courses(study: Study, grid: float) -> Courses:
    """Returns the series in bins of `grid` seconds.

    Raises FerVitError when the grid does not fit the clips, see `count_bins`.
    """
    faces = study.faces
    of_clips = bin_values(faces.probabilities, faces.seconds, faces.observation, grid)  # (O, T, L)
    of_persons = {}
    averaged_persons = {}
    for condition, member in study.members.items():
        person = study.observations.person[member]
        of_persons[condition] = average(
            of_clips[member], person, len(study.observations.persons)
        )  # (P, T, L)
        averaged_persons[condition] = int((np.bincount(person) > 1).sum())

    return Courses(
        bin_seconds=grid,
        of_clips=of_clips,
        of_persons=of_persons,
        averaged_persons=averaged_persons,
    )
