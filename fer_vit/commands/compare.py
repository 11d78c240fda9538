"""The command `compare`: statistics of persons under several conditions or in several groups."""

import logging

from fer_vit.commands import name_files
from fer_vit.comparison.compare_study import compare_conditions
from fer_vit.comparison.comparison_results import Comparison
from fer_vit.comparison.read_study import CompareOptions, read_study
from fer_vit.comparison.study_tables import COMPARISON_TABLES
from fer_vit.errors import printable
from fer_vit.extras import require
from fer_vit.files import check_output
from fer_vit.options import takes
from fer_vit.report.results_page import FIGURES, RESULTS_FILES

LOGGER = logging.getLogger("fer_vit")


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
    study = read_study(options)
    comparison = compare_conditions(study, options.grid)
    paths = comparison.write(options.output, options.overwrite, options.figures)
    missing = map(printable, comparison.missing)
    lines = [*comparison.methods, *missing, name_files(options.output, paths)]
    LOGGER.info("\n".join(lines))
    return comparison
