"""Shared by the benchmarks: command line, description of the machine, timing, ONNX."""

import datetime
import platform
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import onnx
import torch
from jsonargparse import DefaultHelpFormatter, auto_cli

Name = TypeVar("Name")
PROGRAM = Path(sys.executable).with_name("fer-vit")


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """The help with the line breaks of the description."""


def run_main(main: Callable[..., object], words: list[str] | None = None) -> object:
    """Calls `main` with the words of the command line: its parameters are the options,
    its module is the help.
    """
    return auto_cli(
        main,
        args=words,
        description=sys.modules[main.__module__].__doc__,
        formatter_class=HelpFormatter,
    )


def machine() -> str:
    """Returns date, processor, cores, GPU and versions in one line."""
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(": ")[2]
        for line in info.read_text("utf-8").splitlines()
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    date = datetime.date.today().isoformat()
    threads = f"{torch.get_num_threads()} threads"
    return f"{date}, {len(names)} x {processor}{gpu}, {threads}, torch {torch.__version__}"


def spread(
    values: list[float], digits: int = 2, middle: Callable[[list[float]], float] = median
) -> str:
    """Formats median (or mean), minimum and maximum."""
    return f"{middle(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def in_turns(
    works: dict[Name, Callable[[], object]], rounds: int = 7, least: float = 0.3
) -> dict[Name, list[float]]:
    """Times functions in turns of at least `least` seconds, so that a slower machine affects all of
    them.

    Returns the mean seconds of each function by round.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            times = 0
            start = time.perf_counter()
            while (past := time.perf_counter() - start) < least:
                work()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                times += 1
            seconds[name].append(past / times)
    return seconds


def ratios(times: dict[Name, list[float]], reference: Name) -> dict[Name, list[float]]:
    """Returns the times relative to a reference by round."""
    return {
        name: [duration / base for duration, base in zip(values, times[reference], strict=True)]
        for name, values in times.items()
    }


def write_onnx(net: torch.nn.Module, example: torch.Tensor, path: Path, **options: Any) -> None:
    """Writes a network as ONNX without the exporter's notes,
    which contain file paths of this machine.
    """
    model = torch.onnx.export(net, (example,), dynamo=True, verbose=False, **options).model_proto
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        part.ClearField("metadata_props")
    onnx.save(model, path)
