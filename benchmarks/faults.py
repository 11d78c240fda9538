"""Kills prepare, fit and predict at random moments, runs them again and compares with runs that nobody killed.

python -m benchmarks.faults --runs 20

How is told in `tests/helpers/faults.py`, whose kills these are.
"""

import io
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import arguments, machine
from tests.helpers.faults import cases, faults, make

CHOICES = ("prepare", "fit", "predict")


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("verbs", nargs="*", help="prepare, fit, predict; all when left out")
    parser.add_argument("--runs", type=int, default=20, help="kills of each verb")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{machine()}\n\n| | kills | before anything was written | in the midst | after the end ", end="")
    print("| half files | losses | seconds |\n" + "| --- " + "| ---: " * 7 + "|", flush=True)
    with TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        with redirect_stdout(io.StringIO()):
            make(data)
        wrong = 0
        for verb in args.verbs or CHOICES:
            since = time.perf_counter()
            found = faults(verb, cases(data)[verb], args.runs, Path(folder), args.seed)
            counts = " | ".join(str(found[name]) for name in ("before", "midst", "after", "half", "lost"))
            print(f"| `{verb}` | {args.runs} | {counts} | {time.perf_counter() - since:.0f} |", flush=True)
            wrong += found["half"] + found["lost"]
    sys.exit(min(wrong, 1))


if __name__ == "__main__":
    main()
