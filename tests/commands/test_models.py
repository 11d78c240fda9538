"""The commands `models` and `configs`, and the models that fer-vit ships: small, described,
as accurate as stated.
"""

import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import ModelCard
from skimage.data import astronaut

from fer_vit import load
from fer_vit.commands import models as verb
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import ferplus
from fer_vit.store.config_files import shipped_configs
from fer_vit.store.hub import DEFAULT_MODEL, shipped_models
from tests.helpers.commands import run

TABLE = (Path(__file__).parents[2] / "docs" / "results" / "models.md").read_text("utf-8")


def test_every_config_is_one_line_with_its_accuracy(capsys: pytest.CaptureFixture) -> None:
    run("configs")
    header, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert header.split() == ["name", "accuracy", "what", "it", "is"]
    assert [line.split()[0] for line in lines] == list(shipped_configs())
    assert all(line.endswith(".") for line in lines), "the first line of a config is not a sentence"
    (teacher,) = [line for line in lines if line.startswith("ferplus_teacher ")]
    assert teacher.split()[2] == "validation"
    assert float(teacher.split()[1].removesuffix("%")) > 80


def test_the_official_test_results_are_the_same_everywhere(capsys: pytest.CaptureFixture) -> None:
    run("models")
    lines = capsys.readouterr().out.splitlines()
    for name, folder in shipped_models().items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        row = TABLE.partition(f"[{name}]")[2].partition("\n")[0]
        tested = [
            result
            for result in verb.card_data(folder).eval_results
            if "test" in result.dataset_name
        ]
        if not tested:
            assert "not measured" in row
            continue
        assert {result.metric_name for result in tested} == {"accuracy", "UAR", "ECE"}
        texts = (row, (folder / "README.md").read_text("utf-8"))
        for result in tested:
            assert f"FERPlus official test {result.metric_name} {result.metric_value:.1%}" in line
            assert all(f"{result.metric_value:.1%}" in text for text in texts)


def test_models_are_listed_with_their_heads(tmp_path: Path) -> None:
    heads = {row["name"]: row["heads"] for row in verb.models()}
    for name in shipped_models():
        settings = load(name, "cpu").net.settings
        measured = settings.outputs.plain_r
        assert {head: [*of_head] for head, of_head in measured.items()} == settings.outputs.plain
        further = [
            f"{head} ({len(r)}, r {min(r.values()):.2f} to {max(r.values()):.2f})"
            for head, r in measured.items()
        ]
        assert heads[name].replace(", 11 weak", "") == ", ".join(["expression", *further])
    assert "movements (45, r 0.23 to 0.95, 11 weak)" in heads[DEFAULT_MODEL]
    config = tmp_path / "config.json"
    for text in ("[1]", '{"outputs": 3}', '{"outputs": {"pose": 3, "x": [1]}, "r": {"pose": 1}}'):
        config.write_text(text)
        assert verb.head_names(config) == "expression"
    config.write_text('{"outputs": {"pose": ["yaw"]}, "r": {"pose": {"yaw": null}}}')
    assert verb.head_names(config) == "expression, pose (1)"
    config.write_bytes(b"\xff{")
    assert verb.head_names(config) == "-"


def test_models_in_the_hubs_cache(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run("export", tmp_path / "ours", "--checkpoint", checkpoint)
    cards = {"none": None, "0": b"---\na: [\n---\n", "1": b"---\n- 1\n---\n", "2": b"\xff\xfe"}
    for name, card in (
        cards | {"3": b"---\nmodel-index: 3\n---\n"}
    ).items():  # models of other libraries
        shutil.copytree(
            tmp_path / "ours", tmp_path / name, ignore=shutil.ignore_patterns("README.md")
        )
        if card is not None:
            (tmp_path / name / "README.md").write_bytes(card)
    repos = []
    for folder in tmp_path.iterdir():
        files = [SimpleNamespace(file_name=path.name) for path in folder.iterdir()]
        revision = SimpleNamespace(last_modified=0, files=files, snapshot_path=folder)
        repos.append(SimpleNamespace(repo_id=f"somebody/{folder.name}", revisions=[revision]))
    monkeypatch.setattr(verb, "scan_cache_dir", lambda: SimpleNamespace(repos=repos))
    capsys.readouterr()
    run("models")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "cached" in line]
    assert line.startswith("somebody/ours")
    assert line.split()[-2:] == ["-", "-"]


MODELS = shipped_models()


@pytest.mark.parametrize("name", MODELS)
def test_it_is_small_and_described(name: str) -> None:
    folder = MODELS[name]
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "model.onnx",
        "model.int8.onnx",
        "config.json",
        "README.md",
    }
    assert sum(path.stat().st_size for path in folder.iterdir()) < 40e6
    model = load(name, "cpu")
    assert sum(parameter.numel() for parameter in model.net.parameters()) < 8e6
    assert model.labels == list(EXPRESSIONS)
    assert len(model.net.settings.crop.template) == 5
    assert model.net.settings.temperature != 1
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == name
    assert card.data.license
    assert {"## Results", "## Limitations"} <= set(card.text.splitlines())
    assert f"stored temperature of {model.net.settings.temperature:.3f}" in " ".join(
        card.text.split()
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_predict_that_an_astronaut_smiles(name: str) -> None:
    (face,) = load(name).predict(astronaut())
    assert face.label == "happiness"
    assert face.confidence > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_is_as_good_as_its_card_says(name: str, ferplus_zip: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(ferplus_zip) as archive:
        archive.extractall(
            tmp_path, [member for member in archive.namelist() if "FER2013Valid" in member]
        )
    rows = ferplus.read(tmp_path).rows[::10]
    faces = load(name).predict([row.image for row in rows], face="crop", workers=0)
    accuracy = np.mean([face.label == row.label for face, row in zip(faces, rows, strict=True)])
    results = ModelCard.load(MODELS[name] / "README.md").data.eval_results
    stated = next(result.metric_value for result in results if result.metric_name == "accuracy")
    assert len(rows) == 320
    assert abs(accuracy - stated) < 3 * np.sqrt(stated * (1 - stated) / len(rows))
