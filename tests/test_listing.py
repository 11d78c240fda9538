"""What a folder contains: the user's files, and entries that no user made."""

from collections import Counter
from pathlib import Path

import pytest

from fer_vit.errors import FerVitError
from fer_vit.listing import (
    GENERATOR,
    MEDIA_SUFFIXES,
    PHOTO_SUFFIXES,
    VIDEO_SUFFIXES,
    Skipped,
    check_resumable,
    list_folder,
    system_entry,
    unread_notes,
)
from fer_vit.predict.inputs import find_inputs
from fer_vit.wording import list_counts


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


SYSTEM = (
    "@eaDir",
    "@EADIR",
    "#recycle",
    "#Recycle",
    "#snapshot",
    "@Recycle",
    ".@__thumb",
    "$RECYCLE.BIN",
    "$Recycle.Bin",
    "System Volume Information",
    "lost+found",
    "__MACOSX",
    ".Trash-1000",
    ".AppleDouble",
    "found.000",
    ".stfolder",
    ".stversions",
    ".dropbox.cache",
    "~snapshot",
    "LOST.DIR",
)


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_folder_is_counted_and_not_entered(name: str, tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "deep/b.png", f"{name}/c.jpg", f"deep/{name}/a.jpg/d.jpg")
    inputs = find_inputs([tmp_path])
    assert inputs.files == [tmp_path / "a.jpg", tmp_path / "deep" / "b.png"]
    assert inputs.skipped.system.total() == 2
    assert len(inputs.notes) == 1
    assert find_inputs([tmp_path / name]).files == [tmp_path / name / "c.jpg"], (
        "a folder that is named"
    )
    inside = [path for path in find_inputs([f"{tmp_path}/**/*.jpg"]).files if name in path.parts]
    assert inside == [], "by a pattern"


