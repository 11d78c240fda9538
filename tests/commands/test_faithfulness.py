"""The command `faithfulness`: the files, and what `export` reads from the files."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.evaluation import explanation_scores
from fer_vit.explain.faithfulness_measures import BETTER
from fer_vit.explain.methods import MEASURED, METHODS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.stats.estimate import Estimate
from fer_vit.store.model_folder import save_network
from tests.helpers.commands import CROPS, fails, run

ROWS = ["pixels", "regions", "relevance", "ablation", "attention", "random", "centre"]


@pytest.fixture(scope="module")
def measured(drawn: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two faces of a manifest."""
    output = tmp_path_factory.mktemp("measured") / "faces"
    words = ["--checkpoint", checkpoint, "--max_faces", 2, "--output", output]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fer_vit.explain.faithfulness_measures.FRACTIONS", [0.0, 0.5, 1.0])
        run("faithfulness", drawn / "faces.parquet", *words)
    return output


@pytest.fixture(scope="module")
def results(measured: Path) -> dict[str, Any]:
    return json.loads((measured / "faithfulness.json").read_text())


def test_faithfulness_of_a_manifest_has_each_method(
    results: dict[str, Any], checkpoint: Path
) -> None:
    assert results["model"] == str(checkpoint)
    assert list(results["methods"]) == ROWS
    assert results["methods"]["relevance"]["deletion"]["faces"] == 2
    assert results["methods"]["ablation"]["region agreement"]["mean"] == pytest.approx(1)


def test_differences_are_from_random_scores_of_the_same_faces(results: dict[str, Any]) -> None:
    assert list(results["differences"]) == [row for row in ROWS if row != "random"]
    compared = 0
    for measure, difference in results["differences"]["relevance"].items():
        if difference["faces"] < 2:  # a measure without values for some faces
            continue
        mean = results["methods"]["relevance"][measure]["mean"]
        of_random = results["methods"]["random"][measure]["mean"]
        assert difference["mean"] == pytest.approx(mean - of_random, abs=1e-6)
        compared += 1
    assert compared > 3


def test_weights_are_shuffled_from_the_classifier_down(results: dict[str, Any]) -> None:
    layers = ["classifier", "block 1", "block 0", "embeddings"]
    for method in METHODS:
        assert list(results["shuffled"][method]) == layers


def test_faithfulness_has_a_table_in_markdown(measured: Path) -> None:
    lines = (measured / "faithfulness.md").read_text().splitlines()
    for row in ROWS:
        assert any(line.startswith("|") and row in line for line in lines), row
    (few,) = [line for line in lines if line.startswith("Faces of fewer than 6 persons")]
    for name in BETTER:
        number = 0 if name.startswith("pixel") else 2  # both predictions need no pixels
        assert f"{name}: {number} faces" in few


def test_the_table_of_methods_marks_which_way_is_better() -> None:
    interval = Estimate(mean=0.5, low=0.25, high=0.75, n=9)
    unknown = Estimate(mean=None, low=None, high=None, n=0)
    results = dict.fromkeys(BETTER, unknown) | {"deletion": interval}
    table = explanation_scores.methods_table({"relevance": results}, random=results).splitlines()
    assert table[0].startswith("| less `random` | pixel deletion, blurred ↓ | pixel insertion, ")
    assert table[0].endswith(" | deletion ↓ | insertion ↑ | region agreement ↑ | saco ↑ |")
    assert table[2].endswith(" | - | +0.500 (+0.250 to +0.750) | - | - | - |")
    assert table[3].endswith(" | - | 0.500 (0.250 to 0.750) | - | - | - |")


def test_an_exported_model_has_the_gains_of_its_methods(
    measured: Path, results: dict[str, Any], checkpoint: Path, tmp_path: Path
) -> None:
    file = measured / "faithfulness.json"
    run("export", tmp_path / "model", "--checkpoint", checkpoint, "--faithfulness", file)
    gains = load(tmp_path / "model").net.settings.faithfulness
    for method, row in results["differences"].items():
        gain = [*row["pixel insertion, blurred"].values()][:3]  # mean, low and high
        expected = [number for number in gain if number is not None]
        assert gains.get(method, []) == pytest.approx(expected, abs=6e-4)


