"""The verb `visualize`: what speaks for a prediction, as pictures and one page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fer_vit.commands.heads import HeadWriter
from fer_vit.commands.relations import RelationWriter
from fer_vit.data.photos import FaceMode, Photo, find_images
from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.explain.explain import KNOWING, Method, explain_each
from fer_vit.explain.relations import relations
from fer_vit.explain.trace import Trace, trace
from fer_vit.face.geometry import Array, Image
from fer_vit.face.image import ImageError, read_image
from fer_vit.files import remove_left, whole
from fer_vit.model.pretrained import DEFAULT
from fer_vit.model.region_vit import RegionViT
from fer_vit.recognizer import DetectorName, Recognizer, load
from fer_vit.report.draw import FaceView, ranked
from fer_vit.report.html import Contents, Evidence, FaceRecord, Means, is_report, mean_shares, save_face, write_page
from fer_vit.report.table import TableWriter

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
    with whole(output, REPORT) as folder:
        folder.mkdir()
        related = RelationWriter(folder, model.labels, regions)
        roles = HeadWriter(folder, model) if heads else None
        with TableWriter(folder / "faces.parquet", columns) as table:
            for photos, parts in model.batches(sources, face, detector, batch_size, workers):
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
    remove_left(output)
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


def explained(
    photos: Sequence[Photo], parts: Sequence[Batch], model: Recognizer, method: Method
) -> Iterator[tuple[Batch, Trace, list[tuple[FaceView, Evidence]]]]:
    """Yields what the model did with the faces of some photos, part by part, and what the report shows of each."""
    faces = ((photo, number, face) for photo in photos for number, face in enumerate(photo.faces))
    names = model.crop_spec.regions
    path, pixels = "", None
    for part in parts:
        seen = trace(model.net, part.image, part.boxes, part.valid)
        probabilities = model.net.probabilities(seen.logits).tolist()
        found = []
        for row, evidence in enumerate(evidence_of(model.net, seen, method)):
            photo, number, face = next(faces)
            if photo.path != path:
                # Read again rather than carried along: the workers hand over crops, and photos can be large.
                path, pixels = photo.path, _read_again(photo.path)
            present = part.valid[row].nonzero().flatten().tolist()
            shares, heat = evidence.labels[evidence.order[0]]
            view = FaceView(
                name=path,
                face=number,
                photo=_crop(part.image[row]) if pixels is None else pixels,
                box=None if face is None or pixels is None else face.box,
                to_crop=np.eye(2, 3) if pixels is None else part.to_crop[row].double().numpy(),
                crop_size=model.crop_spec.size,
                heat=heat,
                regions={names[i]: part.boxes[row, i].double().cpu().numpy() for i in present},
                shares={names[i]: float(shares[i]) for i in present},
                probabilities=dict(zip(model.labels, probabilities[row], strict=True)),
            )
            found.append((view, evidence))
        yield part, seen, found


def evidence_of(net: RegionViT, seen: Trace, method: Method) -> Iterator[Evidence]:
    """Yields what speaks for each label in each face, or by methods that do not know labels for the predicted one."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    first, second = order[:, 0], order[:, :2][:, -1]
    classes = torch.eye(seen.logits.shape[1], device=first.device)
    directions = classes[first][None]
    if method in KNOWING:  # every label, and the first rather than the second
        directions = torch.cat([classes[:, None].expand(-1, len(first), -1), directions - classes[second]])
    found, flow = explain_each(net, seen, method, directions), relations(seen)
    for row, ranking in enumerate(order.tolist()):
        each = [(_array(one.shares[row]), _array(one.heat[row])) for one in found]
        labels = dict(enumerate(each[:-1])) if method in KNOWING else {ranking[0]: each[0]}
        yield Evidence(ranking, labels, each[-1] if method in KNOWING else None, _array(flow[row]))


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


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _crop(image: Tensor) -> Image:
    """Returns what the model saw of a face (3, S, S) as an image (S, S, 3)."""
    return (255 * image).round().byte().permute(1, 2, 0).cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo, or None where it is gone or changed: its faces are then shown as the model saw them."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
