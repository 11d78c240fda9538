"""The command `visualize`: explains each prediction with pictures and one page."""

import logging
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

from fer_vit.commands import ModelOptions
from fer_vit.errors import FerVitError
from fer_vit.explain.methods import METHODS_HELP, choose_method
from fer_vit.extras import install_command, is_installed, require
from fer_vit.files import atomic_write, check_beside, check_output
from fer_vit.listing import MEDIA_SUFFIXES, is_report
from fer_vit.options import Number, takes
from fer_vit.predict.inputs import find_inputs, is_video
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import load, load_torch
from fer_vit.report.draw import FigureKind
from fer_vit.visualization.evidence import check_explained
from fer_vit.visualization.explained_scores import ExplainOptions, LabelChoice, find_targets
from fer_vit.visualization.report import REPORT_FILES, estimate_effort, write_report
from fer_vit.visualization.report_parts import photo_parts, video_parts
from fer_vit.visualization.timelines import watch_people
from fer_vit.wording import counted

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class VisualizeOptions(ModelOptions, PhotoOptions):
    """Options of `visualize`. Those of `PhotoOptions` are how photos and videos are read."""

    TEXTS: ClassVar = PhotoOptions.TEXTS | {"METHODS": METHODS_HELP}

    images: Sequence[Path]
    """Images, videos, folders (searched recursively) and glob patterns."""
    _: KW_ONLY
    output: Path = Path("report")
    """The folder to write."""
    method: str | None = None
    """How the prediction is explained. {METHODS}. All but regions need PyTorch. Default: pixels, or
    regions without PyTorch."""
    labels: LabelChoice = "predicted"
    """Explain the "predicted" expression, or "all" expressions (slower)."""
    targets: Sequence[str] = ()
    """Further outputs to explain: expressions, or columns such as move_mouthSmileLeft or yaw."""
    figures: FigureKind | None = None
    """Also write 85 mm wide figures of the faces to OUTPUT/figures."""
    faces: Sequence[Number] = ()
    """Numbers of the faces with figures, from 0, as in OUTPUT/photos. Default: all."""
    overwrite: bool = False
    """Replace an existing report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose_method(self.method)  # raises the error for an unknown name
        if self.faces and self.figures is None:
            raise FerVitError("`--faces` chooses faces for figures. Add `--figures pdf`.")


@takes(VisualizeOptions)
def visualize(options: VisualizeOptions) -> Path:
    """Explains for every face which pixels and facial regions led to the prediction.

    Writes OUTPUT/index.html, a gallery to filter, sort and search, and tables of its numbers. To
    share the page, keep OUTPUT/photos beside it. For a video, it shows each person over time.

    Examples:
        fer-vit visualize photos

        fer-vit visualize crops --face crop --method relevance --checkpoint a.ckpt --output report

        fer-vit visualize clip.mp4 --start 60 --end 120

        fer-vit visualize photos --checkpoint ferplus-fairface --targets move_mouthSmileLeft yaw

        fer-vit visualize photos --figures pdf --faces 0 7

    Returns:
        The page.
    """
    if options.figures is not None:
        require("figures", "`--figures`")
    reading = options.reading()
    explain = ExplainOptions(choose_method(options.method), options.labels, options.targets)
    check_report(options.output, options.images, options.overwrite)
    inputs = find_inputs(options.images, MEDIA_SUFFIXES)
    notes = [*inputs.notes, *reading.unused_notes(inputs.files)]
    photos = [source for source in inputs.files if not is_video(source)]
    videos = [source for source in inputs.files if is_video(source)]
    network = options.find_network()
    if is_installed("torch"):
        recognizer = load_torch(network, name=options.checkpoint)
    else:
        recognizer = load(network, name=options.checkpoint)
    check_explained(recognizer)
    find_targets(recognizer, options.targets)  # raises the error for an unknown target now
    # the page names photos relative to this folder
    root = Path(os.path.commonpath([source.absolute().parent for source in inputs.files]))
    with atomic_write(options.output, overwrite=options.overwrite) as folder:
        # Videos are read here; photos are read when their faces are explained.
        watched = watch_people(recognizer.recognize(videos, reading) if videos else ())
        LOGGER.info(estimate_effort(recognizer, explain, len(photos), watched.num_shown))
        of_photos = photo_parts(recognizer, photos, reading) if photos else ()
        of_videos = video_parts(recognizer, watched.videos, reading)
        num_faces = write_report(
            folder,
            recognizer,
            chain(of_photos, of_videos),
            watched,
            explain,
            root,
            figures=options.figures,
            figure_faces=options.faces,
        )

    missing = [str(number) for number in options.faces if number >= num_faces]
    if missing:
        notes.append(
            f"No figures of {', '.join(missing)}: the faces have the numbers 0 to {num_faces - 1}."
        )
    cuts = watched.cuts
    if cuts.count:
        LOGGER.info(cuts.describe())
    shown = []
    if photos:
        shown.append(counted(len(photos), "photo"))
    if videos:
        shown.append(counted(len(videos), "video"))
    for note in notes:
        LOGGER.warning(note)
    if not is_installed("torch"):
        LOGGER.info(
            "Explained by hiding regions. Heat maps of pixels, interactions and attention need "
            f"more packages: {install_command('torch')}"
        )
    page = options.output / "index.html"
    LOGGER.info(f"{counted(num_faces, 'face')} in {' and '.join(shown)}: open {page}")
    return page


def check_report(output: Path, images: Sequence[Path], overwrite: bool) -> None:
    """Raises FerVitError, before any work, when a report cannot be written.

    A report replaces only a report.
    """
    check_output(output, overwrite, REPORT_FILES)
    if output.is_dir() and any(output.iterdir()) and not is_report(output / "index.html"):
        raise FerVitError(f"{output} is not a report and would be replaced. Choose another folder.")

    check_beside(output, images)
    for image in images:
        if image.resolve().is_relative_to(output.resolve()):
            raise FerVitError(f"{output} holds the photos. Choose another folder for the report.")
