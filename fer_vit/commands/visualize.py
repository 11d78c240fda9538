"""The verb `visualize`: what speaks for a prediction, as pictures and one page."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fer_vit.errors import FerVitError
from fer_vit.explain.methods import Method
from fer_vit.files import atomic_write, remove_stale
from fer_vit.predict.inputs import find_images
from fer_vit.predict.photos import DetectorName, FaceMode, PhotoOptions
from fer_vit.predict.recognizer import load
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import Contents, FaceRecord, Means, is_report, mean_shares, save_face, write_page
from fer_vit.report.table import TableWriter
from fer_vit.store.hub import DEFAULT
from fer_vit.visualize.evidence import explained
from fer_vit.visualize.heads import HeadWriter
from fer_vit.visualize.relations import RelationWriter

REPORT = (
    "faces",
    "photos",
    "faces.parquet",
    "shares.csv",
    "relations.png",
    "relations.csv",
    "heads",
    "heads.png",
    "heads_distance.png",
    "heads_relations.png",
    "heads.csv",
    "heads_relations.csv",
    "index.html",
)
"""What a report may consist of, and what a new one replaces; its page comes last, when all that it shows is there."""


def visualize(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("report"),
    method: Method = "relevance",
    heads: bool = False,
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Shows which patches and which facial regions speak for the prediction, for every face in photos.

    Writes OUTPUT/index.html, a gallery to filter, sort and search in which every face opens large, with what each
    region says for or against any expression; it needs OUTPUT/photos beside it and nothing else. OUTPUT/faces has a
    figure of every face, faces.parquet a row; shares.csv has the mean shares by predicted expression, relations.csv and
    .png which regions take from which. `--heads` adds OUTPUT/heads with a picture per face, and means as heads*.png and
    heads*.csv.

    Examples:
        fer-vit visualize photos

        fer-vit visualize crops --face crop --method raw --checkpoint best.ckpt --output report

        fer-vit visualize photos --heads --output report

    Args:
        images: Image files, folders (with all below them) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name out of `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The folder to write.
        method: "relevance", gradient times attention through all blocks; "ablation", how far the score falls without a
            region; "rollout", attention through all blocks; "raw", the last block's; or, for comparison, "random" and
            "centre".
        heads: Whether to show every attention head too: where it looks and how far, per face and on average.
        face: "detect" finds every face; "crop" takes each image as the crop of one face.
        detector: Finds faces or, in crops, landmarks. With "none" crops are taken to be framed like the model's own.
        batch_size: Photos per batch.
        workers: Processes that read photos; all cores when left out.
        overwrite: Whether an existing report may be replaced.

    Raises:
        FerVitError: The checkpoint or the images are not there, or the folder cannot be written.
    """
    check_output(output, images, overwrite)
    model = load(checkpoint)
    regions = model.crop_spec.regions
    sources = find_images(images)
    status: Counter[str] = Counter()
    records: list[FaceRecord] = []
    columns = {"path": str, "face": int, "predicted": str, "confidence": float, **dict.fromkeys(regions, float)}
    with atomic_write(output, REPORT) as folder:
        folder.mkdir()
        related = RelationWriter(folder, model.labels, regions)
        roles = HeadWriter(folder, model) if heads else None
        with TableWriter(folder / "faces.parquet", columns) as table:
            for photos, parts in model.batches(sources, PhotoOptions(face, detector, batch_size, workers)):
                status.update(photo.reason for photo in photos)
                for part, seen, found in explained(photos, parts, model, method):
                    for view, evidence in found:
                        records.append(save_face(folder, len(records), view, evidence, regions))
                        table.write([share_row(view)])
                        related.add(view, evidence)
                    if roles is not None:
                        roles.add(part, seen, [view for view, _ in found])
        means = mean_shares(records, regions)
        write_shares(folder / "shares.csv", means)
        sections = {"Relations between regions": related.write()}
        if roles is not None:
            sections["Attention heads"] = roles.write()
        facts = {
            "Method": method,
            "Model": checkpoint or DEFAULT,
            "Photos": ", ".join(f"{number:,} {what}" for what, number in status.most_common()),
        }
        title = "What speaks for each prediction"
        write_page(folder / "index.html", Contents(title, facts, records, means, regions, sections))
    print(f"{len(records):,} faces in {sum(status.values()):,} images: open {output / 'index.html'}")


def check_output(output: Path, images: Sequence[Path], overwrite: bool) -> None:
    """Raises FerVitError when a report could not be written there, or would replace what is not one."""
    remove_stale(output)
    if output.exists() and not output.is_dir():
        raise FerVitError(f"Expected a folder, but {output} is a file. Name another place.")
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise FerVitError(f"{output} exists already. Choose another folder or add `--overwrite`.")
    foreign = [output / name for name in REPORT if (output / name).exists()]
    if foreign and not is_report(output / "index.html"):
        raise FerVitError(f"{foreign[0]} is not part of a report and would be replaced. Choose another folder.")
    if any(output.resolve().is_relative_to(folder.resolve()) for folder in images):
        raise FerVitError(f"{output} lies among the photos, and its pictures would be taken for some. Choose another.")
    if any(folder.resolve().is_relative_to(output.resolve()) for folder in images):
        raise FerVitError(f"{output} holds the photos, and they would be replaced. Choose another folder.")


def share_row(view: FaceView) -> dict[str, object]:
    """A row of `faces.parquet`."""
    label, confidence = ranked(view.probabilities)[0]
    return {"path": view.name, "face": view.face, "predicted": label, "confidence": confidence, **view.shares}


def write_shares(path: Path, means: Means) -> None:
    """Writes the mean share of every region by predicted expression, with its interval."""
    columns = {"predicted": str, "region": str, "faces": int, "mean": float, "low": float, "high": float}
    with TableWriter(path, columns) as table:
        for label, regions in means.items():
            table.write([{"predicted": label, "region": region, **one} for region, one in regions.items()])
