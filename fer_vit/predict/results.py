"""A face and its expression, and its row in a table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image as Pil

from fer_vit.conformal import Thresholds, in_set
from fer_vit.errors import FerVitError
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import LANDMARKS, Array, Image
from fer_vit.predict.inputs import Source
from fer_vit.predict.photos import Photo
from fer_vit.report.draw import FaceView, prediction_figure
from fer_vit.report.overlay import Marked
from fer_vit.report.table import Cell


@dataclass(frozen=True, eq=False)
class FaceResult:
    """A face and its expression.

    Attributes:
        label: The most probable expression.
        confidence: Its probability.
        probabilities: The probability of every expression by name.
        path: The photo; "image 0" and so on if it was given in memory.
        face: Index of the face in its photo.
        box: Box (4,), xyxy in the photo's pixels; None without landmarks.
        landmarks: (x, y) in the photo's pixels by name; None when none were looked for.
        score: The detector's score in [0, 1]; 0 when it found none, so that the image was taken whole and its landmarks
            may mean nothing; None when it did not look.
        source: The photo's path, or the image in memory.
        to_crop: Matrix (2, 3) from photo to crop pixels.
        crop_size: Side of the crop that the model saw.
        regions: Box (4,) of every region that the model saw, xyxy in crop pixels.
        thresholds: The model's thresholds of sets (see `conformal`); empty when it was not calibrated.
        blur: Length of the crop's finest detail, in pixels of a crop of 48 x 48: about 1.1 in FERPlus, and 2.6 there
            after a Gaussian blur of 1.5 pixels; NaN without contrast.
        outside: Regions whose centre lies outside the photo or the crop. What covers a face is not noticed.
        frame: Index of the frame in a video; None in a photo.
        seconds: The frame's time, as the video has it.
        track: The number of the person in the video.
        smoothed: `probabilities` averaged over time, for frames.
    """

    label: str
    confidence: float
    probabilities: dict[str, float] = field(repr=False)
    path: str
    face: int
    box: Array | None = field(repr=False)
    landmarks: dict[str, tuple[float, float]] | None = field(repr=False)
    score: float | None
    source: Source = field(repr=False)
    to_crop: Array = field(repr=False)
    crop_size: int = field(repr=False)
    regions: dict[str, Array] = field(repr=False)
    thresholds: Thresholds = field(repr=False)
    blur: float = field(repr=False)
    outside: tuple[str, ...] = field(repr=False)
    frame: int | None = None
    seconds: float | None = None
    track: int | None = None
    smoothed: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def label_smoothed(self) -> str | None:
        """The most probable expression by the smoothed probabilities; None in a photo."""
        return max(self.smoothed, key=self.smoothed.__getitem__, default=None)

    def expressions(self, coverage: int = 90, by_class: bool = False) -> list[str] | None:
        """Returns the expressions that cannot be left out: such sets hold the true one as often as `coverage` says.

        None: the model was not calibrated (`fer-vit export --calibrate`).

        Args:
            coverage: 90 or 95, in percent.
            by_class: Whether faces of every expression, however rare, are covered as often; sets are larger then.

        Raises:
            FerVitError: The coverage is another one.
        """
        if not self.thresholds:
            return None
        if str(coverage) not in self.thresholds:
            raise FerVitError(f"Expected a coverage of {' or '.join(self.thresholds)} percent, but got {coverage}.")
        among = in_set(np.array([*self.probabilities.values()]), self.thresholds, coverage, by_class)
        return [name for name, its in zip(self.probabilities, among.tolist(), strict=True) if its]

    @property
    def unsure(self) -> bool | None:
        """Whether there is not exactly one expression that cannot be left out, at 90 %; None: not calibrated."""
        among = self.expressions()
        return None if among is None else len(among) != 1

    @property
    def entropy(self) -> float:
        """The entropy of the probabilities in nats: 0 when there is no doubt, at most log C."""
        return -sum(share * math.log(share) for share in self.probabilities.values() if share > 0)

    @property
    def size(self) -> float:
        """The side of the crop in pixels of the photo; a crop that is smaller than `crop_size` had to be enlarged."""
        return float(self.crop_size / np.sqrt(np.linalg.det(self.to_crop[:, :2])))

    @property
    def marked(self) -> Marked:
        """The face for `draw_faces`, with its smoothed expression where there is one."""
        shares = self.smoothed or self.probabilities
        label = max(shares, key=shares.__getitem__)
        return Marked(self.box, label, shares[label], self.track)

    def plot(self) -> Pil.Image:
        """Draws the face with its box and regions beside its probabilities; a notebook displays it."""
        try:
            photo = self._picture()
        except ImageError as error:
            raise FerVitError(f"{self.path}: {error}.") from error
        return prediction_figure(self.view(photo))

    def _picture(self) -> Image:
        if not isinstance(self.source, Path):
            return self.source
        if self.frame is None:
            return read_image(self.source)
        from fer_vit.predict.video import read_frames  # only here: PyAV may not be installed

        frame = next(read_frames(self.source, only={self.frame}), None)
        if frame is None:
            raise ImageError("the video has become shorter")
        return frame.image

    def view(self, photo: Image) -> FaceView:
        """Returns the face for drawing, in its photo (H, W, 3), RGB uint8."""
        return FaceView(
            photo=photo,
            to_crop=self.to_crop,
            crop_size=self.crop_size,
            regions=self.regions,
            box=self.box,
            name=self.path,
            face=self.face,
            track=self.track,
            seconds=self.seconds or 0.0,
            probabilities=self.probabilities,
        )


BOX = ("box_left", "box_top", "box_right", "box_bottom")
POINTS = tuple(f"{name}_{axis}" for name in LANDMARKS for axis in "xy")
DOUBTS = {"entropy": float, "set": str, "unsure": bool, "size": float, "blur": float, "outside": str}
"""How far a row can be trusted. The first of these follows the last of the probabilities."""
LISTED = "; "
"""Between the names in a cell."""
SMOOTHED = "{}_smoothed"
"""The name of a column's smoothed counterpart."""


