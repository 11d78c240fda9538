"""RAF-DB, basic set: 15,339 aligned faces, 100 x 100, colour (Li and Deng 2019).

As distributed:

    EmoLabel/list_patition_label.txt        lines `train_00001.jpg 5` (the data set's own spelling)
    Image/aligned/train_00001_aligned.jpg
    Annotation/manual/train_00001_manu_attri.txt    five landmarks, then gender, race and age; may
    be absent
"""

import os
from pathlib import Path

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.sources.common import bad_line, hold_out, not_found, read_table

NAMES = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
LABELS = {str(number): name for number, name in enumerate(NAMES, 1)}
ATTRIBUTES = {
    "gender": ("male", "female", "unclear"),
    "race": ("Caucasian", "African-American", "Asian"),
    "age": ("0-3", "4-19", "20-39", "40-69", "70+"),
}
"""Values of the numbers in the last three lines of an annotation, from 0."""
SPLITS: dict[str, Split] = {"train": "train", "test": "test"}


def read(root: Path) -> Reading:
    """Reads RAF-DB's basic set from the folder of EmoLabel and Image, or its parent if it is named
    `basic`.

    RAF-DB has no validation split: a fixed tenth of train is held out as val. With the annotations,
    gender, race and age become columns.
    """
    base = root / "basic" if (root / "basic").is_dir() else root
    table, images = base / "EmoLabel" / "list_patition_label.txt", base / "Image" / "aligned"
    manual = base / "Annotation" / "manual"
    reading = Reading(NAMES, [], extra=tuple(ATTRIBUTES) if manual.is_dir() else ())
    existing = set(os.listdir(images)) if images.is_dir() else set()
    for line, cells in read_table(table, ("name", "label"), header=False, separator=" "):
        stem, label = cells["name"].removesuffix(".jpg"), LABELS.get(cells["label"])
        split, name = SPLITS.get(stem.partition("_")[0]), f"{stem}_aligned.jpg"
        if split is None or label is None:
            raise bad_line(
                table,
                line,
                "`train_00001.jpg 5` or `test_...`, labels 1 to 7",
                " ".join(cells.values()),
            )
        if name in existing:
            extra = _attributes(manual / f"{stem}_manu_attri.txt")
            reading.rows.append(
                Row(images / name, f"Image/aligned/{name}", split, label, extra=extra)
            )
        else:
            reading.dropped["image missing"] += 1
    if not reading.rows:
        raise not_found(
            root, "EmoLabel/list_patition_label.txt and the unpacked images of Image/aligned"
        )
    reading.notes.append("RAF-DB has no validation split.")
    return hold_out(reading)


def _attributes(file: Path) -> dict[str, str]:
    """Returns the attributes in an annotation, empty without one."""
    if not file.is_file():
        return {}
    numbers = file.read_text("utf-8", errors="replace").split()[-len(ATTRIBUTES) :]
    try:
        pairs = zip(ATTRIBUTES.items(), map(int, numbers), strict=True)
        return {name: dict(enumerate(values))[number] for (name, values), number in pairs}
    except (ValueError, KeyError) as error:
        raise bad_line(
            file, 6, f"the numbers of {', '.join(ATTRIBUTES)}", " ".join(numbers)
        ) from error
