"""Which outputs may be written: decided before any work, by one function."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.files import atomic_write, check_output

NAMES = ["page.html", "part-*.csv"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", [[], ["photo.jpg"]])
def test_a_folder_is_no_file_to_write(overwrite: bool, content: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "faces.csv"
    folder.mkdir()
    for name in content:
        (folder / name).touch()
    with pytest.raises(FerVitError, match=r"Expected a file.*faces\.csv is a folder"):
        check_output(folder, overwrite)
    assert sorted(path.name for path in folder.iterdir()) == content


@pytest.mark.parametrize(
    ("content", "new", "replaced"),
    [
        ([], True, True),
        ([".DS_Store", "Thumbs.db"], True, True),
        (["page.html", "part-0.csv", "desktop.ini"], False, True),
        (["page.html", "photo.jpg"], False, False),
        (["photo.jpg"], False, False),
        ([".git"], False, False),
    ],
)
def test_a_folder_is_replaced_if_it_has_results_alone(
    content: list[str], new: bool, replaced: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for name in content:
        (folder / name).touch()
    for overwrite, accepted in ((False, new), (True, replaced)):
        if accepted:
            check_output(folder, overwrite, NAMES)
            continue
        with pytest.raises(FerVitError, match="results"):
            check_output(folder, overwrite, NAMES)
    assert sorted(path.name for path in folder.iterdir()) == sorted(content)


def write_file(path: Path) -> None:
    path.write_text("new")


def write_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("new")


@pytest.mark.parametrize(
    ("write", "exists"), [(write_file, True), (write_file, False), (write_folder, True)]
)
def test_an_output_replaces_a_link_and_not_what_it_names(
    write: Callable[[Path], None], exists: bool, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    if exists:
        write(target)
    before = sorted(target.rglob("*"))
    link = tmp_path / "link"
    link.symlink_to(target)
    with atomic_write(link) as new:
        write(new)
    assert not link.is_symlink()
    assert link.is_dir() == (write is write_folder)
    assert target.exists() == exists
    assert sorted(target.rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"][: 1 + exists]


@pytest.mark.parametrize("content", [[], [".DS_Store"], ["file"]])
def test_a_folder_of_another_process_is_replaced_on_request_alone(
    content: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "results"

    def write(overwrite: bool) -> None:
        with atomic_write(folder, overwrite=overwrite) as new:
            write_folder(new)
            folder.mkdir()  # another process makes the folder
            for name in content:
                (folder / name).write_text("another process")

    if content == ["file"]:
        with pytest.raises(FerVitError, match="results already exists"):
            write(overwrite=False)
        assert (folder / "file").read_text() == "another process"
        shutil.rmtree(folder)
        write(overwrite=True)
    else:
        write(overwrite=False)
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
