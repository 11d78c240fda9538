"""The command `faithfulness`: measures the faithfulness of explanation methods."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from fer_vit.commands import find_network
from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluation.logits import labelled_batches
from fer_vit.evaluation.scores import mean_intervals
from fer_vit.explain.faithfulness import BETTER, measure, randomised
from fer_vit.explain.methods import MEASURED, METHODS
from fer_vit.face.detectors import DetectorName
from fer_vit.face.finder import FaceMode
from fer_vit.files import atomic_write, check_output, json_text
from fer_vit.predict.photos import PhotoOptions, find_inputs
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.report.table import Interval, faithfulness_table
from fer_vit.store.hub import DEFAULT

LOGGER = logging.getLogger("fer_vit")
Table: TypeAlias = dict[str, dict[str, Interval]]
Values: TypeAlias = Mapping[str, Mapping[str, Tensor]]
FILES = ("faithfulness.json", "faithfulness.md")
SHUFFLED = 200
"""About the most faces explained with shuffled weights, which takes a model for every block."""


def faithfulness(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    model: str | None = None,
    output: Path = Path("faithfulness"),
    max_faces: int = 1000,
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Measures the faithfulness of the methods of `visualize`, of attention, and of two controls.

    The controls do not use the model. Writes OUTPUT/faithfulness.md and .json. Deletion and
    insertion: the mean probability while the tokens or pixels with the highest scores are removed,
    or added. Region agreement: the rank correlation of the attributions of regions with the effect
    of masking each region. SaCo: whether groups of tokens with higher scores change the probability
    more. Shuffled weights: the rank correlation with explanations of a model with shuffled weights
    (about 200 faces). The table has means of the differences from random scores, with 95 %
    bootstrap intervals. The predicted expression is explained, whether it is correct or not.

    Examples:
        fer-vit faithfulness photos

        fer-vit faithfulness data/ferplus.parquet --checkpoint best.ckpt --max_faces 500

    Args:
        images: A manifest with the model's labels (its val split is used), or image files, folders
            and glob patterns without labels.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from
            `fer-vit models` or "user/name" on the Hugging Face hub. Default:
            ferplus-fairface.
        model: For a checkpoint of your own class (`fer-vit fit --model my_module.MyTask`): the
            class.
        output: The folder to write.
        max_faces: Largest number of faces to use.
        face: For photos: "detect" finds every face; "crop" takes each image as the crop of one
            face.
        detector: For photos, as for `predict`.
        batch_size: Photos per batch.
        workers: Processes that read photos. Default: one per core.
        overwrite: Whether existing results may be replaced.
    """
    check_number("max_faces", max_faces, 1)
    check_output(output, overwrite, FILES)
    recognizer = load(find_network(checkpoint, model), name=checkpoint)

    if [path.suffix.lower() for path in images] == [".parquet"]:
        batches, _ = labelled_batches(recognizer, images[0], max_faces=max_faces)
    else:
        inputs = find_inputs(images)
        for note in inputs.notes:
            LOGGER.info(note)
        photos = recognizer.find(inputs.files, PhotoOptions(face, detector, batch_size, workers))
        chunks = chain.from_iterable(faces for _, faces in photos)
        batches = limit_faces(chunks, max_faces)

    table, differences, shuffled = score_methods(recognizer, batches)
    if not table:
        raise FerVitError(
            "No face was found. Name photos with faces, or add `--face crop` for face crops."
        )
    results = {
        "model": checkpoint or DEFAULT,
        "methods": table,
        "differences": differences,
        "shuffled": shuffled,
    }
    text = faithfulness_table(table, differences, BETTER)
    with atomic_write(output) as folder:
        folder.mkdir()
        (folder / "faithfulness.json").write_text(json_text(results, indent=2) + "\n", "utf-8")
        (folder / "faithfulness.md").write_text(text, encoding="utf-8")
    LOGGER.info(f"{text}\nWritten to {output}: {', '.join(FILES)}")
    heads = recognizer.net.settings.outputs
    if heads:
        LOGGER.info(f"Measured for the expression, not for {', '.join(heads)}.")


def limit_faces(batches: Iterable[Batch], max_faces: int) -> Iterator[Batch]:
    """Yields batches up to `max_faces` faces in all."""
    for batch in batches:
        yield next(batch.split(max_faces))
        max_faces -= len(batch.path)
        if max_faces <= 0:
            return


def score_methods(model: Recognizer, batches: Iterable[Batch]) -> tuple[Table, Table, Table]:
    """Returns the intervals of methods, of their differences from `random`, of shuffled weights.

    Each is by method and measure, and empty without a face.
    """
    measured: list[Values] = []
    shuffled: list[Values] = []
    faces = 0
    for batch in batches:
        net, image, boxes, valid = model.net, batch.image, batch.boxes, batch.valid
        measured.append(measure(net, image, boxes, valid, [*MEASURED]))
        if faces < SHUFFLED:
            agreement = {}
            for method in METHODS:
                agreement[method] = dict(randomised(net, image, boxes, valid, method))
            shuffled.append(agreement)
        faces += len(batch.path)

    differences = [subtract_random(batch) for batch in measured]
    return summarize(measured), summarize(differences), summarize(shuffled)


def subtract_random(measured: Values) -> Values:
    """Subtracts the control `random` from each measure of each face."""
    control = measured["random"]
    differences: dict[str, dict[str, Tensor]] = {}
    for method, measures in measured.items():
        if method != "random":
            differences[method] = {name: measures[name] - control[name] for name in control}
    return differences


def summarize(batches: list[Values]) -> Table:
    """Returns the mean over the faces of all batches with its interval, by method and measure."""
    table: Table = {}
    if not batches:
        return table
    for method, measures in batches[0].items():
        table[method] = {}
        for name in measures:
            values = torch.cat([batch[method][name].double().cpu() for batch in batches])  # (N,)
            table[method][name] = mean_intervals(values.numpy()[:, None])[0]
    return table
