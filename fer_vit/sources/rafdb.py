"""RAF-DB, basic set: 15,339 aligned faces, 100 x 100, colour (Li and Deng 2019).

As distributed:

    EmoLabel/list_patition_label.txt        lines `train_00001.jpg 5`; the file has this spelling
    Image/aligned/train_00001_aligned.jpg
    Annotation/manual/train_00001_manu_attri.txt    may be absent: five lines of landmarks, then
    one line each for gender, race and age

The landmarks are not read: `prepare` finds them in the aligned faces.
"""

import os
from collections import Counter
from pathlib import Path

from fer_vit.data.schema import Reading, Row, Split
from fer_vit.sources.source import bad_line, not_found
from fer_vit.sources.splits import hold_out
from fer_vit.sources.text_tables import MAX_LINE, read_text_table

LABELS = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
LABEL_CODES = {str(number): name for number, name in enumerate(LABELS, 1)}
ATTRIBUTE_VALUES = {  # the values with the codes 0, 1, ... in the last three lines of an annotation
    "gender": ("male", "female", "unclear"),
    "race": ("Caucasian", "African-American", "Asian"),
    "age": ("0-3", "4-19", "20-39", "40-69", "70+"),
}
PREFIXES: dict[str, Split] = {"train": "train", "test": "test"}  # split by prefix of a file name


def read(root: Path) -> Reading:
    """Reads RAF-DB's basic set from the folder of EmoLabel and Image, or the parent of `basic`.

    RAF-DB has no validation split, so a fixed tenth of train is held out as val. If there are
    annotations, gender, race and age become columns.
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
        extra = _read_attributes(annotations / f"{stem}_manu_attri.txt")
        rows.append(Row(images / name, f"Image/aligned/{name}", split, label, extra=extra))
    if not rows:
        raise not_found(
            root, "EmoLabel/list_patition_label.txt and the unpacked images of Image/aligned"
        )
    extra_columns = tuple(ATTRIBUTE_VALUES) if annotations.is_dir() else ()
    notes = ["RAF-DB has no validation split."]
    return hold_out(Reading(LABELS, rows, dropped, notes, extra=extra_columns))


def _read_attributes(file: Path) -> dict[str, str]:
    """Returns the values of gender, race and age in an annotation; {} if there is no file."""
    if not file.is_file():
        return {}
    lines = []  # the number and the text of each line that is not blank
    with file.open(encoding="utf-8", errors="replace") as opened:
        content = opened.read(MAX_LINE)
    for line, text in enumerate(content.splitlines(), 1):
        if text.strip():
            lines.append((line, text.strip()))
    if len(lines) < len(ATTRIBUTE_VALUES):
        expected = f"lines with the numbers of {', '.join(ATTRIBUTE_VALUES)}"
        raise bad_line(file, len(lines) + 1, expected, "the end of the file")

    attributes = {}
    for name, (line, code) in zip(ATTRIBUTE_VALUES, lines[-len(ATTRIBUTE_VALUES) :], strict=True):
        values = ATTRIBUTE_VALUES[name]
        by_code = {str(index): value for index, value in enumerate(values)}
        if code not in by_code:
            expected = f"the number of the {name}, 0 to {len(values) - 1}"
            raise bad_line(file, line, expected, code)
        attributes[name] = by_code[code]
    return attributes
