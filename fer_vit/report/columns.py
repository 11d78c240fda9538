"""Tables for a terminal."""

from collections.abc import Sequence


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as lines, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
