"""A classified face, and its row in a table."""

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from io import BytesIO
from itertools import groupby, islice
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pil

from fer_vit.conformal import Thresholds, in_set
from fer_vit.errors import FerVitError
from fer_vit.explain.trace import attention_views, trace
from fer_vit.face.crop import warp
from fer_vit.face.detect import Pose, head_pose
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import LANDMARKS, Array, Float32Array, Image
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import OK, Photo, Source
from fer_vit.report.draw import Attention, FaceView, Marked, draw_faces
from fer_vit.report.table import Cell, arrow_schema, arrow_table

PLOTS = (".svg", ".pdf", ".png")  # endings of saved figures


@dataclass(frozen=True, eq=False)
class FaceResult:
    """A face and its expression."""

    label: str  # the most probable expression
    confidence: float  # its probability
    probabilities: dict[str, float] = field(repr=False)  # of every expression by name
    path: str  # the photo or video; "image 0" and so on for images in memory
    face: int  # index of the face in its photo
    box: Array | None = field(
        repr=False
    )  # (4,), xyxy in the photo's pixels; None without landmarks
    landmarks: dict[str, tuple[float, float]] | None = field(
        repr=False
    )  # (x, y) in the photo's pixels by name
    score: (
        float | None
    )  # of the detector in [0, 1]; 0: no face was found, the full image is used; None: no detector
    source: Source = field(repr=False)  # the photo's path, or the image in memory
    to_crop: Array = field(repr=False)  # matrix (2, 3) from photo to crop pixels
    crop_size: int = field(repr=False)  # side of the crop in pixels
    regions: dict[str, Array] = field(
        repr=False
    )  # box (4,) of every visible region, xyxy in crop pixels
    thresholds: Thresholds = field(
        repr=False
    )  # of prediction sets (see `conformal`); empty if not calibrated
    blur: float = field(
        repr=False
    )  # see `measure_blur`: about 1.1 in FERPlus; NaN without contrast
    outside: tuple[str, ...] = field(repr=False)  # regions whose centre lies outside the photo
    net: RegionViT = field(repr=False)
    frame: int | None = None  # index of the frame in a video; None in a photo
    seconds: float | None = None  # the frame's time in the video
    track: int | None = None  # the number of the person in the video
    smoothed: dict[str, float] = field(
        default_factory=dict, repr=False
    )  # `probabilities` averaged over time
    features: Float32Array = field(
        default_factory=lambda: np.zeros(0, np.float32), repr=False
    )  # (D,)

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
        """Yaw, pitch and roll of the head in degrees; None if no face was detected."""
        return (
            None
            if self.landmarks is None or self.score == 0
            else head_pose([*self.landmarks.values()])
        )

    @property
    def warnings(self) -> list[str]:
        """The names of `WARNINGS` that apply."""
        found = self.size < SMALL, self.pose is not None and max(map(abs, self.pose)) > TURNED
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
        names = self.net.config.regions
        image = (
            torch.from_numpy(warp(photo, self.to_crop, self.crop_size)).permute(2, 0, 1).float()
            / 255
        )
        boxes = torch.tensor(
            np.array([self.regions.get(name, np.zeros(4)) for name in names]).reshape(-1, 4)
        )
        valid = torch.tensor([name in self.regions for name in names], dtype=torch.bool)
        device = self.net.centres.device
        seen = trace(
            self.net, *(values[None].to(device) for values in (image, boxes.float(), valid))
        )
        return Attention(*(values[0].double().cpu().numpy() for values in attention_views(seen)))

    def _repr_png_(self) -> bytes | None:
        return self.plot()._repr_png_()

    def read_photo(self) -> Image:
        """Returns the photo or frame (H, W, 3), RGB uint8; raises FerVitError when it can no longer be read."""
        if not isinstance(self.source, Path):
            return self.source
        try:
            if self.frame is None:
                return read_image(self.source)
            from fer_vit.predict.frames import read_frames  # only here: PyAV may not be installed

            if frame := next(read_frames(self.source, only={self.frame}), None):
                return frame.image
            raise ImageError("the video has become shorter")
        except ImageError as error:
            raise FerVitError(f"{self.path}: {error}.") from error

    def view(self, photo: Image) -> FaceView:
        """Returns the face for drawing, in its photo (H, W, 3), RGB uint8."""
        where = photo, self.to_crop, self.crop_size, self.regions, self.box
        who = self.path, self.face, self.track, self.seconds or 0.0
        return FaceView(*where, *who, self.probabilities, self.label_smoothed)


class Faces(list[FaceResult]):
    """Faces in the order of their photos and frames, as `predict` returns them; a notebook shows these photos."""

    def plot(self) -> Iterator[Pil.Image]:
        """Yields each photo or frame with its faces marked by box, expression and probability."""
        for _, faces in groupby(self, lambda face: (face.path, face.frame)):
            first, *others = faces
            yield Pil.fromarray(
                draw_faces(first.read_photo(), [face.marked for face in (first, *others)])
            )

    def _repr_html_(self) -> str:
        """Returns the first `SHOWN` photos, at most 640 pixels wide or high, for a notebook."""
        html = f"<p>{len(self)} face{'s' * (len(self) != 1)}</p>"
        for photo in islice(self.plot(), SHOWN):
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


