"""The command `faithfulness`: measures the faithfulness of explanation methods."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path

from fer_vit.commands import ModelOptions
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation.explanation_scores import (
    MeasuredBatch,
    faithfulness_json,
    faithfulness_text,
    score_methods,
)
from fer_vit.exporting.calibration import labelled_batches
from fer_vit.face.detectors import DEFAULT_DETECTOR
from fer_vit.face.finder import FaceMode
from fer_vit.faces import Faces
from fer_vit.files import atomic_write, check_output
from fer_vit.options import Count, Number, takes
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer, load_torch
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.tables.labelled import name_units
from fer_vit.texts import json_text

LOGGER = logging.getLogger("fer_vit")

FAITHFULNESS_FILES = ("faithfulness.json", "faithfulness.md")


@dataclass(frozen=True)
class FaithfulnessOptions(ModelOptions):
    """Options of `faithfulness`."""

    images: Sequence[Path]
    """A manifest with the model's labels (its val split), or images, folders and glob patterns."""
    _: KW_ONLY
    output: Path = Path("faithfulness")
    """The folder to write."""
    max_faces: Count = 1000
    """The most faces to use."""
    face: FaceMode = "detect"
    """For photos: "detect" finds every face; "crop" takes each image as one face."""
    detector: str = DEFAULT_DETECTOR
    """For photos: how faces are found, as for `predict`."""
    batch_size: Count = 32
    """Photos per batch."""
    workers: Number | None = None
    """Processes that read photos. Default: one per core."""
    overwrite: bool = False
    """Replace existing results."""


@takes(FaithfulnessOptions)
def faithfulness(options: FaithfulnessOptions) -> None:
    """Measures how faithful the methods of `visualize` are, and attention, against two controls.

    Writes OUTPUT/faithfulness.md and .json: differences from random scores, with 95% intervals over
    persons (column `person` of the manifest) or photos. docs/explanation/faithfulness.md explains
    the measures.

    Examples:
        fer-vit faithfulness photos

        fer-vit faithfulness data/ferplus.parquet --checkpoint best.ckpt --max_faces 500
    """
    check_output(options.output, options.overwrite, FAITHFULNESS_FILES)
    recognizer = load_torch(options.find_network(), name=options.checkpoint)

    faces: Iterator[MeasuredBatch]
    if [path.suffix.lower() for path in options.images] == [".parquet"]:
        faces = manifest_faces(recognizer, options.images[0], options.max_faces)
    else:
        inputs = find_inputs(options.images)
        for note in inputs.notes:
            LOGGER.info(note)
        reading = PhotoOptions(
            face=options.face,
            detector=options.detector,
            batch_size=options.batch_size,
            workers=options.workers,
        )
        faces = limit_faces(recognizer.find(inputs.files, reading), options.max_faces)

    measured = score_methods(recognizer, faces)
    if not measured.methods:
        raise FerVitError(
            "No face was found. Name photos with faces, or add `--face crop` for face crops."
        )
    results = {"model": options.checkpoint or DEFAULT_MODEL} | faithfulness_json(measured)
    text = faithfulness_text(measured)
    with atomic_write(options.output, overwrite=options.overwrite) as folder:
        folder.mkdir()
        (folder / "faithfulness.json").write_text(json_text(results, indent=2) + "\n", "utf-8")
        (folder / "faithfulness.md").write_text(text, encoding="utf-8")
    LOGGER.info(f"{text}\nWritten to {options.output}: {', '.join(FAITHFULNESS_FILES)}")
    heads = recognizer.outputs.by_head
    if heads and not measured.terms:
        LOGGER.info(
            f"The terms of {', '.join(heads)} were not measured: no face has all regions, or the "
            "model has fewer than two."
        )


def manifest_faces(
    model: Recognizer, manifest_path: Path, max_faces: int
) -> Iterator[MeasuredBatch]:
    """Yields batches of labelled faces of the val split, and the person or image of each face."""
    faces, batches, _ = labelled_batches(model, Manifest.read(manifest_path), max_faces=max_faces)
    units = iter(name_units(faces.image_names(), faces.describing_columns().get("person")))
    for batch in batches:
        yield batch, list(islice(units, len(batch)))


def limit_faces(photos: Iterable[Faces], max_faces: int) -> Iterator[MeasuredBatch]:
    """Yields batches up to `max_faces` faces in all, and the photo of each face."""
    for faces in photos:
        paths = (face.path for face in faces)
        for batch in faces.crops.split(FACES_PER_PASS) if faces.crops else ():
            kept = batch[:max_faces]
            yield kept, list(islice(paths, len(kept)))
            max_faces -= len(kept)
            if not max_faces:
                return
