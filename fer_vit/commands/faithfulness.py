"""The verb `faithfulness`: how far the explanations of `visualize` can be trusted, method by method."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, get_args

import torch
from torch import Tensor

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluate.labelled import labelled_batches
from fer_vit.explain.faithfulness import BETTER, randomised
from fer_vit.explain.faithfulness import faithfulness as measure
from fer_vit.explain.methods import Method
from fer_vit.intervals import Interval, mean_intervals
from fer_vit.predict.inputs import find_images
from fer_vit.predict.photos import DetectorName, FaceMode, PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.report.faithfulness import draw, markdown
from fer_vit.store.hub import DEFAULT

Table: TypeAlias = dict[str, dict[str, Interval]]
Values: TypeAlias = dict[str, dict[str, list[Tensor]]]
CONTROLS = ("random", "centre")
FILES = ("faithfulness.json", "faithfulness.md", "faithfulness.png")
SHUFFLED = 200
"""After so many faces no more are asked about with shuffled weights, which takes a model for every block."""


def faithfulness(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("faithfulness"),
    max_faces: int = 1000,
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Scores every method of `visualize` on faces, beside two controls that know nothing of the model.

    Writes OUTPUT/faithfulness.md, .json and .png: does the prediction fall when what a method names first is taken
    away, and come back when it is given first (tokens, and pixels); do the regions' shares agree with what masking each
    of them does; do groups of tokens matter as much as they are said to; and does the explanation change when the
    model's weights are shuffled (the first 200 faces or so). Means over the faces with 95 % bootstrap intervals. What
    is explained is what the model predicted, right or wrong.

    Examples:
        fer-vit faithfulness photos

        fer-vit faithfulness data/ferplus.parquet --checkpoint best.ckpt --max-faces 500

    Args:
        images: One manifest with the model's labels, whose val split is taken, or image files, folders and glob
            patterns, for which no labels are needed.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name out of `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The folder to write.
        max_faces: The most faces that are looked at.
        face: Of photos: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Of photos: finds faces or, in crops, landmarks. With "none" crops are framed like the model's own.
        batch_size: Photos per batch.
        workers: Processes that read photos; all cores when left out.
        overwrite: Whether existing results may be replaced.

    Raises:
        FerVitError: The checkpoint or the images are not there, or the folder cannot be written.
    """
    check_number("max_faces", max_faces, 1)
    if any((output / name).exists() for name in FILES) and not overwrite:
        raise FerVitError(f"{output} holds results already. Choose another folder or add `--overwrite`.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FerVitError(f"Cannot write to {output}: {error.strerror}. Choose a folder you may write.") from error
    model = load(checkpoint)
    if [path.suffix for path in images] == [".parquet"]:
        batches, _ = labelled_batches(model, images[0], max_faces=max_faces)
    else:
        found = model.batches(find_images(images), PhotoOptions(face, detector, batch_size, workers))
        batches = first((part for _, parts in found for part in parts), max_faces)
    table, shuffled = scored(model, batches)
    if not table["random"]["deletion"]["faces"]:
        raise FerVitError("No face was found. Name photos with faces, or add `--face crop` for face crops.")
    write(output, table, shuffled, checkpoint or DEFAULT)
    print(markdown(table, BETTER))
    print(f"Written to {output}: faithfulness.md, faithfulness.json, faithfulness.png")


def first(batches: Iterator[Batch], max_faces: int) -> Iterator[Batch]:
    """Yields batches until there are `max_faces` faces."""
    for batch in batches:
        yield next(batch.split(max_faces))
        max_faces -= len(batch.path)
        if max_faces <= 0:
            return


def scored(model: Recognizer, batches: Iterator[Batch]) -> tuple[Table, Table]:
    """Measures all methods on all faces.

    Returns:
        Interval by method and measure; and the rank correlation with the explanation of the whole model, by method and
        what was shuffled last, over the first faces.
    """
    methods = get_args(Method)
    values: Values = {method: {name: [] for name in BETTER} for method in methods}
    shuffled: Values = {method: {} for method in methods if method not in CONTROLS}
    seen = 0
    for part in batches:
        face = (model.net, part.image, part.boxes, part.valid)
        for method, measures in measure(*face, methods).items():
            for name, rows in measures.items():
                values[method][name].append(rows)
            if method in shuffled and seen < SHUFFLED:
                for name, rows in randomised(*face, method):
                    shuffled[method].setdefault(name, []).append(rows)
        seen += len(part.path)
    return summary(values), summary(shuffled)


def summary(values: Values) -> Table:
    """Turns the values of batches of faces, by method and measure, into figures."""

    def over_faces(rows: list[Tensor]) -> Interval:
        return mean_intervals(torch.cat([torch.empty(0), *(row.double().cpu() for row in rows)]).numpy()[:, None])[0]

    return {method: {name: over_faces(rows) for name, rows in found.items()} for method, found in values.items()}


def write(output: Path, table: Table, shuffled: Table, model: str) -> None:
    """Writes what was found to a folder."""
    facts, text, picture = (output / name for name in FILES)
    facts.write_text(json.dumps({"model": model, "methods": table, "shuffled": shuffled}, indent=2) + "\n")
    text.write_text(markdown(table, BETTER), encoding="utf-8")
    draw(table, BETTER, shuffled, CONTROLS).savefig(picture, dpi=120)
