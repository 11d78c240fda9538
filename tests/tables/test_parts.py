"""A folder of the tables that several processes of `predict` write."""

from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.tables.predicted import read_predictions


def test_hostile_numbers_in_table_names(tmp_path: Path) -> None:
    """The number in a name is input: a huge one must cost neither memory nor time."""
    names = [
        "part-00003-of-00009.parquet",
        "part-00001-of-99999999999999.parquet",
        f"part-00000-of-{'9' * 30}.parquet",
    ]
    for name in [*names, f"part-{'9' * 30}-of-{'9' * 30}.parquet", "part-00000-of-x.parquet"]:
        (tmp_path / name).touch()
    with pytest.raises(FerVitError, match=r"is missing 9{3}(,9{3}){8},998 of its"):
        read_predictions(tmp_path)
