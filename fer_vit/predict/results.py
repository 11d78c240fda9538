"""A classified face, and its row in a table."""

import math
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from io import BytesIO
from itertools import groupby
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
import torch
from PIL import Image as Pil
from torch import Tensor

from fer_vit.conformal import Thresholds, in_set
from fer_vit.errors import FerVitError
from fer_vit.explain.trace import attention_views, trace
from fer_vit.face.crop import warp
from fer_vit.face.face import SURE, is_uncertain
from fer_vit.face.image import ImageError, decode_image, read_image
from fer_vit.face.pose import Pose, head_pose
from fer_vit.fields import BOX, FEATURE, PROBABILITY, SMOOTHED, Field, face_fields
from fer_vit.geometry import LANDMARKS, Array, Float32Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import OK, Photo, Source
from fer_vit.report.draw import Attention, FaceView, Marked, draw_faces
from fer_vit.report.table import Cell, TableWriter, arrow_schema, arrow_table

PLOTS = (".svg", ".pdf", ".png")  # endings of saved figures


class Origin(NamedTuple):
    """What made a prediction."""

    model: str | None = None  # name or path of the model
    detector: str | None = None  # name of the face detector
    fer_vit_version: str | None = None
    predicted_on: str | None = None  # date, YYYY-MM-DD


class NetworkLink:
    """The network of a face. Pickles and copies of a face leave the weights out."""

    def __init__(self, net: RegionViT | None = None) -> None:
        self.net = net

    def __deepcopy__(self, memo: object) -> "NetworkLink":
        return self

    def __reduce__(self) -> tuple[type["NetworkLink"], tuple[()]]:
        return NetworkLink, ()


