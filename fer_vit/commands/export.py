"""The command `export`: a trained model for other programs."""

import json
import logging
from pathlib import Path

from fer_vit.commands import accept_text
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, check_number
from fer_vit.exporting.agreement import measure_agreement
from fer_vit.exporting.calibration import calibrate_model
from fer_vit.exporting.engine_files import choose_quantizing
from fer_vit.exporting.formats import (
    FORMATS_HELP,
    ExportOptions,
    find_format,
    write_model,
)
from fer_vit.files import check_output
from fer_vit.heads import HEADS
from fer_vit.predict.recognizer import load_torch
from fer_vit.store.average import average_networks
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.texts import user_text
from fer_vit.wording import fill_docstring, join_names

LOGGER = logging.getLogger("fer_vit")

# The measure of `fer-vit faithfulness` that is stored with a model. This measure favours the method
# `pixels`, because both use the blurred face; see docs/explanation/faithfulness.md.
KEPT_MEASURE = "pixel insertion, blurred"


@accept_text
@fill_docstring(FORMATS=FORMATS_HELP, HEADS=join_names(HEADS, "and"))
def export(
    output: Path,
    *,
    checkpoint: list[str] | None = None,
    calibrate: Path | None = None,
    logit_adjust: float = 0.0,
    half: bool = False,
    onnx: bool = False,
    quantize: Path | None = None,
    faithfulness: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a trained model for other programs; the name of OUTPUT selects the format.

    NAME.onnx and NAME.pt2 accept any number of faces: image (B, 3, S, S), RGB in [0, 1]; and if the
    model has regions, boxes (B, R, 4), xyxy in crop pixels, and valid (B, R), whether a region is
    present. They return probabilities (B, C) and, of a model with further heads, their values
    (B, K): {HEADS}, as named outputs in ONNX and a tuple in .pt2. Labels, the columns of
    the heads and the geometry of crop and regions are in the ONNX metadata and in the .pt2's
    `fer_vit.json`; docs/how-to/export.md has a script that uses them without fer-vit.

    Examples:
        fer-vit export model.onnx

        fer-vit export my-model --checkpoint best.ckpt --calibrate faces.parquet --half

        fer-vit export model.onnx --quantize faces.parquet

        fer-vit export my-model --checkpoint best.ckpt --onnx

        fer-vit export model.pt2 --checkpoint a.ckpt --checkpoint b.ckpt --checkpoint c.ckpt

    Args:
        output: The path to write. Its name selects one of these formats: {FORMATS}.
        checkpoint: A checkpoint of `fer-vit fit`, a folder, a name from `fer-vit models` or
            "user/name" on the Hugging Face hub. Default: the model that `fer-vit models` marks.
            Repeated: the weights are averaged, for epochs of one run, or runs of one configuration
            with the same `--model.init`; `standardize` is the first model's.
        calibrate: A manifest. On its val split a temperature is fitted, so that confidence matches
            accuracy, and the thresholds for the column `prediction_set` of `predict` are fitted.
            With targets of further heads, the r of each output is stored as well; `fer-vit models`
            shows it.
        logit_adjust: From 0 (off) to 1; raises the recall of rare expressions: this number times
            the logarithm of an expression's frequency in the training faces of `calibrate` is
            subtracted from the logit of the expression (Menon et al. 2021). A new adjustment
            replaces an earlier adjustment. Prints accuracy and UAR (unweighted average recall)
            before and after.
        half: Store the weights of a folder in 16 bits, half the size. They are loaded as 32 bits.
        onnx: Also write model.onnx to a folder. fer-vit then predicts from it without PyTorch.
        quantize: A manifest. NAME.onnx then computes in 8 bits, calibrated on its training faces: a
            quarter of the size, and faster on CPUs (see docs/results/benchmarks.md). A folder gets
            model.onnx, and model.int8.onnx for `--precision int8`, with a temperature and
            thresholds that are fitted to the manifest's val split.
        faithfulness: The faithfulness.json that `fer-vit faithfulness` wrote for this model. A
            folder stores the gains in pixel insertion; the page of `visualize` shows them.
        overwrite: Whether an existing file, or a model in the folder, may be replaced; a folder's
            model card is kept.

    Returns:
        `output`.
    """
    # arguments are checked before the model is loaded
    check_number("logit_adjust", logit_adjust, 0, 1)
    if logit_adjust and calibrate is None:
        raise FerVitError(
            "`--logit_adjust` needs `--calibrate`: "
            "a manifest with the frequency of each expression."
        )
    checkpoints = checkpoint or [DEFAULT_MODEL]
    options = ExportOptions(
        models=checkpoints,
        output=output,
        half=half,
        onnx=onnx,
        faithfulness=faithfulness,
        quantize=quantize,
    )
    file_format = find_format(output)
    file_format.check(options)
    check_output(output, overwrite, file_format.files)

    if len(checkpoints) == 1:
        model = load_torch(checkpoints[0], "cpu")
    else:
        model = load_torch(average_networks(checkpoints), "cpu")

    # errors in these files are reported before calibration and tracing, which take minutes
    if faithfulness is not None:
        model.settings.faithfulness = read_faithfulness(faithfulness)
    quantizing = None
    if quantize is not None:
        quantizing = choose_quantizing(model, Manifest.read(quantize))

    if calibrate is not None:
        manifest = Manifest.read(calibrate)
        LOGGER.info(calibrate_model(model, manifest, logit_adjust))
        agreement = measure_agreement(model, manifest)
        if agreement:
            LOGGER.info(agreement)

    write_model(model, options, overwrite, quantizing)
    return output


def read_faithfulness(path: Path) -> dict[str, list[float]]:
    """Returns the gains in pixel insertion by method.

    A gain is a list of mean, low and high, or of the mean alone if there is no interval.

    Raises:
        FerVitError: The file is not one of `fer-vit faithfulness`.
    """
    gains: dict[str, list[float]] = {}
    try:
        differences = json.loads(user_text(path))["differences"]
        for method, measures in differences.items():
            interval = measures[KEPT_MEASURE]
            ends = [interval["mean"], interval["low"], interval["high"]]
            gains[method] = [round(end, 3) for end in ends if end is not None]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FerVitError(
            f"Expected a faithfulness.json of `fer-vit faithfulness`, but got {path}."
        ) from error
    return {method: gain for method, gain in gains.items() if gain}
