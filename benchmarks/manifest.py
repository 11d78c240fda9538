"""Seconds and memory from a manifest's name to what training asks of it.

python -m benchmarks.manifest --rows 100000

Writes a manifest of images of 2,000 bytes (as FERPlus' are, here of noise, since none is decoded), half of them with
votes and nine tenths with landmarks, and opens it.
"""

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.machine import arguments, in_turns, machine, peak, spread
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import SPLITS, Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.geometry import TEMPLATE
from fer_vit.labels import EXPRESSIONS


def made(path: Path, rows: int) -> None:
    """Writes a manifest of so many rows."""
    rng = np.random.default_rng(0)
    points, number = 48 * np.asarray(TEMPLATE), len(EXPRESSIONS)
    faces = [
        Row(
            rng.bytes(2000),
            f"{row:07d}.png",
            SPLITS[row % 10 // 8],
            EXPRESSIONS[row % number],
            tuple(rng.multinomial(10, np.full(number, 1 / number))) if row % 2 else None,
            points + rng.normal(size=points.shape) if row % 10 else None,
            0.9,
        )
        for row in range(rows)
    ]
    write_manifest(path, Reading(EXPRESSIONS, faces), "made")


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(machine())
    with TemporaryDirectory() as folder:
        path = Path(folder, "faces.parquet")
        writer = get_context("spawn").Process(target=made, args=(path, args.rows))  # whose memory does not count
        writer.start()
        writer.join()
        before = peak()
        manifest = Manifest.read(path)
        most, size = peak() - before, manifest.table.nbytes / 1e6
        works: dict[str, Callable[[], object]] = {
            "open and check": lambda: Manifest.read(path),
            "the train split": lambda: manifest.split("train"),
            "landmarks": manifest.landmarks,
            "targets": manifest.targets,
        }
        print(f"\n{args.rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB: {size:,.0f} MB as a table")
        print(f"memory grows by at most {most:,.0f} MB\n\n| | seconds |\n| --- | ---: |")
        for name, seconds in in_turns(works, args.rounds).items():
            print(f"| {name} | {spread(seconds, 3)} |")


if __name__ == "__main__":
    main()
