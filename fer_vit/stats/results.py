"""Results as rows: each number stands in one row, from which pages and files are rendered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fer_vit.stats.estimate import Estimate


@dataclass(frozen=True)
class Row:
    """A number, what it measures, and the faces that it is over.

    Attributes:
        part: What the model outputs, such as `expression`, or the column of a further output.
        set: How the faces are chosen or divided, such as `all`, or a column with groups.
        group: The group within the set; empty: all faces of the set.
        measure: What is measured, such as `accuracy`.
        estimate: The number with its interval.
        p: The p-value of no difference; None: the number is not tested.
        note: What the number refers to, or why it is missing.
    """

    part: str
    set: str
    group: str
    measure: str
    estimate: Estimate
    p: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the row of a table, with a cell for each number."""
        estimate = self.estimate
        return {
            "part": self.part,
            "set": self.set,
            "group": self.group,
            "measure": self.measure,
            "mean": estimate.mean,
            "low": estimate.low,
            "high": estimate.high,
            "n": estimate.n,
            "p": self.p,
            "note": self.note,
        }


@dataclass(frozen=True)
class Results:
    """The rows of a command's results, with how they were made.

    Attributes:
        facts: How the predictions were made, by name.
        rows: The numbers.
        notes: Assumptions and omissions.
    """

    facts: Mapping[str, str]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def select(
        self,
        part: str | None = None,
        set: str | None = None,
        group: str | None = None,
        measure: str | None = None,
    ) -> list[Row]:
        """Returns the rows with these names, in order; None: any name."""
        wanted = (part, set, group, measure)
        rows = []
        for row in self.rows:
            names = (row.part, row.set, row.group, row.measure)
            if all(name in (None, own) for name, own in zip(wanted, names, strict=True)):
                rows.append(row)
        return rows

    @cached_property
    def by_measure(self) -> dict[tuple[str, str, str], dict[str, Row]]:
        """The rows of each part, set and group, by measure."""
        found: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault((row.part, row.set, row.group), {})[row.measure] = row
        return found

    def table(self) -> list[dict[str, Any]]:
        """Returns the rows as records, for example for `pandas.DataFrame`."""
        return [row.to_dict() for row in self.rows]


def nest(content: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """Returns nested mappings from values with the keys that lead to them."""
    nested: dict[str, Any] = {}
    for keys, value in content:
        mapping = nested
        for key in keys[:-1]:
            mapping = mapping.setdefault(key, {})
        mapping[keys[-1]] = value
    return nested
