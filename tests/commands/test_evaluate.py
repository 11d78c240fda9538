import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import accuracy_score

import fer_vit
from fer_vit.data.manifest import Manifest
from fer_vit.evaluation import cards
from fer_vit.evaluation.predicted_manifest import ManifestFaces
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.recognizer import load
from fer_vit.report.results_page import RESULTS_FILES
from fer_vit.stats import bootstrap
from fer_vit.store.model_folder import save_network
from fer_vit.tables.table_reader import read_table
from tests.helpers.commands import CROPS, fails, run
from tests.helpers.logits import labelled_logits

MERGE = dict.fromkeys(("happiness", "surprise"), "good") | dict.fromkeys(
    ("neutral", "contempt"), "so-so"
)
MERGE |= dict.fromkeys(("sadness", "anger", "disgust", "fear"))


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 100)


@pytest.fixture(scope="module")
def tables(drawn: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of predictions for the val photos, the truth beside them,
    and the ages of these people.
    """
    folder = tmp_path_factory.mktemp("tables")
    words = [*CROPS, "--workers=0", f"--checkpoint={checkpoint}"]
    run("predict", drawn / "faces" / "val", *words, f"--output={folder / 'p.csv'}")
    rows = Manifest.read(drawn / "faces.parquet").split("val")
    names = [rows.name(row) for row in range(len(rows))]
    lines = [f"{name},{name.split('/')[1]}" for name in names]
    (folder / "truth.csv").write_text("\n".join(["path,label", *lines]))
    ages = [
        f"{name},{'old' if row % 2 else 'young'},{row < 9},{row % 8}"
        for row, name in enumerate(names)
    ]
    ages[-1] = f"{names[-1]},baby,,"
    (folder / "ages.csv").write_text("\n".join(["path,age,near_duplicate,label_votes", *ages]))
    return folder


def run_evaluate(output: Path, *words: object) -> dict[str, Any]:
    run("evaluate", *words, "--output", output)
    return json.loads((output / "results.json").read_text())


def test_evaluate_reads_a_folder_of_tables(
    drawn: Path, checkpoint: Path, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    parts = tmp_path / "parts"
    words = [*CROPS, "--workers=0", f"--checkpoint={checkpoint}"]
    run(
        "predict",
        drawn / "faces" / "val",
        *words,
        f"--output={parts}",
        "--part_size=10",
        "--min_confidence=0.13",
    )
    truth = ["--labels", tables / "truth.csv"]
    whole = run_evaluate(tmp_path / "whole", tables / "p.csv", *truth)
    of_parts = run_evaluate(tmp_path / "parts-results", parts, *truth, "--against", parts)
    assert of_parts["confusion"] == whole["confusion"]
    assert of_parts["comparison"]["only the model is correct"] == 0
    first, second, *_ = files = sorted(parts.glob("part-*"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert of_parts["all"]["ambiguous"]["mean"] == pytest.approx(
        np.mean([row["ambiguous"] for row in rows])
    )
    assert "ambiguous" not in whole["all"]
    pq.write_table(pq.read_table(first).drop_columns(["entropy", "ambiguous", "blur"]), first)
    assert run_evaluate(tmp_path / "mixed", parts, *truth)["confusion"] == whole["confusion"]
    second.unlink()
    assert f"{parts} is missing 1 of its" in fails(capsys, "evaluate", parts, *truth)


class Evaluation(NamedTuple):
    """What `evaluate` prints and writes."""

    data: Path
    printed: str
    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / "results.json").read_text())

    @property
    def page(self) -> str:
        return (self.folder / "index.html").read_text("utf-8")


@pytest.fixture(scope="module")
def evaluation(
    drawn: Path, checkpoint: Path, tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    """The val split of a manifest, with the columns of a table."""
    folder = tmp_path_factory.mktemp("evaluation")
    table = pq.read_table(drawn / "faces.parquet")
    unknown = pa.nulls(len(table), pa.bool_())  # `--columns` fills an empty column
    place = table.column_names.index("near_duplicate")
    data = folder / "faces.parquet"
    pq.write_table(table.set_column(place, "near_duplicate", unknown), data)
    words = ["--checkpoint", checkpoint, "--by", "source", "age", "--columns", tables / "ages.csv"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(bootstrap, "RESAMPLES", 100)
        run("evaluate", data, *words, "--output", folder / "e")
    return Evaluation(data, printed.getvalue(), folder / "e")


def test_evaluate_scores_the_faces_of_a_manifest(evaluation: Evaluation, checkpoint: Path) -> None:
    results = evaluation.results
    assert results["data"] == str(evaluation.data)
    assert results["model"] == str(checkpoint)
    assert results["split"] == "val"
    confusion = np.array(results["confusion"])
    assert confusion.sum() == results["faces"] == results["photos"]
    accuracy = results["all"]["accuracy"]["mean"]
    assert accuracy == pytest.approx(confusion.trace() / results["faces"])


def test_evaluate_scores_groups_of_the_columns(evaluation: Evaluation) -> None:
    results = evaluation.results
    assert results["by"]["source"] == {"few": {"drawn": 26}, "unknown": 0}
    assert results["by"]["age"]["few"] == {"baby": 1, "old": 12, "young": 13}
    assert results["without near-duplicates"]["accuracy"]["faces"] == results["faces"] - 9
    assert results["by votes"]["7"]["faces"] == 3
    assert "baby (1), old (12), young (13)" in evaluation.page


def test_the_page_of_evaluate_has_a_card_for_each_mistake(evaluation: Evaluation) -> None:
    page = evaluation.page
    results = evaluation.results
    mistakes = results["faces"] - np.array(results["confusion"]).trace()
    assert page.count('<figure class="card"') == page.count("<img src=")
    assert page.count('<figure class="plot') == 1  # the plot of the calibration
    assert page.count('data-kinds="mistake') == mistakes


def test_evaluate_prints_the_text_that_it_writes(evaluation: Evaluation) -> None:
    results = evaluation.results
    text = (evaluation.folder / "results.md").read_text()
    assert text in evaluation.printed
    assert f"| all faces | {results['all']['accuracy']['mean']:.1%} (" in text  # the first score
    most = np.array(results["confusion"]).sum(1).max() / results["faces"]
    assert re.search(f"neutral .*{most:.1%}", text)


def test_another_split_is_another_result_of_evaluate(
    evaluation: Evaluation, checkpoint: Path, tmp_path: Path
) -> None:
    words = ["--checkpoint", checkpoint, "--split", "test"]
    results = run_evaluate(tmp_path / "t", evaluation.data, *words)
    assert results["split"] == "test"
    assert {path.name for path in (tmp_path / "t").iterdir()} == set(RESULTS_FILES)


def test_evaluate_scores_a_table_beside_labels(
    drawn: Path, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside_labels = run_evaluate(tmp_path / "a", tables / "p.csv", "--labels", tables / "truth.csv")
    table = read_table(tables / "p.csv")
    truth = [Path(path).parent.name for path in table["path"].to_pylist()]
    accuracy = accuracy_score(truth, table["label"].to_pylist())
    assert beside_labels["all"]["accuracy"]["mean"] == pytest.approx(accuracy)
    again = run_evaluate(
        tmp_path / "b", tables / "p.csv", "--labels", drawn / "faces.parquet", "--by", "source"
    )
    assert again["all"] == beside_labels["all"]
    assert again["confusion"] == beside_labels["confusion"]
    wrong, others = (
        sorted(face["path"] for face in results["likely wrong labels"])
        for results in (beside_labels, again)
    )
    assert wrong == others
    # Photos that can no longer be read
    (tmp_path / "p.csv").write_text((tables / "p.csv").read_text().replace("/val/", "/gone/val/"))
    monkeypatch.setattr(cards, "MAX_CARDS", 3)
    run_evaluate(tmp_path / "c", tmp_path / "p.csv", "--labels", tables / "truth.csv")
    page = (tmp_path / "c" / "index.html").read_text("utf-8")
    assert page.count('<figure class="card"') == 3
    assert re.search(r"\b\d+ more\b", page)


def test_evaluate_returns_its_results_in_python(tables: Path, tmp_path: Path) -> None:
    results = fer_vit.evaluate(
        tables / "p.csv",
        labels=tables / "truth.csv",
        columns=tables / "ages.csv",
        by=["age"],
        output=tmp_path / "e",
    )
    written = json.loads((tmp_path / "e" / "results.json").read_text())
    assert results.to_dict() == written
    accuracy = results.estimate("accuracy")
    assert accuracy.numbers == written["all"]["accuracy"]
    sizes = {row.group: row.estimate.n for row in results.select(set="by age", measure="faces")}
    assert sizes == written["by"]["age"]["few"]
    results.write(tmp_path / "again")
    for name in RESULTS_FILES:
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (tmp_path / "e" / name).read_bytes()


def test_evaluate_describes_a_table_without_labels(tables: Path, tmp_path: Path) -> None:
    results = run_evaluate(
        tmp_path / "e", tables / "p.csv", "--columns", tables / "ages.csv", "--by", "age", "status"
    )
    labels = read_table(tables / "p.csv")["label"].to_pylist()
    share = labels.count(labels[0]) / len(labels)
    assert results["all"][f"share of {labels[0]}"]["mean"] == pytest.approx(share)
    assert list(results["by"]) == ["age", "status"]
    assert "confusion" not in results
    assert "<script" not in (tmp_path / "e" / "index.html").read_text("utf-8")


def test_evaluate_compares_a_model_with_another_and_itself(
    drawn: Path, checkpoint: Path, tables: Path, tmp_path: Path
) -> None:
    data = drawn / "faces.parquet"
    words = ["--checkpoint", checkpoint]
    labels = Manifest.read(data).labels
    config = RegionViTConfig(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, regions=(), tokens="patch"
    )
    save_network(build_model(config, labels[::-1]).eval(), tmp_path / "other")
    first = run_evaluate(tmp_path / "a", data, *words, "--against", tmp_path / "other")
    second = run_evaluate(
        tmp_path / "b", data, "--checkpoint", tmp_path / "other", "--against", checkpoint
    )
    assert first["comparison"]["other"]["accuracy"]["mean"] == pytest.approx(
        second["all"]["accuracy"]["mean"]
    )
    difference, reverse = (
        results["comparison"]["difference"]["accuracy"] for results in (first, second)
    )
    assert difference["mean"] == pytest.approx(
        first["all"]["accuracy"]["mean"] - second["all"]["accuracy"]["mean"]
    )
    assert (difference["low"], difference["high"]) == pytest.approx(
        (-reverse["high"], -reverse["low"])
    )
    assert "where the two differ" in (tmp_path / "a" / "index.html").read_text("utf-8")
    first = run_evaluate(
        tmp_path / "c", tables / "p.csv", "--labels", data, "--against", tables / "p.csv"
    )
    compared = first["comparison"]
    assert compared["only the model is correct"] == compared["only the other is correct"] == 0
    assert compared["difference"]["accuracy"]["p"] == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--against", "gone.ckpt"), "gone.ckpt"),
        (("--columns", "gone.csv"), "gone.csv"),
        (("--by", "gone"), "`gone`"),
        (("--by", "ambiguous"), "`ambiguous`"),  # a column for calibrated models
    ],
)
def test_a_wrong_option_ends_before_a_manifest_is_predicted(
    words: tuple[str, ...],
    named: str,
    drawn: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    predicted = []
    monkeypatch.setattr(ManifestFaces, "predict", predicted.append)
    command = ("evaluate", drawn / "faces.parquet", "--checkpoint", checkpoint)
    assert named in fails(capsys, *command, *words, "--output", tmp_path / "new")
    assert predicted == []
    assert [*tmp_path.iterdir()] == []


def test_evaluate_refuses_what_it_cannot_score(
    drawn: Path, checkpoint: Path, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.md").touch()
    (tmp_path / "short.csv").write_text("\n".join((tables / "p.csv").read_text().splitlines()[:-1]))
    table = tables / "p.csv"
    labels = ("--labels", tables / "truth.csv")
    head = table.read_text().splitlines()[0]
    (tmp_path / "none.csv").write_text(f"{head}\na.png,no face{',' * (head.count(',') - 1)}\n")
    for words, reason in (
        ((table, "--output", tmp_path / "old"), "already exists"),
        ((tmp_path / "none.csv",), "none.csv"),
        ((tmp_path / "short.csv", *labels), "1 of 26"),
        ((table, *labels, "--robustness"), "robustness"),
        (
            (table, "--columns", tables / "truth.csv", "--by", "age"),
            "truth.csv has the column `label`",
        ),
        ((table, "--columns", tables / "ages.csv", "--by", "agee"), "`agee`"),
        ((table, "--against", table), "`--labels`"),
        ((table, *labels, "--against", "ferplus-fairface-small"), "ferplus-fairface-small"),
        ((table, "--classes", "anger", "fear"), "classes"),
        ((table, "--classes", "anger", "--merge", json.dumps(MERGE)), "merge"),
        ((drawn / "faces.parquet", *labels, "--checkpoint", checkpoint), "`--labels`"),
    ):
        output = () if "--output" in words else ("--output", tmp_path / "new")
        assert reason in fails(capsys, "evaluate", *words, *output)
    assert not (tmp_path / "new").exists()
    assert {path.name for path in (tmp_path / "old").iterdir()} == {"results.md"}


def test_evaluate_merges_labels(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [drawn / "faces.parquet", "--checkpoint", checkpoint]
    results = run_evaluate(
        tmp_path / "e", *words, "--merge", json.dumps(MERGE), "--against", checkpoint
    )
    assert results["labels"] == ["good", "so-so"]
    logits, shares = labelled_logits(load(checkpoint, "cpu"), drawn / "faces.parquet")
    good, so_so = (logits.softmax(1)[:, which].sum(1) for which in ([1, 2], [0, 7]))
    truth = shares.argmax(1)
    kept = (truth < 3) | (truth == 7)
    right = (good > so_so) == ((truth == 1) | (truth == 2))
    assert results["faces"] == kept.sum()
    assert results["all"]["accuracy"]["mean"] == pytest.approx(right[kept].float().mean().item())
    expected = (
        -torch.where((truth == 1) | (truth == 2), good, so_so).div(good + so_so).log()[kept].mean()
    )
    assert results["all"]["cross-entropy"]["mean"] == pytest.approx(expected.item(), rel=1e-4)
    assert results["comparison"]["difference"]["accuracy"]["mean"] == 0
    without = json.dumps({label: new for label, new in MERGE.items() if label != "fear"})
    assert "fear" in fails(capsys, "evaluate", *words, "--merge", without)