def table_columns(labels: list[str], videos: bool = False) -> dict[str, type]:
    """Returns name and type of a table's columns, with more of them where some are of videos.

    Raises:
        FerVitError: A label is another column's name.
    """
    columns: dict[str, type] = {"path": str, "status": str}
    columns |= {"frame": int, "seconds": float, "track": int} if videos else {}
    columns |= {"face": int, **dict.fromkeys((*BOX, *POINTS, "score"), float), "label": str, "confidence": float}
    if taken := (columns | DOUBTS).keys() & set(labels):
        raise FerVitError(
            f"There is a class `{min(taken)}`, which is the name of another column. Rename its folder of photos before "
            "training, and add `--overwrite` (or use `fit --data.merge`), or the label in the config.json of `fer-vit "
            "export FOLDER` after it."
        )
    columns |= dict.fromkeys(labels, float) | DOUBTS
    smoothed = {SMOOTHED.format("label"): str, **dict.fromkeys(map(SMOOTHED.format, labels), float)}
    return columns | smoothed if videos else columns


def photo_rows(photo: Photo[FaceResult], min_confidence: float = 0.0) -> Iterator[dict[str, Cell]]:
    """Yields the rows of a photo or frame: one for each face, or a single one without a face.

    A face below the confidence has no label, and is unsure.
    """
    row: dict[str, Cell] = {"path": photo.path, "status": photo.status, "frame": photo.frame, "seconds": photo.seconds}
    if not photo.faces:
        yield row
    for face in photo.faces:
        box = () if face.box is None else face.box.tolist()
        points = [number for point in (face.landmarks or {}).values() for number in point]
        yield {
            **row,
            "track": face.track,
            "face": face.face,
            **dict(zip(BOX, box, strict=False)),
            **dict(zip(POINTS, points, strict=False)),
            "score": face.score,
            "label": None if face.confidence < min_confidence else face.label,
            "confidence": face.confidence,
            **face.probabilities,
            **doubts(face, min_confidence),
            SMOOTHED.format("label"): face.label_smoothed,
            **{SMOOTHED.format(name): share for name, share in face.smoothed.items()},
        }


def doubts(face: FaceResult, min_confidence: float) -> dict[str, Cell]:
    """Returns a face's cells of `DOUBTS`; `set`, and without a least confidence `unsure`, need a calibrated model."""
    among, unsure = face.expressions(), face.unsure
    if min_confidence:
        unsure = bool(unsure) or face.confidence < min_confidence
    return {
        "entropy": face.entropy,
        "set": None if among is None else LISTED.join(among),
        "unsure": unsure,
        "size": face.size,
        "blur": face.blur if math.isfinite(face.blur) else None,
        "outside": LISTED.join(face.outside),
    }
