"""The command `export`: a trained model for other programs."""

import json
import logging
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
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
from fer_vit.options import Share, takes
from fer_vit.predict.recognizer import load_torch
from fer_vit.store.average import average_networks
from fer_vit.texts import user_text

LOGGER = logging.getLogger("fer_vit")

# The measure of `fer-vit faithfulness` that is stored with a model. This measure favours the method
# `pixels`, because both use the blurred face; see docs/explanation/faithfulness.md.
KEPT_MEASURE = "pixel insertion, blurred"


@dataclass(frozen=True)
class ExportCommandOptions(ExportOptions):
    """Options of `export`. Those of `ExportOptions` are how the model is written."""

    TEXTS: ClassVar = {"FORMATS": FORMATS_HELP}

    _: KW_ONLY
    calibrate: Path | None = None
    """A manifest whose val split calibrates confidence and `prediction_set`, and measures the r of
    each further output."""
    logit_adjust: Share = 0.0
    """With `--calibrate`, from 0 (off) to 1: raises the recall of rare expressions."""
    overwrite: bool = False
    """Replace an existing file or model; a folder's model card stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logit_adjust and self.calibrate is None:
            raise FerVitError(
                "`--logit_adjust` needs `--calibrate`: "
                "a manifest with the frequency of each expression."
            )


@takes(ExportCommandOptions)
def export(options: ExportCommandOptions) -> Path:
    """Writes a trained model for other programs; the name of OUTPUT selects the format.

    NAME.onnx and NAME.pt2 take crops of faces and return probabilities and other outputs.
    docs/how-to/export.md has a script that uses the files without fer-vit.

    Examples:
        fer-vit export model.onnx

        fer-vit export my-model --checkpoint best.ckpt --calibrate faces.parquet --half

        fer-vit export model.onnx --quantize faces.parquet

        fer-vit export my-model --checkpoint best.ckpt --onnx

        fer-vit export model.pt2 --checkpoint a.ckpt --checkpoint b.ckpt --checkpoint c.ckpt

    Returns:
        `output`.
    """
    file_format = find_format(options.output)
    file_format.check(options)
    check_output(options.output, options.overwrite, file_format.files)

    if len(options.models) == 1:
        model = load_torch(options.models[0], "cpu")
    else:
        model = load_torch(average_networks(options.models), "cpu")

    # errors in these files are reported before calibration and tracing, which take minutes
    if options.faithfulness is not None:
        model.settings.faithfulness = read_faithfulness(options.faithfulness)
    quantizing = None
    if options.quantize is not None:
        quantizing = choose_quantizing(model, Manifest.read(options.quantize))

    if options.calibrate is not None:
        manifest = Manifest.read(options.calibrate)
        LOGGER.info(calibrate_model(model, manifest, options.logit_adjust))
        agreement = measure_agreement(model, manifest)
        if agreement:
            LOGGER.info(agreement)

    write_model(model, options, options.overwrite, quantizing)
    return options.output


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
