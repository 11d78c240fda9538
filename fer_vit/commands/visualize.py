"""The verb `visualize`: what the model attended to, as pictures and one page."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fer_vit.commands.heads import HeadWriter
from fer_vit.data.photos import FaceMode, Photo, find_images
from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.explain.attention import Method, explain
from fer_vit.face.geometry import Image
from fer_vit.face.image import ImageError, read_image
from fer_vit.model.pretrained import DEFAULT
from fer_vit.recognizer import DetectorName, Recognizer, load
from fer_vit.report.draw import FaceView
from fer_vit.report.html import FaceRecord, save_face, write_page

REPORT = ("index.html", "faces", "heads", "heads.png", "heads_distance.png", "heads.csv")
"""What a report may consist of, and what a new one replaces."""


def visualize(
    images: list[Path],
    *,
    checkpoint: str | None = None,
    output: Path = Path("report"),
    method: Method = "rollout",
    heads: bool = False,
    face: FaceMode = "detect",
    detector: DetectorName = "yunet",
    batch_size: int = 32,
    workers: int | None = None,
    overwrite: bool = False,
) -> None:
    """Shows which patches and which facial regions the model attended to, for every face in photos.

    Writes a picture per face to OUTPUT/faces, and OUTPUT/index.html with all of them and the mean share of every region
    by predicted expression; the page opens from disk and needs nothing else. `--heads` adds OUTPUT/heads with a picture
    per face, and heads.png, heads_distance.png and heads.csv with the means.

    Examples:
        fer-vit visualize photos

        fer-vit visualize crops --face crop --method raw --checkpoint best.ckpt --output report

        fer-vit visualize photos --heads --output report

    Args:
        images: Image files, folders (with all below them) and glob patterns.
        checkpoint: A checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name out of `fer-vit models` or
            "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        output: The folder to write.
        method: "rollout" follows attention through all blocks; "raw" is the last block's.
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
    sources = find_images(images)
    status: Counter[str] = Counter()
    records: list[FaceRecord] = []
    with _new_folder(output) as folder:
        roles = HeadWriter(folder, model) if heads else None
        for photos, parts in model.batches(sources, face, detector, batch_size, workers):
            status.update(photo.status for photo in photos)
            views = list(face_views(photos, parts, model, method))
            records += [save_face(folder, number, view) for number, view in enumerate(views, len(records))]
            if roles is not None:
                roles.add(parts, views)
        facts = {
            "Method": f"attention {method}",
            "Model": checkpoint or DEFAULT,
            "Photos": ", ".join(f"{number:,} {what}" for what, number in status.most_common()),
        }
        pictures = roles.write() if roles is not None else []
        write_page(folder / "index.html", records, "What the model attended to", facts, pictures)
    print(f"{len(records):,} faces in {sum(status.values()):,} images: open {output / 'index.html'}")


def face_views(photos: list[Photo], parts: list[Batch], model: Recognizer, method: Method) -> Iterator[FaceView]:
    """Yields what the report shows of every face in some photos; `parts` holds the faces in order."""
    faces = ((photo, number, face) for photo in photos for number, face in enumerate(photo.faces))
    path, pixels = "", np.zeros((1, 1, 3), np.uint8)
    for part in parts:
        result = explain(model.net, part.image, part.boxes, part.valid, method)
        for row, (photo, number, face) in zip(range(len(part.path)), faces, strict=False):
            if photo.path != path:
                # Read again rather than carried along: the workers hand over crops, and photos can be large.
                path, pixels = photo.path, _read_again(photo.path)
            present = part.valid[row].nonzero().flatten().tolist() if result.shares.shape[1] else []
            names = model.crop_spec.regions
            yield FaceView(
                name=path,
                face=number,
                photo=pixels,
                box=None if face is None else face.box,
                to_crop=part.to_crop[row].double().numpy(),
                crop_size=model.crop_spec.size,
                heat=result.heat[row].double().cpu().numpy(),
                regions={names[i]: part.boxes[row, i].double().cpu().numpy() for i in present},
                shares={names[i]: float(result.shares[row, i]) for i in present},
                probabilities=dict(zip(model.labels, result.probabilities[row].tolist(), strict=True)),
            )


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
