"""Compares what `predict` writes with two versions of OpenCV, in one run.

python -m pip install --target cv5 --no-deps "opencv-python-headless==5.0.*"
python -m benchmarks.opencv_versions --data DATA --opencv cv5

`--data` is the folder of `benchmarks.finder`: photos are composed of its pictures, as JPEG and PNG,
and its clips are read unaltered. `--opencv` is a folder with another OpenCV.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from benchmarks.finder import CLIPS, Archive, group, portrait
from benchmarks.machine import machine, run_main
from fer_vit.face.image import encode_jpeg, encode_png
from fer_vit.geometry import Array

Row: TypeAlias = Mapping[str, str]
ENCODERS = {".jpg": encode_jpeg, ".png": encode_png}
VERSION = "import cv2; print(cv2.__version__)"


def write_photos(data: Path, folder: Path, count: int) -> None:
    """Writes composed portraits and groups, each as JPEG and as PNG."""
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    backgrounds = Archive(data / "backgrounds.zip")
    for number in range(count):
        rng = np.random.default_rng([3, number])
        shown = {
            "portrait": portrait(rng, heads, clothes, True, (640, 1350, 3000)[number % 3]),
            "group": group(rng, heads, backgrounds, True),
        }
        for kind, picture in shown.items():
            for suffix, encode in ENCODERS.items():
                (folder / f"{kind}{number}{suffix}").write_bytes(encode(picture.image))


def environment(opencv: Path | None) -> dict[str, str]:
    """Returns the variables of a process that imports the OpenCV of a folder,
    or the installed one.
    """
    if opencv is None:
        return {**os.environ}
    paths = [str(opencv.resolve()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def predict(inputs: list[str], table: Path, opencv: Path | None) -> tuple[str, list[Row]]:
    """Runs `predict`; returns the version of OpenCV and the rows."""
    variables = environment(opencv)
    command = [sys.executable, "-m", "fer_vit", "predict", *inputs, "--output", str(table)]
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    version = subprocess.run(
        [sys.executable, "-c", VERSION], env=variables, check=True, capture_output=True, text=True
    )
    with table.open(encoding="utf-8", newline="") as file:
        return version.stdout.strip(), list(csv.DictReader(file))


def find_pairs(before: list[Row], after: list[Row]) -> list[tuple[Row, Row]]:
    """Returns the rows of the same face of a photo or frame:
    their boxes differ by less than a fifth of the width.
    """
    corners = ["box_left", "box_top", "box_right", "box_bottom"]
    unmatched = list(after)
    pairs = []
    for row in before:
        width = float(row["box_right"]) - float(row["box_left"])
        for candidate in unmatched:
            same_picture = (row["path"], row["frame"]) == (candidate["path"], candidate["frame"])
            if same_picture and differences([(row, candidate)], corners).max() < width / 5:
                pairs.append((row, candidate))
                unmatched.remove(candidate)
                break
    return pairs


def differences(pairs: list[tuple[Row, Row]], columns: list[str]) -> Array:
    """Returns the differences (N, C) of N pairs in C columns."""
    values = [[[float(row[name]) for name in columns] for row in pair] for pair in pairs]
    before, after = np.array(values).swapaxes(0, 1)
    return np.abs(before - after)


def summary(values: Array, digits: int) -> str:
    """Formats mean and maximum."""
    return f"{values.mean():.{digits}f} ({values.max():.{digits}f})"


def compare(before: list[Row], after: list[Row]) -> str:
    """Returns a table of differences between the rows of two versions, as Markdown."""
    lines = ["| | faces | same | other label | box, px | landmarks, px | score | probability |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    kinds = {
        "photos, PNG": lambda row: row["path"].endswith(".png"),
        "photos, JPEG": lambda row: row["path"].endswith(".jpg"),
        "clips": lambda row: row["frame"] != "",
    }
    for name, belongs in kinds.items():
        rows = [row for row in before if row["face"] and belongs(row)]
        rows_after = [row for row in after if row["face"] and belongs(row)]
        pairs = find_pairs(rows, rows_after)
        labels = sum(first["label"] != second["label"] for first, second in pairs)
        boxes = [column for column in rows[0] if column.startswith("box_")]
        points = [column for column in rows[0] if column.endswith(("_x", "_y"))]
        chances = [column for column in rows[0] if column.startswith("p_")]
        cells = [
            f"{len(rows)} and {len(rows_after)}",
            f"{len(pairs)}",
            f"{labels}",
            summary(differences(pairs, boxes), 2),
            summary(differences(pairs, points), 2),
            summary(differences(pairs, ["score"]), 4),
            summary(differences(pairs, chances), 4),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(*, data: Path, opencv: Path, count: int = 30) -> None:
    """Prints the versions and the table."""
    print(machine())
    with TemporaryDirectory() as name:
        folder = Path(name)
        photos = folder / "photos"
        photos.mkdir()
        write_photos(data, photos, count)
        inputs = [str(photos), *(str(data / "clips" / clip) for clip in CLIPS)]
        first, before = predict(inputs, folder / "before.csv", None)
        second, after = predict(inputs, folder / "after.csv", opencv)
    print(f"OpenCV {first} and {second}")
    print(compare(before, after))


if __name__ == "__main__":
    run_main(main)
