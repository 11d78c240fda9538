"""A process that finds only the packages of the core, as after `pip install .`.

The variable CORE_PYTHON names the Python of a real installation, which is used instead.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HIDE = """
import sys

HIDDEN = frozenset({hidden})


class Visible:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in HIDDEN:
            return self.finder.find_spec(name, path, target)


sys.meta_path[:] = map(Visible, sys.meta_path)
"""


RUN = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from fer_vit.cli import main

for words in json.loads(sys.argv[1]):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@cache
def core_packages() -> frozenset[str]:
    """The packages that `pip install .` installs, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left = [Requirement(line) for line in project["dependencies"]]
    packages: set[str] = set()
    while left:
        requirement = left.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            below = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # a package for another system
            continue
        wanted = [
            line
            for line in below
            if not line.marker or any(line.marker.evaluate({"extra": extra}) for extra in extras)
        ]
        for line in wanted:
            line.marker = None
        if name not in packages or requirement.extras:
            left += [line for line in wanted if canonicalize_name(line.name) not in packages]
        packages.add(name)
    return frozenset(packages)


@cache
def modules_outside_the_core() -> frozenset[str]:
    """The modules here that belong to no package of the core."""
    present = core_packages() | {"fer-vit"}
    return frozenset(
        module
        for module, packages in packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & present
    )


def core_environment(folder: Path, also_hidden: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a process that finds only the core, without some modules of it.

    So do the processes that it starts. A file for this is written to a folder.
    """
    hidden = sorted(modules_outside_the_core() | {*also_hidden})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDE.replace("{hidden}", repr(hidden)))
    # a real installation has its own fer-vit
    path = [str(folder)] if "CORE_PYTHON" in os.environ else [str(folder), str(ROOT)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def run_in_core(
    words: Iterable[object], folder: Path, also_hidden: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words in `folder/work`, in a core installation."""
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [os.environ.get("CORE_PYTHON", sys.executable), *map(str, words)],
        cwd=work,
        env=core_environment(folder / "site", also_hidden),
        capture_output=True,
        text=True,
    )


class Done(NamedTuple):
    """What a command of the core ended with."""

    code: int
    out: str
    err: str


def run_commands_in_core(
    lines: Iterable[str], folder: Path, also_hidden: Iterable[str] = ()
) -> list[Done]:
    """Runs commands in one process of a core installation, one after the other."""
    words = json.dumps([line.split() for line in lines])
    process = run_in_core(["-c", RUN, words], folder, also_hidden)
    assert process.returncode == 0, process.stderr
    return [Done(*json.loads(line)) for line in process.stdout.splitlines()]
