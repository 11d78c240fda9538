"""Measures how well further heads agree with their targets, for `export --calibrate`."""

import numpy as np

from fer_vit.data.manifest import Manifest
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.geometry import Array
from fer_vit.predict.recognizer import Recognizer

MIN_AGREEMENT_FACES = 100  # an r of fewer faces is too uncertain to be stored with a model


def measure_agreement(model: Recognizer, manifest: Manifest) -> str:
    """Stores Pearson's r of each output with its targets on the val faces in a model.

    An output keeps its r if it has targets for fewer than `MIN_AGREEMENT_FACES` faces, or equal
    ones.

    Returns:
        A report: a line for each head with targets.
    """
    settings = model.net.settings
    val = manifest.split("val")
    lines = []
    targeted = settings.outputs.shared(val.outputs)
    if targeted:
        pairs = predict_manifest(model, val, "val").outputs
        plain_r = settings.outputs.plain_r
        for head, of_head in targeted.by_head.items():
            measured: dict[str, float] = {}
            for output in of_head:
                r = correlate(*pairs[output])
                if r is not None:
                    measured[output.name] = r
            plain_r[head] = plain_r.get(head, {}) | measured
            number = len(settings.outputs.of_head(head))
            line = f"r of {len(measured)} of {number} outputs of {head}"
            if measured:
                line += f": {min(measured.values()):.2f} to {max(measured.values()):.2f}"
            lines.append(f"{line}.")
        settings.outputs = settings.outputs.with_r(plain_r)
    return "\n".join(lines)


def correlate(values: Array, targets: Array) -> float | None:
    """Returns Pearson's r of values and targets (N,), NaN where unknown; None: not measurable."""
    known = np.isfinite(values) & np.isfinite(targets)
    x, y = values[known], targets[known]
    if len(x) < MIN_AGREEMENT_FACES or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return round(float(np.corrcoef(x, y)[0, 1]), 3)
