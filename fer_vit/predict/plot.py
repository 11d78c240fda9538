"""Draws predicted faces in their photos, which are read again."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.extras import needed_by
from fer_vit.faces import Face, Faces
from fer_vit.files import atomic_write
from fer_vit.geometry import Image
from fer_vit.predict.photos import read_photo
from fer_vit.report.draw import draw_faces, mark
from fer_vit.report.explained_face import Attention, FaceView

PLOT_SUFFIXES = (".svg", ".pdf", ".png")  # suffixes of saved figures


def face_view(face: Face, photo: Image) -> FaceView:
    """Returns what is drawn of a face, in its photo (H, W, 3), RGB uint8."""
    return FaceView(
        face=face,
        photo=photo,
        to_crop=face.to_crop,
        regions=face.regions,
        box=face.box,
        name=face.path,
    )


def plot_face(face: Face, file: str | Path | None = None) -> Pil.Image:
    """Draws a face with its box and regions beside its probabilities.

    Args:
        face: The face.
        file: Where to save the picture (.svg, .pdf or .png).
    """
    with needed_by("A plot"):
        from fer_vit.report import face_figures  # not at the top: it needs matplotlib

    figure = face_figures.prediction_figure(face_view(face, read_photo(face)))
    return finish_figure(figure, file)


def plot_attention(
    face: Face, attention: Attention, regions: Sequence[str], file: str | Path | None = None
) -> Pil.Image:
    """Draws the attention between the regions of a face, and from them to the output.

    Args:
        face: The face.
        attention: The attention on the face.
        regions: The names of the R regions, in the order of the attention.
        file: Where to save the picture (.svg, .pdf or .png).
    """
    with needed_by("A plot"):
        from fer_vit.report import face_figures  # not at the top: it needs matplotlib

    figure = face_figures.attention_figure(face_view(face, read_photo(face)), attention, regions)
    return finish_figure(figure, file)


def finish_figure(figure: Any, file: str | Path | None) -> Pil.Image:
    """Saves a figure of matplotlib, if a file is given, and returns it as a picture."""
    from fer_vit.report import rendering  # not at the top: matplotlib takes a second to load

    if file is not None:
        if Path(file).suffix not in PLOT_SUFFIXES:
            suffixes = ", ".join(PLOT_SUFFIXES)
            raise FerVitError(f"Expected a file that ends in {suffixes}, but got {file}.")
        with atomic_write(Path(file)) as new_file:
            rendering.save_figure(figure, new_file)
    return Pil.fromarray(rendering.rasterize(figure))


def plot_photos(faces: Faces, limit: int | None = None) -> list[Pil.Image]:
    """Returns pictures of photos and frames with their faces marked; at most the first `limit`."""
    photos = [photo for photo in faces.photos() if len(photo.faces)]
    pictures = []
    for photo in islice(photos, limit):
        marked = [mark(face) for face in photo.faces]
        pictures.append(Pil.fromarray(draw_faces(read_photo(photo.faces[0]), marked)))
    return pictures
