"""A new head is an entry of `HEADS`: what reads, scores, compares and describes heads follows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from starlette.testclient import TestClient

from fer_vit.app.jobs import Jobs, Ready
from fer_vit.app.server import create_app
from fer_vit.app.tasks import column_types
from fer_vit.app.uploads import FormOptions
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import write_manifest
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.fields import all_face_fields, describe_fields
from fer_vit.heads import HEADS, Head, HeadOutputs, rotate_unchanged
from fer_vit.labels import EXPRESSIONS
from fer_vit.losses import decode, head_loss
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.face_results import table as table_of
from fer_vit.predict.recognizer import load
from fer_vit.sources import drawn
from fer_vit.stats import bootstrap
from fer_vit.store.model_folder import save_network
from tests.helpers.commands import CROPS, run
from tests.helpers.servers import Stub

AGE = Head(
    title="Age",
    phrase="the mean age in years",
    subject="the mean number of",
    scale="number",
    low=0.0,
    high=120.0,
    mirror=HEADS["affect"].mirror,
    rotate=rotate_unchanged,
    outputs={"years": "the age that the face seems to have"},
    prefix="age_",
    unit="years",
    form=".1f",
    middle=35.0,
    step=15.0,
)


@pytest.fixture(autouse=True)
def age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADS, "age", AGE)
    monkeypatch.setattr(bootstrap, "RESAMPLES", 100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of the head with random weights, and drawn faces with targets."""
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("mouth", "nose"))
    net = build_model(config, EXPRESSIONS, outputs={"age": ["years"]})
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.3)
    save_network(net, tmp_path / "model")

    reading = drawn.read(tmp_path / "faces", count=40, size=48)
    reading.outputs = HeadOutputs.among(["age_years"])
    for number, row in enumerate(reading.rows):
        row.targets = {"age_years": 20.0 + number}
    write_manifest(tmp_path / "faces.parquet", reading, "drawn")
    return tmp_path


def test_a_new_head_has_a_loss_in_its_unit() -> None:
    raw = torch.tensor([[0.0], [1.0], [3.0]])
    assert decode("age", raw).tolist() == [[35.0], [50.0], [80.0]]
    assert head_loss("age", raw, torch.tensor([[35.0], [50.0], [float("nan")]])) == 0
    assert head_loss("age", raw, torch.tensor([[50.0], [50.0], [80.0]])) > 0


def test_a_new_head_has_a_column_in_the_table_and_the_help(folder: Path) -> None:
    photos = sorted(folder.glob("faces/val/**/*.png"))[:2]
    model = load(folder / "model", "cpu")
    faces = model.predict(photos, face="crop", detector="none", workers=0)
    years = table_of(faces)["age_years"].to_pylist()
    assert years == [face.age_years for face in faces]
    assert years == [face.outputs["age_years"] for face in faces]

    words = [*CROPS, "--workers=0", f"--checkpoint={folder / 'model'}", "--outputs=age"]
    run("predict", *photos, *words, f"--output={folder / 'p.csv'}")
    written = pd.read_csv(folder / "p.csv")
    np.testing.assert_allclose(written["age_years"], years, atol=1e-4)
    assert "label" not in written
    assert AGE.outputs["years"] in describe_fields(all_face_fields())


def test_evaluate_scores_a_new_head(folder: Path) -> None:
    words = ["--checkpoint", folder / "model", "--split=train", "--output", folder / "e"]
    run("evaluate", folder / "faces.parquet", *words)
    results = json.loads((folder / "e" / "results.json").read_text())
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("train")
    (years,) = predict_manifest(model, rows, "train").outputs.values()
    error = np.abs(years.values - years.targets).mean()
    assert results["heads"]["age"]["years"]["MAE"]["mean"] == pytest.approx(error)
    text = (folder / "e" / "results.md").read_text()
    assert "## Age" in text
    assert " 0 to 120 years" in text


def test_compare_compares_a_new_head(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for person in range(8):
        for condition in ("rest", "film"):
            name = f"{person}{condition}.png"
            years = 30 + rng.normal() + 10 * (condition == "film")
            rows.append((name, person, condition, 0, "happy", 0.75, 0.75, 0.25, years))
    names = "path subject condition face label confidence p_happy p_neutral age_years"
    pd.DataFrame(rows, columns=names.split()).to_csv(tmp_path / "p.csv", index=False)
    words = ["--by=condition", "--person=subject", "--baseline=rest"]
    run("compare", tmp_path / "p.csv", *words, f"--output={tmp_path / 'c'}")
    text = (tmp_path / "c" / "results.md").read_text()
    assert AGE.title in text
    assert AGE.phrase in text


def test_the_rest_schema_has_a_new_head(tmp_path: Path) -> None:
    queue = Jobs(tmp_path, ["m"], Stub(), Ready(column_types(), {"m": ["age"]}))  # type: ignore[arg-type]
    client = TestClient(create_app(queue), base_url="http://localhost")
    text = json.dumps(client.get("/openapi.json").json())
    assert f'"enum": {json.dumps(["expression", *HEADS])}' in text
    assert f'"maxItems": {1 + len(HEADS)}' in text
    assert '"age_years"' in text
    assert FormOptions(outputs=["age"]).outputs == ["age"]
    with pytest.raises(ValidationError):
        FormOptions(outputs=["ages"])


def test_the_report_has_a_chart_of_a_new_head(folder: Path) -> None:
    photo = min(folder.glob("faces/val/**/*.png"))
    model = load(folder / "model", "cpu")
    words = [*CROPS, f"--checkpoint={folder / 'model'}", f"--output={folder / 'r'}"]
    run("visualize", photo, *words)
    text = (folder / "r" / "index.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["fixed"]["age"]["title"] == AGE.title
    assert data["fixed"]["age"]["unit"] == AGE.unit
    (face,) = data["faces"]
    chart = face["charts"]["age"]
    (years,) = chart["values"]
    (result,) = model.predict([photo], face="crop", detector="none", workers=0)
    expected = result.outputs["age_years"]
    assert years == pytest.approx(expected, abs=0.01)
    (bias,) = data["fixed"]["age"]["bias"]
    terms = bias + sum(chart["face"]) + sum(chart["regions"][0])
    assert terms == pytest.approx(years, abs=0.02)  # in years: the head is not bounded