@pytest.mark.parametrize("name", ["Thumbs.db", "thumbs.db", "desktop.ini", "._a.jpg", ".DS_Store"])
def test_a_system_file_is_counted(name: str, tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", name)
    inputs = find_inputs([tmp_path])
    assert len(inputs.files) == 1
    assert inputs.skipped.system.total() == 1
    assert inputs.other_suffixes == {}


def test_names_of_users_are_no_system_entries() -> None:
    for name in (
        "@anna",
        "#happy",
        "$5",
        "recycle",
        "Trash",
        "~ben",
        "found",
        "thumbs",
        "a.b",
        "_x",
    ):
        assert system_entry(name) is None
    assert system_entry(".anything") is not None


def test_files_of_other_kinds_are_counted_by_suffix(tmp_path: Path) -> None:
    touch(tmp_path, "a.JPG", "b.MP4", "c.txt", "d/e.TXT", "f.cr2", "README", ".hidden.jpg")
    inputs = find_inputs([tmp_path], MEDIA_SUFFIXES)
    assert [path.name for path in inputs.files] == ["a.JPG", "b.MP4"]
    assert inputs.other_suffixes == {".txt": 2, ".cr2": 1, "no suffix": 1}
    assert inputs.skipped.system.total() == 1
    assert len(inputs.notes) == 2
    assert "4 files (2 .txt, 1 no suffix, 1 .cr2)" in inputs.notes[0]
    assert find_inputs([tmp_path]).other_suffixes[".mp4"] == 1, "where only photos are read"
    assert find_inputs([tmp_path / "c.txt"]).files == [tmp_path / "c.txt"], "a file that is named"
    with pytest.raises(FerVitError, match=r"1 file \(1 \.txt\)"):
        find_inputs([tmp_path / "d"])


def test_suffixes_of_cameras_scanners_and_studios() -> None:
    assert not PHOTO_SUFFIXES & VIDEO_SUFFIXES
    assert {".jpe", ".jfif", ".mpo", ".ppm", ".pgm", ".pnm", ".jp2", ".tga"} <= PHOTO_SUFFIXES
    assert {".dv", ".mxf", ".mts", ".vob", ".asf", ".3g2"} <= VIDEO_SUFFIXES
    assert all(suffix == suffix.lower() and suffix[0] == "." for suffix in MEDIA_SUFFIXES)


def test_loops_of_links_end_and_no_folder_is_listed_twice(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.png", "b/c/2.png")
    for link, goal in {"b/loop": ".", "b/c/up": "b", "again": "b/c", "self": "self"}.items():
        (tmp_path / link).symlink_to(tmp_path / goal)
    listing = list_folder(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in listing.files] == [
        "self",
        "b/1.png",
        "b/c/2.png",
    ]
    assert [path.relative_to(tmp_path).as_posix() for path in listing.folders] == ["b", "b/c"]


def test_a_link_to_a_file_is_a_file_of_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "calm/1.png", ".store/2.png")
    (tmp_path / "bored").mkdir()
    for link, goal in {
        "bored/1.png": "calm/1.png",
        "bored/2.png": ".store/2.png",
        "calm/2.png": ".store/2.png",
    }.items():
        (tmp_path / link).symlink_to(tmp_path / goal)
    expected = ["bored/1.png", "bored/2.png", "calm/1.png", "calm/2.png"]
    for listed in (
        list_folder(tmp_path).files,
        find_inputs([tmp_path]).files,
        find_inputs([tmp_path / "*" / "*.png"]).files,
        find_inputs([tmp_path / "**" / "*.png"]).files,
    ):
        assert sorted(path.relative_to(tmp_path).as_posix() for path in listed) == expected


@pytest.mark.parametrize("folder", ["set[1]", "[a-c]", "a*b", "what?", "[", "x[y"])
def test_folders_with_letters_of_patterns(folder: str, tmp_path: Path) -> None:
    touch(tmp_path, f"{folder}/1.jpg", f"{folder}/deep[2]/2.jpg", "set1/3.jpg", "a/4.jpg")
    (tmp_path / "more").mkdir()
    for pattern in (f"{folder}/*.jpg", f"{folder}/1*", f"{folder}/[1].jpg"):
        assert find_inputs([tmp_path / pattern]).files == [tmp_path / folder / "1.jpg"]
    expected = [tmp_path / folder / "deep[2]" / "2.jpg"]
    assert find_inputs([tmp_path / folder / "deep[2]" / "*.jpg"]).files == expected
    assert find_inputs([tmp_path / "*" / "deep[2]" / "*.jpg"]).files == expected, (
        "no literal beginning"
    )


def test_notes_are_short_and_plain() -> None:
    counts = Counter({f".{number}": 1 for number in range(1000)} | {".txt": 5, ".\x1b[2J": 3})
    text = list_counts(counts)
    assert text.startswith("5 .txt, 3 .\\x1b[2J, ")
    assert text.endswith("996 others")
    notes = unread_notes(counts, Skipped(system=counts))
    assert len(notes) == 2
    assert all(note.isprintable() and len(note) < 200 for note in notes)


PAGE = f'<!doctype html><meta name="generator" content="{GENERATOR}">'


@pytest.mark.parametrize(
    ("file", "content"), [("index.html", PAGE), ("events.out.tfevents.1.host.2", "")]
)
def test_pictures_of_results_are_no_photos(file: str, content: str, tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "site/index.html", "site/b.jpg", "out/photos/1.jpg")
    (tmp_path / "out" / file).write_text(content)
    kept = [tmp_path / "a.jpg", tmp_path / "site" / "b.jpg"]
    inputs = find_inputs([tmp_path])
    assert inputs.files == kept
    assert len(inputs.notes) == 2, "index.html, and the results"
    assert list_folder(tmp_path).folders == [tmp_path / "site"]
    assert find_inputs([f"{tmp_path}/**/*.jpg"]).files == kept
    # `*` of a shell names the results, too
    assert find_inputs([tmp_path / "a.jpg", tmp_path / "out"]).files == kept[:1]
    with pytest.raises(FerVitError, match="results"):
        find_inputs([tmp_path / "out"])

    photo = tmp_path / "out" / "photos" / "1.jpg"
    for named in (photo, photo.parent, f"{tmp_path}/out/photos/*.jpg"):
        assert find_inputs([named]).files == [photo], "results that are named"


@pytest.mark.parametrize(
    ("files", "accepted"),
    [
        ([], True),
        (["a-1/seed0/val.json"], True),
        (["a-1/seed0/val.json", "notes.txt"], True),
        ([".DS_Store", "Thumbs.db", ".runs.csv.01234567.part/new"], True),
        (["notes.txt"], False),
        (["a-1/notes.txt"], False),
    ],
)
def test_a_folder_with_other_files_alone_is_not_completed(
    files: list[str], accepted: bool, tmp_path: Path
) -> None:
    touch(tmp_path, *files)
    if accepted:
        check_resumable(tmp_path, "training", "*/seed*")
        return
    with pytest.raises(FerVitError, match="no results of this command"):
        check_resumable(tmp_path, "training", "*/seed*")
