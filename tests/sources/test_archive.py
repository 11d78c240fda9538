"""Zips from anyone: names, sizes and numbers of entries that no data set has."""

import io
import os
import re
import struct
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import MAX_FILE_BYTES, encode_png
from fer_vit.sources import archive
from fer_vit.sources.archive import unpacked
from tests.helpers.marks import slow

FACE = encode_png(np.arange(48 * 48 * 3, dtype=np.uint8).reshape(48, 48, 3))


def zipped(path: Path, names: list[str], content: bytes = FACE) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.writestr(name, content)
    return path


def reasons(left_out: Counter[str]) -> dict[str, int]:
    """How many entries were left out, by the word that tells why."""
    return {re.search("link|name|larger", text)[0]: count for text, count in left_out.items()}


GOOD = ["train/happy/1.png", "train/sad/2.png"]


@pytest.mark.parametrize(
    "name",
    [
        f"train/happy/{'x' * 300}.png",
        *slow(f"train/{'y' * 5000}/3.png", f"train/happy/{'z/' * 2500}3.png"),
        "train/happy/1.png/3.png",
        "../..",
        *slow("train/happy", "."),
    ],
)
def test_one_bad_name_is_counted_and_the_others_are_read(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = zipped(tmp_path / "x.zip", [*GOOD, name])
    caplog.set_level("INFO", "fer_vit")
    prepare("folder", path, tmp_path / "m.parquet", detector="none")
    assert len(Manifest.read(tmp_path / "m.parquet")) == 2
    lines = "\n".join(caplog.messages).splitlines()
    assert [line for line in lines if re.match("left out: 1 .*name", line)]


def test_a_zip_with_a_password_is_named(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", ["a/1.png"], b"content")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 0x1  # the flag, in the list of entries
    path.write_bytes(content)
    with pytest.raises(FerVitError, match=r"x\.zip .*password"), unpacked(path, tmp_path / "out"):
        pass


def test_an_entry_without_a_name_is_counted(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", ["a/1.png", "?"], b"content")
    path.write_bytes(path.read_bytes().replace(b"?", b"\0"))
    with unpacked(path, tmp_path / "out") as (folder, left_out):
        assert [file.name for file in folder.iterdir()] == ["1.png"]
    assert reasons(left_out) == {"name": 1}


def test_a_large_photo_is_counted_and_a_large_table_is_unpacked(
    tmp_path: Path,
) -> None:
    path = zipped(tmp_path / "x.zip", ["a/large.JPG", "a/large.jpg"], bytes(1001))
    claimed = path.read_bytes().replace(
        struct.pack("<L", 1001), struct.pack("<L", MAX_FILE_BYTES + 1)
    )
    path.write_bytes(claimed)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("a/small.jpg", FACE)
        file.writestr("a/labels.csv", bytes(1001))
    with unpacked(path, tmp_path / "out") as (folder, left_out):
        assert {file.name for file in folder.iterdir()} == {"small.jpg", "labels.csv"}
    assert reasons(left_out) == {"larger": 2}


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
    monkeypatch.setattr(archive, "MAX_LIST", 30_000)
    path = zipped(tmp_path / "x.zip", [f"a/{number}.png" for number in range(300)], b"1")
    with unpacked(path, tmp_path / "out") as (folder, _):
        assert len(list(folder.iterdir())) == 300
    path.write_bytes(many_entries(600))
    with (
        pytest.raises(FerVitError, match=r"\b30,000 bytes .* 36,000\."),
        unpacked(path, tmp_path / "out"),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["x.zip"]


# Names in old code pages


def old_zip(path: Path, names: list[str], encoding: str) -> Path:
    """A zip whose names are in a code page, without the flag for UTF-8,
    as older programs write it.
    """
    stand_ins = {
        name: "abcd"[number] * len(name.encode(encoding)) for number, name in enumerate(names)
    }
    zipped(path, [*stand_ins.values()])
    data = path.read_bytes()
    for name, stand_in in stand_ins.items():
        data = data.replace(stand_in.encode(), name.encode(encoding))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        (["train/\u5f00\u5fc3/1.png", "train/\u60b2\u4f24/22.png"], "gbk"),
        (["\u559c\u3073/1.png", "\u6012\u308a/22.png"], "cp932"),
        (["gl\xfccklich/1.png", "w\xfctend/22.png"], "cp850"),
        (["\u0440\u0430\u0434/1.png", "\u0433\u043d\u0435\u0432/22.png"], "cp866"),
    ],
)
def test_folders_in_an_old_code_page_are_no_garbled_classes(
    names: list[str], encoding: str, tmp_path: Path
) -> None:
    path = old_zip(tmp_path / "x.zip", names, encoding)
    with pytest.raises(FerVitError, match=r"UTF-8 .*x\.zip"):
        prepare("folder", path, tmp_path / "m.parquet", detector="none")
    path = old_zip(tmp_path / "y.zip", names, "utf-8")
    with unpacked(path, tmp_path / "out") as (folder, _):
        folders = {file.parent.name for file in folder.rglob("*.png")}
    assert folders == {name.split("/")[-2] for name in names}


def test_photos_in_an_old_code_page_are_read(tmp_path: Path) -> None:
    path = old_zip(tmp_path / "x.zip", ["a/\u5f00.png", "b/\u60b2\u4f24.png"], "gbk")
    prepare("folder", path, tmp_path / "m.parquet", detector="none")
    assert Manifest.read(tmp_path / "m.parquet").column("label") == ["a", "b"]


# Tars


def tarred(path: Path, names: list[str], extra: list[tarfile.TarInfo] = []) -> Path:  # noqa: B006
    mode = "w:gz" if path.name.endswith("gz") else "w"
    with tarfile.open(path, mode) as file:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(FACE)
            info.mode = 0o777
            file.addfile(info, io.BytesIO(FACE))
        for info in extra:
            file.addfile(info)
    return path


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x.tar"])
def test_a_tar_gives_the_rows_of_its_folder(name: str, tmp_path: Path) -> None:
    names = [f"data/{part}" for part in (*GOOD, "train/@eaDir/2.png", "train/sad/._2.png")]
    names += ["._data"]
    path = tarred(tmp_path / name.lower(), names).rename(tmp_path / name)
    prepare("folder", path, tmp_path / "m.parquet", detector="none")
    manifest = Manifest.read(tmp_path / "m.parquet")
    assert manifest.image_names() == GOOD
    assert manifest.column("label") == ["happiness", "sadness"]


def test_a_tar_writes_nothing_outside_and_makes_no_link(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "1.png").write_bytes(FACE)
    special = []
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    for number, kind in enumerate(kinds):
        info = tarfile.TarInfo(f"train/link{number}")
        info.type = kind
        info.linkname = str(tmp_path / "secret")
        special.append(info)
    names = [*GOOD, "../../out.png", "train/../../../up.png", "/absolute/1.png"]
    before = {*tmp_path.rglob("*")}
    path = tarred(tmp_path / "x.tar.gz", names, special)
    with unpacked(path, tmp_path / "work" / "m.parquet") as (folder, left_out):
        files = [file for file in sorted(folder.rglob("*")) if not file.is_dir()]
        assert not any(map(os.path.islink, files))
        assert {file.relative_to(folder).as_posix() for file in files} == {*GOOD, "absolute/1.png"}
    assert reasons(left_out) == {"link": 4, "name": 2}
    assert {*tmp_path.rglob("*")} - before == {path}


def test_damaged_and_swollen_tars_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tarred(tmp_path / "x.tar.gz", GOOD)
    data = path.read_bytes()
    for wrong in (b"", b"no tar", data[: len(data) // 2], data[:-9]):
        path.write_bytes(wrong)
        with pytest.raises(FerVitError, match="Expected a complete tar"):
            prepare("folder", path, tmp_path / "m.parquet", detector="none")
    long = tarfile.TarInfo("train/happy/1.png")
    long.pax_headers = {"comment": "x" * 200_000}
    path = tarred(tmp_path / "y.tar.gz", GOOD, [long])
    monkeypatch.setattr(archive, "MAX_LIST", 100_000)
    with pytest.raises(FerVitError, match="Expected at most 100,000 bytes"):
        prepare("folder", path, tmp_path / "m.parquet", detector="none")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.tar.gz", "y.tar.gz"]