BOX = ("box_left", "box_top", "box_right", "box_bottom")
SMALL, TURNED = (
    30,
    45,
)  # size in pixels below which, and angle in degrees above which, labels are unreliable
WARNINGS = {
    "small face": f"faces are below {SMALL} pixels: their labels are unstable",
    "turned head": f"heads are turned by more than {TURNED} degrees",
}
"""What the column `warning` may have, and how the summary explains it."""
SHOWN = 8  # photos in a notebook
SEPARATOR = "; "  # between the names in a cell
COLUMNS: dict[str, tuple[type, Callable[[FaceResult], Cell]]] = {
    "path": (str, lambda face: face.path),
    "status": (str, lambda _: OK),  # replaced by the status of the photo
    "frame": (int, lambda face: face.frame),
    "seconds": (float, lambda face: face.seconds),
    "track": (int, lambda face: face.track),
    "face": (int, lambda face: face.face),
    **{name: (float, _entry("box", index)) for index, name in enumerate(BOX)},
    **{
        f"{name}_{'xy'[axis]}": (float, _entry("landmarks", name, axis))
        for name in LANDMARKS
        for axis in (0, 1)
    },
    "score": (float, lambda face: face.score),
    "label": (str, lambda face: face.label),
    "confidence": (float, lambda face: face.confidence),
    "entropy": (float, lambda face: face.entropy),
    "prediction_set": (str, lambda face: _join(face.prediction_set())),
    "ambiguous": (bool, lambda face: face.ambiguous),
    "size": (float, lambda face: face.size),
    "blur": (float, lambda face: face.blur if math.isfinite(face.blur) else None),
    "outside": (str, lambda face: _join(face.outside)),
    **{name: (float, _entry("pose", index)) for index, name in enumerate(Pose._fields)},
    "warning": (str, lambda face: _join(face.warnings) or None),
    "label_smoothed": (str, lambda face: face.label_smoothed),
}
"""Type and value of the columns of the table of faces, before one column per expression; None is an empty cell."""
VIDEO = ("frame", "seconds", "track", "label_smoothed")  # only in tables with videos
PROBABILITY = "p_"  # prefix of an expression's column, which separates labels from other columns
SMOOTHED = "smoothed_"  # prefix of the column of a smoothed probability
FEATURE = "feature_"  # prefix of the column of a feature


def _join(names: Sequence[str] | None) -> str | None:
    return None if names is None else SEPARATOR.join(names)


def table_columns(
    labels: Sequence[str], videos: bool = False, features: int = 0
) -> dict[str, type]:
    """Returns name and type of a table's columns; `videos` adds columns, and so do D `features`."""
    columns = {name: kind for name, (kind, _) in COLUMNS.items() if videos or name not in VIDEO}
    prefixes = (PROBABILITY, SMOOTHED) if videos else (PROBABILITY,)
    columns |= {prefix + label: float for prefix in prefixes for label in labels}
    return columns | {f"{FEATURE}{index}": float for index in range(features)}


def photo_rows(
    photo: Photo[FaceResult], min_confidence: float = 0.0, features: bool = False
) -> Iterator[dict[str, Cell]]:
    """Yields a row for each face, without a label below `min_confidence`, or a single one for a photo without faces."""
    if not photo.faces:
        yield {
            "path": photo.path,
            "status": photo.status,
            "frame": photo.frame,
            "seconds": photo.seconds,
        }
    for face in photo.faces:
        row = {name: value(face) for name, (_, value) in COLUMNS.items()} | {"status": photo.status}
        if min_confidence:
            low = face.confidence < min_confidence
            row |= {"label": None if low else face.label, "ambiguous": low or bool(face.ambiguous)}
        row |= {PROBABILITY + name: value for name, value in face.probabilities.items()}
        if features:
            row |= {
                f"{FEATURE}{index}": value for index, value in enumerate(face.features.tolist())
            }
        yield row | {SMOOTHED + name: value for name, value in face.smoothed.items()}


def table(faces: Sequence[FaceResult]) -> Any:
    """Returns the faces as a pyarrow table with the columns of `fer-vit predict`; `.to_pandas()` converts it."""
    labels = list(dict.fromkeys(name for face in faces for name in face.probabilities))
    columns = table_columns(labels, videos=any(face.frame is not None for face in faces))
    rows = photo_rows(Photo("", OK, list(faces))) if faces else []
    return arrow_table([*rows], arrow_schema(columns))


def table_labels(names: Iterable[str]) -> list[str]:
    """Returns the expressions of a table by the names of its columns."""
    return [name.removeprefix(PROBABILITY) for name in names if name.startswith(PROBABILITY)]
