"""Compares paths of images in tables, and finds the rows that name the same image."""

import re
from collections.abc import Iterable, Mapping
from unicodedata import normalize

import numpy as np

from fer_vit.errors import FerVitError, short
from fer_vit.faces import Objects, as_objects
from fer_vit.geometry import IntArray
from fer_vit.tables.cells import SPACES


def normal_path(path: str) -> str:
    """Returns a path in the form for comparison: slashes, composed accents, no outer spaces.

    `./` and doubled slashes are removed. macOS writes accents as separate characters.
    """
    text = normalize("NFC", path.replace("\\", "/")).strip(SPACES)
    text = re.sub("/+", "/", text)
    return re.sub(r"(^|/)(\./)+", r"\1", text)


def one_spelling(paths: Objects) -> Objects:
    """Returns paths (N,) with one spelling for each file, which is the first of its spellings.

    `./a.png` and `a.png` are one file. Empty paths stay None.
    """
    first: dict[str, str] = {}
    spelled: dict[str | None, str | None] = {None: None}
    for path in dict.fromkeys(paths):
        if path is not None:
            spelled[path] = first.setdefault(normal_path(path), path)
    return as_objects([spelled[path] for path in paths.tolist()])


def match_paths(
    paths: Iterable[str], known: Iterable[str], where: object, partial: bool = False
) -> IntArray:
    """Returns for each path (N,) the index of its row in `known`.

    If `known` has a path twice, its first row counts. Paths are compared in the form of
    `normal_path`. The first of these rules that finds a row applies:

    1. A known path is the path, or an end of the path: the known "x/a.png" matches "/data/x/a.png".
       The longest such end counts: if "a.png" is known, too, "/data/x/a.png" still has the row of
       "x/a.png". Leading "./" and "../" of a known path are ignored: the known "../x/a.png" also
       matches "/data/x/a.png", but not if "../../x/a.png" is known, too.
    2. The path, without leading "./" and "../", is the end of one known path only: "../x/a.png"
       matches the known "/data/x/a.png", but not if "/old/x/a.png" is known, too.

    Args:
        paths: The paths.
        known: The path of each row.
        where: The name of the table with the known paths, for messages.
        partial: Whether paths without a row are allowed; their index is -1.

    Raises:
        FerVitError: A path has no row (with `partial`: no path has a row), or two different paths
            match the same row.
    """
    paths = list(paths)
    names = dict.fromkeys(paths)
    rows = _find_rows(names, known)
    missing = [path for path in names if path not in rows]
    if missing and (not partial or not rows):
        lost = f"{len(missing):,} of {len(names):,} are not there, for example {short(missing[0])}"
        raise FerVitError(
            f"Expected all images in {where}, but {lost}. Name a table of the same photos."
        )
    if len(set(rows.values())) < len(rows):
        raise FerVitError(
            f"Two images match one row of {where}. Name each by a longer part of its path."
        )
    return np.array([rows.get(path, -1) for path in paths], int)


def _find_rows(paths: Iterable[str], known: Iterable[str]) -> dict[str, int]:
    """Returns the row of each path that matches a row by the rules of `match_paths`."""
    known = list(known)
    normal = {path: normal_path(path) for path in dict.fromkeys(known)}  # a video has many rows
    by_path: dict[str, int] = {}  # index of the first row with each path
    for row, path in enumerate(known):
        by_path.setdefault(normal[path], row)

    # rows by each end of a path, and by path without `../`; None for an end of several paths
    by_end: dict[str, int | None] = {}
    by_undotted: dict[str, int | None] = {}
    for path, row in by_path.items():
        for end in _ends(path):
            by_end[end] = None if end in by_end else row
        name = _without_dots(path)
        by_undotted[name] = None if name in by_undotted else row

    by_whole_path = by_undotted | by_path
    rows = {}
    for path in paths:
        match = _match_path(normal_path(path), by_whole_path, by_end)
        if match is not None:
            rows[path] = match
    return rows


def _match_path(
    path: str, by_whole_path: Mapping[str, int | None], by_end: Mapping[str, int | None]
) -> int | None:
    """Returns the row of a path by the rules of `match_paths`; None without a unique row."""
    for end in _ends(path):
        if end in by_whole_path:
            return by_whole_path[end]
    return by_end.get(_without_dots(path))


def _without_dots(path: str) -> str:
    """Returns a path without leading dots, such as "x/a.png" for "../x/a.png"."""
    return re.sub(r"^(\.{1,2}/)+", "", path)


def _ends(path: str) -> list[str]:
    """Returns all ends of a path: "data/x/a.png", "x/a.png" and "a.png" for "data/x/a.png"."""
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
