"""The command `compare`."""

import json
from pathlib import Path

import numpy as np
import pytest

from fer_vit.report.table import TableWriter
from fer_vit.version import __version__
from tests.helpers.commands import fails, run

HOSTILE = """<img src=x onerror="document.title='owned'">"""
LABELS = ["calm", HOSTILE]


def write_study(
    folder: Path, persons: int, paired: bool, facts: dict[str, str] | None = None
) -> Path:
    """Predictions of three photos of each person in each condition, or in one of them; the second column is higher."""
    rng, path = np.random.default_rng(0), folder / "faces.parquet"
    columns = {"path": str, "label": str, "confidence": float, "subject": str, "condition": str}
    columns |= {f"p_{label}": float for label in LABELS}
    rows = []
    for person in range(persons):
        for index, condition in enumerate(("rest", "film <b>")):
            for photo in range(3 * (paired or person % 2 == index)):
                high = rng.beta(4 + 2 * index, 6)
                cells = {
                    "path": f"{person}-{index}-{photo}.png",
                    "subject": f"s{person}",
                    "condition": condition,
                }
                cells |= {"label": LABELS[high > 0.5], "confidence": max(high, 1 - high)}
                rows.append(cells | {f"p_{LABELS[0]}": 1 - high, f"p_{LABELS[1]}": high})
    with TableWriter(path, columns, facts=facts or {}) as table:
        table.write(rows)
    return path


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = write_study(
        tmp_path,
        8,
        paired=True,
        facts={"version": "0.0", "model": "best.ckpt", "detector": "yunet"},
    )
    words = ["--by=condition", "--person=subject", "--baseline=rest", f"--output={tmp_path / 'c'}"]
    run("compare", table, *words)
    out = capsys.readouterr().out
    assert "classified with fer-vit (version 0.0, model best.ckpt, detector yunet)" in out
    assert f"compared with fer-vit {__version__}" in out
    assert "Too few" not in out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["conditions"]["rest"] == {"persons": 8, "photos or clips": 24, "faces": 24}
    mean = results["Mean probability"]["means"][HOSTILE]["rest"]
    assert mean["low"] < mean["mean"] < mean["high"]
    assert mean["persons"] == 8
    name = f"{HOSTILE}: film <b> - rest"
    test, mixed = results["Mean probability"]["differences"][name], results["mixed model"][name]
    assert test["difference"]["mean"] == pytest.approx(mixed["difference"]["mean"], abs=1e-3)
    assert test["p"] <= test["p corrected"] <= 2 * test["p"]
    assert test["df"] == 7
    assert mixed["df"] == pytest.approx(7)
    assert results["designs"]["film <b> - rest"] == {"paired": True, "persons": 8, "left out": []}
    assert results["ICC(1)"][HOSTILE]["rest"]["high"] < 1
    text = (tmp_path / "c" / "results.md").read_text()
    assert f"{test['difference']['mean']:+.3f} (" in text
    assert out.splitlines()[0] in text
    page = (tmp_path / "c" / "index.html").read_text("utf-8")
    assert "<h1>Expressions by condition</h1>" in page
    assert "<img src=x" not in page
    assert "exists" in fails(capsys, "compare", table, *words)
    error = fails(
        capsys, "compare", table, *words[:2], "--baseline=calm", f"--output={tmp_path / 'd'}"
    )
    assert "Expected the baseline calm and others in `condition`, but got film <b>, rest." in error


def test_columns_of_another_table_different_persons_and_few(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_study(tmp_path, 14, paired=False)
    paths = [
        f"{person}-{person % 2}-{photo}.png,{person % 2},{person}"
        for person in range(13)
        for photo in range(3)
    ]
    (tmp_path / "sessions.csv").write_text("\n".join(["path,group,who", *paths]))
    words = [table, "--columns", tmp_path / "sessions.csv", "--by=group", "--person=who"]
    run("compare", *words, f"--output={tmp_path / 'c'}")
    out = capsys.readouterr().out
    assert "Left out without condition or person: 3 faces." in out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["Mean probability"]["differences"]["calm: 1 - 0"]["persons"] == [7, 6]
    (tmp_path / "sessions.csv").write_text("\n".join(["path,group,who", *paths[:33]]))
    run("compare", *words, f"--output={tmp_path / 'd'}")
    assert "Too few persons for intervals and tests, under 6: 1 (5)." in capsys.readouterr().out
    results = json.loads((tmp_path / "d" / "results.json").read_text())["Mean probability"]
    assert results["differences"]["calm: 1 - 0"] is None
    assert "(6 and 5)" in results["missing"]["calm: 1 - 0"]
    assert "no column `persn`" in fails(
        capsys, "compare", *words[:-1], "--person=persn", f"--output={tmp_path / 'e'}"
    )
