"""A report: its folder with the page, and pictures and tables beside it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fer_vit.data.sample import Batch
from fer_vit.explain.methods import Method
from fer_vit.predict.photos import Photo
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import FaceRecord, Means, mean_shares, save_face, write_page
from fer_vit.report.table import TableWriter
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
"""What a report may consist of, and what a new one replaces. The page is last: it is there when all it shows is."""


def write_report(
    folder: Path,
    model: Recognizer,
    batches: Iterable[tuple[Sequence[Photo], Sequence[Batch]]],
    method: Method,
    heads: bool,
    name: str,
) -> int:
    """Writes a report.

    Args:
        folder: The folder to write, which is not there yet.
        model: The model.
        batches: Photos with all their faces, see `Recognizer.batches`.
        method: How to explain.
        heads: Whether to show every attention head too.
        name: What to call the model.

    Returns:
        How many faces it shows.
    """
    folder.mkdir()
    regions = model.crop_spec.regions
    relation_writer = RelationWriter(folder, model.labels, regions)
    head_writer = HeadWriter(folder, model) if heads else None
    status: Counter[str] = Counter()
    records: list[FaceRecord] = []
    columns = {"path": str, "face": int, "predicted": str, "confidence": float, **dict.fromkeys(regions, float)}
    with TableWriter(folder / "faces.parquet", columns) as table:
        for photos, chunks in batches:
            status.update(photo.reason for photo in photos)
            for view, evidence, crop, roles in explained(model, photos, chunks, method, heads):
                relation_writer.add(view, evidence)
                if head_writer and roles:
                    head_writer.add(view, crop, roles)
                records.append(save_face(folder, len(records), view, evidence, regions))
                table.write([share_row(view)])
    means = mean_shares(records, regions)
    write_shares(folder / "shares.csv", means)
    write_page(
        folder / "index.html",
        "What speaks for each prediction",
        {
            "Method": method,
            "Model": name,
            "Photos": ", ".join(f"{number:,} {reason}" for reason, number in status.most_common()),
        },
        records,
        means,
        regions,
        relations=relation_writer.write(),
        heads=head_writer.write() if head_writer else (),
    )
    return len(records)


def share_row(view: FaceView) -> dict[str, object]:
    """Returns the row of a face in `faces.parquet`."""
    label, confidence = ranked(view.probabilities)[0]
    return {"path": view.name, "face": view.face, "predicted": label, "confidence": confidence, **view.shares}


def write_shares(path: Path, means: Means) -> None:
    """Writes the mean share of every region by predicted expression, with its interval."""
    columns = {"predicted": str, "region": str, "faces": int, "mean": float, "low": float, "high": float}
    with TableWriter(path, columns) as table:
        for label, regions in means.items():
            table.write([{"predicted": label, "region": region, **mean} for region, mean in regions.items()])
