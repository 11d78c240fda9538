"""The results of a comparison in words, and the methods for a paper."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite

from fer_vit.comparison.episodes import SHARE_IN_SIGHT
from fer_vit.comparison.kinds import MeasureKind
from fer_vit.comparison.results import (
    Comparison,
    ContrastTest,
    ContrastWithoutTest,
    Courses,
    Results,
)
from fer_vit.comparison.study import Study
from fer_vit.errors import printable
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.smoothing import RECORDED
from fer_vit.stats.estimate import difference_text
from fer_vit.stats.persons import MIN_PERSONS, MeansTest
from fer_vit.version import __version__
from fer_vit.wording import counted, escaped, list_names

MAX_NAMES = 10  # most names in a line, such as persons or clips


def sentences(kind: MeasureKind, comparisons: Sequence[Comparison]) -> list[str]:
    """Returns a sentence for each measure with a clear difference, and for each unclear pair."""
    clear: dict[str, list[str]] = {}  # clauses by measure
    unclear: dict[tuple[str, str], list[str]] = {}  # measures by pair of conditions
    for comparison in comparisons:
        if isinstance(comparison, ContrastWithoutTest):
            continue
        if comparison.is_clear:
            clear.setdefault(comparison.measure, []).append(clause(kind, comparison))
        else:
            pair = (comparison.first, comparison.second)
            unclear.setdefault(pair, []).append(comparison.measure)

    subject = kind.subject[0].upper() + kind.subject[1:]
    lines = []
    for measure, clauses in clear.items():
        lines.append(f"{subject} {measure} is {'; '.join(clauses)}.")
    for (first, second), measures in unclear.items():
        if len(measures) == len(kind.values) > MAX_NAMES:
            compared = f"any of the {len(measures):,} measures"
        else:
            compared = f"{kind.subject} {measure_names(kind, measures)}"
        lines.append(
            f"No clear difference between {second} and {first} in {compared}: this is no evidence "
            "that they are equal."
        )
    return lines


def measure_names(kind: MeasureKind, measures: Sequence[str]) -> str:
    """Returns the names of measures of a kind; many outputs of a head are grouped by first word.

    The first word of a movement is an area of the face: "brow (inner up, down left), mouth (smile
    left)".
    """
    if len(measures) <= MAX_NAMES or not kind.of_head:
        return list_names(measures, MAX_NAMES)
    areas: dict[str, list[str]] = {}
    for measure in measures:
        area, _, name_in_area = measure.partition(" ")
        areas.setdefault(area, []).append(name_in_area or area)
    texts = []
    for area, names in areas.items():
        texts.append(f"{escaped(area)} ({list_names(names, len(names))})")
    return ", ".join(texts)


def clause(kind: MeasureKind, comparison: ContrastTest) -> str:
    """Returns a clear difference in words: size, direction, interval, t, p, Hedges' g, persons.

    The signs of size, interval, t and g follow the direction: 3 lower, from 1 to 5. Only p is
    corrected for the number of tests. A word stands between each name and the next number: a name
    in a script from right to left would otherwise move the number.
    """
    test = comparison.test
    if test.difference.mean > 0:
        direction = "higher"
        size = test.difference.mean
        low = test.difference.low
        high = test.difference.high
        g = test.g
    else:
        direction = "lower"
        size = -test.difference.mean
        low = -test.difference.high
        high = -test.difference.low
        g = -test.g
    return (
        f"{size_text(size, kind.form)}{kind.unit} {direction} in {comparison.second} than in "
        f"{comparison.first} (95% interval {size_text(low, kind.form)} to "
        f"{size_text(high, kind.form)}, not corrected; t({round(test.df, 2):g}) = "
        f"{abs(test.t):.2f}, {_p(comparison.p_corrected)} after Holm's correction; g = {g:.2f}; "
        f"{_persons(test)})"
    )


def size_text(value: float, form: str) -> str:
    """Returns the text that `difference_text` has for a value, without a plus sign."""
    return difference_text(value, f"+{form.removeprefix('+')}").removeprefix("+")


def p_text(value: float) -> str:
    """Returns a p-value as in papers, without the letter p."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _p(value: float) -> str:
    """Returns a p-value as in papers, with the letter p."""
    return f"p {p_text(value)}" if value < 0.001 else f"p = {p_text(value)}"


