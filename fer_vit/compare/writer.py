"""Writes a comparison: the results as JSON, as Markdown, and as one page."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pil

from fer_vit.compare.study import LEAST, Kind, Study, compare_pair, intraclass_correlation, mixed_model, person_mean
from fer_vit.evaluate.groups import holm
from fer_vit.evaluate.writer import Section, markdown_page, write_files
from fer_vit.report.charts import intervals_figure
from fer_vit.report.draw import printable
from fer_vit.report.table import NOTHING, Interval, interval_text
from fer_vit.version import __version__

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
