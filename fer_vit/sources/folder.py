"""Any data set in folders named after its classes.

With splits or without:

    train/happy/*.jpg, val/happy/*.jpg, test/happy/*.jpg   also train_set, validation, holdout ...
    happy/train/*.jpg, happy/val/*.jpg, happy/test/*.jpg
    happy/*.jpg                                            without splits
    happy/anna/*.jpg                                       a folder for each person, with splits or without

A folder named `test` or `val` is a class if there are other folders but no train.
"""

from collections import defaultdict
from pathlib import Path
from unicodedata import normalize

from fer_vit.data.schema import Reading, Row
from fer_vit.errors import FerVitError
from fer_vit.files import as_text
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.listing import (
    PHOTO_SUFFIXES,
    Listing,
    counted,
    list_folder,
    name_text,
    unread_notes,
)
from fer_vit.sources.common import PERSON, hold_out, missing_splits, not_found
from fer_vit.sources.layout import Layout, find_layout

FEWEST_PERSONS = 3  # one for each split; fewer folders may have another meaning


def read(root: Path) -> Reading:
    """Reads images from class folders, sorted by path; labels are in FERPlus' order, then others alphabetically.

    System folders and hidden files are not read. Images may be at any depth below a class folder; a folder directly in
    it names a person. Without val, a fixed tenth of train (of its persons, if known) becomes val; without any splits,
    another tenth becomes test. What is not read is counted in the notes. Raises FerVitError when the folders could mean
    something else, see `layout`.
    """
    listing = list_folder(root) if root.is_dir() else Listing()
    photos = listing.of_kinds(PHOTO_SUFFIXES)
    folders = [path.relative_to(root).parts[:-1] for path in photos]
    if not any(folders):
        raise not_found(
            root, "images in class folders, for example train/happy/1.jpg or happy/1.jpg,"
        )
    layout = find_layout(folders)
    reading = _read_photos(root, photos, layout)
    reading.notes += layout.notes
    reading.notes += _left_out(root, listing, photos, layout)
    reading.notes += _spellings(layout)
    _name_persons(reading)
    if all(place is None or place.split is None for place in layout.places):
        return _split(root, reading)
    reading.notes += missing_splits(reading.rows, root)
    return reading if any(row.split == "val" for row in reading.rows) else hold_out(reading)


def _read_photos(root: Path, photos: list[Path], layout: Layout) -> Reading:
    """Returns the photos that have a place, sorted by name, with their labels in order."""
    rows = []
    for path, place in zip(photos, layout.places, strict=True):
        if place:
            name = path.relative_to(root).as_posix()
            extra = {PERSON: as_text(place.person)} if place.person else {}
            split = place.split or "train"
            rows.append(Row(path, name, split, canonical(place.label), extra=extra))
    rows.sort(key=lambda row: row.name)
    labels = {str(row.label) for row in rows}
    order = [*EXPRESSIONS, *sorted(labels - {*EXPRESSIONS})]
    return Reading(tuple(name for name in order if name in labels), rows)


def _split(root: Path, reading: Reading) -> Reading:
    """Holds out val and test; raises FerVitError when there is only one class."""
    if len(reading.names) < 2:
        inner = sorted({row.name.split("/")[0] for row in reading.rows})
        came = f"only {name_text(reading.names)}. Name another, or {root / inner[0]} if the classes are in it."
        raise FerVitError(f"Expected folders of two classes or more in {root}, but got {came}")
    reading.notes.append(f"No split folders in {root}.")
    return hold_out(reading, ("val", "test"))


def _left_out(root: Path, listing: Listing, photos: list[Path], layout: Layout) -> list[str]:
    """Returns notes about files and class folders that are not read."""
    notes = []
    if beside := sum(path.parent == root for path in photos):
        notes.append(
            f"Not read, without a class: {counted(beside, 'photo')} beside the folders of {root}."
        )
    used = {parent for path in photos for parent in path.parents}
    notes += [
        f"{folder} has no image, and was not read."
        for folder in listing.folders
        if len(folder.relative_to(root).parts) == layout.class_depth and folder not in used
    ]
    return notes + unread_notes(listing.other_kinds(PHOTO_SUFFIXES), listing.system)


def _spellings(layout: Layout) -> list[str]:
    """Returns a note for each class that has several folders in one split."""
    spelled: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for place in layout.places:
        if place:
            spelled[place.split, canonical(place.label)].add(place.label)
    several = {label: names for (_, label), names in spelled.items() if len(names) > 1}
    return [
        f"Read as one class, {label}: {name_text(sorted(names))}."
        for label, names in several.items()
    ]


def _name_persons(reading: Reading) -> None:
    """Gives a person the spelling of their first folder; with too few of them, photos have no person."""
    spelled: dict[str, str] = {}
    for row in reading.rows:
        if name := row.extra.get(PERSON):
            key = normalize("NFC", name.strip()).casefold()
            row.extra[PERSON] = spelled.setdefault(key, name)
    if len(spelled) >= FEWEST_PERSONS:
        reading.extra = (PERSON,)
        count = f"{len(spelled):,} persons ({name_text(spelled.values())})"
        reading.notes.append(f"Folders below the classes are read as {count}.")
        return
    for row in reading.rows:
        row.extra = {}
    if spelled:
        few = (
            f"fewer than {FEWEST_PERSONS} folders below the classes ({name_text(spelled.values())})"
        )
        reading.notes.append(f"There are {few}: they are not read as persons.")
