"""fer-vit as others get it: built, checked, installed outside the checkout and used there."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import OFFLINE
from tests.helpers.commands import TINY

ROOT = Path(__file__).parents[1]


def call(*command: object, cwd: Path) -> str:
    """Runs a command that must succeed, without the checkout among Python's paths;
    returns its output.
    """
    environment = os.environ | {"PYTHONPATH": str(OFFLINE)}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_in_a_clean_environment(drawn: Path, tmp_path: Path) -> None:
    python = sys.executable
    call(python, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    source, wheel = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix)
    assert source.suffix == ".gz"
    assert wheel.suffix == ".whl"
    call(python, "-m", "twine", "check", "--strict", source, wheel, cwd=tmp_path)
    call(python, "-m", "check_wheel_contents", wheel, cwd=tmp_path)

    # The dependencies are shared with this environment, but not its fer-vit, which is editable.
    venv.create(tmp_path / "venv", symlinks=True)
    binaries = tmp_path / "venv" / "bin"
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    pip = (
        python,
        "-m",
        "pip",
        "--python",
        binaries / "python",
        "install",
        "--no-index",
        "--no-deps",
    )
    call(*pip, wheel, cwd=tmp_path)

    shutil.copytree(drawn / "faces" / "test" / "happiness", tmp_path / "photos")
    fer_vit = binaries / "fer-vit"
    crops = ("photos", "--face", "crop", "--detector", "none")
    assert "drawn " in call(fer_vit, "configs", cwd=tmp_path)
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    commands = [
        ["predict", *crops],
        ["visualize", *crops],
        ["fit", "--config", "drawn", *TINY, manifest],
    ]
    code = f"from fer_vit.cli import main\nfor words in {commands}:\n    main(words)"
    call(binaries / "python", "-c", code, cwd=tmp_path)
    rows = (tmp_path / "faces.csv").read_text().splitlines()
    assert len(rows) == 1 + len(list((tmp_path / "photos").iterdir()))
    assert ",ok,0," in rows[1]
    assert (tmp_path / "report" / "index.html").is_file()
    assert (tmp_path / "runs" / "drawn" / "version_0" / "checkpoints" / "best.ckpt").is_file()
    home = call(binaries / "python", "-c", "import fer_vit; print(fer_vit.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / "venv")
