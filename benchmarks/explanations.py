"""What explanations cost: each method in forward passes, a report in seconds and memory, its page in the browser.

python -m benchmarks.explanations data/ferplus.parquet

Uses the model that comes with fer-vit and the first faces of a manifest; Chromium opens the page if it is there.
"""

import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN
from tempfile import TemporaryDirectory
from typing import get_args

import psutil
import torch
from playwright.sync_api import sync_playwright

from benchmarks.machine import PROGRAM, arguments, in_turns, machine, peak, ratios, spread
from benchmarks.photos import face_images
from fer_vit.data.sample import Batch
from fer_vit.evaluate.labelled import labelled_batches
from fer_vit.explain.methods import Method, explain
from fer_vit.predict.recognizer import Recognizer, load

ROUNDS = 7


def method_costs(model: Recognizer, part: Batch) -> dict[str, list[float]]:
    """Times each method takes of a forward pass."""
    face = (model.net, part.image, part.boxes, part.valid)
    works = {"forward": partial(forward, model, part)}
    works |= {method: partial(explain, *face, method) for method in get_args(Method)}
    found = ratios(in_turns(works, ROUNDS), "forward")
    return {method: found[method] for method in get_args(Method)}


@torch.inference_mode()
def forward(model: Recognizer, part: Batch) -> None:
    """A forward pass."""
    model.net(part.image, part.boxes, part.valid)


def report_cost(images: Path, output: Path) -> tuple[float, float]:
    """Seconds of `fer-vit visualize`, and the most memory in MB of one of its processes or an earlier run's."""
    start = time.perf_counter()
    subprocess.run([PROGRAM, "visualize", images, "--face", "crop", "--output", output], check=True)
    return time.perf_counter() - start, peak(RUSAGE_CHILDREN)


def page_cost(page: Path) -> tuple[list[float], list[float]]:
    """Seconds until the gallery of a page is drawn, from disk, and MB of the browser then; a new browser each time."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    found: list[float] = []
    sizes: list[float] = []
    with sync_playwright() as playwright:
        for _ in range(ROUNDS if program else 0):
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            opened = browser.new_page()
            start = time.perf_counter()
            opened.goto(page.as_uri(), wait_until="load")
            opened.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            found.append(time.perf_counter() - start)
            started = psutil.Process().children(recursive=True)
            sizes.append(sum(one.memory_full_info().pss for one in started if "chrom" in one.name()) / 1e6)
            browser.close()
    return found, sizes


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--faces", type=int, default=1000, help="faces in a report; a second one has twice as many")
    args = parser.parse_args()
    print(machine())
    model = load()
    batches, _ = labelled_batches(model, args.manifest, max_faces=64)
    print("\n| method | forward passes |\n| --- | ---: |")
    for method, times in method_costs(model, next(batches)).items():
        print(f"| {method} | {spread(times, 1)} |", flush=True)
    with TemporaryDirectory() as folder:
        for number in (args.faces, 2 * args.faces):
            images = face_images(args.manifest, Path(folder, f"faces{number}"), number)
            report = Path(folder, f"report{number}")
            took, memory = report_cost(images, report)
            size = (report / "index.html").stat().st_size / 1e6
            print(f"\n{number:,} faces: report {took:.0f} s, {memory:.0f} MB of memory, page {size:.1f} MB", flush=True)
        opened, sizes = page_cost(report / "index.html")
        cost = f"{spread(opened)} s, the browser takes {spread(sizes, 0)} MB" if opened else "no browser"
        print(f"page of {number:,} faces opens in {cost}")


if __name__ == "__main__":
    main()
