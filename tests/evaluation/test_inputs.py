"""The faces that `evaluate` reads, by its options."""

from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.evaluation.inputs import Conditions, open_faces

TABLE = "path,status,face,label,confidence,p_sadness,p_anger\na.png,ok,0,sadness,0.75,0.75,0.25\n"


def test_a_split_is_for_manifests_also_if_it_is_the_default_one(tmp_path: Path) -> None:
    table = tmp_path / "p.csv"
    table.write_text(TABLE)
    for split in ("val", "test"):
        with pytest.raises(FerVitError, match="split"):
            open_faces(table, None, None, Conditions(split=split))
    assert open_faces(table, None, None, Conditions()).paths == ["a.png"]
