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
       longest such end counts. Leading "./" and "../" of the known path are ignored, but then it
       must be the only one with this end.
    2. This path, without leading "./" and "../", is the end of one known path only.

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
    first_spelled: dict[str, int] = {}
    for row, path in enumerate(known):
        first_spelled.setdefault(str(path), row)
    first: dict[str, int] = {}
    for path, row in first_spelled.items():
        first.setdefault(normal_path(path), row)

    # rows by an end of their path, and by their path without `../`; None: of several rows
    ends: dict[str, int | None] = {}
    undotted: dict[str, int | None] = {}
    for path, row in first.items():
        for end in _ends(path):
            ends[end] = None if end in ends else row
        name = _without_dots(path)
        undotted[name] = None if name in undotted else row

    whole = undotted | first
    rows = {}
    for path in paths:
        match = _find_row(normal_path(path), whole, ends)
        if match is not None:
            rows[path] = match
    return rows


def _find_row(
    name: str, whole: Mapping[str, int | None], ends: Mapping[str, int | None]
) -> int | None:
    """Returns the row of a path by rows of whole paths and of ends; None: no row, or several."""
    for end in _ends(name):
        if end in whole:
            return whole[end]
    return ends.get(_without_dots(name))


def _without_dots(path: str) -> str:
    return re.sub(r"^(\.{1,2}/)+", "", path)


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]
