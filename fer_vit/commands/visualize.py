"""The command `visualize`: explains each prediction with pictures and one page."""

import logging
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
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
from fer_vit.visualization.evidence import (
    ExplainOptions,
    LabelChoice,
    check_explained,
    find_targets,
)
from fer_vit.visualization.figures import FigureOptions
from fer_vit.visualization.report import REPORT_FILES, ReportOptions, log_estimate, write_report
from fer_vit.visualization.report_parts import detect_faces
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
    wanted = ReportOptions(
        photos=options.reading(),
        explain=ExplainOptions(choose_method(options.method), options.labels, options.targets),
        figures=FigureOptions(options.figures, options.faces),
    )
    check_report(options.output, options.images, options.overwrite)
    inputs = find_inputs(options.images, MEDIA_SUFFIXES)
    notes = [*inputs.notes, *wanted.photos.unused_notes(inputs.files)]
    kinds = {source: "video" if is_video(source) else "photo" for source in inputs.files}
    photos = [source for source, kind in kinds.items() if kind == "photo"]
    videos = [source for source, kind in kinds.items() if kind == "video"]
    network = options.find_network()
    if is_installed("torch"):
        recognizer = load_torch(network, name=options.checkpoint)
    else:
        recognizer = load(network, name=options.checkpoint)
    check_explained(recognizer)
    find_targets(recognizer, options.targets)  # raises the error for an unknown target now
    with atomic_write(options.output, overwrite=options.overwrite) as folder:
        # Videos are read here; photos are read when their faces are explained.
        report_faces = detect_faces(recognizer, photos, videos, wanted.photos)
        log_estimate(recognizer, wanted.explain, len(photos), report_faces.num_video_faces)
        # The page names photos relative to this folder.
        root = os.path.commonpath([source.absolute().parent for source in inputs.files])
        num_faces = write_report(folder, recognizer, report_faces, wanted, Path(root))

    cuts = report_faces.watched.cuts
    if cuts.count:
        LOGGER.info(cuts.describe())
    numbers = {"photo": len(photos), "video": len(videos)}
    shown = " and ".join(counted(number, kind) for kind, number in numbers.items() if number)
    for note in notes:
        LOGGER.warning(note)
    if not is_installed("torch"):
        LOGGER.info(
            "Explained by hiding regions. Heat maps of pixels, interactions and attention need "
            f"more packages: {install_command('torch')}"
        )
    page = options.output / "index.html"
    LOGGER.info(f"{counted(num_faces, 'face')} in {shown}: open {page}")
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
