"""Where a table comes from: names rows and files in messages."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fer_vit.errors import TableError, short


@dataclass(frozen=True)
class Source:
    """The file of a table, or several files that were read as one table."""

    path: Path  # the file, or the folder with several files
    num_rows: dict[Path, int] = field(default_factory=dict)  # number of rows of each file, in order

    def row_name(self, row: int | np.integer[Any]) -> str:
        """Returns the file and the number of a row, for messages."""
        path, number = self._file_and_number(int(row))
        return f"{path}, row {number} (counted after the header, without blank rows)"

    def earlier_row_name(self, row: int) -> str:
        """Returns the number and the file of a row, for messages that begin with `row_name`."""
        path, number = self._file_and_number(row)
        return f"row {number} of {path.name}"

    def _file_and_number(self, row: int) -> tuple[Path, int]:
        """Returns the file of a row, and the number of the row in the file, counted from 1."""
        index = row
        for path, num_rows in self.num_rows.items():
            if index < num_rows:
                return path, index + 1
            index -= num_rows
        return self.path, index + 1

    def bad_cell(
        self, column: str, row: int, expected: str, cell: object, remedy: str
    ) -> TableError:
        """Returns the error for a cell that does not fit its column."""
        return TableError(
            f"{self.row_name(row)}: expected {expected} in `{column}`, but got `{short(cell)}`. "
            f"Correct the cell, or {remedy}."
        )
