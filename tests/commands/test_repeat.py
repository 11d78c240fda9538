"""The command `repeat`: scores of configs over seeds."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score

import fer_vit
from fer_vit import load
from fer_vit.commands.repeat import SCORES, summarize_runs, table_rows
from fer_vit.errors import FerVitError
from tests.helpers.commands import fails, parse, read, run
from tests.helpers.logits import labelled_logits


@pytest.fixture(scope="module")
def faces(drawn: Path) -> Path:
    """A manifest with a face without a label in test, which does not count."""
    table = pq.read_table(drawn / "faces.parquet")
    labels = table["label"].to_pylist()
    labels[table["split"].to_pylist().index("test")] = None
    place = table.schema.get_field_index("label")
    table = table.set_column(place, table.schema.field("label"), pa.array(labels, pa.string()))
    path = drawn / "one_unlabelled.parquet"
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def whole(
    faces: Path, config: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The output of an uninterrupted run of two seeds, and its row."""
    output = tmp_path_factory.mktemp("whole") / "repetitions"
    (row,) = fer_vit.repeat(faces, config=str(config), split="test", seeds=2, output=output)
    return output, row


def test_repeat_scores_each_seed_and_extends_the_table(
    faces: Path, config: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    before, row = whole
    output = tmp_path / "repetitions"
    shutil.copytree(before, output)
    assert row["seeds"] == [0, 1]
    for seed, value in enumerate(row["accuracy"]["values"]):
        (best,) = output.glob(f"tiny-*/seed{seed}/*/checkpoints/best.ckpt")
        logits, targets = labelled_logits(load(best, "cpu"), faces, "test")
        assert value == pytest.approx(accuracy_score(targets.argmax(1), logits.argmax(1)))
    times = {path: path.stat().st_mtime_ns for path in output.rglob("*.ckpt")}

    run(
        "repeat",
        faces,
        "--config",
        config,
        "--split=test",
        "--seeds=1",
        "--output",
        output,
        "--model.lr=0.02",
    )
    rows = read(output / "runs.csv")
    assert sorted(item["seed"] for item in rows) == [0, 0, 1]
    assert all(item["UAR"] == float(f"{item['UAR']:.4g}") for item in rows), "digits of shares"
    assert len({item["folder"] for item in rows}) == 2
    assert {str(config), f"{config} --model.lr=0.02"} == {item["config"] for item in rows}
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert (output / "results.md").read_text().count("\n| tiny") == 2


@pytest.mark.slow
def test_an_interrupted_repeat_resumes(
    faces: Path,
    config: Path,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, expected = whole

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fer_vit.commands.repeat.predict_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fer_vit.repeat(
                faces, config=str(config), split="test", seeds=2, output=tmp_path / "parts"
            )
    rows = fer_vit.repeat(
        faces, config=str(config), split="test", seeds=2, output=tmp_path / "parts"
    )
    for name in SCORES:
        assert rows[0][name] == expected[name]


def test_summarize_has_the_sample_deviation() -> None:
    runs = []
    for seed, value in enumerate((0.5, 0.6, 0.7)):
        run = {"folder": "a-1", "config": "a", "data": "d", "split": "val", "seed": seed}
        runs.append(run | dict.fromkeys(SCORES, value))
    (row,) = summarize_runs(runs)
    assert row["accuracy"]["mean"] == pytest.approx(0.6)
    assert row["accuracy"]["sd"] == pytest.approx(0.1)
    assert table_rows([row])[1][-1] == "0.500 0.600 0.700"
    (alone,) = summarize_runs(runs[:1])
    assert alone["accuracy"]["sd"] is None


def test_an_infinite_score_has_no_mean(
    faces: Path, config: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A model that gives the label of a face no probability has an infinite cross-entropy."""
    before, _ = whole
    output = tmp_path / "repetitions"
    shutil.copytree(before, output)
    (scores,) = output.glob("*/seed1/test.json")
    scores.write_text(json.dumps(json.loads(scores.read_text()) | {"cross-entropy": None}))
    (row,) = fer_vit.repeat(faces, config=str(config), split="test", seeds=2, output=output)
    assert row["cross-entropy"]["mean"] is row["cross-entropy"]["sd"] is None
    assert row["cross-entropy"]["values"][1] is None
    assert row["accuracy"]["mean"] is not None
    assert [item["cross-entropy"] == "" for item in read(output / "runs.csv")] == [False, True]
    assert "| - |" in (output / "results.md").read_text()


def test_repeat_refuses(
    drawn: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["repeat", drawn / "faces.parquet", "--config", config]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").touch()
    assert "mine" in fails(capsys, *words, "--output", tmp_path / "mine")
    words += ["--output", tmp_path / "repetitions"]
    assert "seed_everything" in fails(capsys, *words, "--seed_everything=3")
    assert "data.manifest" in fails(capsys, *words, "--data.manifest=other.parquet")
    assert "seeds" in fails(capsys, *words, "--seeds=0")
    assert "none.yaml" in fails(capsys, *words[:2], "--config", "none.yaml")
    rows = pq.read_table(drawn / "faces.parquet")
    place = rows.column_names.index("label")
    nothing = pa.nulls(len(rows), rows.schema.field("label").type)
    pq.write_table(rows.set_column(place, rows.field("label"), nothing), tmp_path / "none.parquet")
    words[1] = tmp_path / "none.parquet"
    assert "none.parquet has a label" in fails(capsys, *words)


def test_a_damaged_score_is_named(
    faces: Path, config: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    output = shutil.copytree(whole[0], tmp_path / "repetitions")
    (scores,) = output.glob("*/seed0/test.json")
    for text in ("{", "[]", json.dumps({"seed": 0}), "null", "1e999"):
        scores.write_text(text)
        with pytest.raises(FerVitError, match=r"test\.json"):
            fer_vit.repeat(faces, config=str(config), split="test", seeds=1, output=output)


def test_options_of_fit_stand_anywhere_with_their_values() -> None:
    words = ["faces.parquet", "--model.lr", "-1", "--seeds", "2", "--model=a.B", "--model.compile"]
    words += ["--split", "test", "--trainer.callbacks+=EMA", "--trainer.max_epochs", "3"]
    given = parse("repeat", *words)
    assert given.pop("fit_options") == [
        "--model.lr=-1",
        "--model=a.B",
        "--model.compile",
        "--trainer.callbacks+=EMA",
        "--trainer.max_epochs=3",
    ]
    assert given == {"manifest": "faces.parquet", "seeds": "2", "split": "test"}
