"""The command `compare`: statistics of persons under several conditions or in several groups."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fer_vit.commands import accept_text, name_files
from fer_vit.comparison.contrasts import compare_conditions
from fer_vit.comparison.read import Plan, read_study
from fer_vit.comparison.results import Comparison
from fer_vit.comparison.tables import COMPARISON_TABLES
from fer_vit.errors import printable
from fer_vit.extras import require
from fer_vit.files import check_output
from fer_vit.report.draw import FigureKind
from fer_vit.report.results_page import FIGURES, RESULTS_FILES
from fer_vit.stats.series import parse_rest

LOGGER = logging.getLogger("fer_vit")


@accept_text
def compare(
    data: Path,
    *,
    by: str,
    person: str = "person",
    columns: Path | None = None,
    baseline: str | None = None,
    outcomes: Sequence[str] = (),
    rest: str | None = None,
    grid: float | None = None,
    uncertain: bool = False,
    figures: FigureKind | None = None,
    output: Path = Path("comparison"),
    overwrite: bool = False,
) -> Comparison:
    """Compares the expressions of persons between conditions or groups.

    Writes OUTPUT/index.html, results.md and results.json: clear differences as sentences; means,
    shares and, for videos, durations and transitions with 95% intervals over persons; corrected t
    tests, rank tests and effect sizes; ICC(1); and the methods for a paper. Movements, pose and
    affect are included if the table has them. measures.csv has the values of each photo or clip.
    Intervals and tests need 6 persons; the page states why a test is missing.

    Examples:
        fer-vit compare faces.csv --by condition --person subject

        fer-vit compare faces.parquet --columns sessions.csv --by mood --person name --baseline calm

        fer-vit compare faces.parquet --by condition --person subject --outcomes smile,p_happiness

        fer-vit compare clips.parquet --by condition --person subject --rest 0-5 --grid 0.5

    Args:
        data: A table or folder of tables of `fer-vit predict`. Parquet also records all settings.
        by: The column with the condition or group.
        person: The column with the person. `path`: each photo or clip is one person.
        columns: A table with the column path and others, such as condition and person.
        baseline: The condition to compare the others with. Default: all pairs.
        outcomes: The outcomes that you planned, such as smile,p_happiness,valence: only these are
            compared, and p is corrected for their tests together. Default: all, corrected by kind
            of measure without weak outputs.
        rest: A resting interval in each clip, such as 0-5 or 0:30-1:00 (seconds or [h:]m:s), whose
            mean is subtracted. Clips without a face in it are left out.
        grid: The duration of a bin in seconds. Also write grid.csv, the means of each clip in bins,
            and grid_means.csv, those over persons.
        uncertain: Also use uncertain faces in photos that have a certain face.
        figures: Also write 85 mm wide figures of differences and means to OUTPUT/figures: pdf, svg
            or png.
        output: The folder to write.
        overwrite: Replace existing results.

    Returns:
        The results: `rows`, `table()` for data frames, and `to_dict()` as in results.json.
    """
    check_output(output, overwrite, (*RESULTS_FILES, *COMPARISON_TABLES, FIGURES))
    if figures is not None:
        require("figures", "`--figures`")
    resting = None if rest is None else parse_rest(rest)
    plan = Plan(by, person, baseline, outcomes, resting, uncertain)
    study = read_study(data, plan, columns)
    comparison = compare_conditions(study, grid)
    paths = comparison.write(output, overwrite, figures)
    lines = [*comparison.methods, *map(printable, comparison.missing), name_files(output, paths)]
    LOGGER.info("\n".join(lines))
    return comparison
