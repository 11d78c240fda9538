"""Evaluation of further heads: of a manifest that a model predicts, and of tables with truth."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fer_vit.commands.evaluate import evaluate as command
from fer_vit.data.dataset import FaceDataset, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation import robustness, score as scoring
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.evaluation.robustness import (
    MOST_TURNED,
    UNALTERED,
    Altered,
    AlteredFaces,
    score_altered,
)
from fer_vit.geometry import rotation
from fer_vit.heads import HEADS, HeadOutputs, Output
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.recognizer import load
from fer_vit.sources import drawn, movements
from fer_vit.stats import bootstrap
from fer_vit.stats.output_measures import measure, measure_intervals
from fer_vit.stats.results import Row
from fer_vit.store.model_folder import load_network, save_network
from fer_vit.tables.labelled import Labelled, Targeted, pair_outputs
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
    net = build_model(config, EXPRESSIONS, outputs=movements.DRAWN_OUTPUTS.plain)
    for value in net.heads.parameters():
        torch.nn.init.normal_(value, std=0.3)
    save_network(net, path / "model")
    reading = drawn.read(path / "faces", count=80, size=48, heads=True)
    write_manifest(path / "faces.parquet", reading, "drawn")
    return path


def test_measures_have_intervals_over_persons() -> None:
    target = RNG.random(90)
    value = target + RNG.normal(0, 0.2, 90)
    target[:10] = np.nan
    names = HEADS["movements"].measures
    measured = measure_intervals(names, value, target, np.repeat(np.arange(30), 3))
    assert [*measured] == [*names]
    r = measured["r"]
    assert r.mean == pytest.approx(measure("r", value, target))
    assert r.low < r.mean < r.high
    assert r.n == 80
    assert measured["AUROC"].mean is None
    single = measure_intervals(names, value, target, np.zeros(90, int))
    assert single["r"].low is None


@pytest.mark.parametrize(("persons", "has_interval"), [(1, False), (5, False), (6, True)])
def test_the_targets_of_few_persons_have_no_interval(persons: int, has_interval: bool) -> None:
    """Six persons, of whom some have targets: resamples of one person prove nothing."""
    rng = np.random.default_rng(3)
    target = rng.random(30)
    target[5 * persons :] = np.nan
    units = np.repeat(np.arange(6), 5)
    ccc = measure_intervals(["CCC"], rng.random(30), target, units)["CCC"]
    assert ccc.mean is not None
    assert ccc.n == 5 * persons
    assert (ccc.low is not None) == (ccc.high is not None) == has_interval


@pytest.mark.parametrize("agree", [True, False])
def test_measures_of_a_roll_do_not_depend_on_the_camera(agree: bool) -> None:
    """Upside down, angles lie on both sides of 180 degrees: r was 1 for any prediction."""
    rng = np.random.default_rng(0)
    target = rng.normal(0, 10, 60)
    value = rng.normal(0, 10, 60) + target * agree
    for turn in (0, 170, 180):
        turned = [(angle + turn + 180) % 360 - 180 for angle in (value, target)]
        roll = pair_outputs({"roll": turned[0]}, {"roll": turned[1]})[Output("pose", "roll")]
        for name in ("r", "MAE"):
            measured = measure_intervals([name], roll.values, roll.targets, np.arange(60))
            assert measured[name].mean == pytest.approx(measure(name, value, target))


def test_values_of_a_manifest_are_in_the_photo(folder: Path) -> None:
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("val")
    faces = predict_manifest(model, rows, "val")
    assert not any(name.startswith("move_") or name == "roll" for name in faces.columns)
    truth = rows.target_values()
    np.testing.assert_array_equal(
        faces.outputs[Output("affect", "valence")].targets, truth["valence"]
    )

    dataset = FaceDataset(rows, model.crop_spec)
    batch = collate([dataset[row] for row in range(len(rows))])
    with torch.inference_mode():
        raw = model.net(batch.image.float() / 255, batch.boxes, batch.valid)["pose"]
    turned = [rotation(sample) for sample in batch.to_crop.double().numpy()]
    roll = HEADS["pose"].step * raw[:, 1].double().numpy() - turned
    np.testing.assert_allclose(faces.outputs[Output("pose", "roll")].values, roll, atol=1e-3)


def evaluate(output: Path, *words: object) -> dict[str, Any]:
    run("evaluate", *words, "--output", output)
    return json.loads((output / "results.json").read_text())


def test_outputs_of_a_manifest_are_scored(folder: Path, tmp_path: Path) -> None:
    results = evaluate(
        tmp_path / "e", folder / "faces.parquet", "--checkpoint", folder / "model", "--split=train"
    )
    assert {
        head: [*rows] for head, rows in results["heads"].items()
    } == movements.DRAWN_OUTPUTS.plain
    model = load(folder / "model", "cpu")
    rows = Manifest.read(folder / "faces.parquet").split("train")
    outputs = predict_manifest(model, rows, "train").outputs
    for name in ("valence", "arousal"):
        for figure in ("CCC", "RMSE", "sign agreement"):
            expected = measure(figure, *outputs[Output("affect", name)])
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

    faces = predict_manifest(load(folder / "model", "cpu"), rows, "train")
    faces = faces.take(faces.labelled)
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
    monkeypatch.setattr(scoring, "MIN_GROUP", 5)
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
        predict_manifest(load(path, "cpu"), rows, "train").outputs[Output("movements", "mouthOpen")]
        for path in (folder / "model", tmp_path / "other")
    )
    group = np.array(rows.column("group"))
    value, truth = first
    for name, head in results["heads by"]["group"]["movements"].items():
        r = measure("r", value[group == name], truth[group == name])
        assert head["mouthOpen"]["r"]["mean"] == pytest.approx(r)

    compared = results["heads compared"]["movements"]["mouthOpen"]
    errors = np.abs(value - truth), np.abs(second.values - truth)
    assert compared["error"]["mean"] == pytest.approx(errors[0].mean())
    assert compared["the other's error"]["mean"] == pytest.approx(errors[1].mean())
    difference = compared["difference"]
    assert difference["mean"] == pytest.approx(errors[0].mean() - errors[1].mean())
    assert difference["low"] < difference["mean"] < difference["high"]
    p = [row["difference"]["p"] for row in results["heads compared"]["movements"].values()]
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
    rows: list[Row]

    def row(self, group: str, measure: str) -> Row:
        """Returns the row of an alteration."""
        (row,) = [row for row in self.rows if (row.group, row.measure) == (group, measure)]
        return row

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
        HeadOutputs.among(["move_a", "move_b"]),
        {
            UNALTERED: alter(clean, every),
            "turned": alter(turned, every),
            MOST_TURNED: alter(clean, np.arange(60) < 7),
        },
    )
    second = AlteredFaces(  # the outputs in another order, and one that the first model lacks
        HeadOutputs.among(["move_b", "move_a", "yaw"]),
        {name: alter(clean[..., [1, 0, 1]], every) for name in first.readings},
    )
    faces = Labelled(
        labels=["x", "y"],
        paths=np.array([f"{row}.png" for row in range(60)], object),
        probabilities=np.full((60, 2), 0.5),
        detected=every,
        targets=None,
        columns={},
        rows=np.arange(60),
        outputs={
            Output("movements", "a"): Targeted(views[:, 0], target[:, 0]),
            Output("movements", "b"): Targeted(views[:, 1], target[:, 1]),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "RESAMPLES", 100)
        rows = score_altered(faces, first, second)
    return AlteredOutputs(target, clean, turned, rows)


def test_altered_faces_without_labels_are_scored_by_head_alone(altered: AlteredOutputs) -> None:
    assert {row.part for row in altered.rows} == {"movements"}


def test_altered_faces_have_the_mean_error_of_outputs_with_a_target(
    altered: AlteredOutputs,
) -> None:
    error = altered.errors(altered.turned)
    before = altered.errors(altered.clean)
    mean = altered.row("turned", "error").estimate
    assert mean.n == 60
    assert mean.mean == pytest.approx(error.mean())
    change = altered.row("turned", "difference").estimate
    assert change.mean == pytest.approx((error - before).mean())
    assert change.low < change.mean < change.high
    assert altered.row(MOST_TURNED, "error").estimate.n == 7
    assert altered.row(MOST_TURNED, "faces").estimate.n == 7


def test_altered_faces_of_two_models_are_compared_by_head(altered: AlteredOutputs) -> None:
    error = altered.errors(altered.turned)
    of_second = altered.errors(altered.clean)  # the outputs of unaltered images
    other = altered.row("turned", "the other model").estimate
    assert other.mean == pytest.approx(of_second.mean())
    difference = altered.row("turned", "difference from it")
    assert difference.estimate.mean == pytest.approx((error - of_second).mean())
    assert difference.p < 0.01
    assert altered.row(UNALTERED, "difference from it").p == 1


def reverse_labels(model: Path, folder: Path) -> Path:
    """Copies the folder of a model, with its labels in reverse order."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("vit.head.weight", "vit.head.bias"):
        tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["labels"].reverse()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_robustness_serves_every_head(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robustness, "cores", lambda: 1)  # no process for each alteration
    manifest = write_some(folder, tmp_path / "some.parquet", every=3)
    words = ["--checkpoint", folder / "model", "--split=test", "--robustness"]
    same = reverse_labels(folder / "model", tmp_path / "same")
    results = evaluate(tmp_path / "e", manifest, *words, "--against", same)
    faces = len(Manifest.read(manifest).split("test"))
    conditions = results["robustness"]
    assert conditions[UNALTERED]["faces"] == results["faces"] < faces
    assert all(row["difference from it"]["mean"] == 0 for row in conditions.values())
    assert [*results["heads robustness"]] == [*movements.DRAWN_OUTPUTS.by_head]
    for altered in results["heads robustness"].values():
        assert [*altered] == [*conditions]
        for name, row in altered.items():
            assert row["error"]["mean"] > 0
            assert row["difference from it"]["mean"] == 0
            if name != MOST_TURNED:
                assert row["faces"] == faces
    text = (tmp_path / "e" / "results.md").read_text()
    assert f"## {HEADS['pose'].title}: robustness" in text


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
    assert compared["difference"]["p"] == 1
    error = np.abs(values[:, 0] - np.arange(40) / 40).mean()
    assert compared["error"]["mean"] == pytest.approx(error)
