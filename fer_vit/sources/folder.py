"""Any data set in folders that are named after classes.

With splits or without:

    train/happy/*.jpg, val/happy/*.jpg, test/happy/*.jpg   also train_set, validation, holdout ...
    happy/train/*.jpg, happy/val/*.jpg, happy/test/*.jpg
    happy/*.jpg                                            without splits
    happy/anna/*.jpg                                       a folder for each person, with splits or
    without

A folder named `test` or `val` is a class if there are other folders, but no train folder.

With a table of targets for heads (`targets`), photos need no class (see `read_listed`).
"""

from collections import defaultdict
from pathlib import Path
from unicodedata import normalize

import numpy as np

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError, printable, short
from fer_vit.heads import HEADS
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.listing import PHOTO_SUFFIXES, Listing, list_folder, unread_notes
from fer_vit.sources.errors import not_found
from fer_vit.sources.layout import Layout, find_layout, split_names
from fer_vit.sources.splits import PERSON_COLUMN, hold_out, missing_splits
from fer_vit.sources.targets import TargetTable, read_targets
from fer_vit.tables.paths import match_paths
from fer_vit.texts import as_text
from fer_vit.wording import counted, fill_docstring, join_names, list_names

NO_TARGETS = "no row in the table of targets"  # the reason for a dropped photo
MIN_PERSON_FOLDERS = 3  # one person for each split; fewer folders may have another meaning


@fill_docstring(HEADS=join_names(HEADS))
def read(root: Path, targets: Path | None = None) -> Reading:
    """Reads images from class folders, sorted by path.

    Labels are in FERPlus' order, followed by all other labels alphabetically. System folders and
    hidden files are not read. Images may be at any depth below a class folder; a folder directly in
    a class folder names a person. Without val, a fixed tenth of train (of the persons, if known)
    becomes val; without any splits, another tenth becomes test. Notes count the files that are not
    read. Raises FerVitError when the folders are ambiguous (see `layout`).

    Args:
        root: The folder.
        targets: For folder: a table with targets of {HEADS}. The table has the column
            path and columns such as AU1 and AU12, move_mouthSmileLeft, yaw, valence; it may have
            split, label and person. A photo without a row is left out, unless it has a class.
    """
    listing = list_folder(root) if root.is_dir() else Listing()
    photos = listing.with_suffixes(PHOTO_SUFFIXES)
    folders = [path.relative_to(root).parts[:-1] for path in photos]
    if targets is None:
        return _read_classes(root, listing, photos, folders)

    if not photos:
        raise not_found(root, "the images that the table of targets names")
    table = read_targets(targets)
    names = [path.relative_to(root).as_posix() for path in photos]
    # (N,), the row of the table for each photo; -1: no row
    matches = match_paths(names, table.paths, targets, partial=True)
    table_rows = {}  # the index of the row in the table, by the name of the photo
    for name, index in zip(names, matches.tolist(), strict=True):
        if index >= 0:
            table_rows[name] = index

    if "label" not in table.describing and _name_expressions(folders):
        reading = _read_classes(root, listing, photos, folders)
    else:
        reading = read_listed(root, table_rows, table)
        reading.dropped[NO_TARGETS] = len(names) - len(table_rows)
        reading.notes += unread_notes(listing.count_others(PHOTO_SUFFIXES), listing.skipped)
    for row in reading.rows:
        if row.name in table_rows:
            row.targets = table.row(table_rows[row.name])

    reading.outputs = table.outputs
    reading.notes += table.notes
    # the rows of the table that match no photo
    without_photo = np.setdiff1d(np.arange(len(table.paths)), matches)
    if len(without_photo):
        example = short(table.paths[without_photo[0]])
        reading.notes.append(
            f"{targets.name}: {len(without_photo):,} of {len(table.paths):,} rows name no photo, "
            f"for example {example}."
        )
    return reading


def _name_expressions(folders: list[tuple[str, ...]]) -> bool:
    """Returns whether any folder of the photos is named after an expression."""
    names = set().union(*folders)
    return any(canonical(name) in EXPRESSIONS for name in names)


def _read_classes(
    root: Path, listing: Listing, photos: list[Path], folders: list[tuple[str, ...]]
) -> Reading:
    """Reads photos whose folders name their classes."""
    if not any(folders):
        example = "train/happy/1.jpg or happy/1.jpg"
        raise not_found(root, f"images in class folders, for example {example},")
    layout = find_layout(folders)
    reading = _read_photos(root, photos, layout)
    reading.notes += layout.notes
    reading.notes += _left_out(root, listing, photos, layout)
    reading.notes += _spellings(layout)
    _unify_persons(reading)
    if all(place is None or place.split is None for place in layout.places):
        return _hold_out_both(root, reading)
    return _with_val(root, reading)


def _with_val(root: Path, reading: Reading) -> Reading:
    """Adds notes about missing splits to a reading, and holds out val if val is missing."""
    reading.notes += missing_splits(reading.rows, root)
    if any(row.split == "val" for row in reading.rows):
        return reading
    return hold_out(reading)


