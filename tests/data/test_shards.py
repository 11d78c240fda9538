from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fer_vit.data.manifest import Manifest, class_counts
from fer_vit.data.schema import Reading, Row, find_shards, is_sharded, location_text, write_manifest, write_shards
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png

PNG = encode_png(np.zeros((4, 4), np.uint8))
READING = Reading(
    ("x", "y"),
    [
        Row(PNG, "a", "train", "x", (3.0, 1.0)),
        Row(PNG, "b", "train", "y"),
        Row(PNG, "c", "train", "y"),
        Row(PNG, "d", "val", "x"),
    ],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", READING, "made", 2)
    return tmp_path / "shards"


def test_splits_are_read_by_name(folder: Path) -> None:
    assert [shard.split for shard in find_shards(folder)] == ["train", "train", "val"]
    assert sorted(Manifest.read(folder).table["label"].to_pylist()) == ["x", "x", "y", "y"]
    val = Manifest.read(folder, ["val", "test"])
    assert val.names == ("x", "y")
    assert [val.name(row) for row in range(len(val))] == ["d"]
    assert val.image_bytes(0) == PNG
    assert len(Manifest.read(folder, ["test"])) == 0


def test_columns_of_the_data_sets_own_are_kept_and_a_copy_is_whole(tmp_path: Path) -> None:
    rows = [replace(row, extra={"age": row.name * 2}) for row in READING.rows]
    write_shards(tmp_path / "shards", replace(READING, rows=rows, extra=("age",)), "made", 2)
    manifest = Manifest.read(tmp_path / "shards")
    assert sorted(manifest.column("age")) == ["aa", "bb", "cc", "dd"]
    manifest.write(tmp_path / "copy.parquet")
    copy = Manifest.read(tmp_path / "copy.parquet")
    assert copy.names == ("x", "y")
    assert copy.table.equals(manifest.table)


def test_shards_with_columns_of_different_types(folder: Path) -> None:
    for number, values in enumerate(([1], ["a"])):
        path = next(folder.glob(f"train-0000{number}-*"))
        table = pq.read_table(path)
        pq.write_table(table.append_column("age", pa.array(values * len(table))), path)
    with pytest.raises(FerVitError, match="shards: the shards have different columns"):
        Manifest.read(folder)


def test_votes_count_by_their_share(folder: Path) -> None:
    assert class_counts(folder, ("x", "y")).tolist() == [0.75, 2.25]


def test_wrong_folders_of_shards(folder: Path, tmp_path: Path) -> None:
    write_manifest(folder / "val-00000-of-00001.parquet", Reading(("y", "x"), READING.rows[3:]), "made")
    with pytest.raises(FerVitError, match=r"val-00000-of-00001.parquet: expected the labels x, y, but got y, x"):
        Manifest.read(folder)
    (folder / "train-00001-of-00002.parquet").write_bytes(b"PAR1 and text")
    with pytest.raises(FerVitError, match=r"train-00001-of-00002.parquet is not a complete Parquet table"):
        Manifest.read(folder)
    (folder / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(FerVitError, match=r"train-00001-of-00002.parquet is missing in"):
        Manifest.read(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FerVitError, match=r"Expected shards such as train-00000-of-00008.parquet"):
        Manifest.read(tmp_path / "empty")


def test_a_url_survives_path() -> None:
    for place in ("s3://bucket/some/where", "s3://bucket/some/where/", Path("s3://bucket/some/where")):
        assert location_text(place) == "s3://bucket/some/where"
        assert is_sharded(place)
    assert location_text(Path("/data/faces")) == "/data/faces"
    with pytest.raises(FerVitError, match=r"Expected a file, a folder or s3://bucket/prefix, but got hf://datasets/x"):
        find_shards("hf://datasets/x")


def test_two_data_sets_in_one_folder(folder: Path) -> None:
    (folder / "train-00000-of-00001.parquet").write_bytes((folder / "train-00000-of-00002.parquet").read_bytes())
    with pytest.raises(FerVitError, match="more than one data set"):
        find_shards(folder)


def test_more_shards_than_rows(tmp_path: Path) -> None:
    with pytest.raises(FerVitError, match="at most as many shards as training images, 3, but got 4"):
        write_shards(tmp_path / "shards", READING, "made", 4)
    assert not any(tmp_path.iterdir())
