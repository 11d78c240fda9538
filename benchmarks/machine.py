"""How a benchmark is called, what it says of its machine, and how it times."""

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
    """The command line of a benchmark, without its options."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def machine() -> str:
    """One line: date, processor, cores, GPU, versions."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(": ")[2] for line in info.read_text().splitlines() if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    date = datetime.date.today().isoformat()
    return f"{date}, {len(names)} x {processor}{gpu}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """The most memory until now of this process, or of the largest of its children that have ended (MiB)."""
    return resource.getrusage(who).ru_maxrss / 1024


def spread(values: list[float], digits: int = 2) -> str:
    """Median, least and most."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def in_turns(works: dict[Name, Callable[[], object]], rounds: int = 7, least: float = 0.3) -> dict[Name, list[float]]:
    """Times pieces of work in rounds, one after the other, so that a machine that slows down slows all of them.

    Args:
        works: What to do, by name.
        rounds: How many times each has its turn.
        least: Seconds of a turn, at least.

    Returns:
        Seconds of each piece, a mean for every round.
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
    """Each piece's times as parts of the reference's, round by round."""
    return {
        name: [mine / other for mine, other in zip(values, times[reference], strict=True)]
        for name, values in times.items()
    }
