"""The command `evaluate`: scores of a model or a table of predictions, overall and by group."""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from fer_vit.commands import find_network, name_files
from fer_vit.data.schema import Split
from fer_vit.evaluation.altered import score_robustness
from fer_vit.evaluation.manifest import ManifestFaces
from fer_vit.evaluation.read import Conditions, check_needs, read_labelled, read_other
from fer_vit.evaluation.results import Evaluation
from fer_vit.evaluation.score import score
from fer_vit.files import check_output
from fer_vit.labels import Merge
from fer_vit.options import Options, takes
from fer_vit.report.results_page import RESULTS_FILES
from fer_vit.tables.images import AngleUnit
from fer_vit.tables.join import with_columns

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Options of `evaluate`."""

    data: Path
    """A manifest, whose faces the model predicts, or a table or folder of tables of `fer-vit
    predict`."""
    _: KW_ONLY
    checkpoint: str | None = None
    """For a manifest: the model, as for `predict`."""
    model: str | None = None
    """Your class that trained the checkpoint, such as my_module.MyTask."""
    labels: Path | None = None
    """For a table: the truth, a manifest or a table with the column path, and label or targets
    (move_mouthSmileLeft, yaw, valence). The most confident face of a photo counts."""
    targets_unit: AngleUnit | None = None
    """The unit of angles in a table of `--labels`. Default: degrees; an error if no angle is above
    1.57."""
    split: Split | None = None
    """The split of a manifest, also of `--labels`. Default: val."""
    merge: Merge | None = None
    """For a manifest: the new label of each old label; null leaves out its faces."""
    prior: str | None = None
    """For a manifest: how frequent expressions are, as for `predict`."""
    classes: Sequence[str] = ()
    """For a manifest: the only possible expressions; faces with others are left out."""
    columns: Path | None = None
    """A table with the column path and others for `--by`."""
    by: Sequence[str] = ()
    """Columns to group by. Groups of fewer than 30 persons or photos get no scores."""
    against: str | None = None
    """Another model, or a table of its predictions for the same images."""
    robustness: bool = False
    """Also score a manifest's images covered, turned, blurred, shrunk and with wrong landmarks."""
    output: Path = Path("evaluation")
    """The folder to write."""
    overwrite: bool = False
    """Replace existing results."""

    def conditions(self) -> Conditions:
        """Returns how a manifest is read and predicted."""
        return Conditions(self.split, self.merge, self.prior, self.classes, self.targets_unit)


@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluation:
    """Scores predictions, overall and by group, and shows the mistakes.

    Writes OUTPUT/index.html, results.md and results.json: accuracy, macro F1, UAR (unweighted
    average recall) and calibration, other outputs if there are targets, and 95% intervals over
    persons (column `person`) or photos. Without labels, you get how often a face was found,
    confidence and expressions.

    Examples:
        fer-vit evaluate ferplus.parquet --checkpoint best.ckpt --against other.ckpt --robustness

        fer-vit evaluate data/rafdb.parquet --split test --by gender race age

        fer-vit evaluate faces.csv --labels truth.csv --columns people.csv --by age

        fer-vit evaluate faces.parquet --merge "{calm: good, happiness: good, surprise: null}"

    Returns:
        The results: `rows`, `table()` for data frames, and `to_dict()` as in results.json.
    """
    check_output(options.output, options.overwrite, RESULTS_FILES)
    # wrong arguments are reported before a manifest is predicted, which takes minutes
    conditions = options.conditions()
    network = find_network(options.checkpoint, options.model)
    faces = read_labelled(options.data, options.checkpoint, options.labels, conditions, network)
    faces = with_columns(faces, options.data, options.columns, options.by)
    against = options.against
    check_needs(faces, against=against is not None, robustness=options.robustness)
    second = read_other(against, faces, conditions) if against else None

    faces = faces.predict()
    second = second.predict() if second else None
    results = score(faces, options.by, second, against or "")
    if results.notes:
        LOGGER.warning("\n".join(results.notes))
    if options.robustness and isinstance(faces, ManifestFaces):
        results = replace(results, rows=(*results.rows, *score_robustness(faces, second)))
    results = replace(results, facts={"data": str(options.data), **results.facts})
    paths = results.write(options.output, options.overwrite)
    LOGGER.info(f"{results.text}\n{name_files(options.output, paths)}")
    return results
