"""The tables beside the page of a comparison: measures.csv, grid.csv and grid_means.csv.

NaN becomes an empty cell. O photos or clips, T bins.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fer_vit.comparison.study import Courses, Study
from fer_vit.report.results_page import PageTable
from fer_vit.stats.series import mean_course

MEASURES = "measures.csv"
GRID = "grid.csv"
GRID_MEANS = "grid_means.csv"
COMPARISON_TABLES = (MEASURES, GRID, GRID_MEANS)

# The first columns of tables of photos or clips.
OBSERVATION_COLUMNS: dict[str, type] = {"path": str, "condition": str, "person": str}


def comparison_tables(study: Study, courses: Courses | None) -> dict[str, PageTable]:
    """Returns the tables by file name."""
    tables = {MEASURES: measure_table(study)}
    if courses is not None:
        tables[GRID] = grid_table(study, courses)
        tables[GRID_MEANS] = grid_means_table(study, courses)
    return tables


def observation_cells(study: Study) -> Iterator[dict[str, Any]]:
    """Yields the cells of `OBSERVATION_COLUMNS` for each photo or clip, O rows."""
    observations = study.observations
    for index, path in enumerate(observations.paths):
        yield {
            "path": path,
            "condition": observations.conditions[observations.condition[index]],
            "person": observations.persons[observations.person[index]],
        }


def measure_table(study: Study) -> PageTable:
    """Returns the table of measures, with a row for each photo or clip of a person.

    A comparison uses the means of these rows by person and condition.
    """
    values: dict[str, list[float]] = {}  # O numbers by column
    for measures in study.measures.values():
        for measure in measures:
            values[measure.column] = measure.values.tolist()
    columns = OBSERVATION_COLUMNS | {"faces": int} | dict.fromkeys(values, float)
    numbers = zip(study.observations.face_counts.tolist(), *values.values(), strict=True)
    names = ("faces", *values)
    rows = (
        cells | dict(zip(names, row, strict=True))
        for cells, row in zip(observation_cells(study), numbers, strict=True)
    )
    return PageTable(columns, rows)


def grid_table(study: Study, courses: Courses) -> PageTable:
    """Returns the table of series, with a row for each bin of a clip up to its last face."""
    probability_columns = [f"p_{label}" for label in study.labels]
    columns = OBSERVATION_COLUMNS | {"seconds": float} | dict.fromkeys(probability_columns, float)
    rows = []
    for cells, series in zip(observation_cells(study), courses.of_clips, strict=True):  # (T, L)
        has_face = np.isfinite(series[:, 0])  # (T,)
        last = np.flatnonzero(has_face).max(initial=-1)
        for bin_index in range(last + 1):
            row = cells | {"seconds": bin_index * courses.bin_seconds}
            if has_face[bin_index]:
                row |= dict(zip(probability_columns, series[bin_index].tolist(), strict=True))
            rows.append(row)
    return PageTable(columns, rows)


def grid_means_table(study: Study, courses: Courses) -> PageTable:
    """Returns the table of means over persons, by condition, expression and bin."""
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
    for condition, series in courses.of_persons.items():  # (P, T, L)
        for label_index, label in enumerate(study.labels):
            course = mean_course(series[:, :, label_index])
            for bin_index in np.flatnonzero(course.num_persons).tolist():
                rows.append(
                    {
                        "condition": condition,
                        "expression": label,
                        "seconds": bin_index * courses.bin_seconds,
                        "mean": float(course.mean[bin_index]),
                        "low": float(course.low[bin_index]),
                        "high": float(course.high[bin_index]),
                        "persons": int(course.num_persons[bin_index]),
                    }
                )
    return PageTable(columns, rows)
