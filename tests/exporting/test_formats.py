from dataclasses import replace
from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.exporting.formats import FORMATS, ExportOptions, find_format


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_take_an_option_or_refuse_it(suffix: str, tmp_path: Path) -> None:
    """No format leaves an option out in silence."""
    path = tmp_path / f"model{suffix}"
    is_folder = suffix == ""
    takes = {
        "half": is_folder,
        "faithfulness": is_folder,
        "quantize": is_folder or suffix == ".onnx",
    }
    for option, taken in takes.items():
        value = True if option == "half" else tmp_path / "file"
        options = ExportOptions(path, **{option: value})
        if taken:
            FORMATS[suffix].check(options)
        else:
            with pytest.raises(FerVitError, match=f"`{option}`"):
                FORMATS[suffix].check(options)


def test_formats_are_found_by_the_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is all that a new format needs."""
    added = replace(FORMATS[".onnx"], name="NAME.new")
    monkeypatch.setitem(FORMATS, ".new", added)
    assert find_format(Path("model.NEW")) is added
    with pytest.raises(FerVitError, match=r"NAME\.new"):
        find_format(Path("model.newer"))


@pytest.mark.parametrize("name", ["model", "v1.2", "model.0rc1", ".models", "a.onnx/model", "."])
def test_folders_may_have_a_version(name: str) -> None:
    assert find_format(Path(name)) is FORMATS[""]


@pytest.mark.parametrize(
    "name",
    [
        "a.txt",
        "a.onnx.zip",
        "a.onnx ",
        "a.ónnx",
        "a.",
        "a.½",
        "..",
    ],
)
def test_unknown_suffixes_are_refused(name: str) -> None:
    with pytest.raises(FerVitError, match=r"NAME\.onnx"):
        find_format(Path(name))
