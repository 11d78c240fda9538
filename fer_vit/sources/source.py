"""What readers of data sets share: their options, and errors of missing or damaged data sets."""

from dataclasses import dataclass
from pathlib import Path

from fer_vit.errors import FerVitError, short
from fer_vit.listing import system_entry
from fer_vit.options import Options


@dataclass(frozen=True)
class SourceOptions(Options):
    """What a reader of a data set takes."""

    root: Path
    """The folder of the data set."""


def not_found(root: Path, expected: str) -> FerVitError:
    """Returns the error for a root without the expected files; it names the files in the root."""
    names = []
    for path in root.glob("*"):
        if not system_entry(path.name):
            names.append(path.name)
    if not root.exists():
        return FerVitError(
            f"No folder at {root}: expected {expected.rstrip(',')}. See data/README.md for the "
            "layout."
        )
    if names:
        actual = short(", ".join(sorted(names)))
    elif root.is_dir():
        actual = "an empty folder"
    else:
        actual = "a file"
    return FerVitError(
        f"Expected {expected} in {root}, but got {actual}. See data/README.md for the layout."
    )


def bad_line(path: Path, line: int, expected: str, actual: str) -> FerVitError:
    """Returns the error for an invalid line of a table."""
    return FerVitError(
        f"{path}, line {line}: expected {expected}, but got `{short(actual)}`. Restore the file as "
        "distributed."
    )