def test_intervals_are_over_persons_not_faces(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `evaluate` and `visualize`: six faces of three persons have no intervals."""
    quick = {name: MEASURED[name] for name in ("random", "relevance")}
    monkeypatch.setattr(explanation_scores, "MEASURED", quick)
    monkeypatch.setattr(explanation_scores, "METHODS", {"relevance": METHODS["relevance"]})
    monkeypatch.setattr("fer_vit.explain.faithfulness_measures.FRACTIONS", [0.0, 0.5, 1.0])
    table = Manifest.read(drawn / "faces.parquet").split("val").table.slice(0, 6)
    persons = pa.array([f"p{row // 2}" for row in range(6)])
    pq.write_table(table.append_column("person", persons), tmp_path / "persons.parquet")
    pq.write_table(table, tmp_path / "faces.parquet")
    for name, has_interval in (("persons", False), ("faces", True)):
        output = tmp_path / name
        words = ["--checkpoint", checkpoint, "--output", output]
        run("faithfulness", tmp_path / f"{name}.parquet", *words)
        results = json.loads((output / "faithfulness.json").read_text())
        deletion = results["differences"]["relevance"]["deletion"]
        assert deletion["faces"] == 6
        assert (deletion["low"] is not None) == has_interval
        text = (output / "faithfulness.md").read_text()
        assert ("; deletion: 6 faces;" in text) != has_interval


def test_faces_of_one_photo_are_one_unit() -> None:
    """Copies of a face make no interval narrower."""
    values = torch.randn(8, generator=torch.Generator().manual_seed(0))
    copies = values.repeat_interleave(5)
    apart = explanation_scores.number_units([f"photo {index}" for index in range(8)])
    together = explanation_scores.number_units([f"photo {index // 5}" for index in range(40)])
    single = explanation_scores.average_batches([{"pixels": {"saco": values}}], apart)
    batches = [{"pixels": {"saco": part}} for part in copies.split(16)]
    repeated = explanation_scores.average_batches(batches, together)["pixels"]["saco"]
    expected = replace(single["pixels"]["saco"], n=40)
    assert asdict(repeated) == pytest.approx(asdict(expected))


@pytest.mark.slow
def test_faithfulness_of_photos(
    drawn: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {name: MEASURED[name] for name in ("random", "relevance")}
    monkeypatch.setattr(explanation_scores, "MEASURED", quick)
    monkeypatch.setattr(explanation_scores, "METHODS", {"relevance": METHODS["relevance"]})
    words = [*CROPS, "--checkpoint", checkpoint, "--max_faces", 3]
    words += ["--batch-size", 2, "--workers", 0, "--output", tmp_path / "measured"]
    run("faithfulness", drawn / "faces" / "test", *words)
    results = json.loads((tmp_path / "measured" / "faithfulness.json").read_text())
    assert list(results["methods"]) == ["random", "relevance"]
    assert results["methods"]["relevance"]["saco"]["faces"] == 3


def test_faithfulness_of_a_photo_without_a_face(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "black.png")
    words = ("faithfulness", tmp_path / "black.png", "--output", tmp_path / "measured")
    assert "--face crop" in fails(capsys, *words)
    assert not (tmp_path / "measured").exists()


def test_the_terms_of_further_heads_are_compared_with_hidden_regions(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    quick = {name: MEASURED[name] for name in ("ablation", "random")}
    monkeypatch.setattr(explanation_scores, "MEASURED", quick)
    monkeypatch.setattr(explanation_scores, "METHODS", {})
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, tokens="region", regions=("nose", "mouth", "left_eye"))
    outputs = {"movements": ["a", "b"], "pose": ["yaw"]}
    net = build_model(config, Manifest.read(drawn / "faces.parquet").labels, outputs=outputs)
    for block in net.vit.blocks:  # without exchange of information, a term is the effect
        torch.nn.init.zeros_(block.attn.proj.weight)
        torch.nn.init.zeros_(block.attn.proj.bias)
    for head in net.heads.values():
        torch.nn.init.zeros_(head.by_face)
    save_network(net.eval(), tmp_path / "model")

    monkeypatch.setattr("fer_vit.explain.faithfulness_measures.FRACTIONS", [0.0, 0.5, 1.0])
    words = ["--checkpoint", tmp_path / "model", "--max_faces", 20, "--output", tmp_path / "m"]
    run("faithfulness", drawn / "faces.parquet", *words)
    terms = json.loads((tmp_path / "m" / "faithfulness.json").read_text())["terms"]
    assert [*terms] == ["movements", "pose"]
    row = terms["movements"]["token left out"]
    assert row["rank correlation"]["mean"] == row["largest first"]["mean"] == 1
    assert row["in random order"]["mean"] == pytest.approx(0, abs=0.4)
    assert row["first in random order"]["mean"] == pytest.approx(1 / 3, abs=0.3)
    assert [*row["outputs"]] == ["a", "b"]
    assert row["rank correlation"]["faces"] == 20
    assert [*terms["pose"]["pixels blurred"]["outputs"]] == ["yaw"]
    text = (tmp_path / "m" / "faithfulness.md").read_text()
    assert "| movements, token left out | 20 | 1.00" in text
