"""The command `predict`: photos and videos in, a table out."""

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fer_vit.commands import find_network
from fer_vit.engine.choice import PRECISION_HELP, Precision
from fer_vit.errors import FerVitError, check_number, check_whole
from fer_vit.fields import all_face_fields, describe_fields
from fer_vit.heads import EXPRESSION, HEADS
from fer_vit.imports import collector_off
from fer_vit.listing import MEDIA_SUFFIXES
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.outputs import Outputs, check_outputs, find_copy
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import start_reading
from fer_vit.processes import cores, process_rank
from fer_vit.wording import counted, fill_docstring

LOGGER = logging.getLogger("fer_vit")

PART_SIZE = 1000  # images in each table in a folder of tables


@fill_docstring(OUTPUTS=", ".join([EXPRESSION, *HEADS]), PRECISION=PRECISION_HELP)
def predict(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    model: str | None = None,
    output: Path = Path("faces.csv"),
    part_size: int = PART_SIZE,
    min_confidence: float = 0.0,
    prior: str | None = None,
    classes: Sequence[str] = (),
    features: bool = False,
    outputs: Sequence[str] = (),
    precision: Precision = "float32",
    overwrite: bool = False,
    strict: bool = False,
    summary: Path | None = None,
    intervals: Path | None = None,
    annotate: Path | None = None,
    threshold: float | None = None,
    **reading: Any,
) -> None:
    """Finds and classifies every face in photos and videos.

    The table has a row for each face, and one for each image without a face.

    If `--output` is a folder, several processes can share the work (torchrun, SLURM), and you can
    repeat the command to resume an interrupted run. The last process checks that the tables contain
    every image once.

    Examples:
        fer-vit predict photos

        fer-vit predict crops --face crop --checkpoint best.ckpt --output faces.jsonl

        srun fer-vit predict /data/photos --output /data/faces

        fer-vit predict clip.mp4 "videos/*.mov" photos --fps 5 --summary people.csv

        fer-vit predict clip.mp4 --annotate clip.marked.mp4

    Args:
        images: Images, videos, folders (searched recursively) and glob patterns.
        checkpoint: A name from `fer-vit models` (default: the marked one), "user/name" on the
            Hugging Face hub, a folder of `fer-vit export` or a checkpoint of `fer-vit fit`.
        model: Your class that trained the checkpoint, such as my_module.MyTask.
        output: A .csv, .xlsx, .parquet or .jsonl table; a folder of Parquet tables; or `-` for JSON
            lines on the standard output.
        part_size: Images per table in a folder; each video has its own table.
        min_confidence: Faces below this probability get no label and count as ambiguous. In videos,
            this applies to the smoothed label and the intervals, too.
        prior: The frequency of each expression in your photos: `even`, or a JSON file. Default: as
            in the training data. With a prior, prediction_set is empty.
        classes: The only possible expressions; others get a probability of 0.
        features: Add the features before the classifier: feature_0, feature_1, ...
        outputs: Which columns to write: {OUTPUTS}. Default: all that the model has.
        precision: {PRECISION}
        overwrite: Replace an existing table.
        strict: Exit with status 1 if an image can't be read. The table is written as usual.
        summary: A second table with a row for each person in the videos: times, shares of
            expressions, means of movements and angles.
        intervals: A table with a row for each uninterrupted smoothed expression of a person: .csv,
            .parquet, .jsonl, or .TextGrid (one video).
        annotate: A copy of one video with a box, track, label and probability for each face. Its
            name ends in .marked.mp4.
        threshold: Also write the intervals in which a smoothed movement is above this intensity,
            from 0 to 1.
        reading: How photos and videos are read; see `PhotoOptions`.
    """
    rank = process_rank()
    check_whole("part_size", part_size, 1)
    check_number("min_confidence", min_confidence, 0, 1)
    check_number("threshold", threshold or 0, 0, 1)
    if threshold is not None and not intervals:
        raise FerVitError(
            "`--threshold` adds movements to the table of `--intervals`. Name this table, or leave "
            "the threshold out."
        )
    inputs = find_inputs(images, MEDIA_SUFFIXES)  # a wrong input is reported first
    sources = inputs.files
    options = PhotoOptions(**reading)
    if options.workers is None:
        options = replace(options, workers=max(1, cores() // rank.local_world_size))

    wanted = Outputs(
        table=output,
        people=summary,
        intervals=intervals,
        min_confidence=min_confidence,
        overwrite=overwrite,
        features=features,
        heads=tuple(outputs),
        threshold=threshold,
    )
    check_outputs(wanted, images, sources)
    if annotate is not None:
        wanted = wanted._replace(copy=find_copy(annotate, wanted, images, sources))
    if rank.world_size > 1 and not wanted.in_folder:
        remedy = "Name a folder, for example `--output faces`, or unset RANK and WORLD_SIZE."
        raise FerVitError(
            f"{rank.world_size} processes (WORLD_SIZE, or SLURM's) cannot write one table. {remedy}"
        )

    network = find_network(checkpoint, model)  # a name, or the network of a user's class
    started = None
    if not wanted.in_folder:
        started = start_reading(checkpoint, sources, options)
    # not at the top: the import of the network's libraries takes two seconds. The workers, which
    # have started, read meanwhile.
    with collector_off():
        from fer_vit.predict.recognizer import load
        from fer_vit.predict.tables import predict_folder, predict_table

    recognizer = load(network, precision=precision, prior=prior, classes=classes, name=checkpoint)

    if rank.rank == 0:
        for note in [
            *inputs.notes,
            *options.unused_notes(sources),
            *unused_size(part_size, wanted),
        ]:
            LOGGER.info(note)
    if wanted.in_folder:
        run = predict_folder(recognizer, sources, options, wanted, part_size, rank)
    else:
        photos = recognizer.recognize(sources, options, started)
        run = predict_table(recognizer, photos, sources, options, wanted)
    LOGGER.info(run.summary)
    if strict and run.num_unreadable:
        LOGGER.warning(f"`--strict`: {counted(run.num_unreadable, 'image')} cannot be read.")
        sys.exit(1)


def add_options(parser: ArgumentParser) -> None:
    """Adds the columns of the table to the help. `*` stands for several columns."""
    parser.epilog = f"columns of the table:\n{describe_fields(all_face_fields())}"


def unused_size(part_size: int, outputs: Outputs) -> list[str]:
    """Returns a line if `--part_size` is not used because `--output` is one table."""
    if outputs.in_folder or part_size == PART_SIZE:
        return []
    return ["Not used, since `--output` is one table: `--part_size`."]
