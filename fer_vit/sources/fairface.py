"""FairFace: faces in the wild with age group, gender and race, but no expressions.

Karkkainen and Joo, WACV 2021.

As distributed:

    fairface_label_train.csv    file,age,gender,race,service_test
    fairface_label_val.csv      the same
    train/1.jpg
    val/1.jpg

or a part of the data set, with one table `labels.csv` that begins with path,age,gender,race.
"""

from collections import Counter
from pathlib import Path

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.source import not_found
from fer_vit.sources.text_tables import read_text_table

# the annotations: an age group, female or male, one of seven races
ATTRIBUTES = ("age", "gender", "race")
NAME_COLUMNS = {  # the column of file names in each table
    "labels.csv": "path",
    "fairface_label_train.csv": "file",
    "fairface_label_val.csv": "file",
}
FOLDERS: dict[str, Split] = {"train": "train", "val": "val"}


def read(root: Path) -> Reading:
    """Reads FairFace, in the tables' order, with columns for age, gender and race.

    No face has a label; labels or votes for the eight expressions can be added.

    Args:
        root: The folder with the tables and the folders train and val, or the parent folder of
            such a folder with the name `fairface`.
    """
    base = root / "fairface" if (root / "fairface").is_dir() else root
    existing = set()  # each folder is listed once: a check of each file would take minutes
    for folder in FOLDERS:
        existing |= {path.relative_to(base).as_posix() for path in (base / folder).glob("*")}

    rows = []
    dropped = Counter[str]()
    for table, column in NAME_COLUMNS.items():
        for _, cells in read_text_table(base / table, (column, *ATTRIBUTES)):
            name = cells[column]
            if name not in existing:
                dropped["image missing"] += 1
                continue
            split = FOLDERS[name.partition("/")[0]]
            extra = {attribute: cells[attribute] for attribute in ATTRIBUTES}
            rows.append(Row(base / name, name, split, extra=extra))
    if not rows:
        raise not_found(root, "labels.csv or fairface_label_train.csv, and the images in train,")
    return Reading(EXPRESSIONS, rows, dropped, extra=ATTRIBUTES)