def _persons(test: MeansTest) -> str:
    """Returns the number of persons of a test."""
    if test.paired:
        return f"n = {test.num_first} pairs"
    return f"n = {test.num_second} and {test.num_first}"


def missing_lines(title: str, comparisons: Sequence[Comparison]) -> list[str]:
    """Returns a line about missing tests for each pair of conditions and each reason."""
    measures: dict[str, list[str]] = defaultdict(list)  # measures by pair and reason
    for comparison in comparisons:
        if isinstance(comparison, ContrastWithoutTest):
            measures[f"{comparison.pair}: {comparison.reason}"].append(comparison.measure)

    lines = []
    for reason, names in measures.items():
        listed = list_names(names, MAX_NAMES)
        lines.append(f"Not tested ({title.lower()}): {listed}; {reason}.")
    return lines


def methods(facts: Mapping[str, str], study: Study, results: Results) -> list[str]:
    """Returns the methods for a paper, and a line for each kind of faces left out of all tests."""
    statements = [*_test_methods(facts, results), *_describe_further_measures(facts, study)]
    if results.courses:
        statements.append(_course_methods(results.courses))
    lines = [f"{'. '.join(statements)}."]
    lines += design_lines(study)
    lines += _few_persons_lines(study)
    if study.unassigned_faces:
        lines.append(f"Left out without condition or person: {study.unassigned_faces:,} faces.")
    for condition, number in study.without_face.items():
        if condition not in study.conditions:
            searched = counted(number, "photo or frame", "photos or frames")
            lines.append(f"Not compared: {condition}, with no face in {searched}.")
    if study.without_rest:
        lines.append(
            f"Left out without a face in the resting interval, {len(study.without_rest):,} photos "
            f"or clips: {list_names(study.without_rest, MAX_NAMES)}."
        )
    lines += _episode_lines(study)
    lines += _intraclass_lines(results)
    lines += study.notes
    return [printable(line) for line in lines]


def _episode_lines(study: Study) -> list[str]:
    """Returns a line for each way in which conditions or clips cut episodes."""
    statements = {
        "Episodes that last beyond the condition in which they begin": "leaving",
        "Left out, episodes that begin in frames that are not compared": "begun_elsewhere",
        "Left out, episodes within which a clip or the sight of a face begins": "without_beginning",
        "Left out of durations, episodes that begin too late in a clip or sight": "too_late",
    }
    lines = []
    for statement, name in statements.items():
        numbers = {}
        for condition, counts in study.episodes.items():
            numbers[condition] = getattr(counts, name)
        if any(numbers.values()):
            shares = [f"{number:,} of {condition}" for condition, number in numbers.items()]
            lines.append(f"{statement}: {', '.join(shares)}.")
    lasting = [label for label, room in study.rooms.items() if not isfinite(room)]
    if lasting:
        lines.append(
            f"No durations of {list_names(lasting, MAX_NAMES)}: over {1 - SHARE_IN_SIGHT:.0%} of "
            "the episodes outlast the sight of the face."
        )
    return lines


def _few_persons_lines(study: Study) -> list[str]:
    """Returns a line if conditions have fewer than `MIN_PERSONS` persons."""
    small = []
    for condition, counts in study.counts().items():
        if counts.persons < MIN_PERSONS:
            small.append(f"{condition} ({counts.persons})")
    if not small:
        return []
    return [f"Too few persons for intervals and tests, under {MIN_PERSONS}: {', '.join(small)}."]


