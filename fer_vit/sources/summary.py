"""The summary that `prepare` prints."""

from collections import Counter
from itertools import product
from pathlib import Path

from fer_vit.data.schema import SPLITS, Reading


def summary(reading: Reading, out: Path) -> str:
    """Returns lines of text: images by split and class, faces found, what was left out, size of the files."""
    rows, files = len(reading.rows), list(out.iterdir()) if out.is_dir() else [out]
    found = sum(row.landmarks is not None and row.score != 0 for row in reading.rows)
    whole = sum(row.score == 0 for row in reading.rows)
    lines = [
        *_counts(reading),
        f"faces found: {found:,} of {rows:,} ({found / max(rows, 1):.2%})"
        + (f"; taken whole as a face: {whole:,}" if whole else ""),
        *(f"left out: {number:,} ({reason})" for reason, number in reading.dropped.most_common()),
        *(f"note: {note}" for note in reading.notes),
        f"{out}: {rows:,} rows, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB",
    ]
    return "\n".join(lines)


def _counts(reading: Reading) -> list[str]:
    """Returns a table of the images by label and split, with totals, as aligned lines."""
    total = ""  # no label is empty
    counts = Counter(cell for row in reading.rows for cell in product((row.label, total), (row.split, total)))
    columns = {split: split for split in SPLITS if counts[total, split]} | {total: "total"}
    names = {name: name for name in reading.names} | ({None: "(no label)"} if counts[None, total] else {})
    width = max(map(len, [*names.values(), "total"]))
    lines = [" " * width + "".join(f"{name:>10}" for name in columns.values())]
    for label, name in {**names, total: "total"}.items():
        lines.append(f"{name:<{width}}" + "".join(f"{counts[label, column]:>10,}" for column in columns))
    return lines
