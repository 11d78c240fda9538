"""Small files that a user writes: what cannot be read is one line with the file and a remedy."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fer_vit.commands.export import read_faithfulness
from fer_vit.errors import FerVitError
from fer_vit.labels import EXPRESSIONS, read_prior
from fer_vit.store.config_files import find_config


def prior(path: Path) -> None:
    read_prior(path, EXPRESSIONS)


def config(path: Path) -> None:
    find_config(str(path))


READERS = {"prior": prior, "config": config, "faithfulness": read_faithfulness}
CONTENTS = {
    "empty": b"",
    "bytes": b"\x80\xff\x00",
    "unfinished": b'{"happiness": [',
    "list": b"[1, 2]",
    "number": b"1",
    "control": b"a: \x01",
    "tag": b"!!python/tuple [1]",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_unreadable_content_is_one_line_with_the_file(
    read: Callable[[Path], object], content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(FerVitError, match=r"mine\.txt") as raised:
        read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_without_permission_is_not_called_damaged(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("a: 1")

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FerVitError, match=r"^Cannot read .*mine\.txt \(Permission denied\)"):
        read(path)
