"""RAF-DB, basic set: 15,339 aligned faces, 100 x 100, colour (Li and Deng 2019).

As distributed:

    EmoLabel/list_patition_label.txt        lines `train_00001.jpg 5`; the file has this spelling
    Image/aligned/train_00001_aligned.jpg
    Annotation/manual/train_00001_manu_attri.txt    may be absent: five lines of landmarks, then
    gender, race and age, a line each

The landmarks are not read: `prepare` finds them in the aligned faces.
"""

import os
from collections import Counter
from pathlib import Path

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.sources.errors import bad_line, not_found
from fer_vit.sources.splits import hold_out
from fer_vit.sources.text_tables import read_text_table

LABELS = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
LABEL_CODES = {str(number): name for number, name in enumerate(LABELS, 1)}
ATTRIBUTE_VALUES = {  # values of the numbers in the last three lines of an annotation, from 0
    "gender": ("male", "female", "unclear"),
    "race": ("Caucasian", "African-American", "Asian"),
    "age": ("0-3", "4-19", "20-39", "40-69", "70+"),
}
PREFIXES: dict[str, Split] = {"train": "train", "test": "test"}  # of file names


def read(root: Path) -> Reading:
    """Reads RAF-DB's basic set from the folder of EmoLabel and Image, or the parent of `basic`.

    RAF-DB has no validation split: a fixed tenth of train is held out as val. With the annotations,
    gender, race and age become columns.
    """
    base = root / "basic" if (root / "basic").is_dir() else root
    table = base / "EmoLabel" / "list_patition_label.txt"
    images = base / "Image" / "aligned"
    annotations = base / "Annotation" / "manual"

    rows = []
    dropped = Counter[str]()
    existing = set(os.listdir(images)) if images.is_dir() else set()
    for line, cells in read_text_table(table, ("name", "label"), header=False, separator=" "):
        stem = cells["name"].removesuffix(".jpg")
        label = LABEL_CODES.get(cells["label"])
        split = PREFIXES.get(stem.partition("_")[0])
        if split is None or label is None:
            expected = "`train_00001.jpg 5` or `test_...`, labels 1 to 7"
            raise bad_line(table, line, expected, " ".join(cells.values()))

        name = f"{stem}_aligned.jpg"
        if name not in existing:
            dropped["image missing"] += 1
            continue
        extra = _attributes(annotations / f"{stem}_manu_attri.txt")
        rows.append(Row(images / name, f"Image/aligned/{name}", split, label, extra=extra))
    if not rows:
        raise not_found(
            root, "EmoLabel/list_patition_label.txt and the unpacked images of Image/aligned"
        )
    extra_columns = tuple(ATTRIBUTE_VALUES) if annotations.is_dir() else ()
    notes = ["RAF-DB has no validation split."]
    return hold_out(Reading(LABELS, rows, dropped, notes, extra=extra_columns))


def _attributes(file: Path) -> dict[str, str]:
    """Returns the attributes in an annotation, empty without one."""
    if not file.is_file():
        return {}
    lines = []
    for number, text in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1):
        if text.strip():
            lines.append((number, text.strip()))
    if len(lines) < len(ATTRIBUTE_VALUES):
        expected = f"lines with the numbers of {', '.join(ATTRIBUTE_VALUES)}"
        raise bad_line(file, len(lines) + 1, expected, "the end of the file")

    attributes = {}
    for name, (line, text) in zip(ATTRIBUTE_VALUES, lines[-len(ATTRIBUTE_VALUES) :], strict=True):
        values = ATTRIBUTE_VALUES[name]
        codes = {str(number): value for number, value in enumerate(values)}
        if text not in codes:
            expected = f"the number of the {name}, 0 to {len(values) - 1}"
            raise bad_line(file, line, expected, text)
        attributes[name] = codes[text]
    return attributes
