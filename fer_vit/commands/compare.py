"""The command `compare`: statistics of persons under several conditions or in several groups."""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from fer_vit.commands import name_files
from fer_vit.comparison.contrasts import compare_conditions
from fer_vit.comparison.read import Plan, read_study
from fer_vit.comparison.results import Comparison
from fer_vit.comparison.tables import COMPARISON_TABLES
from fer_vit.errors import printable
from fer_vit.extras import require
from fer_vit.files import check_output
from fer_vit.options import Options, Positive, takes
from fer_vit.report.draw import FigureKind
from fer_vit.report.results_page import FIGURES, RESULTS_FILES
from fer_vit.stats.series import parse_rest

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class CompareOptions(Options):
    """Options of `compare`."""

    data: Path
    """A table or folder of tables of `fer-vit predict`; Parquet also records the settings."""
    _: KW_ONLY
    by: str
    """The column with the condition or group."""
    person: str = "person"
    """The column with the person. `path`: each photo or clip is one person."""
    columns: Path | None = None
    """A table with the column path and others, such as condition and person."""
    baseline: str | None = None
    """The condition to compare the others with. Default: all pairs."""
    outcomes: Sequence[str] = ()
    """The outcomes that you planned, such as smile,p_happiness,valence: only these are compared,
    and p is corrected for all of them together. Default: all, corrected by kind of measure."""
    rest: str | None = None
    """A resting interval in each clip, such as 0-5 or 0:30-1:00, whose mean is subtracted."""
    grid: Positive | None = None
    """Also write grid.csv and grid_means.csv, means over time in bins of this many seconds."""
    uncertain: bool = False
    """Also use uncertain faces in photos that have a certain face."""
    figures: FigureKind | None = None
    """Also write 85 mm wide figures of differences and means to OUTPUT/figures."""
    output: Path = Path("comparison")
    """The folder to write."""
    overwrite: bool = False
    """Replace existing results."""

    def plan(self) -> Plan:
        """Returns what is compared. Raises FerVitError for another form of `rest`."""
        rest = None if self.rest is None else parse_rest(self.rest)
        return Plan(self.by, self.person, self.baseline, self.outcomes, rest, self.uncertain)


@takes(CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compares the expressions of persons between conditions or groups.

    Writes OUTPUT/index.html, results.md and results.json, with differences, 95% intervals over
    persons, corrected tests and a methods text for your paper, and measures.csv, with the values of
    each photo or clip. Intervals and tests need 6 persons.

    Examples:
        fer-vit compare faces.csv --by condition --person subject

        fer-vit compare faces.parquet --columns sessions.csv --by mood --person name --baseline calm

        fer-vit compare faces.parquet --by condition --person subject --outcomes smile,p_happiness

        fer-vit compare clips.parquet --by condition --person subject --rest 0-5 --grid 0.5

    Returns:
        The results: `rows`, `table()` for data frames, and `to_dict()` as in results.json.
    """
    files = (*RESULTS_FILES, *COMPARISON_TABLES, FIGURES)
    check_output(options.output, options.overwrite, files)
    if options.figures is not None:
        require("figures", "`--figures`")
    study = read_study(options.data, options.plan(), options.columns)
    comparison = compare_conditions(study, options.grid)
    paths = comparison.write(options.output, options.overwrite, options.figures)
    missing = map(printable, comparison.missing)
    lines = [*comparison.methods, *missing, name_files(options.output, paths)]
    LOGGER.info("\n".join(lines))
    return comparison
