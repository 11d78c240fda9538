"""The command `compare`: statistics of persons under several conditions or in several groups."""

from pathlib import Path

from fer_vit.commands import accept_text
from fer_vit.compare.page import write_comparison
from fer_vit.compare.study import make_study
from fer_vit.evaluate.tables import add_columns, check_options, read_predictions
from fer_vit.evaluate.writer import FILES
from fer_vit.files import check_output


@accept_text
def compare(
    data: Path,
    *,
    by: str,
    person: str = "person",
    columns: Path | None = None,
    baseline: str | None = None,
    output: Path = Path("comparison"),
    overwrite: bool = False,
) -> None:
    """Compares the expressions of persons between conditions or groups, with 95 % intervals over persons.

    Writes OUTPUT/index.html, results.md and results.json: means and shares; for videos, durations and transitions;
    differences with corrected t tests, rank tests and effect sizes; ICC(1); a mixed model with the extra `stats`; and
    the methods for a paper. With fewer than 6 persons there are no intervals or tests.

    Examples:
        fer-vit compare faces.csv --by condition --person subject

        fer-vit compare faces.parquet --columns sessions.csv --by condition --person subject --baseline calm

    Args:
        data: A table or folder of tables of `fer-vit predict`. Parquet also records model and settings.
        by: The column with the condition or group.
        person: The column with the person. `path`: each photo or clip is one person.
        columns: A table with the column path and further ones, such as condition and person.
        baseline: The condition to compare the others with. Default: all pairs are compared.
        output: The folder to write.
        overwrite: Whether existing results may be replaced.
    """
    check_output(output, overwrite, FILES)
    faces = read_predictions(data, videos=True)
    faces = add_columns(faces, columns) if columns else faces
    check_options(faces, (by, person), False, False)
    print(
        write_comparison(
            output, {"data": str(data), **faces.facts}, make_study(faces, by, person, baseline)
        )
    )
