"""Evaluation of further heads: of a manifest that a model predicts, and of tables with truth."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fer_vit.evaluation.evaluated import (
    EvaluatedFaces,
    HeadOutputs,
    pair_outputs,
    predict_manifest,
)

from fer_vit.commands.evaluate import evaluate as command
from fer_vit.data.dataset import FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation import outputs, robustness
from fer_vit.evaluation.altered import score_altered
from fer_vit.evaluation.expression import evaluate_faces
from fer_vit.evaluation.outputs import evaluate_heads, score_head
from fer_vit.evaluation.results import Evaluation, HeadRobustness
from fer_vit.evaluation.results_json import evaluation_json
from fer_vit.evaluation.robustness import MOST_TURNED, UNALTERED, Altered, AlteredFaces
from fer_vit.geometry import rotation
from fer_vit.heads import HEADS
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.recognizer import load
from fer_vit.sources import drawn, movements
from fer_vit.stats import bootstrap
from fer_vit.stats.measures import measure
from fer_vit.store.folder import load_network, save_network
from tests.helpers.commands import fails, run

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of all heads with random weights, and drawn faces with targets."""
    path = tmp_path_factory.mktemp("outputs")
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("mouth", "nose"))
    net = build_model(config, EXPRESSIONS, outputs=movements.DRAWN_OUTPUTS)
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.3)
    save_network(net, path / "model")
    reading = drawn.read(path / "faces", count=80, size=48, heads=True)
    write_manifest(path / "faces.parquet", reading, "drawn")
    return path


def test_measures_have_intervals_over_persons() -> None:
    target = RNG.random((90, 2))
    value = target + RNG.normal(0, 0.2, (90, 2))
    target[:10, 0] = np.nan
    units = np.repeat(np.arange(30), 3)
    measured = score_head("movements", HeadOutputs("movements", ["a", "b"], value, target), units)
    for column, name in enumerate("ab"):
        r = measured[name]["r"]
        assert r.mean == pytest.approx(measure("r", value[:, column], target[:, column]))
        assert r.low < r.mean < r.high
        assert r.n == 90 - 10 * (name == "a")
        assert measured[name]["AUROC"].mean is None
    single = score_head(
        "movements", HeadOutputs("movements", ["a", "b"], value, target), np.zeros(90, int)
    )
    assert single["a"]["r"].low is None


def test_the_targets_of_one_person_have_no_interval() -> None:
    """Only one of six persons has targets: all resamples are equal, which proves nothing."""
    rng = np.random.default_rng(3)
    value = rng.random((30, 3))
    target = rng.random((30, 3))
    target[5:, 0] = np.nan
    target[25:, 2] = np.nan  # five persons are too few as well
    units = np.repeat(np.arange(6), 5)
    outputs = HeadOutputs("affect", ["a", "b", "c"], value, target)
    measured = score_head("affect", outputs, units)
    assert measured["a"]["CCC"].mean is not None
    assert measured["a"]["CCC"].n == 5
    assert (measured["a"]["CCC"].low, measured["a"]["CCC"].high) == (None, None)
    assert measured["b"]["CCC"].low < measured["b"]["CCC"].high
    assert measured["c"]["CCC"].n == 25
    assert (measured["c"]["CCC"].low, measured["c"]["CCC"].high) == (None, None)


@pytest.mark.parametrize("agree", [True, False])
def test_measures_of_a_roll_do_not_depend_on_the_camera(agree: bool) -> None:
    """Upside down, angles lie on both sides of 180 degrees: r was 1 for any prediction."""
    rng = np.random.default_rng(0)
    target = rng.normal(0, 10, 60)
    value = rng.normal(0, 10, 60) + target * agree
    for turn in (0, 170, 180):
        turned = [(angle + turn + 180) % 360 - 180 for angle in (value, target)]
        heads = pair_outputs({"roll": turned[0]}, {"roll": turned[1]})
        measured = score_head("pose", heads["pose"], np.arange(60))["roll"]
        for name in ("r", "MAE"):
            assert measured[name].mean == pytest.approx(measure(name, value, target))


