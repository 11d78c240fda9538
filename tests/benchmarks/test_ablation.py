import json
import shutil
from pathlib import Path

from benchmarks import ablation


def test_the_table_tells_what_was_measured(checkpoint: Path, tmp_path: Path) -> None:
    for name, accuracy in (("base, seed 0", 0.5), ("head: query", 0.625)):
        folder = tmp_path / ablation.slug(name) / "version_0"
        (folder / "checkpoints").mkdir(parents=True)
        shutil.copy(checkpoint.with_name("last.ckpt"), folder / "checkpoints")
        (folder / "val.json").write_text(json.dumps({"accuracy": accuracy, "uar": 0.25}))
    rows = [line.split(" | ") for line in ablation.table(tmp_path, rounds=1).splitlines()[2:]]
    assert [row[0] for row in rows] == ["| base, seed 0", "| head: query"]
    assert [row[4:] for row in rows] == [["50.0 %", "25.0 % |"], ["62.5 %", "25.0 % |"]]
    assert all(float(row[3].split(" s")[0]) > 0 for row in rows)


def test_finished_rows_are_not_trained_again(tmp_path: Path) -> None:
    (tmp_path / "base-seed_0" / "version_1").mkdir(parents=True)
    (tmp_path / "base-seed_0" / "version_1" / "val.json").write_text("{}")
    assert ablation.train("base, seed 0", [], tmp_path / "no.parquet", tmp_path, jobs=1)
    assert not (tmp_path / "base-seed_0" / "log.txt").exists()
