"""The options that every reader of a data set has."""

from dataclasses import dataclass
from pathlib import Path

from fer_vit.options import Options


@dataclass(frozen=True)
class SourceOptions(Options):
    """What a reader of a data set takes."""

    root: Path
    """The folder of the data set."""