def test_values_of_a_manifest_are_in_the_photo(folder: Path) -> None:
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("val")
    faces = predict_manifest(model, rows, "val")
    assert not any(name.startswith("move_") or name == "roll" for name in faces.columns)
    truth = rows.target_values()
    np.testing.assert_array_equal(faces.heads["affect"].targets[:, 0], truth["valence"])

    dataset = FaceDataset(rows, model.crop_spec)
    batch = collate([dataset[row] for row in range(len(rows))])
    with torch.inference_mode():
        raw = model.net(batch.image.float() / 255, batch.boxes, batch.valid)["pose"]
    turned = [rotation(sample) for sample in batch.to_crop.double().numpy()]
    pose = faces.heads["pose"]
    roll = HEADS["pose"].step * raw[:, 1].double().numpy() - turned
    np.testing.assert_allclose(pose.values[:, pose.names.index("roll")], roll, atol=1e-3)


def test_faces_without_heads_have_no_groups(folder: Path) -> None:
    """Each path is a group: the faces were taken once for each."""
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("val")
    faces = replace(predict_manifest(model, rows, "val"), heads={}, columns={})
    assert evaluate_heads(faces, ["path"]) == {}


def evaluate(output: Path, *words: object) -> dict[str, Any]:
    run("evaluate", *words, "--output", output)
    return json.loads((output / "results.json").read_text())


def test_outputs_of_a_manifest_are_scored(folder: Path, tmp_path: Path) -> None:
    results = evaluate(
        tmp_path / "e", folder / "faces.parquet", "--checkpoint", folder / "model", "--split=train"
    )
    assert {head: [*rows] for head, rows in results["heads"].items()} == movements.DRAWN_OUTPUTS
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("train")
    outputs = predict_manifest(model, rows, "train").heads["affect"]
    for column, name in enumerate(outputs.names):
        for figure in ("CCC", "RMSE", "sign agreement"):
            expected = measure(figure, outputs.values[:, column], outputs.targets[:, column])
            assert results["heads"]["affect"][name][figure]["mean"] == pytest.approx(expected)
    text = (tmp_path / "e" / "results.md").read_text()
    assert "## Movements" in text
    assert "| mouth smile |" in text


NAMES = [f"{number}.png" for number in range(40)]


def write_tables(folder: Path, truth: str, cells: list[str]) -> tuple[Path, Path, np.ndarray]:
    """Writes a table of predictions with a movement and yaw, and one of truth;
    returns the values (N, 2).
    """
    values = np.column_stack([RNG.random(40), RNG.normal(0, 20, 40)]).round(3)
    lines = ["path,label,confidence,p_happiness,p_anger,move_jawOpen,yaw"]
    for name, (jaw, yaw) in zip(NAMES, values, strict=True):
        lines.append(f"{name},happiness,0.75,0.75,0.25,{jaw},{yaw}")
    (folder / "p.csv").write_text("\n".join(lines))
    rows = [f"{name},{row}" for name, row in zip(NAMES, cells, strict=True)]
    (folder / "t.csv").write_text("\n".join([f"path,{truth}", *rows]))
    return folder / "p.csv", folder / "t.csv", values


def test_a_table_beside_truth_without_labels(tmp_path: Path) -> None:
    jaw = (RNG.random(40) < 0.5).astype(int)
    yaw = RNG.normal(0, 20, 40).round(2)
    cells = [f"{a},{b if row else ''},0.5" for row, (a, b) in enumerate(zip(jaw, yaw, strict=True))]
    table, truth, values = write_tables(tmp_path, "move_jawOpen,yaw,valence", cells)
    results = evaluate(tmp_path / "e", table, "--labels", truth)
    assert {head: [*rows] for head, rows in results["heads"].items()} == {
        "movements": ["jawOpen"],
        "pose": ["yaw"],
    }
    scores = results["heads"]["movements"]["jawOpen"]
    for name in ("F1", "AUROC", "r"):
        assert scores[name]["mean"] == pytest.approx(measure(name, values[:, 0], jaw))
    assert results["heads"]["pose"]["yaw"]["MAE"]["faces"] == 39
    assert any("no valence" in note for note in results["notes"])
    assert "confusion" not in results


