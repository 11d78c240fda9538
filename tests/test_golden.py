"""What users and their scripts read, compared with the golden files in `tests/golden`.

`--write-golden` rewrites the files that differ.
"""

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow.parquet as pq
import pytest
from matplotlib import cbook
from PIL import Image
from skimage.data import astronaut
from starlette.testclient import TestClient

from fer_vit.app.jobs import Jobs, Ready
from fer_vit.app.server import create_app
from fer_vit.app.tasks import column_types
from fer_vit.cli import LIGHTNING_VERBS, VERBS
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.face.image import encode_png
from fer_vit.sources.cartoon import draw_face
from fer_vit.sources.drawn import read
from fer_vit.store.hub import DEFAULT_MODEL, shipped_models
from tests.conftest import Maker
from tests.helpers.commands import CROPS, exit_code, fails, run
from tests.helpers.golden import FOLDER, NUMBERS, Golden, json_lines, messages, pretty
from tests.helpers.servers import Stub

CANNOT_FAIL = {"configs", "models", "test"}
"""Commands without words that can be wrong, and `test`, which shares the messages of `validate`."""
LIGHTNING_GROUPS = ("--trainer", "--checkpoint", "--ckpt_path")
"""The first options of groups in the help of `fit` whose texts are Lightning's."""
NAMED_TWICE = r"(-\S+) ([A-Z_]+), (-\S+ \2)"
"""The option `-c CONFIG, --config CONFIG`, which Python 3.13 writes as `-c, --config CONFIG`."""
FITTED = "runs/default/version_0/checkpoints/best.ckpt"
TABLES = ("faces.csv", "faces.jsonl", "faces.parquet", "faces.xlsx")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(write=request.config.getoption("--write-golden"))


# ---------------------------------------------------------------------------- one run


def golden_run(folder: Path, fitted: Path) -> None:
    """Runs commands from a data set to reports, in a folder with the committed tables and a
    fitted checkpoint.
    """
    shutil.copytree(FOLDER / "inputs", folder, dirs_exist_ok=True)
    with chdir(folder):
        run("prepare", "drawn", "drawn", "drawn.parquet", "--count=170")
        Path(FITTED).parent.mkdir(parents=True)
        shutil.copy(fitted, FITTED)

        names = [*write_photos(), "broken.jpg"]
        Path("broken.jpg").write_bytes(b"not a picture")
        for table in TABLES:
            run("predict", *names, f"--output={table}")
        run("predict", "drawn/test", *CROPS, f"--checkpoint={FITTED}", "--output=fitted.csv")

        run("evaluate", "drawn.parquet", f"--checkpoint={FITTED}", "--output=evaluate_model")
        table = ["--columns=people.csv", "--output"]
        run(
            "evaluate",
            "predictions.csv",
            "--labels=truth.csv",
            "--by=age",
            *table,
            "evaluate_table",
        )
        compared = ["--by=condition", "--baseline=rest"]
        run("compare", "predictions.csv", *compared, *table, "compare_table")

        run("visualize", names[0], "--output=report")
        run("export", "fitted", f"--checkpoint={FITTED}")


def write_photos() -> list[str]:
    """Writes photos of two people, and one of nobody; returns their names.

    They have the same pixels on every processor. Drawn faces do not: OpenCV's lines and blurs
    round in another way, and the probabilities of a small face follow by up to 0.03.
    """
    woman = astronaut()
    with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as file:
        man = np.asarray(file)
    photos = {
        "woman": woman,
        "mirrored": woman[:, ::-1],
        "dark": woman // 2,
        "small": woman[::2, ::2],
        "man": man,
        "both": np.concatenate([woman[:, 50:450], man[:512, 50:450]], 1),
        "nobody": np.zeros((96, 96, 3), np.uint8),
    }
    for name, photo in photos.items():
        Image.fromarray(photo).save(f"{name}.png")
    return [f"{name}.png" for name in photos]


@pytest.fixture(scope="session")
def results(checkpoint: Path, made_once: Maker) -> Path:
    """The folder with the results of the commands."""
    return made_once("golden", lambda folder: golden_run(folder, checkpoint))


@pytest.mark.parametrize("name", ["faces.csv", "faces.jsonl"])
def test_table_as_text(name: str, results: Path, golden: Golden) -> None:
    golden.check(f"tables/{name}", (results / name).read_text(encoding="utf-8"), NUMBERS)


