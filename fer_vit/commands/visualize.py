"""The verb `visualize`: what speaks for a prediction, as pictures and one page."""

import csv
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fer_vit.commands.heads import HeadWriter
from fer_vit.commands.relations import RelationWriter
from fer_vit.data.photos import FaceMode, Photo, find_images
from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.explain.explain import KNOWING, Explanation, Method, explain_each
from fer_vit.explain.relations import relations
from fer_vit.face.geometry import Array, Image
from fer_vit.face.image import ImageError, read_image
from fer_vit.model.pretrained import DEFAULT
from fer_vit.recognizer import DetectorName, Recognizer, load
from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence, FaceRecord, Means, mean_shares, save_face, write_page

REPORT = (
    "index.html",
    "faces",
    "photos",
    "shares.csv",
    "relations.png",
    "relations.csv",
    "heads",
    "heads.png",
    "heads_distance.png",
    "heads.csv",
)
"""What a report may consist of, and what a new one replaces."""


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
    figure of every face; shares.csv the mean shares by predicted expression; relations.csv and .png which regions take
    from which. `--heads` adds OUTPUT/heads with a picture per face, and heads.png, heads_distance.png and heads.csv
    with the means.

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
    if output.exists() and not output.is_dir():
        raise FerVitError(f"Expected a folder, but {output} is a file. Name another place.")
    if output.exists() and any(output.iterdir()) and not overwrite:
        raise FerVitError(f"{output} exists already. Choose another folder or add `--overwrite`.")
    foreign = [output / name for name in REPORT if (output / name).exists()]
    if foreign and not (output / "index.html").is_file():
        raise FerVitError(f"{foreign[0]} is not part of a report and would be replaced. Choose another folder.")
    if any(output.resolve().is_relative_to(folder.resolve()) for folder in images):
        raise FerVitError(f"{output} lies among the photos, and its pictures would be taken for some. Choose another.")
    if any(folder.resolve().is_relative_to(output.resolve()) for folder in images):
        raise FerVitError(f"{output} holds the photos, and they would be replaced. Choose another folder.")
    model = load(checkpoint)
    regions = model.crop_spec.regions
    sources = find_images(images)
    status: Counter[str] = Counter()
    records: list[FaceRecord] = []
    with _new_folder(output) as folder:
        related = RelationWriter(folder, model.labels, regions)
        roles = HeadWriter(folder, model) if heads else None
        for photos, parts in model.batches(sources, face, detector, batch_size, workers):
            status.update(photo.status for photo in photos)
            found = list(face_views(photos, parts, model, method))
            views = [view for view, _ in found]
            records += [save_face(folder, number, *one, regions) for number, one in enumerate(found, len(records))]
            for one in found:
                related.add(*one)
            if roles is not None:
                roles.add(parts, views)
        facts = {
            "Method": method,
            "Model": checkpoint or DEFAULT,
            "Photos": ", ".join(f"{number:,} {what}" for what, number in status.most_common()),
        }
        means = mean_shares(records)
        write_shares(folder / "shares.csv", means)
        sections = {"Relations between regions": related.write()}
        if roles is not None:
            sections["Attention heads"] = roles.write()
        write_page(folder / "index.html", records, means, regions, "What speaks for each prediction", facts, sections)
    print(f"{len(records):,} faces in {sum(status.values()):,} images: open {output / 'index.html'}")


def face_views(
    photos: list[Photo], parts: list[Batch], model: Recognizer, method: Method
) -> Iterator[tuple[FaceView, Evidence]]:
    """Yields what the report shows of every face in some photos; `parts` holds the faces in order."""
    faces = ((photo, number, face) for photo in photos for number, face in enumerate(photo.faces))
    path, pixels = "", np.zeros((1, 1, 3), np.uint8)
    for part in parts:
        batch = (model.net, part.image, part.boxes, part.valid)
        probabilities = torch.tensor(model.probabilities(part))
        order = probabilities.argsort(1, descending=True)
        top, second = order[:, 0].tolist(), order[:, :2][:, -1]
        classes = torch.eye(len(model.labels))
        wanted = classes[top][None]
        if method in KNOWING:  # every label, and the first rather than the second
            each = classes[:, None].expand(-1, len(top), -1)
            wanted = torch.cat([each, (classes[top] - classes[second])[None]])
        found = explain_each(*batch, method, wanted.to(model.device))
        flow = relations(*batch)
        for row, (photo, number, face) in zip(range(len(part.path)), faces, strict=False):
            if photo.path != path:
                # Read again rather than carried along: the workers hand over crops, and photos can be large.
                path, pixels = photo.path, _read_again(photo.path)
            present, names = part.valid[row].nonzero().flatten().tolist(), model.crop_spec.regions
            explained = {top[row]: arrays(found[0], row)}
            if method in KNOWING:
                explained = {label: arrays(one, row) for label, one in enumerate(found[:-1])}
            shares, heat = explained[top[row]]
            evidence = Evidence(
                labels=[explained.get(label) for label in range(len(classes))],
                contrast=arrays(found[-1], row) if method in KNOWING else None,
                relations=flow[row].double().cpu().numpy(),
            )
            view = FaceView(
                name=path,
                face=number,
                photo=pixels,
                box=None if face is None else face.box,
                to_crop=part.to_crop[row].double().numpy(),
                crop_size=model.crop_spec.size,
                heat=heat,
                regions={names[i]: part.boxes[row, i].double().cpu().numpy() for i in present},
                shares={names[i]: float(shares[i]) for i in present},
                probabilities=dict(zip(model.labels, probabilities[row].tolist(), strict=True)),
            )
            yield view, evidence


def write_shares(path: Path, means: Means) -> None:
    """Writes the mean share of every region by predicted expression, with its interval."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["predicted", "region", "faces", "mean", "low", "high"])
        for label, regions in means.items():
            for region, one in regions.items():
                table.writerow([label, region, one["faces"], one["mean"], one["low"], one["high"]])


def arrays(result: Explanation, row: int) -> tuple[Array, Array]:
    """Shares (R,) and heat (h, w) of a face."""
    return result.shares[row].double().cpu().numpy(), result.heat[row].double().cpu().numpy()


def _read_again(path: str) -> Image:
    try:
        return read_image(Path(path))
    except ImageError as error:
        raise FerVitError(
            f"{path} changed while it was read ({error}). Run again when the photos are at rest."
        ) from error


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """Yields a folder beside `output` that takes its place when all went well, and is gone when not.

    Of an older report there, only what this verb writes is replaced.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.")
    except OSError as error:
        raise FerVitError(f"Cannot write {output}: {error.strerror}. Choose a folder you may write.") from error
    with temporary as folder:
        yield Path(folder)
        output.mkdir(exist_ok=True)
        for name in REPORT:
            old, new = output / name, Path(folder, name)
            if old.is_dir():
                shutil.rmtree(old)
            if new.exists():
                new.replace(old)
            else:
                old.unlink(missing_ok=True)
