"""The Python of README and of the page on photos runs after README's install,
which has no extras.
"""

import re
from pathlib import Path

import pytest
from skimage.data import astronaut

from fer_vit.face.image import encode_png
from tests.helpers.core import ROOT, run_in_core


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/how-to/predict.md"])
def test_python_of_the_pages_runs_without_extras(page: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "photo.jpg").write_bytes(encode_png(astronaut()[:300, 100:350]))
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert blocks
    done = run_in_core(["-c", "\n".join(blocks)], tmp_path)
    assert done.returncode == 0, done.stderr
