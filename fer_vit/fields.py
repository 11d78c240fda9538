"""The columns of the tables of faces, people and intervals, and of manifests.

Writers, readers, help and documentation use these lists.

A name with an asterisk stands for several columns: one for each expression, movement or feature.
Each column of the table of faces has a function or attribute that computes the column, so a new
column is one entry.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from textwrap import fill
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fer_vit.heads import (
    HEADS,
    MEANS,
    MOVEMENTS,
    NO_OUTPUTS,
    POSE as POSE_HEAD,
    HeadOutputs,
    Mean,
    Output,
    find_output,
)

Cell: TypeAlias = str | int | float | None  # a cell of a table; None is an empty one
NUMBER = ".8g"  # usual format of a number in text: milliseconds within a day

# Formats of numbers in text, by unit. A unit of a head that is not listed has the format `NUMBER`.
NUMBER_FORMATS = {
    "probability": ".4g",
    "intensity": ".4g",
    "share": ".4g",
    "[0, 1]": ".4g",
    "[-1, 1]": ".4g",
    "nats": ".4g",
    "score": ".4g",
    "crop pixels": ".4g",
    "pixels": "z.1f",  # 0.0 instead of -0.0
    "degrees": "z.1f",
    "seconds": NUMBER,
    "": NUMBER,
}

# Computes a column from `faces.Faces`: an array with a row for each face (N, ...). The faces may
# not be classified yet: without expressions, C is 0.
ComputeColumn: TypeAlias = Callable[[Any], NDArray[Any]]

CellType: TypeAlias = type

# The types of cells, by the names that JSON has for them. Any cell may be empty.
TYPES: dict[str, CellType] = {"string": str, "integer": int, "number": float, "boolean": bool}

HELP_WIDTH = 100  # characters in a line of `describe_fields`

PROBABILITY = "p_"
SMOOTHED = "smoothed_"
SMOOTHED_LABEL = "label_smoothed"
FEATURE = "feature_"
BOX_COLUMNS = ("box_left", "box_top", "box_right", "box_bottom")


class Field(NamedTuple):
    """A column.

    Attributes:
        name: The name of the column; with an asterisk, the names of several columns.
        type: "string", "integer", "number" or "boolean"; a manifest also has "image", "numbers" and
            "points".
        unit: The unit of the numbers, see `NUMBER_FORMATS`; empty without a unit.
        meaning: What a cell contains, as a phrase.
        when: When a table has the column; empty: always.
        head: The head that selects the column in `--outputs`: "expression" or another head. Empty:
            the column is always written.
        compute: The function that computes the column from `faces.Faces`. None: the attribute of
            `Faces` with the name of the column.
        part: The index of the column in the result of `compute`, after the axis of rows. Empty: the
            result is one column.
    """

    name: str
    type: str
    unit: str
    meaning: str
    when: str = ""
    head: str = ""
    compute: ComputeColumn | None = None
    part: tuple[int, ...] = ()

    def values(self, faces: Any) -> NDArray[Any]:
        """Returns the column of `faces.Faces` (N,)."""
        compute = self.compute or attrgetter(self.name)
        index: Any = (slice(None), *self.part)  # rows are the first axis
        return np.asarray(compute(faces)[index])

    @property
    def cell_type(self) -> CellType:
        """The Python type of a cell."""
        return TYPES[self.type]

    @property
    def format(self) -> str:
        """The format of a number of the column in text."""
        return NUMBER_FORMATS.get(self.unit, NUMBER)

    @property
    def description(self) -> str:
        """What a cell contains, and when a table has the column."""
        return f"{self.meaning}; only {self.when}" if self.when else self.meaning

    def named(self, name: str, index: int) -> "Field":
        """Returns one of the columns that the asterisk stands for, by name and index."""
        return self._replace(name=self.name.replace("*", name), part=(index,))


def _coordinate(name: str, meaning: str, attribute: str, *part: int) -> Field:
    """Returns a column with a coordinate in the photo.

    The coordinate is at index `part` of an attribute of `faces.Faces`.
    """
    return Field(name, "number", "pixels", meaning, compute=attrgetter(attribute), part=part)


def _origin(name: str, meaning: str) -> Field:
    """Returns a column with an attribute of the faces' origin, equal in all rows."""

    def repeat(faces: Any) -> NDArray[Any]:
        return np.full(len(faces), getattr(faces.origin, name), object)

    return Field(name, "string", "", meaning, compute=repeat)


