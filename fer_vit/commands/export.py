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

    NAME.onnx and NAME.pt2 accept any number of faces: image (B, 3, S, S), RGB in [0, 1]; for models
    with regions, boxes (B, R, 4), xyxy in crop pixels, and valid (B, R), whether a region is
    present. They return probabilities (B, C) and the values (B, K) of further heads ({HEADS}).
    docs/how-to/export.md has the metadata, and a script that uses the files without fer-vit.

    Examples:
        fer-vit export model.onnx

        fer-vit export my-model --checkpoint best.ckpt --calibrate faces.parquet --half

        fer-vit export model.onnx --quantize faces.parquet

        fer-vit export my-model --checkpoint best.ckpt --onnx

        fer-vit export model.pt2 --checkpoint a.ckpt --checkpoint b.ckpt --checkpoint c.ckpt

    Args:
        output: The path to write. Its name selects the format. {FORMATS}.
        checkpoint: The model, as for `predict`. Repeat it to average the weights of epochs of one
            run, or of runs with the same config and `--model.init`.
        calibrate: A manifest whose val split fits a temperature, the thresholds of
            `prediction_set`, and the r of each further output.
        logit_adjust: From 0 (off) to 1: raises the recall of expressions that are rare in the
            training faces of `calibrate` (Menon et al. 2021). Prints accuracy and UAR (unweighted
            average recall).
        half: Store a folder's weights in 16 bits, half the size.
        onnx: Also write model.onnx to a folder; fer-vit then predicts without PyTorch.
        quantize: A manifest whose training faces calibrate 8-bit computing: a quarter of the size,
            faster on CPUs. A folder gets model.onnx, and model.int8.onnx for `--precision int8`,
            calibrated on the val split.
        faithfulness: The model's faithfulness.json; a folder stores its gains, which `visualize`
            shows.
        overwrite: Replace an existing file or model; a folder's model card stays.

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
