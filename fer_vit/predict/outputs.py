"""The output files of `predict`, and checks that they can be written."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fer_vit.errors import FerVitError
from fer_vit.files import check_beside, check_output
from fer_vit.heads import EXPRESSION, MOVEMENTS
from fer_vit.listing import MARKED_COPY, is_marked_copy
from fer_vit.predict.inputs import is_video
from fer_vit.predict.people import People
from fer_vit.predict.textgrid import is_textgrid, write_intervals
from fer_vit.report.table import STDOUT, SUFFIXES


class MarkedCopy(NamedTuple):
    """A copy of a video with marked faces."""

    video: Path
    path: Path  # path of the copy, an .mp4


class Outputs(NamedTuple):
    """The output files of `predict`, and what is written to them."""

    table: Path  # a table of faces, or a folder of tables
    people: Path | None = None  # a table of the people in videos
    intervals: Path | None = None  # a table or TextGrid of the expressions of these people
    copy: MarkedCopy | None = None  # a marked copy of the only video
    min_confidence: float = 0.0  # less confident faces have no label and are ambiguous
    overwrite: bool = True  # whether existing files may be replaced
    features: bool = False  # columns with the network's features
    heads: tuple[str, ...] = ()  # heads with columns in the tables; empty: all heads
    threshold: float | None = None  # movements above it have intervals; None: no intervals

    @property
    def in_folder(self) -> bool:
        """Whether `table` is a folder of tables: several processes write these, and keep them."""
        return self.table != STDOUT and (self.table.is_dir() or not self.table.suffix)

    @property
    def further(self) -> str:
        """Lines with the files besides `table`; empty without."""
        copy = self.copy.path if self.copy else None
        names = {"People": self.people, "Intervals": self.intervals, "Marked copy": copy}
        return "".join(f"\n{name}: {path}" for name, path in names.items() if path)

    def write_people(self, people: People, labels: list[str]) -> None:
        """Writes the requested tables of people."""
        if self.people:
            people.write(self.people, labels, self.overwrite, self.heads)
        if self.intervals:
            from fer_vit.predict.frames import start_of  # not at the top: photos need no PyAV

            people.end()
            starts = {path: start_of(Path(path)) for path in people.spans}
            write_intervals(self.intervals, people, starts, self.overwrite, self.heads)


def check_model(outputs: Outputs, heads: Sequence[str], model: str) -> None:
    """Raises FerVitError when a model with these `heads` lacks a requested output."""
    check_heads(outputs.heads, heads, model)
    check_intervals(outputs, heads, model)


def check_heads(heads: Sequence[str], model_heads: Sequence[str], model: str) -> None:
    """Raises FerVitError when a requested head is missing in the model, or requested twice."""
    for head in heads:
        if head not in model_heads:
            raise FerVitError(
                f"Expected outputs among {', '.join(model_heads)}, which {model} has, but got "
                f"{head}."
            )
    if len(set(heads)) < len(heads):
        raise FerVitError(f"Expected each of the outputs once, but got {', '.join(heads)}.")


def check_intervals(outputs: Outputs, heads: Sequence[str], model: str) -> None:
    """Raises FerVitError when no chosen head has the requested intervals, or uses the threshold."""
    if outputs.threshold is not None and MOVEMENTS not in heads:
        raise FerVitError(
            f"Expected a model with movements for `--threshold`, but {model} has "
            f"{', '.join(heads)}. Remove it, or choose another model."
        )
    chosen = outputs.heads or heads
    if outputs.threshold is not None and MOVEMENTS not in chosen:
        raise FerVitError(
            "`--threshold` is for movements, which `--outputs` leaves out. "
            "Remove the threshold, or add movements to the outputs."
        )
    if outputs.intervals and outputs.threshold is None and EXPRESSION not in chosen:
        raise FerVitError(
            "`--intervals` would be empty: `--outputs` leaves out the expression, and without "
            "`--threshold` movements have no intervals. Add expression to the outputs, or a "
            "threshold."
        )


def find_copy(
    path: Path, outputs: Outputs, images: Sequence[Path], sources: Sequence[Path]
) -> MarkedCopy:
    """Returns the marked copy to write at `path`, for the only video among `sources`.

    Arguments as for `check_outputs`, which checks `outputs`.

    Raises:
        FerVitError: There are several videos or none, or the copy cannot be written.
    """
    check_beside(path, [image for image in images if image.is_dir()])
    if not is_marked_copy(path):
        raise FerVitError(
            f"Expected a name that ends in .{MARKED_COPY}, by which a later run tells the copy "
            f"from a clip, but got {path}. Name it {path.parent / path.stem}.{MARKED_COPY}."
        )
    videos = list(filter(is_video, sources))
    is_input = path.resolve() in map(Path.resolve, videos)
    if outputs.in_folder or is_input or len(videos) != 1:
        actual = f"`--annotate {path}`, `--output {outputs.table}` and {len(videos)} videos"
        raise FerVitError(
            f"Expected one video, one table (.csv) and another .{MARKED_COPY}, but got {actual}."
        )
    check_output(path, outputs.overwrite)
    return MarkedCopy(video=videos[0], path=path)


def check_outputs(outputs: Outputs, images: Sequence[Path], sources: Sequence[Path]) -> None:
    """Raises FerVitError, before any work, when an output cannot be written.

    Args:
        outputs: The files to write.
        images: The files, folders and patterns that the user has named.
        sources: The photos and videos that are read.
    """
    _check_table_paths(outputs, images)
    _check_people(outputs, sources)
    if outputs.in_folder and outputs.heads and (outputs.people or outputs.intervals):
        raise FerVitError(
            "`--summary` and `--intervals` of a folder are made from its tables with all columns. "
            "Remove `--outputs`, or name a table instead of a folder."
        )


def _check_table_paths(outputs: Outputs, images: Sequence[Path]) -> None:
    """Raises FerVitError when a table cannot be written at its path."""
    named = [outputs.people, outputs.intervals]
    if not outputs.in_folder and outputs.table != STDOUT:
        named.insert(0, outputs.table)
    tables = [path for path in named if path]
    if outputs.overwrite and outputs.in_folder and not tables:
        raise FerVitError("Finished tables in a folder are kept. Remove the folder to start over.")
    if outputs.in_folder:  # a folder of tables has no other files
        for path in tables:
            check_beside(path, [outputs.table])
    for path in tables:
        is_intervals = path is outputs.intervals and is_textgrid(path)
        if path.suffix.lower() not in SUFFIXES and not is_intervals:
            raise FerVitError(
                f"Expected a table that ends in {', '.join(SUFFIXES)}, or a folder without a dot, "
                f"but got {path}."
            )
        check_output(path, outputs.overwrite)

    counts = Counter(path.resolve() for path in tables)
    for path in tables:
        if counts[path.resolve()] > 1:
            raise FerVitError(
                "`--output`, `--summary` and `--intervals` are separate tables, but two are "
                f"{path}."
            )


def _check_people(outputs: Outputs, sources: Sequence[Path]) -> None:
    """Raises FerVitError for a table of people without a video, or a TextGrid of several videos."""
    tables = [path for path in (outputs.intervals, outputs.people) if path]
    if not tables:
        return
    videos = list(filter(is_video, sources))
    if not videos:
        raise FerVitError(
            f"{tables[0]} is a table of the people in videos, but there is no video. Remove it."
        )
    if outputs.intervals and is_textgrid(outputs.intervals) and len(videos) > 1:
        raise FerVitError(
            f"A TextGrid contains one video, but there are {len(videos)}. Write a .csv instead."
        )
