"""Zips from anyone: names, sizes and numbers of entries that no data set has."""

import struct
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.sources import archive
from fer_vit.sources.archive import unpacked

FACE = encode_png(np.arange(48 * 48 * 3, dtype=np.uint8).reshape(48, 48, 3))


def zipped(path: Path, names: list[str], content: bytes = FACE) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, content)
    return path


GOOD = ["train/happy/1.png", "train/sad/2.png"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"train/happy/{'x' * 300}.png", "too long"),
        (f"train/{'y' * 5000}/3.png", "too long"),
        (f"train/happy/{'z/' * 2500}3.png", "too long"),
        ("train/happy/1.png/3.png", "of one name"),
        ("train/happy", "of one name"),
    ],
)
def test_one_bad_name_is_counted_and_the_others_are_read(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = zipped(tmp_path / "x.zip", [*GOOD, name])
    prepare("folder", path, tmp_path / "m.parquet", detector="none")
    assert len(Manifest.read(tmp_path / "m.parquet")) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("left out: 1 (") and reason in line]


def test_a_large_photo_is_counted_and_a_large_table_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_PHOTO", 1000)
    path = zipped(tmp_path / "x.zip", ["a/small.jpg"], bytes(1000))
    with zipfile.ZipFile(path, "a") as file:
        for name in ("a/large.jpg", "a/large.JPG", "a/labels.csv"):
            file.writestr(name, bytes(1001))
    with unpacked(path, tmp_path / "out") as (folder, left_out):
        assert {file.name for file in folder.iterdir()} == {"small.jpg", "labels.csv"}
    assert left_out == Counter({archive.TOO_LARGE: 2})


def many_entries(count: int) -> bytes:
    """A zip that lists one file `count` times, at 60 bytes each."""
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"a"
    fixed = struct.pack(
        "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0
    )
    listed = (fixed + b"a/%012d" % number for number in range(count))
    central = b"".join(listed)
    return b"".join(
        (
            local,
            central,
            struct.pack(
                "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(central), 31
            ),
            struct.pack("<4sLQL", b"PK\x06\x07", 0, 31 + len(central), 1),
            struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0),
        )
    )


def test_a_list_of_entries_that_takes_much_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_LIST", 100_000)
    path = zipped(tmp_path / "x.zip", [f"a/{number}.png" for number in range(1000)], b"1")
    with unpacked(path, tmp_path / "out") as (folder, _):
        assert len(list(folder.iterdir())) == 1000
    path.write_bytes(many_entries(2000))
    with (
        pytest.raises(FerVitError, match=r"at most 100,000 bytes .* got 120,000\. Unpack it"),
        unpacked(path, tmp_path / "out"),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["x.zip"]
