"""Errors of data sets that are missing."""

from pathlib import Path

from fer_vit.sources.source_errors import not_found


def test_not_found_lists_the_content(tmp_path: Path) -> None:
    assert "No folder at" in str(not_found(tmp_path / "none", "X"))
    assert "empty" in str(not_found(tmp_path, "X"))
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).touch()
    assert f"Expected X in {tmp_path}, but got a, b." in str(not_found(tmp_path, "X"))
