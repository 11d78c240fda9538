"""The command `visualize`: explains each prediction with pictures and one page."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fer_vit.commands import accept_text, find_network
from fer_vit.errors import FerVitError
from fer_vit.explain.methods import METHODS_HELP, choose_method
from fer_vit.extras import install_command, is_installed, require
from fer_vit.files import atomic_write, check_beside, check_output
from fer_vit.listing import MEDIA_SUFFIXES, is_report
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
from fer_vit.wording import counted, fill_docstring

LOGGER = logging.getLogger("fer_vit")


@accept_text
@fill_docstring(METHODS=METHODS_HELP)
def visualize(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    model: str | None = None,
    output: Path = Path("report"),
    method: str | None = None,
    labels: LabelChoice = "predicted",
    targets: Sequence[str] = (),
    figures: FigureKind | None = None,
    faces: Sequence[int] = (),
    overwrite: bool = False,
    **reading: Any,
) -> Path:
    """Explains for every face which pixels and facial regions led to the prediction.

    Writes OUTPUT/index.html, a gallery to filter, sort and search. Click a face to see what drives
    its prediction, how regions exchange information, and its movements and pose. For a video, the
    page shows each person over time, with up to 120 explained faces. To share the page, keep
    OUTPUT/photos beside it. faces.parquet has a row for every face, shares.csv the mean
    attributions by predicted expression, relations.csv and heads*.csv the mean attention. Time and
    size are estimated before the faces are explained.

    Examples:
        fer-vit visualize photos

        fer-vit visualize crops --face crop --method relevance --checkpoint a.ckpt --output report

        fer-vit visualize clip.mp4 --start 60 --end 120

        fer-vit visualize photos --checkpoint ferplus-fairface --targets move_mouthSmileLeft yaw

        fer-vit visualize photos --figures pdf --faces 0 7

    Args:
        images: Images, videos, folders (searched recursively) and glob patterns.
        checkpoint: A name from `fer-vit models` (default: the marked one), "user/name" on the
            Hugging Face hub, a folder of `fer-vit export` or a checkpoint of `fer-vit fit`.
        model: Your class that trained the checkpoint, such as my_module.MyTask.
        output: The folder to write.
        method: How the prediction is explained. {METHODS}. All but regions need PyTorch.
            Default: pixels, or regions without PyTorch.
        labels: "predicted" explains the predicted expression, and why it is more probable than the
            second; "all" explains every expression (slower).
        targets: Further outputs to explain: expressions, or columns such as move_mouthSmileLeft or
            yaw.
        figures: Also write 85 mm wide figures of the faces to OUTPUT/figures: pdf, svg or png.
        faces: The numbers of the faces with figures, from 0, as in the names of OUTPUT/photos.
            Default: all.
        overwrite: Replace an existing report.
        reading: How photos and videos are read; see `PhotoOptions`.

    Returns:
        The page.
    """
    method = choose_method(method)
    if faces and figures is None:
        raise FerVitError("`--faces` chooses faces for figures. Add `--figures pdf`.")
    if figures is not None:
        require("figures", "`--figures`")
    options = ReportOptions(
        photos=PhotoOptions(**reading),
        explain=ExplainOptions(method, labels, targets),
        figures=FigureOptions(figures, faces),
    )
    check_report(output, images, overwrite)
    inputs = find_inputs(images, MEDIA_SUFFIXES)
    notes = [*inputs.notes, *options.photos.unused_notes(inputs.files)]
    kinds = {source: "video" if is_video(source) else "photo" for source in inputs.files}
    photos = [source for source, kind in kinds.items() if kind == "photo"]
    videos = [source for source, kind in kinds.items() if kind == "video"]
    network = find_network(checkpoint, model)
    if is_installed("torch"):
        recognizer = load_torch(network, name=checkpoint)
    else:
        recognizer = load(network, name=checkpoint)
    check_explained(recognizer)
    find_targets(recognizer, targets)  # raises the error for an unknown target now
    with atomic_write(output, overwrite=overwrite) as folder:
        # Videos are read here; photos are read when their faces are explained.
        report_faces = detect_faces(recognizer, photos, videos, options.photos)
        log_estimate(recognizer, options.explain, len(photos), report_faces.num_video_faces)
        # The page names photos relative to this folder.
        root = os.path.commonpath([source.absolute().parent for source in inputs.files])
        num_faces = write_report(folder, recognizer, report_faces, options, Path(root))

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
    LOGGER.info(f"{counted(num_faces, 'face')} in {shown}: open {output / 'index.html'}")
    return output / "index.html"


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