@dataclass(frozen=True, eq=False)
class FaceResult:
    """A face and its expression. Its pickle has no network: see `Recognizer.explain`."""

    label: str  # the most probable expression
    confidence: float  # its probability
    probabilities: dict[str, float] = field(repr=False)  # of every expression by name
    path: str  # the photo or video; "image 0" and so on for images in memory
    face: int  # index of the face in its photo
    # (4,), xyxy in the photo's pixels; None without landmarks
    box: Array | None = field(repr=False)
    # (x, y) in the photo's pixels by name
    landmarks: dict[str, tuple[float, float]] | None = field(repr=False)
    # of the detector in [0, 1]; 0: no face was found, the full image is used; None: no detector
    score: float | None
    source: Source = field(repr=False)  # the photo's path, or the image or file in memory
    to_crop: Array = field(repr=False)  # matrix (2, 3) from photo to crop pixels
    crop_size: int = field(repr=False)  # side of the crop in pixels
    # box (4,) of every visible region, xyxy in crop pixels
    regions: dict[str, Array] = field(repr=False)
    # of prediction sets (see `conformal`); empty if not calibrated
    thresholds: Thresholds = field(repr=False)
    # see `measure_blur`: about 1.1 in FERPlus; NaN without contrast
    blur: float = field(repr=False)
    outside: tuple[str, ...] = field(repr=False)  # regions whose centre lies outside the photo
    link: NetworkLink = field(repr=False)  # to the network that classified the face
    frame: int | None = None  # index of the frame in a video; None in a photo
    seconds: float | None = None  # the frame's time in the video
    track: int | None = None  # the number of the person in the video
    # `probabilities` averaged over time
    smoothed: dict[str, float] = field(default_factory=dict, repr=False)
    # (D,)
    features: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    origin: Origin = field(default=Origin(), repr=False)
    # values of the model's further heads by column, for example `move_jawOpen`, `yaw` or `valence`
    outputs: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def net(self) -> RegionViT:
        """The network that classified the face. Raises FerVitError after the face was unpickled."""
        if self.link.net is None:
            raise FerVitError(
                f"Face {self.face} of {self.path} was saved without its model. "
                "`fer_vit.load().explain(face)` explains it, or predict the photo again."
            )
        return self.link.net

    @property
    def label_smoothed(self) -> str | None:
        """The expression with the largest smoothed probability; None in a photo."""
        return max(self.smoothed, key=self.smoothed.__getitem__, default=None)

    def prediction_set(self, coverage: int = 90, by_class: bool = False) -> list[str] | None:
        """Returns the prediction set, which contains the true expression for `coverage` percent (90, 95) of the faces.

        With `by_class` the coverage holds for each expression: sets are larger, and contain no expression with fewer
        than 19 calibration faces. None: the model is not calibrated (`fer-vit export --calibrate`).
        """
        if not self.thresholds:
            return None
        if str(coverage) not in self.thresholds:
            raise FerVitError(
                f"Expected a coverage of {' or '.join(self.thresholds)} percent, but got {coverage}."
            )
        member = in_set(
            np.array([*self.probabilities.values()]), self.thresholds, coverage, by_class
        )
        return [
            name
            for name, included in zip(self.probabilities, member.tolist(), strict=True)
            if included
        ]

    @property
    def ambiguous(self) -> bool | None:
        """Whether the prediction set at 90 % does not have exactly one expression; None: not calibrated."""
        names = self.prediction_set()
        return None if names is None else len(names) != 1

    @property
    def entropy(self) -> float:
        """The entropy of the probabilities in nats, between 0 and log C."""
        return -sum(p * math.log(p) for p in self.probabilities.values() if p > 0)

    @property
    def size(self) -> float:
        """The side of the crop in pixels of the photo; below `crop_size` the crop is enlarged."""
        return float(self.crop_size / np.sqrt(np.linalg.det(self.to_crop[:, :2])))

    @cached_property
    def pose(self) -> Pose | None:
        """Yaw, pitch and roll of the head in degrees, by the model's head `pose`, or else by the landmarks.

        None without both: when no face was detected, or the landmarks have no pose.
        """
        read = {name: self.outputs[name] for name in Pose._fields if name in self.outputs}
        if len(read) == len(Pose._fields):
            return Pose(**read)
        if self.landmarks is None or self.score == 0:
            return None
        pose = head_pose([*self.landmarks.values()])
        return None if pose is None else pose._replace(**read)

    @property
    def warnings(self) -> list[str]:
        """The names of `WARNINGS` that apply."""
        turned = self.pose is not None and max(map(abs, self.pose)) > TURNED
        found = (self.size < SMALL, turned, is_uncertain(self.score))
        return [name for name, applies in zip(WARNINGS, found, strict=True) if applies]

    @property
    def marked(self) -> Marked:
        """The face for `draw_faces`, with its smoothed expression in a video."""
        label = self.label_smoothed or self.label
        return Marked(self.box, label, (self.smoothed or self.probabilities)[label], self.track)

    def plot(self, attention: bool = False, file: str | Path | None = None) -> Pil.Image:
        """Draws the face with its box and regions beside its probabilities; a notebook displays it.

        With `attention`, draws the attention between regions, and from regions to the output. `file` is where to save
        the picture (.svg, .pdf or .png). Raises FerVitError when the photo cannot be read.
        """
        photo = self.read_photo()
        from fer_vit.report import charts  # only here: matplotlib takes a second to load

        if attention:
            figure = charts.attention_figure(
                self.view(photo), self.attend(photo), self.net.config.regions
            )
        else:
            figure = charts.prediction_figure(self.view(photo))
        if file is not None:
            if Path(file).suffix not in PLOTS:
                raise FerVitError(
                    f"Expected a file that ends in {', '.join(PLOTS)}, but got {file}."
                )
            figure.savefig(file)
        return Pil.fromarray(charts.rasterize(figure))

    def attend(self, photo: Image) -> Attention:
        """Returns the attention of the model on the face in its photo (H, W, 3), RGB uint8."""
        device = self.net.centres.device
        inputs = [values.to(device) for values in self.crop(photo, self.net.config.regions)]
        views = attention_views(trace(self.net, *inputs))
        return Attention(*(values[0].double().cpu().numpy() for values in views))

    def crop(self, photo: Image, regions: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what the network takes of the face in its photo (H, W, 3), RGB uint8.

        These are the crop (1, 3, S, S), RGB in [0, 1], boxes of the R `regions` (1, R, 4), xyxy in
        crop pixels, and which regions are visible (1, R).
        """
        pixels = torch.from_numpy(warp(photo, self.to_crop, self.crop_size))
        image = pixels.permute(2, 0, 1).float() / 255
        boxes = np.array([self.regions.get(name, np.zeros(4)) for name in regions])
        valid = torch.tensor([name in self.regions for name in regions], dtype=torch.bool)
        return image[None], torch.from_numpy(boxes.reshape(1, -1, 4)).float(), valid[None]

    def _repr_png_(self) -> bytes | None:
        return self.plot()._repr_png_()

    def read_photo(self) -> Image:
        """Returns the photo or frame (H, W, 3), RGB uint8; raises ImageError when it can no longer be read."""
        if isinstance(self.source, np.ndarray):
            return self.source
        try:
            if isinstance(self.source, bytes):
                return decode_image(self.source)
            if self.frame is None:
                return read_image(self.source)
            from fer_vit.predict.frames import read_frames  # only here: PyAV may not be installed

            if frame := next(read_frames(self.source, only={self.frame}), None):
                return frame.image
            raise ImageError("the video has become shorter")
        except ImageError as error:
            raise ImageError(f"{self.path}: {error}.") from error

    def view(self, photo: Image) -> FaceView:
        """Returns the face for drawing, in its photo (H, W, 3), RGB uint8."""
        where = photo, self.to_crop, self.crop_size, self.regions, self.box
        who = self.path, self.face, self.track, self.seconds or 0.0
        return FaceView(*where, *who, self.probabilities, self.label_smoothed)


class PhotoStatus(NamedTuple):
    """A photo, or a frame of a video, after prediction."""

    path: str
    status: str  # "ok", "no face", or why it cannot be read
    faces: int  # number of its faces
    frame: int | None = None  # index of the frame in its video
    seconds: float | None = None  # the frame's time in the video


class Faces(list[FaceResult]):
    """Faces in the order of their photos and frames, as `predict` returns them; a notebook shows these photos.

    `photos` has every photo and frame, also those without a face and those that cannot be read. A
    slice has only the photos of its faces. `origin` is what made the predictions.
    """

    def __init__(
        self,
        faces: Iterable[FaceResult] = (),
        photos: Sequence[PhotoStatus] = (),
        origin: Origin | None = None,
    ) -> None:
        super().__init__(faces)
        self.photos = list(photos)
        self.origin = origin or Origin()

    @overload
    def __getitem__(self, index: SupportsIndex) -> FaceResult: ...

    @overload
    def __getitem__(self, index: slice) -> "Faces": ...

    def __getitem__(self, index: SupportsIndex | slice) -> "FaceResult | Faces":
        if not isinstance(index, slice):
            return super().__getitem__(index)
        faces = super().__getitem__(index)
        seen = {(face.path, face.frame) for face in faces}
        photos = [photo for photo in self.photos if (photo.path, photo.frame) in seen]
        return Faces(faces, photos, self.origin)

    def plot(self) -> list[Pil.Image]:
        """Returns each photo or frame with its faces marked by box, expression and probability."""
        return self._plot(None)

    def _plot(self, limit: int | None) -> list[Pil.Image]:
        """Returns the first `limit` pictures, or all."""
        pictures: list[Pil.Image] = []
        for _, group in groupby(self, lambda face: (face.path, face.frame)):
            if len(pictures) == limit:
                break
            faces = list(group)
            photo = faces[0].read_photo()
            marked = [face.marked for face in faces]
            pictures.append(Pil.fromarray(draw_faces(photo, marked)))
        return pictures

    def _repr_html_(self) -> str:
        """Returns the first `SHOWN` photos, at most 640 pixels wide or high, for a notebook."""
        html = f"<p>{len(self)} face{'s' * (len(self) != 1)}</p>"
        for photo in self._plot(SHOWN):
            photo.thumbnail((640, 640))
            photo.save(file := BytesIO(), "jpeg")
            html += f'<img src="data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}">'
        return html


def _entry(attribute: str, *keys: int | str) -> Callable[[FaceResult], Cell]:
    """Returns the value of a column with one number of a box, of landmarks or of a pose."""

    def read(face: FaceResult) -> Cell:
        found = getattr(face, attribute)
        return None if found is None else float(reduce(getitem, keys, found))

    return read


def _share(attribute: str, label: str) -> Callable[[FaceResult], Cell]:
    """Returns the value of a column with the probability of one expression."""

    def read(face: FaceResult) -> Cell:
        shares: dict[str, float] = getattr(face, attribute)
        return shares.get(label)

    return read


def _output(name: str) -> Callable[[FaceResult], Cell]:
    """Returns the value of a column with an output of a further head."""
    return lambda face: face.outputs.get(name)


def _feature(index: int) -> Callable[[FaceResult], Cell]:
    """Returns the value of a column with one feature."""
    return lambda face: float(face.features[index])


SMALL = 30  # size in pixels below which labels are unreliable
TURNED = 45  # angle in degrees above which labels are unreliable
UNCERTAIN = "uncertain face"
WARNINGS = {
    "small face": f"faces are below {SMALL} pixels: their labels are unstable",
    "turned head": f"heads are turned by more than {TURNED} degrees",
    UNCERTAIN: f"faces are uncertain: their score is below {SURE}",
}
"""What the column `warning` may have, and how the summary explains it."""
SHOWN = 8  # photos in a notebook
SEPARATOR = "; "  # between the names in a cell

Reader = Callable[[FaceResult], Cell]
"""Returns the cell of a column; None is an empty one."""


class Column(NamedTuple):
    """A column of the table of faces."""

    field: Field
    read: Reader


READERS: dict[str, Reader] = {
    "path": lambda face: face.path,
    "status": lambda _: OK,  # replaced by the status of the photo
    "frame": lambda face: face.frame,
    "seconds": lambda face: face.seconds,
    "track": lambda face: face.track,
    "face": lambda face: face.face,
    "label": lambda face: face.label,
    "confidence": lambda face: face.confidence,
    "ambiguous": lambda face: face.ambiguous,
    "warning": lambda face: _join(face.warnings) or None,
    "prediction_set": lambda face: _join(face.prediction_set()),
    "entropy": lambda face: face.entropy,
    "label_smoothed": lambda face: face.label_smoothed,
    "size": lambda face: face.size,
    "blur": lambda face: face.blur if math.isfinite(face.blur) else None,
    "outside": lambda face: _join(face.outside),
    "score": lambda face: face.score,
    "model": lambda face: face.origin.model,
    "detector": lambda face: face.origin.detector,
    "fer_vit_version": lambda face: face.origin.fer_vit_version,
    "predicted_on": lambda face: face.origin.predicted_on,
}
for _index, _name in enumerate(Pose._fields):
    READERS[_name] = _entry("pose", _index)
for _index, _name in enumerate(BOX):
    READERS[_name] = _entry("box", _index)
for _name in LANDMARKS:
    READERS[f"{_name}_x"] = _entry("landmarks", _name, 0)
    READERS[f"{_name}_y"] = _entry("landmarks", _name, 1)


def _join(names: Sequence[str] | None) -> str | None:
    return None if names is None else SEPARATOR.join(names)


def face_columns(
    labels: Sequence[str],
    videos: bool = False,
    features: int = 0,
    outputs: Sequence[str] = (),
) -> dict[str, Column]:
    """Returns the columns of a table in order.

    With the columns of videos if `videos`, `features` features, and the `outputs` of further heads.
    """
    readers = dict(READERS)
    readers |= {PROBABILITY + label: _share("probabilities", label) for label in labels}
    readers |= {SMOOTHED + label: _share("smoothed", label) for label in labels}
    readers |= {name: _output(name) for name in outputs if name not in Pose._fields}
    readers |= {f"{FEATURE}{index}": _feature(index) for index in range(features)}
    fields = face_fields(labels, outputs, videos, features)
    return {field.name: Column(field, readers[field.name]) for field in fields}


def table_columns(
    labels: Sequence[str], videos: bool = False, outputs: Sequence[str] = ()
) -> dict[str, type]:
    """Returns name and type of a table's columns; arguments as for `face_columns`."""
    return {field.name: field.kind for field in face_fields(labels, outputs, videos)}


def write_faces(path: Path, columns: Mapping[str, Column], **options: Any) -> TableWriter:
    """Returns the writer of a table of faces; options as for `TableWriter`."""
    types = {name: column.field.kind for name, column in columns.items()}
    formats = {name: column.field.format for name, column in columns.items()}
    return TableWriter(path, types, formats=formats, **options)


def photo_rows(
    photo: Photo[FaceResult],
    columns: Mapping[str, Column],
    min_confidence: float = 0.0,
    origin: Origin | None = None,
) -> Iterator[dict[str, Cell]]:
    """Yields a row for each face, or one for a photo without faces, which has the `origin`.

    Faces below `min_confidence` have no label.
    """
    if not photo.faces:
        yield {
            "path": photo.path,
            "status": photo.status,
            "frame": photo.frame,
            "seconds": photo.seconds,
            **(origin or Origin())._asdict(),
        }
    for face in photo.faces:
        row = {name: column.read(face) for name, column in columns.items()}
        row["status"] = photo.status
        if min_confidence:
            low = face.confidence < min_confidence
            row["label"] = None if low else face.label
            row["ambiguous"] = low or bool(face.ambiguous)
        yield row


def table(faces: Sequence[FaceResult], *, photos: bool = False) -> Any:
    """Returns the faces as a pyarrow table with the columns of `fer-vit predict`.

    `.to_pylist()` makes dictionaries of it, and `.to_pandas()` a data frame where pandas is installed.

    Args:
        faces: The faces.
        photos: Add a row for each photo that has no face or cannot be read, as `fer-vit predict`
            does. This needs the `Faces` that `predict` returns.

    Raises:
        FerVitError: The photos are not known.
    """
    if photos and not isinstance(faces, Faces):
        raise FerVitError(
            f"`photos` needs the Faces that `predict` returns, but got a {type(faces).__name__}."
        )
    statuses = faces.photos if photos and isinstance(faces, Faces) else []
    labels = list(dict.fromkeys(name for face in faces for name in face.probabilities))
    frames = [face.frame for face in faces] + [status.frame for status in statuses]
    videos = any(frame is not None for frame in frames)
    outputs = list(dict.fromkeys(name for face in faces for name in face.outputs))
    columns = face_columns(labels, videos, outputs=outputs)
    types = {name: column.field.kind for name, column in columns.items()}
    rows: list[dict[str, Cell]] = []
    left = deque(faces)
    for status in statuses:
        photo = Photo[FaceResult](status.path, status.status, [], frame=status.frame)
        if not status.faces:
            empty = photo._replace(seconds=status.seconds)
            rows += photo_rows(empty, columns, origin=getattr(faces, "origin", None))
        while left and (left[0].path, left[0].frame) == (status.path, status.frame):
            rows += photo_rows(photo._replace(faces=[left.popleft()]), columns)
    for face in left:
        rows += photo_rows(Photo(face.path, OK, [face]), columns)
    return arrow_table(rows, arrow_schema(types))


def table_labels(names: Iterable[str]) -> list[str]:
    """Returns the expressions of a table by the names of its columns."""
    return [name.removeprefix(PROBABILITY) for name in names if name.startswith(PROBABILITY)]
