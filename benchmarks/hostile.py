"""Files as scraping finds them, and what `fer-vit predict` makes of them. A seed gives the same file.

python -m benchmarks.hostile --runs 20000
python -m benchmarks.hostile --bombs

Every format and kind of pixel, a part of them broken: cut, bits flipped, bytes put in, EXIF torn, text, nothing at all,
and bombs of a few bytes that claim more pixels than memory has. The command writes them to a folder that is gone
afterwards, with links in a loop, a link to nothing, a folder and a pipe with names of images, runs the real `predict`
with the model that comes with fer-vit, and compares the rows with the files. `--bombs` decodes each of these with and
without fer-vit's limits, in a process of its own; it needs 13 GB.
"""

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyarrow.parquet as pq

from benchmarks.machine import PROGRAM, arguments, machine
from fer_vit.face import image as reader
from fer_vit.face.detect import MAX_SIDE
from fer_vit.files import as_text
from fer_vit.predict.inputs import find_images
from tests.helpers.hostile import BOMBS, add_odd, bomb, many_scans, write_hostile


def pss(process: psutil.Process) -> int:
    """Bytes of a process; what several share counts once."""
    return int(process.memory_full_info().pss)


def memory(process: psutil.Process, size: Callable[[psutil.Process], int]) -> int:
    """Bytes of a process and all that it started."""
    found = 0
    for one in (process, *process.children(recursive=True)):
        try:
            found += size(one)
        except psutil.Error:  # it ended just now
            continue
    return found


def run(
    words: list[str | Path], seconds: float, size: Callable[[psutil.Process], int] = pss
) -> tuple[int, float, int, str]:
    """Runs a command; returns its exit code, its seconds, its most bytes of memory, and its last line."""
    start, most = time.perf_counter(), 0
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, memory(psutil.Process(process.pid), size))
            if time.perf_counter() - start > seconds:
                process.kill()
                sys.exit(f"it hangs: {words}")
            time.sleep(0.5)
        last = process.stderr.read().strip().splitlines()[-1:]
    return process.returncode, time.perf_counter() - start, most, " ".join(last)


def decode_cost(data: bytes, reduction: int, limited: bool) -> tuple[float, float]:
    """Seconds and MB that it takes to decode a file, or to refuse it (Linux)."""
    if not limited:
        reader.check_cost = lambda _: None  # type: ignore[assignment]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    start = time.perf_counter()
    with suppress(reader.ImageError):
        reader.decode_image(data, reduction)
    return time.perf_counter() - start, resident("VmHWM") - before


def resident(which: str) -> float:
    """MB of memory of this process now (VmRSS) or at most (VmHWM)."""
    return int(re.findall(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def compare_bombs() -> None:
    """Prints what each bomb costs with the limits and without."""
    print("| file | bytes | without limits | with them |\n| --- | ---: | ---: | ---: |")
    for name in BOMBS:
        data = many_scans(15_000, 110) if name == "scans" else bomb(name)
        found = []
        for limited in (False, True):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found.append(pool.submit(decode_cost, data, reader.reduction_to(data, MAX_SIDE), limited).result())
        costs = " | ".join(f"{seconds:,.2f} s, {size:,.0f} MB" for seconds, size in found)
        print(f"| {name} | {len(data):,} | {costs} |", flush=True)


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=20_000, help="files")
    parser.add_argument("--seed", type=int, default=0, help="of the first file; each has one more")
    parser.add_argument("--bombs", action="store_true", help="measure what the files cost that would cost most")
    args = parser.parse_args()
    print(f"{machine()}\n", flush=True)
    if args.bombs:
        return compare_bombs()
    print("| files | rows | lost | exit | seconds | memory of all processes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with TemporaryDirectory() as folder:
        photos, table = Path(folder, "photos"), Path(folder, "faces.parquet")
        write_hostile(photos, args.runs, args.seed)
        add_odd(photos)
        files = {as_text(str(path)) for path in find_images([photos])}
        code, seconds, most, last = run([PROGRAM, "predict", photos, "--output", table], 60 + args.runs)
        rows = pq.read_table(table, columns=["path", "face", "status"]).to_pylist() if table.exists() else []
    seen = Counter((row["path"], row["face"]) for row in rows)
    lost = files ^ {path for path, _ in seen} | {path for (path, _), number in seen.items() if number > 1}
    print(f"| {len(files):,} | {len(rows):,} | {len(lost):,} | {code} | {seconds:,.0f} | {most / 1e6:,.0f} MB |\n")
    states = {row["path"]: re.sub(r":.*", "", row["status"]) for row in rows}
    print(", ".join(f"{number:,} {status}" for status, number in Counter(states.values()).most_common()))
    if code or lost:
        sys.exit(last or f"lost, more than once or from nowhere: {sorted(lost)[:5]}")


if __name__ == "__main__":
    main()
