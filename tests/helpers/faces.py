"""Classified faces without a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from fer_vit.faces import NO_FACE, OK, Face, Faces, PhotoInfo, Scheme, found_faces
from fer_vit.geometry import Array
from fer_vit.heads import HeadOutputs
from fer_vit.predict.outputs import Outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.predict.tables import predict_table

READ_HERE = PhotoOptions(workers=0)


def make_faces(
    labels: Sequence[str],
    probabilities: Sequence[Sequence[float]] | Array,
    *,
    path: str = "a.mp4",
    index: int = 0,
    frame: int | None = None,
    seconds: float | None = None,
    track: Sequence[int | None] | None = None,
    box: Sequence[Sequence[float]] | None = None,
    smoothed: bool = False,
    outputs: dict[str, Sequence[float]] | None = None,
) -> Faces:
    """The faces of a photo or frame; `smoothed`: its probabilities are also the smoothed ones."""
    number = len(probabilities)
    outputs = outputs or {}
    of_scheme = HeadOutputs.among(outputs)
    values = [outputs[column] for column in of_scheme.columns]
    status = OK if number else NO_FACE
    info = PhotoInfo(path, status, index, frame, seconds, source=None)
    scheme = Scheme(tuple(labels), of_scheme, crop_size=8)
    faces = found_faces(
        [info],
        np.zeros(number, np.int64),
        track=track,
        box=None if box is None else np.array(box, float),
        scheme=scheme,
    )
    shares = np.array(probabilities, float).reshape(number, len(labels))
    return replace(
        faces,
        probabilities=shares,
        smoothed=shares if smoothed else faces.smoothed,
        outputs=np.array(values, float).reshape(len(outputs), number).T,
        to_crop=np.tile(np.eye(2, 3), (number, 1, 1)),
        score=np.ones(number),
    )


def make_face(
    probabilities: Mapping[str, float],
    *,
    face: int = 0,
    crop_size: int = 32,
    size: float = 48.0,
    seconds: float | None = None,
    track: int | None = None,
    smoothed: bool = False,
) -> Face:
    """The face with index `face` of a photo or, with `track`, of a frame; its crop has a side of
    `size` pixels in the photo.
    """
    faces = make_faces(
        tuple(probabilities),
        [[*probabilities.values()]],
        seconds=seconds,
        track=[track],
        smoothed=smoothed,
    )
    return replace(
        faces,
        scheme=replace(faces.scheme, crop_size=crop_size),
        face=np.array([face]),
        to_crop=np.eye(2, 3)[None] * crop_size / size,
    )[0]


@cache
def tiny_recognizer(labels: tuple[str, ...], columns: tuple[str, ...] = ()) -> Recognizer:
    """A model of random weights with these labels, and the columns of its further outputs."""
    from fer_vit.model.config import RegionViTConfig
    from fer_vit.model.region_vit import build_model

    size = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    config = RegionViTConfig(**size, regions=("mouth",))
    outputs = HeadOutputs.among(columns).plain
    return load(build_model(config, [*labels], outputs=outputs), "cpu")


def write_tables(
    photos: Iterable[Faces],
    sources: Sequence[Path],
    outputs: Outputs,
    labels: tuple[str, ...] = ("neutral", "happiness"),
    columns: tuple[str, ...] = (),
    options: PhotoOptions = READ_HERE,
) -> None:
    """Writes tables and copies of faces, as `predict` does with what its model recognizes."""
    predict_table(tiny_recognizer(labels, columns), photos, sources, options, outputs)
