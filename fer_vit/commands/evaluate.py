"""The command `evaluate`: scores of a model or a table of predictions, overall and by group."""

import logging
from dataclasses import replace

from fer_vit.commands import find_network, name_files
from fer_vit.evaluation.evaluation_results import Evaluation
from fer_vit.evaluation.predicted_manifest import ManifestFaces
from fer_vit.evaluation.read_labelled import EvaluateOptions, read_labelled, read_other
from fer_vit.evaluation.robustness import score_robustness
from fer_vit.evaluation.score import score
from fer_vit.files import check_output
from fer_vit.options import takes
from fer_vit.report.results_page import RESULTS_FILES

LOGGER = logging.getLogger("fer_vit")


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
    network = find_network(options.checkpoint, options.model)
    faces = read_labelled(options, network)
    second = read_other(options, faces)
    # All wrong arguments are reported by now: the prediction of a manifest takes minutes.
    faces = faces.predict()
    second = second.predict() if second else None
    results = score(faces, options.by, second, options.against or "")
    if results.notes:
        LOGGER.warning("\n".join(results.notes))
    if options.robustness and isinstance(faces, ManifestFaces):
        results = replace(results, rows=(*results.rows, *score_robustness(faces, second)))
    paths = results.write(options.output, options.overwrite)
    LOGGER.info(f"{results.text}\n{name_files(options.output, paths)}")
    return results
