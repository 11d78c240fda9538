"""The files and images that are read."""

import os
from pathlib import Path

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.predict.inputs import find_inputs
from tests.helpers.faces import tiny_recognizer


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    home = tmp_path / ".home"  # hidden, but named
    top = home / "top"
    second = home / "other"
    for name in ("top/b/1.png", "top/.store/2.png", "other/deep/3.png"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    links = {
        "a": top / "b",
        "kept": top / ".store",
        "more": second,
        "same": second / "deep",
        "b/loop": top,
    }
    for link, goal in links.items():
        (top / link).symlink_to(goal)
    expected = ["b/1.png", "kept/2.png", "more/deep/3.png"]
    assert [path.relative_to(top).as_posix() for path in find_inputs([top]).files] == expected


def test_find_inputs(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "deep/er/c.webp", "notes.txt", ".hidden.png", ".cache/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    os.symlink(tmp_path, tmp_path / "deep" / "loop")

    def names(*inputs: str) -> list[str]:
        return [
            str(path.relative_to(tmp_path))
            for path in find_inputs([tmp_path / item for item in inputs]).files
        ]

    assert names(".") == ["a.JPG", "b.png", "deep/er/c.webp"]
    assert names("b.png", ".") == ["b.png", "a.JPG", "deep/er/c.webp"]
    assert names("*.png", "notes.txt") == ["b.png", "notes.txt"]
    assert names("**/*.webp") == ["deep/er/c.webp"]
    for missing, words in (
        ("gone.png", "No image"),
        ("*.gif", "No image"),
        ("empty", "found none"),
    ):
        with pytest.raises(FerVitError, match=words):
            names(missing)


def test_what_a_folder_has_besides_photos_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8)))
    for name in ("notes.txt", ".hidden"):
        (tmp_path / name).touch()
    faces = tiny_recognizer(("a", "b")).predict([tmp_path, tmp_path / "a.png"], workers=0)
    assert [info.path for info in faces.infos] == [str(tmp_path / "a.png")] * 2
    notes = [record.getMessage() for record in caplog.records if record.name == "fer_vit"]
    assert len(notes) == 2
    assert "1 .txt" in notes[0]
