"""Adds MediaPipe's facial movements and head rotation to a manifest of FairFace, and measures a
model against them.

python -m benchmarks.movements targets ff.parquet movements.npz heads.parquet --add ferplus.parquet
python -m benchmarks.movements measure ff.parquet movements.npz MODEL

`movements.npz` has `path` (N,), `names` (52,), `blendshapes` (N, 52) in [0, 1] and `pose` (N, 3),
yaw, pitch and roll in degrees; NaN where MediaPipe found no face. It was made by MediaPipe Face
Landmarker float16/1 (Apache-2.0) from the pictures at 224 pixels. Outputs with a standard deviation
below 0.01 are left out. Images are joined by their file names. Faces without landmarks and 2,000
held-out faces are left out of `targets`; `measure` reads the held-out ones alone. `--add` appends
another manifest of the same labels, whose faces have no targets.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.machine import machine, run_main
from fer_vit.data.dataset import FaceDataset, face_crops
from fer_vit.data.manifest import Manifest
from fer_vit.geometry import LANDMARKS, Array
from fer_vit.heads import HeadOutputs, Output
from fer_vit.predict.recognizer import load
from fer_vit.report.table import markdown
from fer_vit.texts import json_text

HELD_OUT = 2000  # faces, chosen by a permutation of the sorted file names with seed 0
CONSTANT = 0.01  # outputs with a smaller standard deviation are left out
BATCH = 64


GROUPED = {
    "smile": ["mouthSmileLeft", "mouthSmileRight"],
    "brows up": ["browInnerUp"],
    "brows down": ["browDownLeft", "browDownRight"],
}
"""Movements whose results are given for each group; the values of both sides are averaged."""
GROUPS = ("gender", "race", "age")


class Targets(NamedTuple):
    """Targets of the faces of a manifest (M,), NaN where unknown."""

    names: list[str]  # of K movements
    movements: Array  # (M, K)
    pose: Array  # (M, 3): yaw, pitch and roll in degrees
    held_out: np.ndarray  # (M,), bool


def read_targets(faces: Manifest, file: Path) -> Targets:
    """Reads the targets of a manifest's faces by their file names."""
    table = np.load(file)
    files = [os.path.basename(path) for path in table["path"].tolist()]
    row_of = {name: row for row, name in enumerate(files)}
    rows = [row_of[os.path.basename(name)] for name in faces.image_names()]

    blendshapes = table["blendshapes"].astype(float)
    varied = np.nanstd(blendshapes, axis=0) >= CONSTANT
    names = [str(name) for name in table["names"][varied]]

    order = np.random.default_rng(0).permutation(len(files))
    ordered = sorted(files)
    held_out = {ordered[index] for index in order[-HELD_OUT:]}
    held = np.array([files[row] in held_out for row in rows])
    return Targets(names, blendshapes[rows][:, varied], table["pose"][rows].astype(float), held)


def write_targets(faces: Manifest, targets: Targets, output: Path, added: Manifest | None) -> None:
    """Writes the manifest with the targets, without the held-out faces
    and those without landmarks.
    """
    outputs = {"movements": targets.names, "pose": ["yaw", "pitch", "roll"]}
    table = faces.table
    for head, values in (("movements", targets.movements.clip(0, 1)), ("pose", targets.pose)):
        for name, column in zip(outputs[head], values.T, strict=True):
            cells = pa.array(column, pa.float32(), from_pandas=True)  # NaN becomes null
            table = table.append_column(Output(head, name).column, cells)
    meta = {"labels": faces.labels, "landmarks": LANDMARKS, "outputs": outputs}
    table = table.replace_schema_metadata({"fer_vit": json_text(meta)})
    has_landmarks = np.isfinite(faces.landmarks()).all((1, 2))
    has_score = np.array(faces.column("score"), float) != 0
    chosen = has_landmarks & has_score & ~targets.held_out  # (M,)
    learned_outputs = HeadOutputs.of_names(outputs, output)
    learned = replace(faces, table=table, outputs=learned_outputs).select(chosen)
    if added:
        added.check_labels(learned.labels)
        joined = pa.concat_tables([learned.table, added.table], promote_options="default")
        learned = replace(learned, table=joined)
    learned.write(output)
    print(f"{output}: {len(learned):,} rows, {chosen.sum():,} with targets")


