"""Paths of images in tables: how they are compared, and which rows name the same image."""

import re
from collections.abc import Iterable, Mapping
from unicodedata import normalize

import numpy as np

from fer_vit.errors import FerVitError, short
from fer_vit.faces import Objects, as_objects
from fer_vit.geometry import IntArray
from fer_vit.tables.cells import SPACES


def normal_path(path: str) -> str:
    """Returns a path as paths are compared: slashes, composed accents, no spaces around.

    `./` and doubled slashes mean nothing; accents come apart on macOS.
    """
    text = normalize("NFC", path.replace("\\", "/")).strip(SPACES)
    text = re.sub("/+", "/", text)
    return re.sub(r"(^|/)(\./)+", r"\1", text)


def one_spelling(paths: Objects) -> Objects:
    """Returns paths (N,) in one spelling for each file: `./a.png` and `a.png` become the first.

    Empty ones stay None.
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
    """Returns the row of `known` for each path, of several with one path the first.

    These rules are tried in this order. Paths are compared as `normal_path` writes them.

    1. A known path is the end of this path, or all of it: "x/a.png" matches "/data/x/a.png". The
       longest such end counts: where "a.png" is known, too, "/data/x/a.png" has the row of
       "x/a.png". Leading "./" and "../" of a known path are ignored: "../x/a.png" also matches
       "/data/x/a.png", but not where "../../x/a.png" is known, too.
    2. This path, without leading "./" and "../", is the end of one known path only: "../x/a.png"
       matches the known path "/data/x/a.png", but not where "/old/x/a.png" is known, too.

    Raises FerVitError when a path has no row (with `partial`: none has one, and the others get -1),
    or two have the same.
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
    """Returns the row of each path that has one by the rules of `match_paths`."""
    known = list(known)
    normal = {path: normal_path(path) for path in dict.fromkeys(known)}  # a video has many rows
    by_path: dict[str, int] = {}  # the first row of each path
    for row, path in enumerate(known):
        by_path.setdefault(normal[path], row)

    # rows by an end of their path, and by their path without `../`; None: of several paths
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
    """Returns the row of a path by rows of whole paths and of ends; None: no row, or several."""
    for end in _ends(path):
        if end in by_whole_path:
            return by_whole_path[end]
    return by_end.get(_without_dots(path))


def _without_dots(path: str) -> str:
    """Returns "x/a.png" for "../x/a.png"."""
    return re.sub(r"^(\.{1,2}/)+", "", path)


def _ends(path: str) -> list[str]:
    """Returns "data/x/a.png", "x/a.png" and "a.png" for "data/x/a.png"."""
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
