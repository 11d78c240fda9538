"""The command `predict`: photos and videos in, a table out."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import ClassVar

from fer_vit.commands import ModelOptions
from fer_vit.engine.choice import PRECISION_HELP, Precision
from fer_vit.errors import FerVitError
from fer_vit.fields import all_face_fields, describe_fields
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.imports import collector_off
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.options import Count, Share, takes
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.outputs import Outputs, check_outputs, find_copy
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import start_reading
from fer_vit.processes import cores, process_rank
from fer_vit.wording import counted

LOGGER = logging.getLogger("fer_vit")

PART_SIZE = 1000  # images in each table in a folder of tables


@dataclass(frozen=True)
class PredictOptions(ModelOptions, PhotoOptions):
    """Options of `predict`. Those of `PhotoOptions` are how photos and videos are read."""

    TEXTS: ClassVar = PhotoOptions.TEXTS | {
        "OUTPUTS": ", ".join([EXPRESSION, *HEADS]),
        "PRECISION": PRECISION_HELP,
    }

    images: Sequence[Path]
    """Images, videos, folders (searched recursively) and glob patterns."""
    _: KW_ONLY
    output: Path = Path("faces.csv")
    """A .csv, .xlsx, .parquet or .jsonl table; a folder of Parquet tables; or `-` for JSON lines on
    the standard output."""
    part_size: Count = PART_SIZE
    """Images per table in a folder; each video has its own table."""
    min_confidence: Share = 0.0
    """Faces below this probability get no label and count as ambiguous; in videos, smoothed labels,
    too."""
    prior: str | None = None
    """How frequent expressions are in your photos: `even`, or a JSON file. Default: as in the
    training data. Empties prediction_set."""
    classes: Sequence[str] = ()
    """Predict only these expressions."""
    features: bool = False
    """Add the features before the classifier: feature_0, feature_1, ..."""
    outputs: Sequence[str] = ()
    """Columns to write: {OUTPUTS}. Default: all that the model has."""
    precision: Precision = "float32"
    """{PRECISION}"""
    overwrite: bool = False
    """Replace an existing table."""
    strict: bool = False
    """Exit with status 1 if an image can't be read, after writing the table."""
    summary: Path | None = None
    """A second table, with a row for each person in the videos."""
    intervals: Path | None = None
    """A table with a row for each uninterrupted smoothed expression of a person: .csv, .parquet,
    .jsonl, or .TextGrid (one video)."""
    annotate: Path | None = None
    """A copy of one video with its faces marked, *.marked.mp4."""
    threshold: Share | None = None
    """Also write to `--intervals` when a smoothed movement is above this intensity, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and not self.intervals:
            raise FerVitError(
                "`--threshold` adds movements to the table of `--intervals`. Name this table, or "
                "leave the threshold out."
            )


@takes(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Finds and classifies every face in photos and videos, and writes a table.

    The table has a row for each face, and one for each image without a face. If `--output` is a
    folder, several processes can share the work (torchrun, SLURM), and repeating the command
    resumes it.

    Examples:
        fer-vit predict photos

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

        srun fer-vit predict /data/photos --output /data/faces

        fer-vit predict clip.mp4 "videos/*.mov" photos --fps 5 --summary people.csv

        fer-vit predict clip.mp4 --annotate clip.marked.mp4
    """
    rank = process_rank()
    inputs = find_inputs(options.images, MEDIA_SUFFIXES)  # a wrong input is reported first
    reading = options.reading()
    if reading.workers is None:
        reading = replace(reading, workers=max(1, cores() // rank.local_world_size))
    outputs = choose_outputs(options, inputs.files)
    if rank.world_size > 1 and not outputs.in_folder:
        raise FerVitError(
            f"{rank.world_size} processes (WORLD_SIZE, or SLURM's) cannot write one table. Name a "
            "folder, for example `--output faces`, or unset RANK and WORLD_SIZE."
        )

    network = options.find_network()
    batches = None
    if not outputs.in_folder and options.model is None:
        batches = start_reading(options.checkpoint, inputs.files, reading)
    # not at the top: the import of the network's libraries takes two seconds. The workers, which
    # have started, read meanwhile.
    with collector_off():
        from fer_vit.predict.recognizer import load
        from fer_vit.predict.tables import describe_table, predict_table

    recognizer = load(
        network,
        precision=options.precision,
        prior=options.prior,
        classes=options.classes,
        name=options.checkpoint,
    )
    notes = [*inputs.notes, *reading.unused_notes(inputs.files)]
    if options.part_size != PART_SIZE and not outputs.in_folder:
        notes.append("Not used, since `--output` is one table: `--part_size`.")
    if rank.rank == 0:
        for note in notes:
            LOGGER.info(note)
    if outputs.in_folder:
        from fer_vit.predict.table_folder import describe_folder, predict_folder

        part_size = options.part_size
        folder = predict_folder(recognizer, inputs.files, reading, outputs, part_size, rank)
        num_unreadable = folder.num_unreadable
        LOGGER.info(describe_folder(folder, outputs, reading))
    else:
        found = recognizer.recognize(inputs.files, reading, batches)
        counts = predict_table(recognizer, found, inputs.files, reading, outputs)
        num_unreadable = counts.num_unreadable
        LOGGER.info(describe_table(counts, outputs, reading))
    if options.strict and num_unreadable:
        LOGGER.warning(f"`--strict`: {counted(num_unreadable, 'image')} cannot be read.")
        sys.exit(1)


def choose_outputs(options: PredictOptions, sources: Sequence[Path]) -> Outputs:
    """Returns the files to write. Raises FerVitError, before any work, when one cannot be."""
    outputs = Outputs(
        table=options.output,
        people=options.summary,
        intervals=options.intervals,
        min_confidence=options.min_confidence,
        overwrite=options.overwrite,
        features=options.features,
        heads=tuple(options.outputs),
        threshold=options.threshold,
    )
    check_outputs(outputs, options.images, sources)
    if options.annotate is None:
        return outputs
    return outputs._replace(copy=find_copy(options.annotate, outputs, options.images, sources))


def epilog() -> str:
    """Returns the columns of the table for the help. `*` stands for several columns."""
    return f"columns of the table:\n{describe_fields(all_face_fields())}"
