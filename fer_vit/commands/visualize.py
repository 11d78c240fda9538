"""The verb `visualize`: explains each prediction with pictures and one page."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fer_vit.errors import FerVitError
from fer_vit.explain.methods import Method
from fer_vit.files import atomic_write, check_output
from fer_vit.predict.inputs import MEDIA_SUFFIXES, find_images, is_video
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import load
from fer_vit.predict.tables import counted
from fer_vit.report.html import is_report
from fer_vit.store.hub import DEFAULT
from fer_vit.visualize.writer import REPORT, write_report


def visualize(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("report"),
    method: Method = "pixels",
    heads: bool = False,
    overwrite: bool = False,
    **reading: Any,
) -> None:
    """Shows, for every face in photos and videos, which pixels and facial regions speak for the prediction.

    Writes OUTPUT/index.html, a gallery to filter, sort and search. A face opens large, with what each region says
    for or against any expression. The page needs only OUTPUT/photos beside it. OUTPUT/faces has a figure of every face,
    faces.parquet a row; shares.csv has the mean shares by predicted expression, relations.csv and .png which regions
    attend to which. `--heads` adds a picture per face in OUTPUT/heads, and means as heads*.png and heads*.csv.

    Of a video the page shows every person over time: the probabilities in all frames, and up to 120 of the faces,
    evenly chosen, with what speaks for their expression.

    Examples:
        fer-vit visualize photos

        fer-vit visualize crops --face crop --method relevance --checkpoint best.ckpt --output report

        fer-vit visualize photos --heads --output report

        fer-vit visualize clip.mp4 --start 60 --end 120

    Args:
        images: Image and video files, folders (searched recursively) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The folder to write.
        method: "pixels", what each pixel adds to the score, by integrated gradients. Of tokens: "relevance", gradient
            times attention through all blocks; "ablation", how far the score falls without a region; "rollout",
            attention through all blocks; "raw", attention of the last block.
        heads: Whether to show every attention head as well: where it looks and how far, per face and on average.
        overwrite: Whether an existing report may be replaced.
        reading: How photos and videos are read; see `PhotoOptions`.
    """
    options = PhotoOptions(**reading)
    check_report(output, images, overwrite)
    model = load(checkpoint)
    sources = find_images(images, MEDIA_SUFFIXES)
    with atomic_write(output, REPORT) as folder:
        faces = write_report(folder, model, sources, options, method, heads, checkpoint or DEFAULT)
    kinds = Counter("video" if is_video(source) else "photo" for source in sources)
    shown = " and ".join(counted(number, kind) for kind, number in kinds.items())
    print(f"{counted(faces, 'face')} in {shown}: open {output / 'index.html'}")


def check_report(output: Path, images: Sequence[Path], overwrite: bool) -> None:
    """Raises FerVitError, before any work, when a report cannot be written or would replace anything but a report."""
    if output.exists() and not output.is_dir():
        raise FerVitError(f"Expected a folder, but {output} is a file. Choose another name.")
    check_output(output, overwrite)
    foreign = [output / name for name in REPORT if (output / name).exists()]
    if foreign and not is_report(output / "index.html"):
        raise FerVitError(f"{foreign[0]} is not part of a report and would be replaced. Choose another folder.")
    if any(output.resolve().is_relative_to(folder.resolve()) for folder in images):
        raise FerVitError(
            f"{output} lies among the photos; its pictures would be read as photos. Choose another folder."
        )
    if any(folder.resolve().is_relative_to(output.resolve()) for folder in images):
        raise FerVitError(f"{output} holds the photos, and they would be replaced. Choose another folder.")