def test_table_in_parquet(results: Path, golden: Golden) -> None:
    table = pq.read_table(results / "faces.parquet")
    schema = {field.name: str(field.type) for field in table.schema}
    facts = json.loads(table.schema.metadata[b"predictions"])
    text = json_lines([schema, facts, *table.to_pylist()])
    golden.check("tables/faces.parquet.jsonl", text, NUMBERS)


def test_table_in_excel(results: Path, golden: Golden) -> None:
    sheet = openpyxl.load_workbook(results / "faces.xlsx").active
    header, *rows = sheet.iter_rows(values_only=True)
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    golden.check("tables/faces.xlsx.jsonl", json_lines(cells), NUMBERS)


def test_table_of_a_fitted_model(results: Path, golden: Golden) -> None:
    lines = (results / "fitted.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    golden.check("tables/fitted.csv", "".join(lines[:11]), NUMBERS)


def test_results_of_evaluate_with_a_model(results: Path, golden: Golden) -> None:
    text = (results / "evaluate_model/results.json").read_text(encoding="utf-8")
    golden.check("evaluate_model.json", text, NUMBERS)


@pytest.mark.parametrize("name", ["evaluate_table", "compare_table"])
def test_results_of_a_table(name: str, results: Path, golden: Golden) -> None:
    golden.check(f"{name}.json", (results / name / "results.json").read_text(encoding="utf-8"))


def test_config_of_a_fitted_model(results: Path, golden: Golden) -> None:
    golden.check("models/fitted.json", (results / "fitted/config.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", shipped_models())
def test_config_of_a_shipped_model(name: str, golden: Golden) -> None:
    config = (shipped_models()[name] / "config.json").read_text(encoding="utf-8")
    golden.check(f"models/{name}.json", config)


def test_data_of_the_page_of_an_explained_face(results: Path, golden: Golden) -> None:
    page = (results / "report/index.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data
    golden.check("page.json", pretty(json.loads(data[1])), NUMBERS)


# ---------------------------------------------------------------------------- interfaces


def test_schema_of_the_server(tmp_path: Path, golden: Golden) -> None:
    heads = {DEFAULT_MODEL: ["expression", "movements", "pose", "affect"]}
    ready = Ready(column_types(), heads)
    queue = Jobs(tmp_path, [*heads], Stub(), ready)  # type: ignore[arg-type]
    client = TestClient(create_app(queue), base_url="http://localhost")
    golden.check("openapi.json", pretty(client.get("/openapi.json").json()))


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help(
    words: list[str], golden: Golden, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert exit_code(*words) == 0
    text = re.sub(NAMED_TWICE, r"\1, \3", capsys.readouterr().out)
    groups = text.strip().split("\n\n")
    name = words[0].removeprefix("--")
    if name in LIGHTNING_VERBS:  # they have the same options
        groups = [group for group in groups[1:] if not lightning_group(group)]
        name = "fit"
    golden.check(f"help/{name}.txt", "\n\n".join(groups) + "\n")


def lightning_group(text: str) -> bool:
    """Whether a group in the help of `fit` has texts of Lightning."""
    _, _, options = text.partition("\n")
    return options.strip().startswith(LIGHTNING_GROUPS)


# ---------------------------------------------------------------------------- error lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the calls name."""
    path = tmp_path_factory.mktemp("messages")
    photo = encode_png(draw_face("happiness", 0, 48)[0])
    for place in ("faces", "few"):
        for label in ("calm", "happy"):
            (path / place / label).mkdir(parents=True)
            (path / place / label / "1.png").write_bytes(photo)

    write_manifest(path / "faces.parquet", read(path / "drawn", count=24, size=32), "drawn")
    rows = [Row(photo, f"{split}.png", split, "fear") for split in ("train", "val")]
    write_manifest(path / "one_class.parquet", Reading(("fear",), rows), "drawn")

    (path / "there.parquet").touch()
    (path / "there.csv").touch()
    (path / "-dash.png").touch()
    (path / "damaged.zip").write_bytes(b"PK\x03\x04 and nothing more")
    table = "path,status,face,label,confidence,p_anger,p_fear\na.png,ok,0,fear,0.75,0.25,0.75\n"
    (path / "predictions.csv").write_text(table)
    return path


@pytest.mark.parametrize("words", messages())
def test_message(
    words: str,
    folder: Path,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(folder)
    line = fails(capsys, *words.split())
    golden.check_message(words, line.removeprefix("fer-vit: error: "))


def test_each_command_has_a_message() -> None:
    assert {words.split()[0] for words in messages()} >= {*VERBS} - CANNOT_FAIL