def test_a_table_beside_truth_and_labels(tmp_path: Path) -> None:
    cells = [f"happy,{row / 40}" for row in range(40)]
    table, truth, _ = write_tables(tmp_path, "label,move_jawOpen", cells)
    results = evaluate(tmp_path / "e", table, "--labels", truth)
    assert results["all"]["accuracy"]["mean"] == 1
    assert [*results["heads"]["movements"]] == ["jawOpen"]


@pytest.mark.parametrize(
    ("name", "cell"), [("move_jawOpen", "1.5"), ("yaw", "200"), ("yaw", "left"), ("valence", "-3")]
)
def test_wrong_truth_is_named(name: str, cell: str, tmp_path: Path) -> None:
    table, truth, _ = write_tables(tmp_path, name, ["0", "1", cell, *["0"] * 37])
    with pytest.raises(FerVitError, match=rf"t\.csv, row 3 .*`{name}`, but got `{cell}"):
        command(table, labels=truth, output=tmp_path / "e")


def write_some(folder: Path, path: Path, every: int) -> Path:
    """Writes the drawn faces with a column of groups; every n-th face has no label."""
    reading = drawn.read(folder / "faces", count=80, size=48, heads=True)
    rows = []
    for index, row in enumerate(reading.rows):
        label = None if index % every == 0 else row.label
        rows.append(replace(row, label=label, extra={"group": "ab"[index % 2]}))
    write_manifest(path, replace(reading, rows=rows, extra=("group",)), "drawn")
    return path


def test_faces_without_a_label_count_for_further_heads_alone(folder: Path, tmp_path: Path) -> None:
    manifest = write_some(folder, tmp_path / "some.parquet", every=3)
    model = ["--checkpoint", folder / "model", "--split=train"]
    results = evaluate(tmp_path / "e", manifest, *model)
    rows = Manifest.read(manifest).split("train")
    labels = rows.column("label")
    assert results["faces"] == sum(label is not None for label in labels)
    assert results["heads"]["affect"]["valence"]["RMSE"]["faces"] == len(labels)
    assert any("no label" in note for note in results["notes"])

    faces = predict_manifest(load(folder / "model", "cpu"), rows, "train").with_label()
    assert faces.targets is not None
    correct = faces.probabilities.argmax(1) == faces.targets.argmax(1)
    assert results["all"]["accuracy"]["mean"] == pytest.approx(correct.mean())


def test_a_head_that_the_model_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    net = load_network(folder / "model")
    outputs = {"movements": ["mouthOpen"]}
    save_network(build_model(net.config, EXPRESSIONS, outputs=outputs), tmp_path / "one")
    words = ["--checkpoint", tmp_path / "one"]
    results = evaluate(tmp_path / "e", folder / "faces.parquet", *words)
    assert [*results["heads"]] == ["movements"]
    lacking = len(movements.DRAWN_MOVEMENTS) - 1
    assert any(f"movements ({lacking}), pose (2), affect (2)" in note for note in results["notes"])