TRACK = "number of the person in the video, from 1; after a cut, a new one"
WITH_VIDEOS = "with videos"
WITH_HEAD = "if the model has the head"

# What identifies a photo or frame. The row of a photo without a face has these columns and
# `ORIGIN_FIELDS`.
PHOTO_FIELDS = (
    Field("path", "string", "", "the photo or video"),
    Field("status", "string", "", "ok, no face, or why the image can't be read"),
    Field("frame", "integer", "", "index of the frame in its video", WITH_VIDEOS),
    Field("seconds", "number", "seconds", "time of the frame in its file", WITH_VIDEOS),
)

IDENTITY_FIELDS = (  # what identifies a face
    *PHOTO_FIELDS,
    Field("track", "integer", "", TRACK, WITH_VIDEOS),
    Field("face", "integer", "", "index of the face in its photo, from 0; empty without a face"),
)
EXPRESSION_FIELDS = (  # what most users read
    Field(
        "label",
        "string",
        "",
        "the most probable expression; empty below `--min_confidence`",
        head="expression",
    ),
    Field("confidence", "number", "probability", "the probability of the label", head="expression"),
    Field(
        "ambiguous",
        "boolean",
        "",
        "whether the prediction set doesn't have exactly one expression, or the confidence is "
        "below `--min_confidence`; empty if there's neither",
        head="expression",
    ),
    Field(
        "warning",
        "string",
        "",
        "small face (`size` below 30 pixels), turned head (`yaw`, `pitch` or `roll` beyond 45 "
        "degrees), uncertain face (a low `score`)",
    ),
    Field(
        "p_*",
        "number",
        "probability",
        "the probability of each expression",
        head="expression",
        compute=attrgetter("probabilities"),
    ),
)

# The pose, from the head `pose` or from the landmarks. A table always has these columns.
ANGLES = Field(
    "", "number", HEADS[POSE_HEAD].unit, "", head=POSE_HEAD, compute=attrgetter("angles")
)
POSE_FIELDS = tuple(
    ANGLES._replace(name=name, meaning=meaning, part=(index,))
    for index, (name, meaning) in enumerate(HEADS[POSE_HEAD].outputs.items())
)

