"""Without PyTorch and what comes with it, the core works, and the rest says what it needs."""

import re
import tomllib
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement
from skimage.data import astronaut

from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.explain.methods import METHODS
from fer_vit.extras import needed_by
from fer_vit.face.image import encode_png
from fer_vit.labels import EXPRESSIONS
from tests.helpers.core import (
    ROOT,
    core_environment,
    core_packages,
    modules_outside_the_core,
    run_commands_in_core,
    run_in_core,
)
from tests.helpers.marks import slow
from tests.helpers.servers import running

INPUTS = Path(__file__).parent / "golden" / "inputs"
HEAVY = {
    "albumentations",
    "lightning",
    "matplotlib",
    "onnx",
    "safetensors",
    "tensorboard",
    "timm",
    "torch",
    "torchmetrics",
    "torchvision",
}
PHOTO = encode_png(astronaut()[:300, 100:350])
STATISTICS = ["scipy"]
SERVER = ["fastapi", "starlette", "uvicorn"]
VIDEO = ["av"]
EVALUATE = (
    f"evaluate {INPUTS}/predictions.csv --labels {INPUTS}/truth.csv "
    f"--columns {INPUTS}/people.csv --by person"
)
COMPARE = f"compare {INPUTS}/predictions.csv --columns {INPUTS}/people.csv --by condition"
COMMANDS = {
    "help": (
        ["--version", "--help"],
        ["cv2", "numpy", "onnxruntime", "pyarrow", *STATISTICS, *SERVER, *VIDEO],
    ),
    "a photo": (["predict photo.png"], ["pyarrow", *STATISTICS, *SERVER, *VIDEO]),
    "photos": (
        [
            "predict photo.png --features --output faces.xlsx",
            "predict photo.png --overwrite",
            "configs",
            "models",
            "app --help",
            "prepare drawn faces faces.parquet --count 8",
        ],
        [*STATISTICS, *SERVER, *VIDEO],
    ),
    "a report": (["visualize photo.png"], [*SERVER, *VIDEO]),
    "tables": ([EVALUATE, COMPARE], [*SERVER, *VIDEO]),
    "live": (["live --help"], [*STATISTICS, *SERVER]),
}
"""Commands of the core, and packages of the core that they do without."""
NEED_TORCH = [
    "fit --config drawn --data.manifest faces.parquet",
    "validate --ckpt_path a.ckpt --data.manifest faces.parquet",
    "test --ckpt_path a.ckpt --data.manifest faces.parquet",
    "crossvalidate faces.parquet",
    "evaluate faces.parquet",
    "export model.onnx",
    "faithfulness photo.png",
    "finetune photos",
    "predict photo.png --checkpoint a.ckpt",
    "repeat drawn --manifest faces.parquet",
    "visualize photo.png --method pixels",
]
PYTHON = [
    # (Python, what its error names; None: it works)
    ("import fer_vit; fer_vit.load().predict('photo.png')[0].label", None),
    ("import fer_vit; fer_vit.models()", None),
    ("import fer_vit; fer_vit.FERTask", "fer_vit.FERTask needs more packages: .*[torch]"),
    ("import fer_vit; m = fer_vit.load(); m.explain(m.predict('photo.png')).shares", None),
    (
        "import fer_vit; m = fer_vit.load(); m.attend(m.predict('photo.png')[0])",
        "An explanation needs more packages: .*[torch]",
    ),
    (
        "import fer_vit; fer_vit.load().predict('photo.png')[0].plot()",
        "A plot needs more packages: .*[figures]",
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a photo of a face in `work`."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "work").mkdir()
    (folder / "work" / "photo.png").write_bytes(PHOTO)
    return folder


def test_what_is_hidden_here_is_what_the_core_lacks() -> None:
    assert modules_outside_the_core() >= HEAVY
    assert not HEAVY & core_packages()
    assert {"numpy", "pyarrow", "scipy", "av", "fastapi", "openpyxl"} <= core_packages()


def test_the_modules_of_the_extras_are_those_of_pyproject() -> None:
    """An import that fails names the extra that has the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {Requirement(line).name for line in project["dependencies"]}
    of_extras = set()
    for extra in ("figures", "torch"):
        listed = {Requirement(line).name for line in project["optional-dependencies"][extra]}
        for name in listed - core - {"fer-vit"}:
            of_extras.add(name)
            with pytest.raises(FerVitError, match=rf"needs more packages.*\b{extra}\b"):
                fail_to_import(name)
    assert of_extras == HEAVY | {"onnxscript"}
    for name in core:
        with pytest.raises(ModuleNotFoundError):
            fail_to_import(name)


@pytest.mark.parametrize("kind", ["photos", *slow("help", "a report", "tables", "live")])
def test_commands_of_the_core(kind: str, place: Path) -> None:
    lines, also_hidden = COMMANDS[kind]
    for line, done in zip(lines, run_commands_in_core(lines, place, also_hidden), strict=True):
        assert (done.code, done.err) == (0, ""), line
        assert done.out, line


def test_commands_without_torch_say_how_to_get_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "photo.png").write_bytes(PHOTO)
    (work / "a.ckpt").write_bytes(b"")
    row = Row(PHOTO, "photo.png", "val", "happiness")
    write_manifest(work / "faces.parquet", Reading(EXPRESSIONS, [row]), "made")
    before = {*work.iterdir()}
    for words, done in zip(NEED_TORCH, run_commands_in_core(NEED_TORCH, tmp_path), strict=True):
        assert (done.code, done.out) == (2, ""), words
        (line,) = done.err.splitlines()
        assert re.fullmatch(
            r"fer-vit: error: .* needs more packages: pip install .*\[torch\].*", line
        ), words
    assert {*work.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(("code", "error"), PYTHON, ids=[code for code, _ in PYTHON])
def test_python_of_the_core(code: str, error: str | None, place: Path) -> None:
    done = run_in_core(["-c", code], place, STATISTICS)
    if error is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        *_, line = done.stderr.splitlines()
        assert re.search(error.replace("[", r"\["), line)


@pytest.mark.slow
def test_the_server_predicts_and_explains(tmp_path: Path) -> None:
    variables = core_environment(tmp_path / "site")
    with running(tmp_path, PYTHONPATH=variables["PYTHONPATH"]) as server:
        files = {"files": ("photo.png", PHOTO, "image/png")}
        report = requests.post(f"{server.address}/api/report", files=files).json()
        page = requests.get(f"{server.address}{report['html']}").text
    assert "faces.csv" in report["files"]
    assert len(report["photos"]) == 1
    assert METHODS["regions"].title in page


def fail_to_import(name: str) -> None:
    with needed_by("It"):
        raise ModuleNotFoundError(name=name)