def _test_methods(facts: Mapping[str, str], results: Results) -> list[str]:
    """Returns sentences about classification, averages and tests, each without a full stop."""
    settings = [f"{name} {fact}" for name, fact in facts.items() if name != "data"]
    if not settings:
        settings = ["settings unknown, since the table does not record them"]
    tests = (
        "Conditions were compared by two-sided t tests, paired for persons in both and Welch's for "
        "different persons, with the correction of Holm (1979) within each table, and by rank "
        "tests (Wilcoxon or Mann-Whitney) without correction; g is Hedges' g: the difference "
        "divided by the pooled standard deviation of both conditions, also for pairs (g_av of "
        "Lakens 2013)"
    )
    return [
        f"Expressions were classified with fer-vit ({', '.join(settings)})",
        f"Statistics were computed with fer-vit {__version__}",
        "Faces were averaged by photo or clip, and these by person and condition",
        "Means have 95% confidence intervals (t) and standard deviations over persons",
        tests,
    ]


def _describe_further_measures(facts: Mapping[str, str], study: Study) -> list[str]:
    """Returns sentences about further measures, each without a full stop."""
    statements = []
    if study.heads:
        names = list_names([title[0].lower() + title[1:] for title in study.heads], MAX_NAMES)
        statements.append(
            f"Further measures ({names}) are outputs of the model or, for the pose, of the "
            "landmarks, and are averaged and compared in the same way; ICC and series are of the "
            "expressions alone"
        )
    if study.episodes:
        smoothing = "Labels of clips, and their episodes, are of smoothed probabilities"
        if "version" in facts:
            seconds = facts.get("smooth", f"{PhotoOptions.smooth:g}")
            smoothing += f" ({RECORDED.describe(seconds)})"
        statements += [
            smoothing,
            "An episode counts in the condition in which it begins, with its whole duration; rates "
            "are per minute in which a face is followed",
        ]
    timed = {label: room for label, room in study.rooms.items() if isfinite(room)}
    if timed:
        rooms = list_names([f"{label} {room:.2f} s" for label, room in timed.items()], MAX_NAMES)
        statements.append(
            "Durations are of episodes that begin early enough before a clip or the sight of a "
            f"face ends, by the time within which {SHARE_IN_SIGHT:.0%} of the episodes of their "
            f"label end (Kaplan & Meier 1958): {rooms}"
        )
    if study.rest:
        statements.append(
            "From the probabilities and outputs of a clip, their mean from "
            f"{study.rest.start:g} up to {study.rest.end:g} s was subtracted (before smoothing; in "
            "series, of smoothed probabilities where the table has them), and faces in this "
            "interval count nowhere else"
        )
    return statements


def _course_methods(courses: Courses) -> str:
    """Returns a sentence about series, without a full stop."""
    return (
        f"Series are means in bins of {courses.bin_seconds:g} s from 0 s of each clip; bins "
        "without a face stay empty"
    )


def design_lines(study: Study) -> list[str]:
    """Returns a line for each pair of conditions that leaves out persons, with their names."""
    lines = []
    for first, second in study.pairs:
        design = study.design(first, second)
        names = study.names_of(design.excluded)
        if not names:
            continue
        how = "paired" if design.paired else "different persons"
        why = "in one condition only" if design.paired else "in both conditions"
        lines.append(
            f"{second} - {first}: {how}, {design.persons.sum():,} persons. Left out of the tests, "
            f"since {why}, {len(names):,}: {list_names(names, MAX_NAMES)}."
        )
    return lines


def _intraclass_lines(results: Results) -> list[str]:
    """Returns a line for each condition in which no expression has an ICC(1)."""
    conditions = next(iter(results.intraclass.values()))
    lines = []
    for condition in conditions:
        estimates = [by_condition[condition] for by_condition in results.intraclass.values()]
        if all(estimate.mean is None for estimate in estimates):
            lines.append(
                f"No ICC(1) in {condition}: under {MIN_PERSONS} persons have several photos or "
                "clips, or these are equal."
            )
    return lines
