"""What `prepare` prints."""

from collections import Counter
from pathlib import Path

import numpy as np

from fer_vit.commands.prepare import summarize
from fer_vit.data.schema import Reading, Row
from fer_vit.geometry import TEMPLATE

POINTS = np.asarray(TEMPLATE)


def test_summary_is_a_table_with_totals(tmp_path: Path) -> None:
    (tmp_path / "m.parquet").write_bytes(b"x" * 2_500_000)
    rows = [Row(b"", "", "train", "fear", landmarks=POINTS)] * 1200
    rows += [Row(b"", "", "test", "anger"), Row(b"", "", "test", None)]
    lines = summarize(
        Reading(("anger", "fear"), rows, Counter(a=1, b=2), ["look out"]), tmp_path / "m.parquet"
    ).splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["train", "test", "total"],
        ["anger", "0", "1", "1"],
        ["fear", "1,200", "0", "1,200"],
        ["(no", "label)", "0", "1", "1"],
        ["total", "1,200", "2", "1,202"],
    ]
    assert len({len(line) for line in lines[:5]}) == 1
    assert lines[5:] == [
        "faces found: 1,200 of 1,202 (99.83%)",
        "left out: 2 (b)",
        "left out: 1 (a)",
        "note: look out",
        f"{tmp_path / 'm.parquet'}: 1,202 rows, 2.5 MB",
    ]