def test_groups_and_another_model_are_compared_by_head(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MIN_GROUP", 5)
    manifest = write_some(folder, tmp_path / "none.parquet", every=1)
    torch.manual_seed(1)
    net = load_network(folder / "model")
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.1)
    save_network(net, tmp_path / "other")
    words = ["--checkpoint", folder / "model", "--split=train", "--by=group"]
    results = evaluate(tmp_path / "e", manifest, *words, "--against", tmp_path / "other")
    assert "confusion" not in results

    rows = Manifest.read(manifest).split("train")
    first, second = (
        predict_manifest(load(path, "cpu"), rows, "train").heads["movements"]
        for path in (folder / "model", tmp_path / "other")
    )
    group = np.array(rows.column("group"))
    place = first.names.index("mouthOpen")
    value = first.values[:, place]
    truth = first.targets[:, place]
    for name, head in results["heads by"]["group"]["movements"].items():
        r = measure("r", value[group == name], truth[group == name])
        assert head["mouthOpen"]["r"]["mean"] == pytest.approx(r)

    compared = results["heads compared"]["movements"]["mouthOpen"]
    errors = np.abs(value - truth), np.abs(second.values[:, place] - truth)
    assert compared["error"]["mean"] == pytest.approx(errors[0].mean())
    assert compared["other"]["mean"] == pytest.approx(errors[1].mean())
    difference = compared["difference"]
    assert difference["mean"] == pytest.approx(errors[0].mean() - errors[1].mean())
    assert difference["low"] < difference["mean"] < difference["high"]
    p = [row["p"] for row in results["heads compared"]["movements"].values()]
    assert all(0 <= value <= 1 for value in p)
    text = (tmp_path / "e" / "results.md").read_text()
    assert "## Movements by group" in text
    assert "## Movements: the two models" in text


def alter(values: np.ndarray, counts: np.ndarray) -> Altered:
    """Readings of variants (V, N, K) without expressions."""
    return Altered(counts, np.full((*values.shape[:2], 2), 0.5), values)


class AlteredOutputs(NamedTuple):
    """Two outputs of 60 faces, unaltered and in two variants, and what they are scored as."""

    target: np.ndarray  # (N, 2); a third of the second output has none
    clean: np.ndarray  # (1, N, 2)
    turned: np.ndarray  # (2, N, 2)
    evaluation: Evaluation

    @property
    def scored(self) -> HeadRobustness:
        return self.evaluation.heads["movements"].robustness

    def errors(self, values: np.ndarray) -> np.ndarray:
        """Returns the mean error of each face (N,) over variants, and outputs with a target."""
        return np.nanmean(np.abs(values - self.target), axis=(0, 2))


@pytest.fixture(scope="module")
def altered() -> AlteredOutputs:
    rng = np.random.default_rng(0)
    target = rng.random((60, 2))
    target[:20, 1] = np.nan
    every = np.ones(60, bool)
    views = target.copy()
    views[np.isnan(views)] = 0.5
    clean = views[None] + rng.normal(0, 0.05, (1, 60, 2))
    turned = views + rng.normal(0, 0.2, (2, 60, 2))
    first = AlteredFaces(
        ["move_a", "move_b"],
        {
            UNALTERED: alter(clean, every),
            "turned": alter(turned, every),
            MOST_TURNED: alter(clean, np.arange(60) < 7),
        },
    )
    second = AlteredFaces(  # the outputs in another order, and one that the first model lacks
        ["move_b", "yaw", "move_a"],
        {name: alter(clean[..., [1, 1, 0]], every) for name in first.readings},
    )
    faces = EvaluatedFaces(
        labels=["x", "y"],
        paths=np.array([f"{row}.png" for row in range(60)], object),
        probabilities=np.full((60, 2), 0.5),
        detected=every,
        targets=None,
        columns={},
        rows=np.arange(60),
        picture=Path,
        heads={"movements": HeadOutputs("movements", ["a", "b"], views, target)},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "RESAMPLES", 100)
        evaluation = replace(evaluate_faces(faces), heads=evaluate_heads(faces))
        evaluation = score_altered(evaluation, faces, first, second)
    return AlteredOutputs(target, clean, turned, evaluation)


def test_altered_faces_without_labels_are_scored_by_head_alone(altered: AlteredOutputs) -> None:
    assert altered.evaluation.robustness == {}
    assert "heads robustness" in evaluation_json(altered.evaluation)


