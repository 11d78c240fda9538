"""The Python of README and of the page on photos runs after README's install,
which has no extras.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from skimage.data import astronaut

from fer_vit.face.image import encode_png

ROOT = Path(__file__).parents[1]
BLOCK = """
import sys

class Installed:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in BLOCKED:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Installed, sys.meta_path)
"""


def installed_without_extras() -> set[str]:
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
    return packages


@pytest.mark.slow
def test_python_of_the_pages_runs_without_extras(tmp_path: Path) -> None:
    present = installed_without_extras()
    assert {"torch", "numpy", "pyarrow"} < present
    blocked = {
        module
        for module, packages in packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & (present | {"fer-vit"})
    }
    assert {"pandas", "statsmodels", "av", "fastapi", "openpyxl"} <= blocked
    (tmp_path / "photo.jpg").write_bytes(encode_png(astronaut()[:300, 100:350]))
    code = BLOCK.replace("BLOCKED", repr(sorted(blocked)))
    for page in ("README.md", "docs/how-to/predict.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
        assert blocks
        code += "\n".join(blocks)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