def read_listed(root: Path, rows: dict[str, int], table: TargetTable) -> Reading:
    """Reads photos that have a row in a table of targets, and whose folders do not name classes.

    The columns `split`, `label` and `person` may be absent. Without `split`, split folders give the
    split; without split folders, tenths of the persons become val and test. Without `label`, no
    photo has a label. Without `person`, the first folder (below a split folder) names the person,
    as in data sets of action units.

    Args:
        root: The folder of the photos.
        rows: The index of the row in the table, by the name of the photo.
        table: The table.
    """
    columns = table.describing
    tops = {name.split("/")[0] for name in rows}
    split_folders = split_names(tops)
    in_splits = tops <= split_folders.keys()
    words = split_names({str(cell) for cell in columns.get("split", ())})

    listed = []
    for name, index in rows.items():
        folders = name.split("/")[:-1]
        split: Split = "train"
        if "split" in columns:
            split = _meaning_of(str(columns["split"][index]), words, name)
        elif in_splits:
            split = split_folders[name.split("/")[0]]
        row = Row(root / name, name, split)

        if in_splits:
            folders = folders[1:]
        person = columns["person"][index] if "person" in columns else next(iter(folders), None)
        if person is not None:
            row.extra = {PERSON_COLUMN: as_text(person)}
        label = columns["label"][index] if "label" in columns else None
        if label is not None:
            row.label = canonical(label)
        listed.append(row)

    labels = {row.label for row in listed if row.label is not None}
    reading = Reading(_in_order(labels) or EXPRESSIONS, listed)
    if "person" in columns:
        _spell_persons(reading)
        reading.extra = (PERSON_COLUMN,)
    else:
        _unify_persons(reading, "first folders of the photos")
    if not labels:
        problem = "is empty" if "label" in columns else "is missing"
        reading.notes.append(
            f"No photo has a label: the column `label` of the table of targets {problem}."
        )

    if in_splits or "split" in columns:
        return _with_val(root, reading)
    return hold_out(reading, ("val", "test"))


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """Returns expressions in FERPlus' order, followed by all other labels alphabetically."""
    expressions = [name for name in EXPRESSIONS if name in labels]
    return (*expressions, *sorted(labels.difference(EXPRESSIONS)))


def _meaning_of(word: str, meanings: dict[str, Split], name: str) -> Split:
    """Returns the split that a word in the column `split` means.

    Raises FerVitError for a word without a meaning.
    """
    if word not in meanings:
        raise FerVitError(
            f"Expected train, val or test in the column `split` of the table of targets for "
            f"{printable(name)}, but got `{printable(short(word))}`. Correct the cell."
        )
    return meanings[word]


def _read_photos(root: Path, photos: list[Path], layout: Layout) -> Reading:
    """Returns the photos that have a place, sorted by name, with their labels in order."""
    rows = []
    for path, place in zip(photos, layout.places, strict=True):
        if place is None:
            continue
        name = path.relative_to(root).as_posix()
        row = Row(path, name, place.split or "train", canonical(place.label))
        if place.person:
            row.extra = {PERSON_COLUMN: as_text(place.person)}
        rows.append(row)
    rows.sort(key=lambda row: row.name)
    labels = {str(row.label) for row in rows}
    return Reading(_in_order(labels), rows)


def _hold_out_both(root: Path, reading: Reading) -> Reading:
    """Holds out val and test; raises FerVitError when there is only one class."""
    if len(reading.labels) < 2:
        first_folder = min(row.name.split("/")[0] for row in reading.rows)
        raise FerVitError(
            f"Expected folders of two classes or more in {root}, but got only "
            f"{list_names(reading.labels)}. Name another folder, or {root / first_folder} if the "
            "classes are in that folder."
        )
    reading.notes.append(f"No split folders in {root}.")
    return hold_out(reading, ("val", "test"))


def _left_out(root: Path, listing: Listing, photos: list[Path], layout: Layout) -> list[str]:
    """Returns notes about files that are not read, and about class folders without an image."""
    notes = []
    beside = sum(path.parent == root for path in photos)
    if beside:
        notes.append(
            f"Not read, without a class: {counted(beside, 'photo')} beside the folders of {root}."
        )

    used: set[Path] = set()
    for path in photos:
        used.update(path.parents)
    for folder in listing.folders:
        depth = len(folder.relative_to(root).parts)
        if depth == layout.class_depth and folder not in used:
            notes.append(f"{folder} has no image, and was not read.")
    return notes + unread_notes(listing.count_others(PHOTO_SUFFIXES), listing.skipped)


def _spellings(layout: Layout) -> list[str]:
    """Returns a note for each class that has several folders in one split."""
    spelled: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for place in layout.places:
        if place:
            spelled[place.split, canonical(place.label)].add(place.label)

    notes = {}  # one note per class, although several splits may have folders of the class
    for (_, label), names in spelled.items():
        if len(names) > 1:
            notes[label] = f"Read as one class, {label}: {list_names(sorted(names))}."
    return list(notes.values())


def _unify_persons(reading: Reading, folders_text: str = "folders below the classes") -> None:
    """Gives each person in `reading` one spelling; removes persons if there are too few folders.

    `folders_text` names the folders of the persons in notes.
    """
    spelled = _spell_persons(reading)
    if len(spelled) >= MIN_PERSON_FOLDERS:
        reading.extra = (PERSON_COLUMN,)
        reading.notes.append(
            f"{folders_text.capitalize()} are read as {len(spelled):,} persons "
            f"({list_names(spelled)})."
        )
        return
    for row in reading.rows:
        row.extra = {}
    if spelled:
        reading.notes.append(
            f"There are fewer than {MIN_PERSON_FOLDERS} {folders_text} ({list_names(spelled)}): "
            "they are not read as persons."
        )


def _spell_persons(reading: Reading) -> list[str]:
    """Gives each person in `reading` the first spelling of the name; returns the names."""
    spelled: dict[str, str] = {}
    for row in reading.rows:
        name = row.extra.get(PERSON_COLUMN)
        if name:
            key = normalize("NFC", name.strip()).casefold()
            row.extra[PERSON_COLUMN] = spelled.setdefault(key, name)
    return list(spelled.values())
