"""Writes a comparison: the tests of all measures, the methods for a paper, tables and charts."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pil

from fer_vit.compare.statistics import (
    LEAST,
    compare_pair,
    intraclass_correlation,
    mixed_model,
    person_mean,
)
from fer_vit.compare.study import Study
from fer_vit.evaluate.scores import holm
from fer_vit.evaluate.writer import Section, write_files
from fer_vit.geometry import Array
from fer_vit.report.charts import intervals_figure
from fer_vit.report.draw import printable
from fer_vit.report.table import NOTHING, Interval, interval_text
from fer_vit.version import __version__

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
