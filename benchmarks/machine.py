"""Shared by the benchmarks: command line, description of the machine, timing."""

import datetime
import platform
import resource
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

Name = TypeVar("Name")
PROGRAM = Path(sys.executable).with_name("fer-vit")


def arguments(description: str) -> ArgumentParser:
    """Returns the parser of a benchmark without its options."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def machine() -> str:
    """Returns date, processor, cores, GPU and versions in one line."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    date = datetime.date.today().isoformat()
    return f"{date}, {len(names)} x {processor}{gpu}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """Returns the peak memory of this process, or of the largest finished child process, in MiB."""
    return resource.getrusage(who).ru_maxrss / 1024


def spread(values: list[float], digits: int = 2) -> str:
    """Formats median, minimum and maximum."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def in_turns(works: dict[Name, Callable[[], object]], rounds: int = 7, least: float = 0.3) -> dict[Name, list[float]]:
    """Times pieces of work in turns, so that a slower machine affects all of them.

    Args:
        works: Functions by name.
        rounds: Turns of each function.
        least: Minimum seconds per turn.

    Returns:
        Mean seconds of each function by round.
    """
    found: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            start, times = time.perf_counter(), 0
            while (past := time.perf_counter() - start) < least:
                work()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                times += 1
            found[name].append(past / times)
    return found


def ratios(times: dict[Name, list[float]], reference: Name) -> dict[Name, list[float]]:
    """Returns the times relative to a reference by round."""
    return {
        name: [mine / other for mine, other in zip(values, times[reference], strict=True)]
        for name, values in times.items()
    }
