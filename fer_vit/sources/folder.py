"""Any data set in folders named after its classes.

With splits or without:

    train/happy/*.jpg, val/happy/*.jpg, test/happy/*.jpg   also `valid`, `training`, ...
    happy/*.jpg                                            without splits
    happy/anna/*.jpg                                       a folder for each person, with splits or without

A folder named `test` or `val` is a class if there are other folders but no train.
"""

from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.errors import FerVitError
from fer_vit.files import as_text
from fer_vit.labels import EXPRESSIONS, canonical
from fer_vit.listing import PHOTO_SUFFIXES, list_folder
from fer_vit.sources.common import PERSON, hold_out, missing_splits, not_found

SPLIT_FOLDERS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
FEWEST_PERSONS = 3  # one for each split; fewer folders may have another meaning


def read(root: Path) -> Reading:
    """Reads images from class folders, sorted by path; labels are in FERPlus' order, then others alphabetically.

    Hidden files are skipped. Images may be at any depth below a class folder; a folder directly in it names a person.
    Without val, a fixed tenth of train (of its persons, if known) becomes val; without any splits, another tenth
    becomes test.
    """
    folders = _folders(root)
    splits = {
        folder: SPLIT_FOLDERS[folder.name.lower()]
        for folder in folders
        if folder.name.lower() in SPLIT_FOLDERS
    }
    if "train" not in splits.values() and len(splits) < len(folders):
        splits = {}
    reading = _read_splits(root, splits or {root: "train"})
    if not splits:
        if len(reading.names) < 2:
            came = f"only {set(reading.names)}. Name another."
            raise FerVitError(f"Expected folders of two classes or more in {root}, but got {came}")
        reading.notes.append(f"No split folders in {root}.")
        return hold_out(reading, ("val", "test"))
    reading.notes += [
        f"{folder} is not a split and was not read." for folder in folders if folder not in splits
    ]
    reading.notes += missing_splits(reading.rows, root)
    return reading if any(row.split == "val" for row in reading.rows) else hold_out(reading)


def _read_splits(root: Path, splits: dict[Path, Split]) -> Reading:
    """Reads the class folders of each split folder, and sorts rows and labels."""
    reading = Reading((), [])
    for folder, split in splits.items():
        _read_split(root, folder, split, reading)
    if not reading.rows:
        raise not_found(
            root, "images in class folders, for example train/happy/1.jpg or happy/1.jpg,"
        )
    reading.rows.sort(key=lambda row: row.name)
    labels = {str(row.label) for row in reading.rows}
    reading.names = tuple(
        name for name in (*EXPRESSIONS, *sorted(labels - {*EXPRESSIONS})) if name in labels
    )
    spelled: dict[str, str] = {}  # as in a person's first folder
    for row in reading.rows:
        if name := row.extra.get(PERSON):
            row.extra[PERSON] = spelled.setdefault(
                normalize("NFC", str(name).strip()).casefold(), str(name)
            )
    if len(spelled) < FEWEST_PERSONS:
        reading.rows = [replace(row, extra={}) for row in reading.rows]
    else:
        reading.extra = (PERSON,)
    return reading


def _folders(folder: Path) -> list[Path]:
    """Lists the folders in a folder that are not hidden, sorted; empty if the folder is missing."""
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _read_split(root: Path, split_folder: Path, split: Split, reading: Reading) -> None:
    """Adds the images of a split's class folders to a reading, unsorted."""
    for class_folder in _folders(split_folder):
        label, before = canonical(class_folder.name), len(reading.rows)
        for path in list_folder(class_folder).files:
            if path.suffix.lower() in PHOTO_SUFFIXES:
                name, person = (
                    path.relative_to(root).as_posix(),
                    path.relative_to(class_folder).parts[:-1],
                )
                extra = {PERSON: as_text(person[0])} if person else {}
                reading.rows.append(Row(path, name, split, label, extra=extra))
            else:
                reading.dropped["not an image by its suffix"] += 1
        if len(reading.rows) == before:
            reading.notes.append(f"{class_folder} has no image, and was not read.")
