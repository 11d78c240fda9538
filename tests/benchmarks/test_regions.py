import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import ablation, regions


def test_the_table_has_mean_and_spread(
    checkpoint: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "SEEDS", (0, 1))
    for seed, accuracy in ((0, 0.50), (1, 0.54)):
        for name in ("patches", "regions of the stem")[: 2 - seed]:  # the second is not finished
            folder = tmp_path / ablation.slug(regions.run(name, seed)) / "version_0"
            (folder / "checkpoints").mkdir(parents=True)
            shutil.copy(checkpoint.with_name("last.ckpt"), folder / "checkpoints")
            (folder / "val.json").write_text(json.dumps({"uar": accuracy - 0.1}))
            if seed:  # judged before
                kept = dict.fromkeys((regions.ALL, *regions.HARD), accuracy)
                (folder.parent / "hard.json").write_text(json.dumps(kept))
    monkeypatch.setattr(regions, "hard_faces", lambda *_, only: dict.fromkeys(only, np.array([0.0, 1.0])))
    lines = regions.table(regions.TOKENS, regions.HARD, drawn / "faces.parquet", tmp_path, rounds=1).splitlines()
    assert len(lines) == 3
    cells = lines[2].split(" | ")
    assert cells[:2] == ["| patches", "48"]  # 16 patches, 8 regions of 4
    assert cells[5:7] == ["52.0 ± 2.8", "42.0 ± 2.8"]
    assert Image.open(tmp_path / "regions.png").size == (1200, 675)
    hard = json.loads((tmp_path / "patches-seed_0" / "hard.json").read_text())
    assert hard == dict.fromkeys((regions.ALL, *regions.HARD), 0.50)
