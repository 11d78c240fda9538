"""Measures the core: start-up, memory, folders and milliseconds a face, in turns with references.

python -m benchmarks.core data/sample/astronaut.jpg --folders press --other ../earlier

The reference of the start-up is the import of four packages. With `--other`, another checkout runs
the same commands in the same environment. With `--exported`, ONNX files for other programs compute
the same faces in one thread.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnxruntime

from benchmarks.machine import PROGRAM, machine, run_main, spread
from fer_vit.engine.onnx_engine import network_inputs
from fer_vit.face.crop import CropSpec
from fer_vit.faces import Crops
from fer_vit.predict.recognizer import load

ROOT = Path(__file__).parents[1]
IMPORTS = [sys.executable, "-c", "import onnxruntime, cv2, numpy, pyarrow"]
# A small process between this one and the command: Linux counts the memory of the parent as that
# of the child until the child starts its program.
BETWEEN = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
wall = time.perf_counter() - start
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024 / 1e9]))
"""
FACES = 32
SIDE = 20  # side of the boxes of regions in pixels


class Cost(NamedTuple):
    """What a command took, with its children."""

    cpu: float  # seconds
    wall: float  # seconds
    memory: float  # GB, of the largest process


def measure(words: Sequence[str], checkout: Path) -> Cost:
    """Runs a command with the code of a checkout."""
    done = subprocess.run(
        [sys.executable, "-c", BETWEEN, *words],
        env=os.environ | {"PYTHONPATH": str(checkout)},
        check=True,
        capture_output=True,
        text=True,
    )
    return Cost(*json.loads(done.stdout))


def compare_commands(photo: Path, folders: Sequence[Path], other: Path | None, rounds: int) -> None:
    """Prints the costs of the imports and of `predict`, in turns."""
    checkouts = {"this commit": ROOT}
    if other is not None:
        checkouts["other commit"] = other.resolve()
    works: dict[str, Callable[[], Cost]] = {"imports": partial(measure, IMPORTS, ROOT)}
    with TemporaryDirectory() as folder:
        table = str(Path(folder, "faces.csv"))
        for images in (photo, *folders):
            words = [str(PROGRAM), "predict", str(images), "--output", table, "--overwrite"]
            for name, checkout in checkouts.items():
                works[f"{images.name}, {name}"] = partial(measure, words, checkout)
        costs: dict[str, list[Cost]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                costs[name].append(work())
    print("\n| | CPU s | wall s | GB |\n| --- | ---: | ---: | ---: |")
    for name, measured in costs.items():
        cpu = spread([cost.cpu for cost in measured])
        wall = spread([cost.wall for cost in measured])
        print(f"| {name} | {cpu} | {wall} | {max(cost.memory for cost in measured):.2f} |")


def noise(spec: CropSpec) -> Crops:
    """Returns crops without faces: the time doesn't depend on what they show."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, spec.size - SIDE, (FACES, len(spec.regions), 2)).astype(np.float32)
    return Crops(
        image=rng.integers(0, 256, (FACES, spec.size, spec.size, 3), dtype=np.uint8),
        boxes=np.concatenate([corners, corners + SIDE], 2),
        valid=np.ones((FACES, len(spec.regions)), bool),
        to_crop=np.tile(np.eye(2, 3), (FACES, 1, 1)),
    )


def compare_engines(exported: Sequence[Path], rounds: int) -> None:
    """Prints the CPU time of a face in batches of `FACES`, in turns."""
    model = load(device="cpu")
    crops = noise(model.crop_spec)
    inputs = network_inputs(crops)
    works: dict[str, Callable[[], object]] = {
        "float32": partial(model.engine.run, crops),
        "int8": partial(load(precision="int8").engine.run, crops),
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for path in exported:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        works[path.name] = partial(session.run, None, {name: inputs[name] for name in names})
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            times[name].append((time.process_time() - start) / FACES * 1000)
    print("\n| | CPU ms a face |\n| --- | ---: |")
    for name, measured in times.items():
        print(f"| {name} | {spread(measured)} |")


def main(
    photo: Path,
    folders: Sequence[Path] = (),
    other: Path | None = None,
    exported: Sequence[Path] = (),
    rounds: int = 7,
) -> None:
    """Runs the measurements."""
    print(machine())
    compare_commands(photo, folders, other, rounds)
    compare_engines(exported, rounds)


if __name__ == "__main__":
    run_main(main)
