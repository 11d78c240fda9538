"""Compares exported models with eager float32 torch: milliseconds per face and validation accuracy.

python -m benchmarks.exporting data/ferplus.parquet

Of the model that comes with fer-vit: ONNX in float32 and in 8 bits (`fer-vit export --quantize`),
torch in bfloat16.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from benchmarks.machine import in_turns, machine, ratios, run_main, spread
from fer_vit.commands.export import export
from fer_vit.data.manifest import Manifest
from fer_vit.engine.onnx_engine import network_inputs
from fer_vit.exporting.calibration import labelled_batches
from fer_vit.faces import Crops
from fer_vit.predict.recognizer import load_torch

Probabilities = Callable[[Crops], NDArray[Any]]
BATCHES = (1, 32)


def exported(path: Path, quantize: Path | None) -> Probabilities:
    """Exports the model to ONNX Runtime, in 8 bits if `quantize` names faces for calibration."""
    export(path, quantize=quantize)
    runtime = InferenceSession(path)
    names = [entry.name for entry in runtime.get_inputs()]

    def run(part: Crops) -> NDArray[Any]:
        inputs = network_inputs(part)
        return runtime.run(None, {name: inputs[name] for name in names})[0]  # type: ignore[no-any-return]

    return run


@torch.inference_mode()
def main(manifest: Path, rounds: int = 7) -> None:
    """Runs the comparison."""
    print(machine())
    model = load_torch(device="cpu")

    def eager(part: Crops) -> NDArray[Any]:
        return model.read(part).probabilities

    def bfloat16(part: Crops) -> NDArray[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return eager(part)

    with TemporaryDirectory() as folder:
        models: dict[str, Probabilities] = {
            "torch, float32": eager,
            "torch, bfloat16": bfloat16,
            "ONNX, float32": exported(Path(folder, "float32.onnx"), None),
            "ONNX, 8 bits": exported(Path(folder, "int8.onnx"), manifest),
        }
        _, batches, target = labelled_batches(model, Manifest.read(manifest))
        parts = list(batches)
        right = {
            name: (
                np.concatenate([run(part) for part in parts]).argmax(1) == target.argmax(1).numpy()
            ).mean()
            for name, run in models.items()
        }
        timed = []
        for size in BATCHES:
            part = next(parts[0].split(size))
            timed.append(
                in_turns({name: partial(run, part) for name, run in models.items()}, rounds)
            )
    heads = "".join(f" ms a face, batch {size} | faster by |" for size in BATCHES)
    print(f"\n| | accuracy |{heads}\n| --- | ---: |{' ---: |' * 2 * len(BATCHES)}")
    for name in models:
        cells = [f"{100 * right[name]:.2f}%"]
        for size, times in zip(BATCHES, timed, strict=True):
            cells += [
                spread([1000 * t / size for t in times[name]]),
                spread([1 / part for part in ratios(times, "torch, float32")[name]]),
            ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    run_main(main)
