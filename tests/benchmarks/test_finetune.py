"""The learning curves: who learns, who judges, and what is not done twice."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import finetune
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading


def test_drawn_faces_that_judge_are_the_same_for_every_seed_and_never_learned() -> None:
    readings = [finetune.drawn(20, seed) for seed in range(2)]
    judges, learners = (
        [{r.image for r in one.rows if (r.split == "test") == test} for one in readings] for test in (1, 0)
    )
    assert judges[0] == judges[1]
    assert not learners[0] & (judges[0] | learners[1])
    counts = Counter((row.split, row.label) for row in readings[0].rows)
    assert {split: counts[split, "wide"] for split in ("train", "val", "test")} == {"train": 18, "val": 2, "test": 100}


def test_faces_of_a_fold_have_new_names(drawn: Path) -> None:
    rows = Manifest.read(drawn / "faces.parquet")
    found = finetune.ferplus(rows.split("train"), rows.split("val"), 5, seed=0)
    assert found.names[0] == "my neutral"
    assert set(Counter(row.label for row in found.rows if row.split == "train").values()) == {5}
    assert {r.name for r in found.rows if r.split == "test"} == {rows.split("val").name(i) for i in range(26)}
    again = finetune.ferplus(rows.split("train"), rows.split("val"), 5, seed=1)
    assert {row.name for row in again.rows} != {row.name for row in found.rows}


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(folder: Path, reading: Reading, words: list[str]) -> dict[str, float]:
        folder.mkdir(parents=True)
        ran.append(folder.name)
        return {"accuracy": 0.5 + len(ran) / 100, "uar": 0.5, "seconds": 9.0}

    monkeypatch.setattr(finetune, "run", run)
    monkeypatch.setattr(sys, "argv", ["finetune", str(tmp_path), "--photos", "2", "--runs", "2"])
    finetune.main()
    assert ran == ["start-2-1", "scratch-2-1", "start-2-2", "scratch-2-2"]
    (tmp_path / "start-2-2" / "result.json").rename(tmp_path / "kept.json")
    (tmp_path / "start-2-2").rmdir()
    finetune.main()
    assert ran[4:] == ["start-2-2"]
    assert (
        "| start | 2 | 53.0 (51.0 to 55.0) | 50.0 (50.0 to 50.0) | 9 (9 to 9) |" in (tmp_path / "table.md").read_text()
    )
    assert json.loads((tmp_path / "scratch-2-1" / "result.json").read_text())["uar"] == 0.5
