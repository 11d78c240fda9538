"""The models that fer-vit ships: small, whole, described, and as accurate as in their cards."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from skimage.data import astronaut

from fer_vit import load
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources import ferplus
from fer_vit.store.hub import shipped_models

MODELS = shipped_models()


@pytest.mark.parametrize("name", MODELS)
def test_it_is_small_and_described(name: str) -> None:
    folder = MODELS[name]
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 20e6
    model = load(name, "cpu")
    assert sum(parameter.numel() for parameter in model.parameters()) < 8e6
    assert model.labels == list(EXPRESSIONS)
    assert len(model.net.settings.template) == 5
    assert model.net.settings.temperature != 1
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == name
    assert card.data.license
    assert {"## Results", "## Limitations"} <= set(card.text.splitlines())
    assert f"stored temperature of {model.net.settings.temperature:.3f}" in " ".join(card.text.split())


@pytest.mark.parametrize("name", MODELS)
def test_an_astronaut_smiles(name: str, yunet_named: None) -> None:
    (face,) = load(name).predict(astronaut())
    assert face.label == "happiness"
    assert face.confidence > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_is_as_good_as_its_card_says(name: str, ferplus_zip: Path, yunet_named: None, tmp_path: Path) -> None:
    with zipfile.ZipFile(ferplus_zip) as archive:
        archive.extractall(tmp_path, [member for member in archive.namelist() if "FER2013Valid" in member])
    rows = ferplus.read(tmp_path).rows[::10]
    faces = load(name).predict([row.image for row in rows], face="crop", workers=0)
    accuracy = np.mean([face.label == row.label for face, row in zip(faces, rows, strict=True)])
    results = ModelCard.load(MODELS[name] / "README.md").data.eval_results
    stated = next(result.metric_value for result in results if result.metric_name == "accuracy")
    assert len(rows) == 320
    assert abs(accuracy - stated) < 3 * np.sqrt(stated * (1 - stated) / len(rows))
