"""Names of numbered files: part-00002-of-00008.parquet is one of eight tables."""

import re
from typing import NamedTuple

PART = "part"  # the kind of the numbered tables of `predict`: part-00000-of-00002.parquet
NUMBERED = re.compile(r"(\w+)-(\d{5,})-of-(\d{5,})\.parquet")


class NumberedName(NamedTuple):
    """What the name of a numbered file states."""

    kind: str  # `PART`, or the split of a manifest
    number: int  # from 0
    total: int  # how many files of this kind there are


def numbered_name(kind: str, number: int, total: int) -> str:
    """Returns the name of a numbered file; `number` counts from 0."""
    return f"{kind}-{number:05}-of-{total:05}.parquet"


def parse_numbered_name(file: str) -> NumberedName | None:
    """Parses the name of a numbered file; returns None for another file."""
    match = NUMBERED.fullmatch(file)
    return match and NumberedName(match[1], int(match[2]), int(match[3]))
