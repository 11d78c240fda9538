"""Any data set of photos: in folders that are named after classes, or listed in a table.

    train/happy/*.jpg, val/happy/*.jpg, test/happy/*.jpg
    happy/train/*.jpg, happy/val/*.jpg, happy/test/*.jpg
    happy/*.jpg                                            without splits

A table (`targets`) has the labels, targets of further heads, or both. A regular expression
(`person`) reads persons from the paths of photos.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, short
from fer_vit.heads import HEADS
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.listing import PHOTO_SUFFIXES, Listing, list_folder, unread_notes
from fer_vit.options import takes
from fer_vit.sources.photo_folders import Folders, Place, find_listed, find_places
from fer_vit.sources.photo_persons import leak_warnings, match_persons, one_spelling, person_notes
from fer_vit.sources.source import SourceOptions, not_found
from fer_vit.sources.splits import PERSON_COLUMN, hold_out, missing_splits
from fer_vit.sources.targets import AuScale, TargetTable, read_targets
from fer_vit.tables.images import AngleUnit
from fer_vit.tables.table_reader import READERS
from fer_vit.wording import counted, join_names, list_names

# Files in a data set that may be tables of labels; .txt files are mostly descriptions.
TABLE_SUFFIXES = READERS.keys() - {".txt"}


@dataclass(frozen=True, kw_only=True)
class FolderOptions(SourceOptions):
    """Options of the data set `folder`."""

    TEXTS: ClassVar = {"HEADS": join_names(HEADS)}

    targets: Path | None = None
    """A table with the column path, and label or targets of {HEADS} (such as AU1,
    move_mouthSmileLeft, yaw, valence); also split and person."""
    targets_unit: AngleUnit | None = None
    """The unit of angles in the table. Default: degrees; an error if no angle is above 1.57."""
    au_scale: AuScale | None = None
    """The largest intensity of action units, 5 or 1 (also occurrences). Default: 5 if any value is
    above 1."""
    person: str | None = None
    """A regular expression that finds the person in a photo's path: its first group, or the whole
    match. Each person stays in one split."""


@takes(FolderOptions)
def read(options: FolderOptions) -> Reading:
    """Reads photos with classes from folders or a table, sorted by path.

    Labels are in FERPlus' order, followed by all other labels alphabetically. System folders and
    hidden files are not read. Without val, a fixed tenth of train (of the persons, if known)
    becomes val; without any splits, another tenth becomes test. Notes count the photos and files
    that are not read. Raises FerVitError when the folders have another layout (see `layout`).
    """
    root = options.root
    targets = options.targets
    listing = list_folder(root) if root.is_dir() else Listing()
    photos = listing.with_suffixes(PHOTO_SUFFIXES)
    names = sorted(path.relative_to(root).as_posix() for path in photos)
    if not names:
        raise not_found(root, "images, for example train/happy/1.jpg or happy/1.jpg,")
    folders: dict[str, Folders] = {name: tuple(name.split("/")[:-1]) for name in names}
    persons: dict[str, str] = {}  # by the name of the photo
    class_folders = folders  # without the folders of persons
    if options.person is not None:
        persons, class_folders = match_persons(names, options.person)

    if targets is not None:
        path = root / targets if (root / targets).is_file() else targets
        table = read_targets(path, options.targets_unit, options.au_scale).matched(names)
        listing.files = [
            file for file in listing.files if file.name != path.name or not file.samefile(path)
        ]
        reading = _read_listed(root, table, folders, class_folders, persons)
        reason = f"no row in {path.name}"
    elif options.targets_unit or options.au_scale:
        raise FerVitError("`--targets_unit` and `--au_scale` need a table, `--targets`.")
    else:
        reading = _make_reading(root, find_places(root, class_folders), persons)
        reading.notes += _table_hint(root, listing)
        reason = "no class folder"

    read_names = {row.name for row in reading.rows}
    unread = [name for name in names if name not in read_names]
    if unread:
        reading.dropped[f"{reason}, for example {short(unread[0])}"] = len(unread)
    if options.person is not None:
        reading.notes += person_notes(persons, [name for name in names if name in read_names])
    reading.notes += _empty_folders(root, listing, photos)
    reading.notes += unread_notes(listing.count_others(PHOTO_SUFFIXES), listing.skipped)
    return reading


def _read_listed(
    root: Path,
    table: TargetTable,
    folders: Mapping[str, Folders],
    class_folders: Mapping[str, Folders],
    persons: Mapping[str, str],
) -> Reading:
    """Reads photos with a table of labels and targets.

    Args:
        root: The folder of the photos.
        table: The table, with the rows of the photos.
        folders: The folders of each photo by name.
        class_folders: The same without the folders of persons.
        persons: The person of each photo by name, from paths.
    """
    in_table = one_spelling(table.cells(PERSON_COLUMN))
    if persons and in_table:
        raise FerVitError(
            f"Expected persons from `--person` or from the column person of {table.path}, but got "
            "both. Remove one."
        )
    has_persons = bool(persons or in_table)
    names = set().union(*folders.values())
    if "label" not in table.describing and any(canonical(name) in EXPRESSIONS for name in names):
        places = find_places(root, class_folders)
    else:
        places = find_listed(table, folders, has_persons)

    reading = _make_reading(root, places, persons or in_table)
    for row in reading.rows:
        row.targets = table.targets(row.name)
    reading.outputs = table.outputs
    reading.notes += table.notes
    if not reading.has_labels:
        problem = "is empty" if "label" in table.describing else "is missing"
        reading.notes.append(f"No photo has a label: the column label of {table.path} {problem}.")

    other_labels = []  # photos in the folder of another expression
    for row in reading.rows:
        named = {canonical(folder) for folder in folders[row.name]} & {*EXPRESSIONS}
        if named and row.label is not None and row.label not in named:
            other_labels.append(row.name)
    if other_labels:
        reading.notes.append(
            f"{table.path.name}: the label differs from the folder's for "
            f"{counted(len(other_labels), 'photo')}, for example {short(other_labels[0])}. The "
            "table counts."
        )
    return reading


def _make_reading(root: Path, places: Mapping[str, Place], persons: Mapping[str, str]) -> Reading:
    """Returns the photos that have a place, with labels in order, all splits, and notes."""
    rows = []
    for name, place in places.items():
        row = Row(root / name, name, place.split or "train")
        if place.label is not None:
            row.label = canonical(place.label)
        if name in persons:
            row.extra = {PERSON_COLUMN: persons[name]}
        rows.append(row)
    labels = {row.label for row in rows if row.label is not None}
    expressions = [name for name in EXPRESSIONS if name in labels]
    others = sorted(labels.difference(EXPRESSIONS))
    reading = Reading((*expressions, *others) or EXPRESSIONS, rows)
    if any(row.extra for row in rows):
        reading.extra = (PERSON_COLUMN,)

    reading.notes += _spellings(places)
    held: tuple[Split, ...] = ("val", "test")  # the splits to hold out
    if any(place.split for place in places.values()):
        reading.notes += missing_splits(rows, root)
        held = () if any(row.split == "val" for row in rows) else ("val",)
    if held:
        _check_persons(root, rows, held)
        reading = hold_out(reading, held)
    reading.warnings += leak_warnings(reading.rows)
    return reading


def _check_persons(root: Path, rows: Sequence[Row], held: Sequence[Split]) -> None:
    """Raises FerVitError when there are too few persons to hold some out for each split."""
    persons = {row.extra.get(PERSON_COLUMN) for row in rows if row.split == "train"}
    if persons and None not in persons and len(persons) <= len(held):
        names = list_names(sorted(map(str, persons)))
        raise FerVitError(
            f"Expected photos of {len(held) + 1} persons or more in {root}, to hold out "
            f"{' and '.join(held)}, but got {names}. Make a folder for each split, or leave out "
            "the persons."
        )


def _table_hint(root: Path, listing: Listing) -> list[str]:
    """Returns a note about a table in the folder, which may have the labels."""
    tables = [path.relative_to(root) for path in listing.with_suffixes(TABLE_SUFFIXES)]
    if not tables:
        return []
    return [
        f"{tables[0]} is not read: if it has the columns path and label, add `--targets "
        f"{tables[0]}`."
    ]


def _empty_folders(root: Path, listing: Listing, photos: Sequence[Path]) -> list[str]:
    """Returns a note about folders without a photo."""
    used: set[Path] = set()
    for path in photos:
        used.update(path.parents)
    empty = [folder.relative_to(root) for folder in listing.folders if folder not in used]
    if not empty:
        return []
    return [f"Without a photo: {counted(len(empty), 'folder')} ({list_names(empty)})."]


def _spellings(places: Mapping[str, Place]) -> list[str]:
    """Returns a note for each class that has several spellings in one split."""
    spelled: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for place in places.values():
        if place.label is not None:
            spelled[place.split, canonical(place.label)].add(place.label)

    notes = {}  # one note per class, although several splits may have folders of the class
    for (_, label), names in spelled.items():
        if len(names) > 1:
            notes[label] = f"Read as one class, {label}: {list_names(sorted(names))}."
    return list(notes.values())