UNCERTAINTY_FIELDS = (
    Field(
        "prediction_set",
        "string",
        "",
        "the possible expressions; nominally, 90% of such sets contain the true one; empty if the "
        "model isn't calibrated",
        head="expression",
    ),
    Field(
        "entropy",
        "number",
        "nats",
        "entropy of the probabilities, from 0 to the natural logarithm of how many there are",
        head="expression",
    ),
)
SMOOTHED_FIELDS = (
    Field(
        SMOOTHED_LABEL,
        "string",
        "",
        "the most probable smoothed expression; empty below `--min_confidence`",
        WITH_VIDEOS,
        head="expression",
    ),
    Field(
        "smoothed_*",
        "number",
        "probability",
        "average over time of each probability",
        WITH_VIDEOS,
        head="expression",
        compute=attrgetter("smoothed"),
    ),
)
QUALITY_FIELDS = (
    Field("size", "number", "pixels", "side of the face's crop in the photo"),
    Field(
        "blur",
        "number",
        "crop pixels",
        "width of the face's edges, about 1.1 in FERPlus; empty without contrast",
    ),
    Field("outside", "string", "", "regions whose centre is outside the photo"),
    Field(
        "score",
        "number",
        "score",
        "the detector's score, in [0, 1]; 0 if the full image was used, empty without a detector",
    ),
)
PLACE_FIELDS = (
    _coordinate("box_left", "left side of the face's box in the photo", "box", 0),
    _coordinate("box_top", "upper side", "box", 1),
    _coordinate("box_right", "right side", "box", 2),
    _coordinate("box_bottom", "lower side", "box", 3),
    _coordinate(
        "right_eye_x", "the person's right eye in the photo, x to the right", "landmarks", 0, 0
    ),
    _coordinate("right_eye_y", "y down", "landmarks", 0, 1),
    _coordinate("left_eye_x", "the person's left eye", "landmarks", 1, 0),
    _coordinate("left_eye_y", "", "landmarks", 1, 1),
    _coordinate("nose_x", "tip of the nose", "landmarks", 2, 0),
    _coordinate("nose_y", "", "landmarks", 2, 1),
    _coordinate("right_mouth_x", "the mouth's corner on the person's right", "landmarks", 3, 0),
    _coordinate("right_mouth_y", "", "landmarks", 3, 1),
    _coordinate("left_mouth_x", "the mouth's corner on the person's left", "landmarks", 4, 0),
    _coordinate("left_mouth_y", "", "landmarks", 4, 1),
)

# What made the row. Each row has these columns, because users join and sort rows of several tables.
ORIGIN_FIELDS = (
    _origin("model", "name or path of the model"),
    _origin("detector", "the face detector"),
    _origin("fer_vit_version", "the version of fer-vit"),
    _origin("predicted_on", "the date, YYYY-MM-DD"),
    _origin(
        "pose_from",
        "what the angles are from: head (the model's) or landmarks",
    ),
)

FEATURE_FIELDS = (
    Field(
        "feature_*",
        "number",
        "",
        "the features before the classifier",
        "with `--features`",
        compute=attrgetter("features"),
    ),
)
PEOPLE_FIELDS = (  # the table of `predict --summary`: a row for each person in a video
    Field("path", "string", "", "the video"),
    Field("track", "integer", "", TRACK),
    Field("first_seen", "number", "seconds", "time of the person's first frame in the file"),
    Field("last_seen", "number", "seconds", "time of the person's last frame"),
    Field("frames", "integer", "", "number of frames with the person"),
    Field(
        "time_*",
        "number",
        "share",
        "share of time of each smoothed expression, without frames below `--min_confidence`",
        head="expression",
    ),
    Field(
        "mean_*",
        "number",
        "",
        "mean over time of each smoothed output; of angles, the mean direction",
        WITH_HEAD,
    ),
    Field(
        "longest_run",
        "string",
        "",
        "expression of the longest interval without a change",
        head="expression",
    ),
    Field(
        "longest_run_seconds",
        "number",
        "seconds",
        "duration of the longest interval",
        head="expression",
    ),
)

# The table of `predict --intervals`: a row for each expression of a person without a change.
INTERVAL_FIELDS = (
    Field("path", "string", "", "the video"),
    Field("track", "integer", "", TRACK),
    Field("start", "number", "seconds", "begin, from the start of the file"),
    Field("end", "number", "seconds", "end, from the start of the file"),
    Field("label", "string", "", "the smoothed expression, or a movement above `--threshold`"),
    Field(
        "confidence",
        "number",
        "[0, 1]",
        "mean smoothed probability of the expression, or intensity of the movement",
    ),
)

