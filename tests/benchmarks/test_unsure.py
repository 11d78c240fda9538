from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks import unsure
from benchmarks.unsure import agreement_rows, expected, measure, read_votes

LABELS = ["sadness", "anger", "fear"]


def test_coverage_is_expected_where_a_simulation_puts_it() -> None:
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.random((4000, 100)), axis=1)[:, 9]  # the threshold of 100 faces: floor(101 / 10)
    found = binom.rvs(100, 1 - drawn, random_state=rng) / 100
    assert expected(200, 90) == pytest.approx(np.quantile(found, (0.025, 0.975)), abs=0.011)


@pytest.mark.parametrize("packed", [False, True])
def test_votes_come_from_a_folder_or_zip(packed: bool, tmp_path: Path) -> None:
    lines = "a.png,(0 0),1,0,0,0,0,0,0,9,0,0\nb.png,(0 0),0,8,0,0,0,0,0,0,1,1\n"
    table = tmp_path / "ferplus" / "FER2013Valid" / "label.csv"
    table.parent.mkdir(parents=True)
    table.write_text(lines)
    with ZipFile(tmp_path / "ferplus.zip", "w") as file:
        file.write(table, "ferplus/FER2013Valid/label.csv")
    path = tmp_path / "ferplus.zip" if packed else tmp_path
    found = read_votes(path, ["FER2013Valid/b.png", "FER2013Valid/a.png"])
    assert found.tolist() == [[0, 8, 0, 0, 0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 9, 0, 0]]


def test_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsure, "SPLITS", 5)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400)
    sharp = rng.random(400)  # people agree on faces of which the model is sure
    logits = (4 * np.eye(3)[truth] * sharp[:, None] + rng.normal(size=(400, 3))).astype(np.float32)
    counts = np.full((400, 10), 0)
    counts[np.arange(400), truth] = np.round(5 + 5 * sharp)
    counts[:, -1] = 10 - counts.sum(1)
    text, thresholds, figure = measure(logits, truth, sharp < 0.1, counts, LABELS, 1.0)
    assert list(thresholds) == ["90", "95"]
    assert len(figure.axes) == 2
    assert f"| without a twin in train | {(sharp >= 0.1).sum()} |" in text
    rows = agreement_rows(counts.max(1), sharp[:, None])
    assert [row[0] for row in rows] == ["10", "9", "8", "7", "6 or fewer"]
    assert sum(int(row[1]) for row in rows) == 400
