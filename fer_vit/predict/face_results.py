"""The results of `predict` in Python: faces with methods that draw them, and their table."""

import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, overload

from PIL import Image as Pil

from fer_vit.errors import ImageError
from fer_vit.extras import is_installed
from fer_vit.faces import ARRAYS, READ_STATUSES, Face, Faces, PhotoInfo, collect_faces
from fer_vit.fields import face_fields, table_columns
from fer_vit.geometry import Image, IntArray, Mask
from fer_vit.predict.inputs import is_video
from fer_vit.predict.photos import read_photo
from fer_vit.predict.plot import plot_face, plot_photos
from fer_vit.report.table import arrow_schema, arrow_table

MAX_SHOWN_PHOTOS = 8  # most photos that a notebook shows


class FaceResult(Face):
    """A face with its expression, see `fer_vit.faces.Face`. A notebook displays the face.

    A face does not contain its model; `Recognizer.explain` explains the prediction.
    """

    def plot(self, file: str | Path | None = None) -> Pil.Image:
        """Draws the face with its box and regions beside its probabilities.

        A face does not contain its model: `Recognizer.plot_attention` draws the attention.

        Args:
            file: Where to save the picture (.svg, .pdf or .png).

        Raises:
            ImageError: The photo cannot be read.
        """
        return plot_face(self, file)

    def read_photo(self) -> Image:
        """Returns the photo or frame (H, W, 3), RGB uint8.

        Raises ImageError when the photo can no longer be read.
        """
        return read_photo(self)

    def _repr_png_(self) -> bytes | None:
        # Without a picture, a notebook shows the text of the face.
        return self.plot()._repr_png_() if is_installed("figures") else None


class FaceResults(Faces):
    """Faces in the order of their photos and frames, see `fer_vit.faces.Faces`.

    A notebook shows the photos.
    """

    @overload
    def __getitem__(self, index: int) -> FaceResult: ...

    @overload
    def __getitem__(self, index: slice | Mask | IntArray | list[int]) -> "FaceResults": ...

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[FaceResult]:
        for row in range(len(self)):
            yield self.view(row)

    def view(self, row: int) -> FaceResult:
        """Returns the face in a row, which is at least 0."""
        return FaceResult(self, row)

    def to_pandas(self) -> Any:
        """Returns the rows of `fer-vit predict` as a data frame; pandas must be installed."""
        return table(self).to_pandas()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Returns the rows of `fer-vit predict` to a library that reads Arrow, such as polars."""
        return table(self).__arrow_c_stream__(requested_schema)

    def plot(self) -> list[Pil.Image]:
        """Returns each photo or frame with its faces marked by box, expression and probability."""
        return plot_photos(self)

    def _repr_html_(self) -> str:
        """Returns the first photos, at most 640 pixels wide or high, for a notebook."""
        html = f"<p>{len(self)} face{'' if len(self) == 1 else 's'}</p>"
        for picture in plot_photos(self, MAX_SHOWN_PHOTOS):
            picture.thumbnail((640, 640))
            file = BytesIO()
            picture.save(file, "jpeg")
            html += f'<img src="data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}">'
        return html


def as_results(faces: Faces) -> FaceResults:
    """Converts faces to the results of `predict` in Python."""
    return FaceResults(**{name: getattr(faces, name) for name in ("infos", "scheme", *ARRAYS)})


def report_photos(infos: Sequence[PhotoInfo]) -> None:
    """Warns about photos that cannot be read, or were taken as one face.

    Raises ImageError if the only photo cannot be read.
    """
    num_sources = len({info.index for info in infos})
    unreadable = [
        f"{info.path}: {info.status}" for info in infos if info.status not in READ_STATUSES
    ]
    if unreadable and len(infos) == 1:
        raise ImageError(f"{unreadable[0]}.")
    if unreadable:
        warnings.warn(
            f"{len(unreadable)} of {num_sources} images cannot be read, the first {unreadable[0]}.",
            stacklevel=3,
        )
    taken_whole = [info.path for info in infos if info.taken_whole]
    if taken_whole:
        warnings.warn(
            f"{len(taken_whole)} of {num_sources} images are photos, but each was taken as one "
            f'face, the first {taken_whole[0]}. Leave out face="crop".',
            stacklevel=3,
        )


def table(faces: Face | Faces | Sequence[Face]) -> Any:
    """Returns the rows of `fer-vit predict` as a pyarrow table.

    There is a row for each face, and one for each photo that has no face or cannot be read, as long
    as `faces` has it: `faces[mask]` has only photos with faces. `.to_pylist()` converts the table
    to dictionaries, and `.to_pandas()` to a data frame if pandas is installed.

    Args:
        faces: The result of `predict`, or some faces of it.

    Raises:
        FerVitError: The argument has no faces of one model.
    """
    if isinstance(faces, Sequence) and not isinstance(faces, Faces) and not faces:
        return arrow_table([], arrow_schema(table_columns(())))
    faces = collect_faces(faces)
    videos = any(info.frame is not None or is_video(info.source) for info in faces.infos)
    fields = face_fields(faces.labels, faces.scheme.outputs, videos)
    types = {field.name: field.cell_type for field in fields}
    return arrow_table(faces.rows(fields), arrow_schema(types))