# A manifest. Columns with targets of further heads follow; see `heads.Output.column`.
MANIFEST_FIELDS = (
    Field("image", "image", "", "the encoded image, or its path below the manifest's folder"),
    Field("split", "string", "", "train, val or test"),
    Field("label", "string", "", "the name of an expression; null: unknown"),
    Field(
        "votes", "numbers", "", "the weight of each label in the metadata's order; null: no votes"
    ),
    Field("landmarks", "points", "pixels", "five points (x, y) in the image; null: unknown"),
    Field("score", "number", "score", "the detector's score; 0: the whole image is the face"),
    Field("face", "integer", "", "index of the face in its photo"),
    Field("source", "string", "", "the data set"),
    Field(
        "near_duplicate",
        "boolean",
        "",
        "whether an image of val or test had a near-duplicate in train; null in train",
    ),
)


# In the list of all columns, this one stands for all averages over time.
ANY_SMOOTHED_FIELD = Field(
    f"{SMOOTHED}*",
    "number",
    "",
    "average over time of each probability, output and mean, such as `smoothed_happiness`, "
    "`smoothed_smile` and `smoothed_yaw`; of angles, the mean direction",
    WITH_VIDEOS,
)


def all_face_fields() -> list[Field]:
    """Returns all columns of the tables of faces that `predict` and `live` write, in order."""
    of_heads = []
    for head, entry in HEADS.items():
        if head != POSE_HEAD:
            for name in entry.outputs or ("*",):
                of_heads.append(output_field(Output(head, name)))
    return [
        *IDENTITY_FIELDS,
        *EXPRESSION_FIELDS,
        *POSE_FIELDS,
        *of_heads,
        *map(mean_field, MEANS),
        *UNCERTAINTY_FIELDS,
        SMOOTHED_FIELDS[0],
        ANY_SMOOTHED_FIELD,
        *QUALITY_FIELDS,
        *PLACE_FIELDS,
        *ORIGIN_FIELDS,
        *FEATURE_FIELDS,
    ]


def face_fields(
    labels: Sequence[str],
    outputs: HeadOutputs = NO_OUTPUTS,
    videos: bool = False,
    features: int = 0,
) -> list[Field]:
    """Returns the columns of a table of faces, in order.

    Args:
        labels: The expressions.
        outputs: The outputs of further heads.
        videos: Whether the table has columns for frames of videos.
        features: Number of columns with features.
    """
    of_heads: list[Field] = []
    smoothed: list[Field] = []
    for index, output in enumerate(outputs):
        field = output_field(output)._replace(part=(index,))
        if output.head != POSE_HEAD:  # the pose is always there
            of_heads.append(field)
        smoothed.append(smoothed_field(field))
    for mean in outputs.means:
        field = mean_field(mean.name)
        of_heads.append(_computed_mean(field, mean, "outputs", outputs))
        smoothed.append(_computed_mean(smoothed_field(field), mean, "smoothed_outputs", outputs))
    fields = [
        *IDENTITY_FIELDS,
        *_expand(EXPRESSION_FIELDS, labels),
        *POSE_FIELDS,
        *of_heads,
        *UNCERTAINTY_FIELDS,
        *_expand(SMOOTHED_FIELDS, labels),
        *smoothed,
        *QUALITY_FIELDS,
        *PLACE_FIELDS,
        *ORIGIN_FIELDS,
        *_expand(FEATURE_FIELDS, range(features)),
    ]
    return [field for field in fields if videos or field.when != WITH_VIDEOS]


@lru_cache(maxsize=64)
def fields_by_name(labels: tuple[str, ...], outputs: HeadOutputs) -> Mapping[str, Field]:
    """Returns the columns of a table of faces with videos and without features, by name.

    Outputs with other r have the same columns, and so the same entry of the cache.
    """
    return {field.name: field for field in face_fields(labels, outputs, videos=True)}


def table_columns(
    labels: Sequence[str], videos: bool = False, outputs: HeadOutputs = NO_OUTPUTS
) -> dict[str, type]:
    """Returns the types of the columns of a table of faces by name.

    The arguments are the same as for `face_fields`.
    """
    return {field.name: field.cell_type for field in face_fields(labels, outputs, videos)}