def test_altered_faces_have_the_mean_correlation_of_both_variants(
    altered: AlteredOutputs,
) -> None:
    outputs = altered.scored.outputs
    for column, name in enumerate("ab"):
        r = [
            measure("r", variant[:, column], altered.target[:, column])
            for variant in altered.turned
        ]
        assert outputs["turned"][name]["r"].mean == pytest.approx(np.mean(r))
    assert [outputs["turned"][name]["r"].n for name in "ab"] == [60, 40]
    assert [outputs[MOST_TURNED][name]["r"].n for name in "ab"] == [7, 0]


def test_altered_faces_have_the_mean_error_of_outputs_with_a_target(
    altered: AlteredOutputs,
) -> None:
    error = altered.errors(altered.turned)
    before = altered.errors(altered.clean)
    row = altered.scored.errors["turned"]
    assert row.estimate.n == 60
    assert row.estimate.mean == pytest.approx(error.mean())
    assert row.change.mean == pytest.approx((error - before).mean())
    assert row.change.low < row.change.mean < row.change.high
    assert altered.scored.errors[MOST_TURNED].estimate.n == 7


def test_altered_faces_of_two_models_are_compared_by_head(altered: AlteredOutputs) -> None:
    error = altered.errors(altered.turned)
    of_second = altered.errors(altered.clean)  # the outputs of unaltered images
    row = altered.scored.errors["turned"]
    assert row.other_model.mean.mean == pytest.approx(of_second.mean())
    assert row.other_model.difference.mean == pytest.approx((error - of_second).mean())
    assert row.other_model.p < 0.01
    assert altered.scored.errors[UNALTERED].other_model.p == 1


@pytest.mark.slow
def test_robustness_serves_every_head(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robustness, "cores", lambda: 1)  # no process for each alteration
    manifest = write_some(folder, tmp_path / "some.parquet", every=3)
    words = ["--checkpoint", folder / "model", "--split=test", "--robustness"]
    results = evaluate(tmp_path / "e", manifest, *words, "--against", folder / "model")
    faces = len(Manifest.read(manifest).split("test"))
    conditions = results["robustness"]
    assert conditions[UNALTERED]["faces"] == results["faces"] < faces
    assert [*results["heads robustness"]] == [*movements.DRAWN_OUTPUTS]
    for head, altered in results["heads robustness"].items():
        assert [*altered["errors"]] == [*altered["outputs"]] == [*conditions]
        for name, row in altered["errors"].items():
            assert row["error"]["mean"] > 0
            assert row["difference from it"]["mean"] == 0
            assert [*altered["outputs"][name]] == movements.DRAWN_OUTPUTS[head]
            if name != MOST_TURNED:
                assert row["faces"] == faces
    text = (tmp_path / "e" / "results.md").read_text()
    assert f"## {HEADS['pose'].title}: robustness" in text
    assert re.search(rf"### {HEADS['affect'].title} .*: CCC\n", text)


def test_altered_images_need_labels_or_targets(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    reading = drawn.read(tmp_path / "faces", count=80, size=48)
    rows = [replace(row, label=None) for row in reading.rows]
    write_manifest(tmp_path / "none.parquet", replace(reading, rows=rows), "drawn")
    words = ["--checkpoint", folder / "model", "--robustness", "--output", tmp_path / "e"]
    assert "targets of further heads" in fails(
        capsys, "evaluate", tmp_path / "none.parquet", *words
    )


def test_tables_of_two_models_are_compared_by_head(tmp_path: Path) -> None:
    cells = [f"{row / 40}" for row in range(40)]
    table, truth, values = write_tables(tmp_path, "move_jawOpen", cells)
    second_table = tmp_path / "other.csv"
    second_table.write_text(table.read_text())
    results = evaluate(tmp_path / "e", table, "--labels", truth, "--against", second_table)
    compared = results["heads compared"]["movements"]["jawOpen"]
    assert compared["difference"]["mean"] == 0
    assert compared["p"] == 1
    error = np.abs(values[:, 0] - np.arange(40) / 40).mean()
    assert compared["error"]["mean"] == pytest.approx(error)