def measure(faces: Manifest, targets: Targets, model: str) -> str:
    """Returns tables of a model's movements and pose against MediaPipe's, on the held-out faces."""
    recognizer = load(model, "cpu")
    held = faces.select(targets.held_out)
    data = FaceDataset(held, recognizer.crop_spec)
    values: dict[str, list[Array]] = {"movements": [], "pose": []}
    for batch in face_crops(data, range(len(data)), BATCH):
        read = recognizer.outputs.by_column(recognizer.read(batch).outputs.T)
        for head, parts in values.items():
            columns = recognizer.outputs.of_head(head).columns
            parts.append(np.column_stack([read[column] for column in columns]))
    preds = {head: np.concatenate(parts) for head, parts in values.items()}

    known = np.isfinite(targets.pose[targets.held_out]).all(1)
    learned = recognizer.outputs.of_head("movements").names
    columns = [targets.names.index(name) for name in learned]
    movements = targets.movements[targets.held_out][known][:, columns]
    rows = []
    for index, name in enumerate(learned):
        x = preds["movements"][known, index]
        y = movements[:, index]
        rows.append([name, f"{np.corrcoef(x, y)[0, 1]:.3f}", f"{np.abs(x - y).mean():.3f}"])
    rows.sort(key=lambda row: row[1], reverse=True)

    angles = []
    for index, name in enumerate(("yaw", "pitch", "roll")):
        error = preds["pose"][known, index] - targets.pose[targets.held_out][known, index]
        offset = float(np.median(error))
        r = np.corrcoef(preds["pose"][known, index], targets.pose[targets.held_out][known, index])
        spread = np.abs(error - offset).mean()
        angles.append([name, f"{r[0, 1]:.3f}", f"{spread:.2f}", f"{offset:.2f}"])
    groups = measure_groups(held.select(known), learned, preds["movements"][known], movements)
    heading = ["group", "faces"]
    for name in GROUPED:
        heading.extend([f"{name}: r", f"{name}: bias"])
    return "\n\n".join(
        [
            f"{known.sum():,} held-out faces, {machine()}",
            markdown([["movement", "r", "mean absolute error"], *rows]),
            markdown([["angle", "r", "MAE after the median", "median error"], *angles]),
            markdown([heading, *groups]),
        ]
    )


def measure_groups(
    faces: Manifest, names: list[str], preds: Array, targets: Array
) -> list[list[str]]:
    """Returns rows of a table by group of faces: the group, its size, and r and bias of movements.

    `preds` and `targets` (M, K) are of the movements `names` of M faces. The bias is the mean of
    prediction minus target, so a group whose smiles are underestimated has a negative one.
    """
    rows = []
    for column in GROUPS:
        values = np.array(faces.column(column))
        for value in sorted(set(values)):
            members = values == value
            row = [f"{column}: {value}", f"{members.sum():,}"]
            for movements in GROUPED.values():
                indices = [names.index(name) for name in movements]
                x = preds[members][:, indices].mean(1)
                y = targets[members][:, indices].mean(1)
                row.append(f"{np.corrcoef(x, y)[0, 1]:.3f}")
                row.append(f"{(x - y).mean():+.3f}")
            rows.append(row)
    return rows


def main(
    action: Literal["targets", "measure"],
    manifest: Path,
    movements: Path,
    out: str,
    add: Path | None = None,
) -> None:
    """Writes a manifest with targets, or prints the figures of a model.

    Args:
        action: `targets` writes a manifest; `measure` prints the figures of a model.
        manifest: FairFace, as `fer-vit prepare fairface` writes it.
        movements: The targets by MediaPipe.
        out: The manifest to write, or the model.
        add: A manifest whose faces are appended to the written one.
    """
    faces = Manifest.read(manifest)
    targets = read_targets(faces, movements)
    if action == "targets":
        added = Manifest.read(add) if add else None
        write_targets(faces, targets, Path(out), added)
    else:
        print(measure(faces, targets, out))


if __name__ == "__main__":
    run_main(main)