def is_owned(name: str, labels: Sequence[str]) -> bool:
    """Returns whether `predict` writes a column of this name for a model with these labels."""
    plain = name.removeprefix(SMOOTHED)  # outputs of heads and means are smoothed, too
    if name in table_columns(labels, videos=True) or is_feature(name):
        return True
    return find_output(plain) is not None or plain in MEANS


def is_feature(name: str) -> bool:
    """Returns whether a column has a feature of the network."""
    return re.fullmatch(rf"{FEATURE}\d+", name) is not None


def choose_fields(fields: Iterable[Field], chosen: Sequence[str]) -> list[Field]:
    """Returns the columns of the chosen heads and the columns that belong to no head.

    Returns all columns if `chosen` is empty.
    """
    return [field for field in fields if not chosen or not field.head or field.head in chosen]


def people_fields(labels: Sequence[str], outputs: HeadOutputs = NO_OUTPUTS) -> list[Field]:
    """Returns the columns of a table of people for expressions and outputs of further heads."""
    fields = []
    for field in PEOPLE_FIELDS:
        if field.name == "mean_*":
            averaged = [output_field(output) for output in outputs]
            averaged += [mean_field(mean.name) for mean in outputs.means]
            for index, of_frame in enumerate(averaged):
                mean_over_time = field.named(of_frame.name, index)
                fields.append(mean_over_time._replace(head=of_frame.head, unit=of_frame.unit))
        else:
            fields += _expand([field], labels)
    return fields


def describe_fields(fields: Iterable[Field]) -> str:
    """Returns a list of columns and their meanings as text, for the help of a command.

    The name of a column without a meaning is in the line of the column before.
    """
    names: list[str] = []
    descriptions: list[str] = []
    for field in fields:
        if field.meaning:
            names.append(field.name)
            descriptions.append(field.description)
        else:
            names[-1] += f", {field.name}"

    width = max(map(len, names))
    lines = []
    for name, description in zip(names, descriptions, strict=True):
        start = f"  {name:<{width}}  "
        indent = " " * len(start)
        lines.append(fill(description, HELP_WIDTH, initial_indent=start, subsequent_indent=indent))
    return "\n".join(lines)


def _expand(fields: Sequence[Field], names: Iterable[object]) -> list[Field]:
    """Replaces each column that has an asterisk by a column for each of the names."""
    expanded: list[Field] = []
    for field in fields:
        if "*" in field.name:
            expanded += [field.named(str(name), index) for index, name in enumerate(names)]
        else:
            expanded.append(field)
    return expanded


def output_field(output: Output) -> Field:
    """Returns the column of an output of a further head."""
    return Field(
        output.column,
        "number",
        output.kind.column_unit or output.kind.unit,
        output.meaning,
        WITH_HEAD,
        head=output.head,
        compute=attrgetter("outputs"),
    )


def mean_field(name: str) -> Field:
    """Returns the column of a mean of `heads.MEANS`, without what computes it."""
    left, right = MEANS[name]
    return Field(
        name,
        "number",
        HEADS[MOVEMENTS].column_unit,
        f"mean of `{left}` and `{right}`",
        "if the model has both",
        head=MOVEMENTS,
    )


def _computed_mean(field: Field, mean: Mean, attribute: str, outputs: HeadOutputs) -> Field:
    """Returns the column of a mean with what computes it.

    The outputs (N, K) are an attribute of `faces.Faces`.
    """

    def compute(faces: Any) -> NDArray[Any]:
        return np.asarray(mean.of(outputs.by_column(getattr(faces, attribute).T)))

    return field._replace(compute=compute)


def smoothed_field(field: Field) -> Field:
    """Returns the column with the average over time of an output or a mean."""
    return field._replace(
        name=SMOOTHED + field.name,
        meaning=f"average over time of {field.name}",
        when=WITH_VIDEOS,
        compute=attrgetter("smoothed_outputs"),
    )
