"""Reads text tables of data sets, as distributed."""

import csv
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TextIO

from fer_vit.sources.source import bad_line

# The longest lines are FER2013's, with 9,300 characters for the pixels of an image. AffectNet has
# the most lines: 540,000.
MAX_LINE = 1_000_000
MAX_LINES = 2_000_000


def read_text_table(
    path: Path, columns: tuple[str, ...], header: bool = True, separator: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number (from 1) and the cells by column of each line that is not blank.

    Names of columns become lower case. Yields nothing if there is no file. A table without a header
    has the given columns. Raises FerVitError when a column is missing, or a line has a wrong number
    of cells, or the table exceeds `MAX_LINE` or `MAX_LINES`.
    """
    if not path.is_file():
        return
    required = {name.lower() for name in columns}
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(_lines(file, path), delimiter=separator, skipinitialspace=True)
        lines = filter(None, reader)  # leaves out blank lines
        try:
            first_line = next(lines, ()) if header else columns
            header_names = [name.strip().lower() for name in first_line]
            if not required <= set(header_names):
                actual = ",".join(header_names)
                raise bad_line(path, 1, f"the columns {', '.join(columns)}", actual)
            for line in lines:
                number = reader.line_num
                if len(line) != len(header_names):
                    actual = separator.join(line)
                    raise bad_line(path, number, f"{len(header_names)} columns", actual)
                cells = [cell.strip() for cell in line]
                yield number, dict(zip(header_names, cells, strict=True))
        except csv.Error as error:
            raise bad_line(path, reader.line_num, "comma-separated values", str(error)) from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yields the lines of a file; a small archive may contain endless ones."""
    for number in count(1):
        line = file.readline(MAX_LINE)
        if not line:
            return
        if len(line) == MAX_LINE:
            raise bad_line(path, number, f"fewer than {MAX_LINE:,} characters", "more")
        if number > MAX_LINES:
            raise bad_line(path, number, f"at most {MAX_LINES:,} lines", "more")
        yield line
