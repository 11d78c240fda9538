"""Finds out the split and the class of each photo of a data set, from folders or from a table.

The layouts of folders are CLASS, SPLIT/CLASS and CLASS/SPLIT. All photos have one layout, and no
photo lies deeper: a wrong guess about a folder trains a wrong model.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError, printable, short
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.sources.targets import TargetTable
from fer_vit.wording import counted, list_names

# The names of split folders, and the words for a split in a table, in any case.
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}

# Matches a class that names a split as well, such as `happy_train`.
NAMES_SPLIT = re.compile(r"(?:.*[\W_])?train(?:ing)?(?:[\W_].*)?", re.IGNORECASE | re.DOTALL)

LAYOUTS = "CLASS, SPLIT/CLASS or CLASS/SPLIT (a split is train, val or test)"

Folders = tuple[str, ...]  # the folders of a photo from the root down, without the file name


class Place(NamedTuple):
    """The split and the class of a photo, as folders or a table name them."""

    split: Split | None  # None: unknown
    label: str | None  # None: the photo has no label


def split_of(name: str) -> Split | None:
    """Returns the split that a name means; None for another name."""
    return SPLIT_NAMES.get(name.strip().casefold())


def find_places(root: Path, photos: Mapping[str, Folders]) -> dict[str, Place]:
    """Returns the places of photos by name, without photos that have no class folder.

    Args:
        root: The folder of the photos.
        photos: The folders of each photo by the photo's name.

    Raises:
        FerVitError: The folders have none of the layouts.
    """
    if not any(photos.values()):
        raise FerVitError(
            f"Expected a folder for each class in {root}, such as happiness, but got photos "
            "without one. `fer-vit prepare folder` with `--targets` reads a table of labels."
        )
    tops = {folders[0] for folders in photos.values() if folders}
    seconds = {folders[1] for folders in photos.values() if len(folders) > 1}
    split_first = _are_splits(root, tops)
    if not split_first:
        _check_classes(root, tops)
    split_second = not split_first and _are_splits(root, seconds)
    depth = 2 if split_first or split_second else 1  # how many folders a photo is below the root

    deeper = [name for name, folders in photos.items() if len(folders) > depth]
    if deeper:
        raise FerVitError(
            f"Expected photos in folders {LAYOUTS} of {root}, but {counted(len(deeper), 'photo')} "
            f"{'lies' if len(deeper) == 1 else 'lie'} deeper, such as {_named(deeper)}. If "
            f"{printable(photos[deeper[0]][depth])} is a person, add `--person "
            f"'{folder_pattern(depth)}'`; if not, move the photos up."
        )

    places = {}
    for name, folders in photos.items():
        if len(folders) < depth:
            continue
        if split_first:
            places[name] = Place(split_of(folders[0]), folders[1])
        elif split_second:
            places[name] = Place(split_of(folders[1]), folders[0])
        else:
            places[name] = Place(None, folders[0])

    shallow = [name for name, folders in photos.items() if 0 < len(folders) < depth]
    if shallow and (split_second or not places):
        missing = "split" if split_second else "class"
        raise FerVitError(
            f"Expected photos in folders {LAYOUTS} of {root}, but "
            f"{counted(len(shallow), 'photo')} such as {_named(shallow)} "
            f"{'has' if len(shallow) == 1 else 'have'} no {missing} folder. Add it."
        )
    return places


def find_listed(
    table: TargetTable, photos: Mapping[str, Folders], has_persons: bool
) -> dict[str, Place]:
    """Returns the places of photos that a table lists, by name.

    The columns `label` and `split` may be absent. Without `split`, a folder named after a split
    gives the split.

    Args:
        table: The table, with rows of photos.
        photos: The folders of each photo by name.
        has_persons: Whether the persons are known. If not, a folder may not name a person.

    Raises:
        FerVitError: Only some photos have a split, or folders may name persons.
    """
    labels = table.cells("label")
    words = table.cells("split")
    places = {}
    for name in table.rows:
        split = None
        if "split" in table.describing:
            split = split_of(words.get(name, ""))
            if split is None:
                raise FerVitError(
                    f"Expected train, val or test in the column split of {table.path} for "
                    f"{printable(name)}, but got `{printable(short(words.get(name, '')))}`. "
                    "Correct the cell."
                )
        for folder in photos[name]:
            split = split or split_of(folder)
        places[name] = Place(split, labels.get(name))

    without_split = [name for name, place in places.items() if place.split is None]
    if 0 < len(without_split) < len(places):
        raise FerVitError(
            f"Expected every photo or none in a split folder, but {_named(without_split)} is in "
            f"none. Add the column split to {table.path}."
        )
    if not has_persons:
        _check_folders(table, photos, labels.values())
    return places


def _check_folders(
    table: TargetTable, photos: Mapping[str, Folders], labels: Iterable[str]
) -> None:
    """Raises FerVitError when folders of listed photos may name persons."""
    classes = {canonical(label) for label in labels} | {*EXPRESSIONS}
    unknown: dict[str, int] = {}  # folders that name neither a split nor a class, and their depth
    for name in table.rows:
        for depth, folder in enumerate(photos[name]):
            if not split_of(folder) and canonical(folder) not in classes:
                unknown.setdefault(folder, depth)
    if len(unknown) > 1:
        pattern = folder_pattern(min(unknown.values()))
        raise FerVitError(
            f"Expected the column person in {table.path}, or `--person`, since photos are in the "
            f"folders {list_names(sorted(unknown))}. If they name persons, add `--person "
            f"'{pattern}'`; if they mean nothing, `--person '.+'`."
        )


def _are_splits(root: Path, names: set[str]) -> bool:
    """Returns whether folders side by side are splits; raises FerVitError if only some are."""
    splits = sorted(name for name in names if split_of(name))
    others = sorted(names.difference(splits))
    if splits and others:
        raise FerVitError(
            f"Expected only split folders beside {list_names(splits)} in {root}, but got "
            f"{list_names(others)}. Move or rename the folders."
        )
    return bool(splits)


def _check_classes(root: Path, names: set[str]) -> None:
    """Raises FerVitError when there is one class, or classes name splits."""
    if len(names) == 1:
        (name,) = names
        raise FerVitError(
            f"Expected folders of two classes or more in {root}, but got only {printable(name)}. "
            f"Name another folder, or {printable(str(root / name))} if the classes are in that "
            "folder."
        )
    naming_splits = sorted(name for name in names if NAMES_SPLIT.fullmatch(name))
    if naming_splits:
        raise FerVitError(
            f"Expected folders of classes in {root}, but got {list_names(naming_splits)}. Make "
            "folders SPLIT/CLASS, where a split is train, val or test."
        )


def folder_pattern(depth: int) -> str:
    """Returns a pattern of `match_persons` for the folder that lies `depth` folders deep."""
    above = "/[^/]+" * (depth - 1) + "/" if depth else ""
    return f"{above}([^/]+)/"


def _named(photos: list[str]) -> str:
    return printable(short(photos[0]))
