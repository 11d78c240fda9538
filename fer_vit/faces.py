"""Faces, the value that all stages take and return.

The stages find, classify and smooth faces, and then write or draw them.

N faces, M photos (or frames of videos), C expressions, K outputs of further heads, R regions,
D features. Points are (x, y) in pixels of the photo, boxes xyxy.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fer_vit.conformal import Thresholds, in_set
from fer_vit.errors import FerVitError, for_reader
from fer_vit.fields import (
    ORIGIN_FIELDS,
    PHOTO_FIELDS,
    SMOOTHED_LABEL,
    Cell,
    Field,
    face_fields,
    fields_by_name,
)
from fer_vit.geometry import LANDMARKS, Align, Array, Float32Array, Image, IntArray, Mask
from fer_vit.heads import NO_OUTPUTS, HeadOutputs

# A file (a photo or a video), the content of a photo's file, or an image (H, W, 3), RGB uint8.
Source: TypeAlias = Path | bytes | Image

Objects: TypeAlias = NDArray[np.object_]

OK = "ok"
NO_FACE = "no face"

# The status of an animated PNG, WebP or AVIF, and of a TIFF with several pages.
FIRST_FRAME = "several frames or pages: only the first is read"

READ_STATUSES = (OK, NO_FACE, FIRST_FRAME)  # the statuses of readable images

SMALL_SIZE = 30  # size in pixels below which labels are unreliable
TURNED_ANGLE = 45  # yaw, pitch or roll in degrees above which labels are unreliable
UNCERTAIN = "uncertain face"
WARNINGS = {  # the values of the column `warning`, and the words of a summary for each value
    "small face": f"faces are below {SMALL_SIZE} pixels: their labels are unstable",
    "turned head": f"heads have a yaw, pitch or roll of more than {TURNED_ANGLE} degrees",
    UNCERTAIN: "faces are uncertain: the detector's score is low",
}
SEPARATOR = "; "  # separates the names in a cell


class Pose(NamedTuple):
    """Angles in degrees, relative to the line from the camera to the face.

    A frontal, upright face has the angles 0.
    """

    # [-90, 90], positive if the face turns to the right of the picture (the person's left)
    yaw: float
    pitch: float  # [-180, 180], positive if the face looks up
    roll: float  # [-180, 180], positive if the face is turned clockwise in the picture


# The score of an image in which a detector found no face, so that the full image is used as one.
NOT_FOUND = 0.0


class Stamp(NamedTuple):
    """What identifies the content of a file that was read."""

    size: int  # bytes
    mtime: int  # time of the last change, in nanoseconds
    sha256: str  # of the whole content


class Origin(NamedTuple):
    """What made a prediction."""

    model: str | None = None  # name or path of the model
    detector: str | None = None  # name of the face detector
    fer_vit_version: str | None = None
    predicted_on: str | None = None  # date, YYYY-MM-DD; the earliest date for several days
    pose_from: str | None = None  # see `predict.computed.pose_source`


@dataclass(frozen=True)
class PhotoInfo:
    """A photo, or a frame of a video, and whether it could be read.

    Attributes:
        path: The path of the photo or video; "image 0" and so on for images in memory.
        status: `OK`, `NO_FACE`, `FIRST_FRAME`, or the reason why the image cannot be read.
        index: The index of the photo or video among the inputs.
        frame: The index of the frame in its video; None for a photo, and for the end of a damaged
            video.
        seconds: The frame's time in its file; None where `frame` is None.
        shot: The number of the frame's shot in its video, from 0: a cut begins the next shot; None
            where `frame` is None.
        size: Width and height in pixels; None if the image cannot be read.
        taken_whole: Whether the image was used as the crop of one face, but shows a small face or
            several faces.
        source: The file or image in memory, for another reading; None before the faces are
            classified.
        stamp: The identity of the file, for a folder of tables; None where it is not needed.
    """

    path: str
    status: str = OK
    index: int = 0
    frame: int | None = None
    seconds: float | None = None
    shot: int | None = None
    size: tuple[int, int] | None = None
    taken_whole: bool = False
    source: Source | None = field(default=None, repr=False, compare=False)
    stamp: Stamp | None = field(default=None, repr=False, compare=False)

    @property
    def reason(self) -> str:
        """The status without details, or a warning for `taken_whole`."""
        if self.taken_whole:
            return for_reader("taken as a single face (leave out `--face crop`)")
        return self.status.partition(":")[0]


@dataclass(frozen=True)
class Scheme:
    """What the numbers of classified faces mean, and what computed them.

    Attributes:
        labels: The C expressions.
        outputs: The K outputs of further heads.
        regions: The names of the R regions.
        crop_size: The side of the crop in pixels.
        align: How crops are aligned, see `CropSpec`; None for faces from a table.
        template: The landmarks (5, 2) of an aligned crop as fractions of its side, see `CropSpec`.
        features: The number D of features.
        thresholds: The thresholds of prediction sets, see `conformal`; empty if the model is not
            calibrated.
        sure_score: The detector's score below which a face is uncertain; None: no face is
            uncertain.
        origin: What made the predictions.
    """

    labels: tuple[str, ...] = ()
    outputs: HeadOutputs = NO_OUTPUTS
    regions: tuple[str, ...] = ()
    crop_size: int = 0
    align: Align | None = None
    template: tuple[tuple[float, float], ...] = ()
    features: int = 0
    thresholds: Thresholds = field(default_factory=dict, repr=False)
    sure_score: float | None = None
    origin: Origin = field(default_factory=Origin)

    @property
    def undated(self) -> Self:
        """The scheme without the date. No number depends on the date."""
        return replace(self, origin=self.origin._replace(predicted_on=None))


@dataclass(frozen=True, eq=False)
class Crops:
    """B faces as a model gets them."""

    image: Image  # (B, S, S, 3)
    boxes: Float32Array  # (B, R, 4), boxes of the regions, xyxy in crop pixels; 0 where not `valid`
    valid: Mask  # (B, R), which regions are present
    to_crop: Array  # (B, 2, 3), the matrices from photo to crop pixels

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows: slice | IntArray) -> "Crops":
        return Crops(self.image[rows], self.boxes[rows], self.valid[rows], self.to_crop[rows])

    def split(self, size: int) -> Iterator["Crops"]:
        """Yields the crops in chunks of at most `size` faces."""
        for start in range(0, len(self), size):
            yield self[start : start + size]


def join_crops(parts: Sequence[Crops]) -> Crops:
    """Joins the crops of one or more parts."""
    return Crops(
        image=np.concatenate([part.image for part in parts]),
        boxes=np.concatenate([part.boxes for part in parts]),
        valid=np.concatenate([part.valid for part in parts]),
        to_crop=np.concatenate([part.to_crop for part in parts]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Faces(Sequence["Face"]):
    """N faces of M photos in order: arrays with a row for each face.

    `faces[0]` is a view of one face. `faces[2:5]`, `faces[mask]` and `faces[indices]` are faces
    again, with the photos that contain them. NaN in an array means that there is no number.

    Attributes:
        infos: The M photos and frames, also those without a face.
        scheme: What the numbers mean. Without labels, the faces are not classified yet.
        photo: The photo of each face, as an index of `infos` (N,).
        face: The index of each face in its photo (N,).
        box: The box of each face (N, 4), xyxy in pixels of the photo; NaN for a crop that was not
            searched.
        landmarks: The landmarks of each face (N, 5, 2), in the order of `geometry.LANDMARKS`, in
            pixels of the photo; NaN for a crop that was not searched.
        score: The detector's score (N,), in [0, 1]; `NOT_FOUND`: the full image is used; NaN: no
            detector.
        track: The number of the person in the video (N,); None in a photo.
        probabilities: The probabilities of the expressions (N, C).
        outputs: The outputs of further heads (N, K), in the unit of the head.
        angles: Yaw, pitch and roll (N, 3) in degrees; NaN without a pose.
        smoothed: `probabilities`, averaged over time (N, C); NaN in a photo.
        smoothed_outputs: `outputs`, averaged over time (N, K); NaN in a photo.
        to_crop: The matrices from photo to crop pixels (N, 2, 3).
        boxes: The boxes of the regions (N, R, 4), xyxy in crop pixels.
        visible: Which regions the model gets (N, R).
        in_photo: Which regions have their centre in the photo (N, R).
        blur: The width of edges in pixels (N,), about 1.1 in FERPlus; NaN without contrast.
        features: The features before the classifier (N, D).
        crops: The N faces as a model gets them. None: they are not cut, or classified already.
    """

    infos: tuple[PhotoInfo, ...]
    scheme: Scheme
    photo: IntArray
    face: IntArray
    box: Array
    landmarks: Array
    score: Array
    track: Objects
    probabilities: Array
    outputs: Array
    angles: Array
    smoothed: Array
    smoothed_outputs: Array
    to_crop: Array
    boxes: Array
    visible: Mask
    in_photo: Mask
    blur: Array
    features: Float32Array
    crops: Crops | None = None

    # ------------------------------------------------------------------ some of the faces

    def __len__(self) -> int:
        return len(self.photo)

    @overload
    def __getitem__(self, index: int) -> "Face": ...

    @overload
    def __getitem__(self, index: "slice | Mask | IntArray | list[int]") -> Self: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            rows = range(len(self))
            return self.view(rows[index])
        return self.take(np.arange(len(self))[index])

    def __iter__(self) -> Iterator["Face"]:
        for row in range(len(self)):
            yield self.view(row)

    def __add__(self, other: Self) -> Self:
        return join_faces([self, other])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(faces={len(self)}, photos={len(self.infos)})"

    def view(self, row: int) -> "Face":
        """Returns the face in a row; rows are counted from 0."""
        return Face(self, row)

    def take(self, indices: IntArray) -> Self:
        """Returns the faces at indices (n,), with the photos that contain them."""
        photos = np.unique(self.photo[indices])
        infos = tuple(self.infos[index] for index in photos.tolist())
        return self._select(indices, infos, np.searchsorted(photos, self.photo[indices]))

    def of_photo(self, index: int) -> Self:
        """Returns the faces of a photo, zero or more, with the photo."""
        indices = np.flatnonzero(self.photo == index)
        return self._select(indices, (self.infos[index],), np.zeros(len(indices), np.int64))

    def _select(self, indices: IntArray, infos: tuple[PhotoInfo, ...], photo: IntArray) -> Self:
        columns: dict[str, Any] = {name: getattr(self, name)[indices] for name in ARRAYS}
        columns["photo"] = photo
        crops = None if self.crops is None else self.crops[indices]
        return replace(self, infos=infos, crops=crops, **columns)

    def photos(self) -> list["Photo"]:
        """Returns each photo and frame with its faces.

        Photos without a face and unreadable photos are returned as well.
        """
        order = np.argsort(self.photo, kind="stable")  # a selection may have any order
        ends = np.searchsorted(self.photo[order], np.arange(len(self.infos)), side="right")
        photos = []
        for info, indices in zip(self.infos, np.split(order, ends)[:-1], strict=True):
            faces = self._select(indices, (info,), np.zeros(len(indices), np.int64))
            photos.append(Photo(**vars(info), faces=faces))
        return photos

    # ------------------------------------------------------------------ what follows from them

    @property
    def labels(self) -> tuple[str, ...]:
        """The C expressions."""
        return self.scheme.labels

    @property
    def origin(self) -> Origin:
        """What made the predictions."""
        return self.scheme.origin

    @property
    def path(self) -> Objects:
        """The photo or video of each face (N,)."""
        return self._of_infos("path")

    @property
    def status(self) -> Objects:
        """The status of each face's photo (N,)."""
        return self._of_infos("status")

    @property
    def frame(self) -> Objects:
        """The index of each face's frame in its video (N,); None in a photo."""
        return self._of_infos("frame")

    @property
    def seconds(self) -> Objects:
        """The time of each face's frame (N,); None in a photo."""
        return self._of_infos("seconds")

    def _of_infos(self, name: str) -> Objects:
        values = [getattr(self.infos[index], name) for index in self.photo.tolist()]
        return as_objects(values)

    @property
    def label(self) -> Objects:
        """The most probable expression of each face (N,); None if the face is not classified."""
        return self._most_probable(self.probabilities)

    @property
    def confidence(self) -> Array:
        """The probability of `label` (N,)."""
        return np.asarray(self.probabilities.max(1, initial=0.0))

    @property
    def label_smoothed(self) -> Objects:
        """The expression with the largest smoothed probability (N,); None in a photo."""
        return self._most_probable(self.smoothed)

    def sure_labels(self, min_confidence: float) -> Objects:
        """Returns `label` (N,), None also for a face with a lower confidence."""
        return self._most_probable(self.probabilities, min_confidence)

    def sure_smoothed_labels(self, min_confidence: float) -> Objects:
        """Returns `label_smoothed` (N,), None also for a lower smoothed probability.

        The table of faces contains these labels. `--intervals`, `--summary` and `compare` use the
        same labels to measure time.
        """
        return self._most_probable(self.smoothed, min_confidence)

    def _most_probable(self, probabilities: Array, min_confidence: float = 0.0) -> Objects:
        """Returns the expression with the largest probability for each face (N,).

        The result is None without probabilities (N, C), and for a face whose largest probability is
        below `min_confidence`.
        """
        labels = as_objects([None] * len(self))
        if self.labels:
            for row in np.flatnonzero(np.isfinite(probabilities).all(1)):
                index = int(probabilities[row].argmax())
                if probabilities[row, index] >= min_confidence:
                    labels[row] = self.labels[index]
        return labels

    @property
    def entropy(self) -> Array:
        """The entropy of the probabilities in nats (N,), from 0 to log C (C labels)."""
        # 0 log 0 counts as 0: a probability of 0 is replaced by 1, and 1 log 1 is 0
        probabilities = np.where(self.probabilities > 0, self.probabilities, 1.0)
        return np.asarray(-(probabilities * np.log(probabilities)).sum(1))

    @property
    def not_found(self) -> Mask:
        """Where a detector found no face, so that the full image is used as one (N,).

        The landmarks of such a face are a guess and give no pose.
        """
        return np.asarray(self.score == NOT_FOUND)

    @property
    def size(self) -> Array:
        """The side of each crop in pixels of the photo (N,).

        A crop with a side below `crop_size` was enlarged.
        """
        area = np.linalg.det(self.to_crop[:, :, :2])
        return np.asarray(self.scheme.crop_size / np.sqrt(area))

    def sets(self, coverage: int = 90, by_class: bool = False) -> Mask | None:
        """Returns which expressions are in each prediction set (N, C); see `Face.prediction_set`.

        Returns None if the model is not calibrated.
        """
        thresholds = self.scheme.thresholds
        if not thresholds:
            return None
        if str(coverage) not in thresholds:
            raise FerVitError(
                f"Expected a coverage of {' or '.join(thresholds)} percent, but got {coverage}."
            )
        return in_set(self.probabilities, thresholds, coverage, by_class)

    @property
    def prediction_set(self) -> Objects:
        """The expressions of each prediction set at 90 % as text (N,); None: not calibrated."""
        member = self.sets()
        if member is None:
            return as_objects([None] * len(self))
        return _names_of_members(self.labels, member)

    @property
    def ambiguous(self) -> Objects:
        """Whether each prediction set at 90 % does not have one expression (N,).

        None: not calibrated.
        """
        member = self.sets()
        if member is None:
            return as_objects([None] * len(self))
        return as_objects((member.sum(1) != 1).tolist())

    @property
    def warnings(self) -> dict[str, Mask]:
        """The faces (N,) to which each of `WARNINGS` applies."""
        # False for a face without a pose
        turned: Mask = np.any(np.abs(self.angles) > TURNED_ANGLE, axis=1)
        uncertain = are_uncertain(self.score, self.scheme.sure_score)
        return {"small face": self.size < SMALL_SIZE, "turned head": turned, UNCERTAIN: uncertain}

    @property
    def warning(self) -> Objects:
        """The names of the warnings that apply to each face, as text (N,); None without any."""
        applies = np.column_stack([*self.warnings.values()])
        texts = _names_of_members([*WARNINGS], applies)
        return as_objects([text or None for text in texts])

    @property
    def outside(self) -> Objects:
        """The regions of each face whose centre is outside the photo, as text (N,)."""
        return _names_of_members(self.scheme.regions, ~self.in_photo)

    # ------------------------------------------------------------------ tables

    def column(self, name: str) -> NDArray[Any]:
        """Returns a column of the table of faces (N,), such as `valence` or `box_left`.

        It is computed once for all faces, and cannot be written to. Raises KeyError for an unknown
        name.
        """
        return self._values(fields_by_name(self.labels, self.scheme.outputs)[name])

    def _values(self, column: Field) -> NDArray[Any]:
        if column.name not in self._computed:
            values = column.values(self).view()  # may be an attribute, which stays writable
            values.flags.writeable = False
            self._computed[column.name] = values
        return self._computed[column.name]

    @cached_property
    def _computed(self) -> dict[str, NDArray[Any]]:
        """The columns that were requested, by name. A copy and a pickle are without them."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_computed"}

    def table(self, *, features: bool = False) -> dict[str, list[Cell]]:
        """Returns the columns of `fer-vit predict`; pyarrow, pandas and polars take them.

        A photo that has no face or cannot be read has a row, too. With `features`, there are the
        columns of features.
        """
        videos = any(info.frame is not None for info in self.infos)
        num_features = self.scheme.features if features else 0
        columns = face_fields(self.labels, self.scheme.outputs, videos, num_features)
        rows = self.rows(columns)
        cells: dict[str, list[Cell]] = {}
        for column in columns:
            cells[column.name] = [row.get(column.name) for row in rows]
        return cells

    def rows(
        self, chosen: Sequence[Field], *, min_confidence: float = 0.0
    ) -> list[dict[str, Cell]]:
        """Returns the rows of a table with the chosen columns.

        Faces below `min_confidence` have no label and are ambiguous. Faces with a lower smoothed
        probability have no smoothed label. A photo without a face has a row with its own columns
        and the origin; the rows are then in the order of the photos, else in that of the faces.
        """
        rows = self._cells_by_row(chosen)
        if min_confidence:
            low = self.confidence < min_confidence  # (N,)
            labels = self.sure_labels(min_confidence)
            smoothed_labels = self.sure_smoothed_labels(min_confidence)
            for index, row in enumerate(rows):
                if "label" in row:
                    row["label"] = labels[index]
                if SMOOTHED_LABEL in row:
                    row[SMOOTHED_LABEL] = smoothed_labels[index]
                if "ambiguous" in row:
                    row["ambiguous"] = bool(low[index] or row["ambiguous"])
        if len(set(self.photo.tolist())) == len(self.infos):
            return rows

        of_photo: list[list[dict[str, Cell]]] = [[] for _ in self.infos]
        for row, index in zip(rows, self.photo.tolist(), strict=True):
            of_photo[index].append(row)
        in_order: list[dict[str, Cell]] = []
        for row_of_photo, rows_of_photo in zip(self._photo_rows(), of_photo, strict=True):
            in_order += rows_of_photo or [row_of_photo]
        return in_order

    def _photo_rows(self) -> list[dict[str, Cell]]:
        """Returns the row that each photo has without a face: its own columns and the origin."""
        every_photo = np.arange(len(self.infos))
        unknown = found_faces(self.infos, every_photo, scheme=self.scheme)  # one face in each photo
        return unknown._cells_by_row([*PHOTO_FIELDS, *ORIGIN_FIELDS])

    def _cells_by_row(self, chosen: Sequence[Field]) -> list[dict[str, Cell]]:
        """Returns the cells of the chosen columns by name, for each face."""
        names = [column.name for column in chosen]
        columns = [as_cells(self._values(column)) for column in chosen]
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


# The attributes of `Faces` that have a row for each face.
ARRAYS = tuple(
    array.name for array in fields(Faces) if array.name not in ("infos", "scheme", "crops")
)


@dataclass(frozen=True, eq=False)
class Photo(PhotoInfo):
    """A photo, or a frame of a video, with its faces."""

    faces: Faces = field(default_factory=lambda: no_faces())


class Face:
    """A view of one of several faces. A copy and a pickle contain only this face.

    Each column of the table of faces is an attribute, such as `status`, `box_left` or `valence`. A
    method or property with the name of a column takes precedence.

    Attributes:
        size: The side of the crop in pixels of the photo. A crop below `crop_size` was enlarged.
        blur: The width of edges in pixels, about 1.1 in FERPlus; None without contrast.
        entropy: The entropy of the probabilities in nats, from 0 to log C (C labels).
        ambiguous: Whether the prediction set at 90 % does not have exactly one expression; None if
            the model is not calibrated.
    """

    size: float
    blur: float | None
    entropy: float
    ambiguous: bool | None

    def __init__(self, faces: Faces, row: int) -> None:
        self._faces = faces
        self._row = row

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Face):
            return NotImplemented
        return self._faces is other._faces and self._row == other._row

    def __hash__(self) -> int:
        return hash((id(self._faces), self._row))

    def __reduce__(self) -> tuple[type["Face"], tuple[Faces, int]]:
        return type(self), (self.alone, 0)

    def __repr__(self) -> str:
        names = ("label", "confidence", "path", "face", "score", "frame", "seconds", "track")
        values = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__name__}({', '.join(values)})"

    def __getattr__(self, name: str) -> Cell:
        try:
            column = self._faces.column(name)
        except KeyError:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            ) from None
        return as_cells(column[self._row : self._row + 1])[0]

    @property
    def alone(self) -> Faces:
        """`Faces` with this face alone, and its photo."""
        return self._faces.take(np.array([self._row]))

    @property
    def info(self) -> PhotoInfo:
        """The photo or frame."""
        return self._faces.infos[int(self._faces.photo[self._row])]

    @property
    def path(self) -> str:
        """The path of the photo or video; "image 0" and so on for images in memory."""
        return self.info.path

    @property
    def source(self) -> Source:
        """The photo's path, or the image or file in memory."""
        source = self.info.source
        if source is None:
            raise FerVitError(f"{self.path}: the faces have no source. Predict the photo again.")
        return source

    @property
    def frame(self) -> int | None:
        """The index of the frame in a video; None in a photo."""
        return self.info.frame

    @property
    def seconds(self) -> float | None:
        """The frame's time in the video; None in a photo."""
        return self.info.seconds

    @property
    def face(self) -> int:
        """The index of the face in its photo."""
        return int(self._faces.face[self._row])

    @property
    def track(self) -> int | None:
        """The number of the person in the video; None in a photo."""
        track: int | None = self._faces.track[self._row]
        return track

    @property
    def box(self) -> Array | None:
        """The box (4,), xyxy in the photo's pixels; None for a crop that was not searched."""
        box = self._faces.box[self._row]
        return box if np.isfinite(box).all() else None

    @property
    def landmarks(self) -> dict[str, tuple[float, float]] | None:
        """Points (x, y) in the photo's pixels by name; None for a crop that was not searched."""
        points = self._faces.landmarks[self._row]
        if not np.isfinite(points).all():
            return None
        return {name: (x, y) for name, (x, y) in zip(LANDMARKS, points.tolist(), strict=True)}

    @property
    def score(self) -> float | None:
        """The detector's score in [0, 1].

        0 if no face was found and the full image is used; None without a detector.
        """
        return _number_or_none(self._faces.score[self._row])

    @property
    def label(self) -> str | None:
        """The most probable expression; None if the face is not classified."""
        return max(self.probabilities, key=self.probabilities.__getitem__, default=None)

    @property
    def confidence(self) -> float:
        """The probability of `label`; 0 if the face is not classified."""
        return max(self.probabilities.values(), default=0.0)

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every expression."""
        return self._named(self._faces.labels, self._faces.probabilities)

    @property
    def smoothed(self) -> dict[str, float]:
        """The probabilities, averaged over time; empty in a photo."""
        return self._named(self._faces.labels, self._faces.smoothed)

    @property
    def label_smoothed(self) -> str | None:
        """The expression with the largest smoothed probability; None in a photo."""
        return max(self.smoothed, key=self.smoothed.__getitem__, default=None)

    @property
    def outputs(self) -> dict[str, float]:
        """The values of further heads by column, such as `move_jawOpen` or `valence`."""
        return self._named(self._faces.scheme.outputs.columns, self._faces.outputs)

    @property
    def smoothed_outputs(self) -> dict[str, float]:
        """The outputs, averaged over time; empty in a photo."""
        return self._named(self._faces.scheme.outputs.columns, self._faces.smoothed_outputs)

    def _named(self, names: Sequence[str], values: Array) -> dict[str, float]:
        """Returns the numbers of this face by name; empty if all numbers are NaN."""
        row = values[self._row]
        if np.isnan(row).all():
            return {}
        return dict(zip(names, row.tolist(), strict=True))

    @property
    def pose(self) -> Pose | None:
        """Yaw, pitch and roll in degrees, from the model's head `pose` or from the landmarks.

        None without both: no face was detected, or the landmarks give no pose.
        """
        angles = self._faces.angles[self._row]
        return Pose(*angles.tolist()) if np.isfinite(angles).all() else None

    @property
    def to_crop(self) -> Array:
        """The matrix (2, 3) from photo to crop pixels."""
        return np.asarray(self._faces.to_crop[self._row])

    @property
    def crop_size(self) -> int:
        """The side of the crop in pixels."""
        return self._faces.scheme.crop_size

    @property
    def regions(self) -> dict[str, Array]:
        """The box (4,) of every visible region, xyxy in crop pixels."""
        boxes = self._faces.boxes[self._row]
        visible = self._faces.visible[self._row].tolist()
        names = self._faces.scheme.regions
        regions = {}
        for name, box, is_visible in zip(names, boxes, visible, strict=True):
            if is_visible:
                regions[name] = box
        return regions

    @property
    def outside(self) -> tuple[str, ...]:
        """The regions whose centre is outside the photo."""
        outside = ~self._faces.in_photo[self._row]
        return tuple(compress(self._faces.scheme.regions, outside))

    @property
    def features(self) -> Float32Array:
        """The features before the classifier (D,)."""
        return np.asarray(self._faces.features[self._row])

    @property
    def origin(self) -> Origin:
        """What made the prediction."""
        return self._faces.origin

    def prediction_set(self, coverage: int = 90, by_class: bool = False) -> list[str] | None:
        """Returns the expressions that are possible for the face.

        Prediction sets nominally contain the true expression of `coverage` percent (90, 95) of the
        faces, for faces like the calibration faces. Returns None if the model is not calibrated
        (`fer-vit export --calibrate`).

        With `by_class`, the coverage holds for each expression. The sets are then larger, and each
        set contains the expressions with too few calibration faces. For the shipped models this is
        contempt.
        """
        member = self.alone.sets(coverage, by_class)
        if member is None:
            return None
        return list(compress(self._faces.labels, member[0]))

    @property
    def warnings(self) -> list[str]:
        """The names of `WARNINGS` that apply."""
        text = self._faces.column("warning")[self._row]
        return text.split(SEPARATOR) if text else []


def no_faces(infos: Iterable[PhotoInfo] = (), scheme: Scheme | None = None) -> Faces:
    """Returns photos without faces."""
    return found_faces(infos, np.zeros(0, np.int64), scheme=scheme)


def found_faces(
    infos: Iterable[PhotoInfo],
    photo: IntArray,
    *,
    box: Array | None = None,
    landmarks: Array | None = None,
    score: Array | None = None,
    track: Sequence[int | None] | None = None,
    scheme: Scheme | None = None,
) -> Faces:
    """Returns N faces that are not classified. Values that are not given are unknown.

    Args:
        infos: The photos.
        photo: The index of each face's photo, in ascending order (N,).
        box: The boxes (N, 4), as in `Faces`.
        landmarks: The landmarks (N, 5, 2), as in `Faces`.
        score: The detector's scores (N,), as in `Faces`.
        track: The tracks (N,), as in `Faces`.
        scheme: What the numbers will mean. Default: a scheme without labels and outputs.
    """
    num_faces = len(photo)
    scheme = scheme or Scheme()
    num_labels = len(scheme.labels)
    num_outputs = len(scheme.outputs)
    num_regions = len(scheme.regions)
    first = np.searchsorted(photo, photo)  # the row of the first face of each face's photo
    return Faces(
        infos=tuple(infos),
        scheme=scheme,
        photo=photo,
        face=np.arange(num_faces) - first,
        box=_unknown(num_faces, 4) if box is None else box,
        landmarks=_unknown(num_faces, len(LANDMARKS), 2) if landmarks is None else landmarks,
        score=_unknown(num_faces) if score is None else score,
        track=as_objects([None] * num_faces if track is None else track),
        probabilities=_unknown(num_faces, num_labels),
        outputs=_unknown(num_faces, num_outputs),
        angles=_unknown(num_faces, len(Pose._fields)),
        smoothed=_unknown(num_faces, num_labels),
        smoothed_outputs=_unknown(num_faces, num_outputs),
        to_crop=_unknown(num_faces, 2, 3),
        boxes=_unknown(num_faces, num_regions, 4),
        visible=np.zeros((num_faces, num_regions), bool),
        in_photo=np.zeros((num_faces, num_regions), bool),
        blur=_unknown(num_faces),
        features=np.zeros((num_faces, scheme.features), np.float32),
    )


def _unknown(*shape: int) -> Array:
    return np.full(shape, np.nan)


AnyFaces = TypeVar("AnyFaces", bound=Faces)


def join_faces(batches: Sequence[AnyFaces]) -> AnyFaces:
    """Returns the faces and photos of one or more batches, one batch after another.

    The batches may be from different days: `origin.predicted_on` is the earliest date. Raises
    FerVitError when different models, detectors or versions have classified the faces.
    """
    classified = [batch for batch in batches if len(batch)] or batches[:1]
    scheme = classified[0].scheme
    for batch in classified:
        if batch.scheme.undated != scheme.undated:
            raise FerVitError(
                "Expected faces of one model, detector and version of fer-vit to join, but got "
                "several. Make a table of each."
            )
    dates = [batch.origin.predicted_on for batch in classified if batch.origin.predicted_on]
    origin = scheme.origin._replace(predicted_on=min(dates, default=None))
    columns: dict[str, Any] = {}
    for name in ARRAYS:
        columns[name] = np.concatenate([getattr(batch, name) for batch in classified])
    starts = np.cumsum([0, *(len(batch.infos) for batch in batches)])
    photo = [batch.photo + start for batch, start in zip(batches, starts, strict=False)]
    columns["photo"] = np.concatenate(photo)
    infos = tuple(chain.from_iterable(batch.infos for batch in batches))
    scheme = replace(scheme, origin=origin)
    cut = [batch.crops for batch in classified if batch.crops is not None]
    crops = join_crops(cut) if cut else None
    return replace(classified[0], infos=infos, scheme=scheme, crops=crops, **columns)


def collect_faces(faces: Face | Faces | Sequence[Face]) -> Faces:
    """Returns `Faces` for one face or a list of faces.

    Raises FerVitError when the argument is something else, an empty list, or a list of faces that
    different models have classified.
    """
    if isinstance(faces, Faces):
        return faces
    if isinstance(faces, Face):
        return faces.alone
    if not isinstance(faces, Sequence) or isinstance(faces, str):
        raise FerVitError(
            f"Expected faces that `predict` returns, but got a {type(faces).__name__}."
        )
    for face in faces:
        if not isinstance(face, Face):
            raise FerVitError(
                "Expected a list of faces that `predict` returns, "
                f"but it has a {type(face).__name__}."
            )
    if not faces:
        raise FerVitError("Expected one or more faces, but got none.")
    return join_faces([face.alone for face in faces])


def are_uncertain(score: Array, sure_score: float | None) -> Mask:
    """Returns where a detector found a face but is uncertain (N,).

    Args:
        score: The detector's scores (N,). `NOT_FOUND` and NaN (no detector) are not uncertain.
        sure_score: The detector's `sure_score`; None: no face is uncertain.
    """
    if sure_score is None:
        return np.zeros(len(score), bool)
    return np.asarray((score > NOT_FOUND) & (score < sure_score))


def as_objects(values: Sequence[object]) -> Objects:
    """Returns values as an array of objects (N,)."""
    return np.fromiter(values, object, len(values))


def as_cells(column: NDArray[Any]) -> list[Cell]:
    """Returns the values of a column as cells; numbers that are not finite become None."""
    cells: list[Cell] = column.tolist()
    if column.dtype.kind != "f":
        return cells
    finite = np.isfinite(column).tolist()
    return [cell if is_finite else None for cell, is_finite in zip(cells, finite, strict=True)]


def _names_of_members(names: Sequence[str], member: Mask) -> Objects:
    """Returns the names of the members of each row (N, K) as text (N,)."""
    return as_objects([SEPARATOR.join(compress(names, row)) for row in member])


def _number_or_none(value: float) -> float | None:
    """Returns a number; None instead of NaN."""
    return float(value) if math.isfinite(value) else None
