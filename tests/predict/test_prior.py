"""Probabilities under another class prior, in Python and on the command line."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fer_vit import load
from fer_vit.commands.export import example_inputs
from fer_vit.errors import FerVitError
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.store.folder import save_network
from tests.helpers.commands import fails, main

TRAINED = [0.4, 0.3, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]
SOME = ["neutral", "anger"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = RegionViTConfig(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, tokens="patch")
    labels = ["neutral", "happiness", "surprise", "sadness", "anger", "disgust", "fear", "contempt"]
    thresholds = {"90": [0.1] * 9, "95": [0.1] * 9}
    net = build_model(config, labels, temperature=1.5, thresholds=thresholds, prior=TRAINED, adjustment=0.2)
    torch.nn.init.normal_(net.vit.head.weight)
    save_network(net, tmp_path / "model")
    return str(tmp_path / "model")


def test_probabilities_are_divided_by_the_old_prior_and_multiplied_by_the_new(model: str, tmp_path: Path) -> None:
    (image,) = example_inputs(load(model, "cpu"), 3)
    net = load(model, "cpu").net
    net.offset = None
    plain = torch.softmax(net(image).double() / 1.5, 1).detach().numpy()

    def expected(ratio: np.ndarray) -> np.ndarray:
        return plain * ratio / (plain * ratio).sum(1, keepdims=True)

    trained, member = np.array(TRAINED), np.array([1, 0, 0, 0, 1, 0, 0, 0])
    (tmp_path / "prior.json").write_text(json.dumps({"anger": 3, "neutral": 1}))
    for options, ratio in (
        ({}, trained ** (-0.2 / 1.5)),
        ({"prior": "even"}, 1 / trained),
        ({"classes": SOME}, member * trained ** (-0.2 / 1.5)),
        ({"classes": SOME, "prior": "even"}, member / trained),
        ({"classes": SOME, "prior": tmp_path / "prior.json"}, member * [1, 0, 0, 0, 3, 0, 0, 0] / trained),
    ):
        changed = load(model, "cpu", **options)
        assert np.allclose(changed(image).detach().numpy(), expected(ratio), atol=1e-6)
        assert bool(changed.net.settings.thresholds) == (not options)


def test_invalid_priors(model: str) -> None:
    for options, message in (
        ({"classes": ["joy"]}, "classes among neutral, .* but got joy"),
        ({"prior": {"neutral": 1}}, "a positive number for each of neutral, happiness"),
        ({"prior": {"neutral": 1, "anger": 0}, "classes": SOME}, "a positive number"),
        ({"prior": "uneven"}, "`even` or a JSON file, but got uneven"),
    ):
        with pytest.raises(FerVitError, match=message):
            load(model, **options)
    recognizer = load(model)
    recognizer.net.settings.prior = ()
    with pytest.raises(FerVitError, match="class frequencies of the training faces"):
        recognizer.change_prior("even")


def test_tables_and_pages_record_the_prior(
    model: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", model, "--prior", "even", "--classes", "neutral", "anger"]
    photos = next(path for path in sorted(drawn.rglob("*")) if path.is_dir() and any(path.glob("*.png")))
    table = tmp_path / "faces.parquet"
    main(["predict", str(photos), "--face", "crop", "--detector", "none", "--output", str(table), *words])
    rows = pq.read_table(table).to_pylist()
    assert {row["label"] for row in rows} <= set(SOME)
    assert all(row["p_fear"] == 0 and row["prediction_set"] is None and row["ambiguous"] is None for row in rows)
    facts = {"classes": "neutral, anger", "prior": "neutral 0.5, anger 0.5"}
    for source, more in ((table, []), (drawn / "faces.parquet", words)):
        main(["evaluate", str(source), *more, "--output", str(tmp_path / "evaluation"), "--overwrite"])
        results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
        assert facts.items() <= results.items()
        assert "neutral 0.5, anger 0.5" in (tmp_path / "evaluation" / "index.html").read_text()
    assert np.array(results["confusion"])[[1, 2, 3, 5, 6, 7]].sum() == 0
    assert "for manifests" in fails(capsys, "evaluate", table, "--prior", "even", "--output", tmp_path / "x")
