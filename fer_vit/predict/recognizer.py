"""Prediction with a trained model: `fer_vit.load().predict("photo.jpg")[0].plot()`.

Its stages find faces, classify them, and smooth their probabilities over time. Each takes and yields photos and frames
one after another; sinks, such as tables, take the results.
"""

import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import fer_vit.explain.methods as methods
import fer_vit.predict.photos as media
from fer_vit.conformal import Thresholds
from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError, ImageError
from fer_vit.face.crop import CropSpec, check_regions
from fer_vit.face.detectors import DetectorName
from fer_vit.geometry import (
    LANDMARKS,
    TEMPLATE,
    Array,
    Float32Array,
    apply,
    invert,
    rotation,
)
from fer_vit.heads import HEADS, target_column
from fer_vit.labels import read_prior
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.model.tokens import Tokens
from fer_vit.predict.photos import (
    FaceMode,
    FoundPhoto,
    Images,
    Photo,
    PhotoDataset,
    PhotoOptions,
    Source,
)
from fer_vit.predict.reading import Started, make_photos, read_sources
from fer_vit.predict.results import FaceResult, Faces, NetworkLink, Origin, PhotoStatus
from fer_vit.store.folder import load_network
from fer_vit.store.hub import DEFAULT
from fer_vit.version import __version__

CHUNK = 64  # faces in one forward pass
FEW = 8  # faces that one thread computes as fast as two: together about 60 ms
FoundFaces: TypeAlias = tuple[list[FoundPhoto], list[Batch]]
"""Photos or frames, and all their faces in batches for the network."""


class Row(NamedTuple):
    """A classified face."""

    probabilities: list[float]  # (C,)
    outputs: list[float]  # of further heads, in the order of `Recognizer.outputs`
    features: Float32Array  # (D,)
    blur: float
    batch: Batch  # of this face


Timed: TypeAlias = tuple[float, Photo[FaceResult]]  # a frame after its time in seconds
REACH = 3.0  # half the width of the smoothing window in time constants: 99.7 % of the weight
FLOOR = 1e-6  # lower limit of smoothed probabilities: a logarithm of 0 would outweigh all others
SIDE = 48  # side of the crop in whose pixels blur is measured, for every model
LAPLACIAN = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def load(
    model: str | Path | None = None,
    device: str | torch.device | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    prior: str | Path | Mapping[str, float] | None = None,
    classes: Sequence[str] = (),
) -> "Recognizer":
    """Loads a trained model. Raises FerVitError when there is no such model or device, or its files are damaged.

    Args:
        model: An included model (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a folder, or "user/name"
            on the Hugging Face hub. None: ferplus-fairface-small.
        device: Where to compute, for example "cpu" or "cuda:1". None or "auto": an NVIDIA or Apple GPU if there is one.
        revision: Branch, tag or commit on the hub.
        token: Access token for a private repository on the hub. None: the token of your login.
        prior: See `Recognizer.change_prior`.
        classes: See `Recognizer.change_prior`.
    """
    recognizer = Recognizer(
        load_network(model, revision=revision, token=token), str(model or DEFAULT)
    )
    if prior is not None or classes:
        recognizer.change_prior(prior, classes)
    if device in (None, "auto"):
        device = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available()
            else "cpu"
        )
    try:
        recognizer.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(
            f"Expected an available device, for example cpu, but got {device} ({reason})."
        ) from error
    use_fused_attention(
        recognizer.net, fused_is_faster(recognizer.device, recognizer.net.layout.num_tokens)
    )
    return recognizer


class Recognizer(nn.Module):
    """A RegionViT with cropping, labels and calibrated probabilities."""

    def __init__(self, net: RegionViT, name: str = "") -> None:
        super().__init__()
        check_regions(net.config.regions)
        self.net, self.name = net, name  # the name or path of the model
        self.eval()
        self.labels = net.settings.labels  # the C expressions in the order of the probabilities
        self.conditions: dict[str, str] = {}  # `prior` and `classes` if they were changed
        template = net.settings.template or TEMPLATE
        self.crop_spec = CropSpec(
            net.config.img_size, tuple(net.config.regions), net.settings.align, template
        )

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def origin(self, detector: DetectorName = "yunet") -> Origin:
        """Returns what each row of a table records: model, detector, version and today's date."""
        return Origin(
            model=self.name or None,
            detector=detector,
            fer_vit_version=__version__,
            predicted_on=date.today().isoformat(),
        )

    def change_prior(
        self, prior: str | Path | Mapping[str, float] | None, classes: Sequence[str] = ()
    ) -> None:
        """Changes the class prior and the possible classes. Faces then have no prediction set.

        Each call replaces the one before; `change_prior(None)` restores the model as it was trained.
        `prior` is "even", the frequency of each class by name, or a JSON file of them; None: as in training. Labels
        that are not in `classes` get a probability of 0; empty: all are possible. Raises FerVitError when these do not
        fit the model, or it does not contain the class frequencies of its training faces.
        """
        names = self.net.settings.labels
        if unknown := {*classes} - {*names}:
            raise FerVitError(f"Expected classes among {', '.join(names)}, but got {min(unknown)}.")
        possible = [name for name in names if not classes or name in classes]
        conditions = {"classes": ", ".join(possible)} if classes else {}
        frequencies = None
        if prior is not None:
            if not self.net.settings.prior:
                remedy = "Write it again: `fer-vit export FOLDER --checkpoint MODEL --calibrate MANIFEST`."
                raise FerVitError(
                    f"`prior` needs a model with the class frequencies of its training faces. {remedy}"
                )
            by_name = read_prior(prior, possible)
            conditions["prior"] = ", ".join(
                f"{name} {value:.3g}" for name, value in by_name.items()
            )
            frequencies = [by_name.get(name, 0.0) for name in names]
        self.conditions = conditions
        self.net.change_prior(frequencies, [name in possible for name in names])

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.decide(self.net.logits(image, boxes, valid))

    def decide(self, logits: Tensor) -> Tensor:
        """Returns the probabilities of `labels` (B, C) for logits of the network."""
        return self.net.probabilities(logits)

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of prediction sets; empty if not calibrated for this prior and these labels."""
        settings = self.net.settings
        if self.conditions or self.labels != settings.labels:
            return {}
        return settings.thresholds

    @torch.inference_mode()
    def probabilities(self, batch: Batch) -> list[list[float]]:
        """Returns the probability of every expression for each face of a batch from `Batch.ready`."""
        return self(batch.image, batch.boxes, batch.valid).tolist()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def read(self, batch: Batch) -> tuple[Array, Array]:
        """Reads the faces of a batch from `Batch.ready` with all heads.

        Returns:
            The probability of every expression (B, C), and the values of the further heads in the photo (B, K), in the
            order of `outputs`.
        """
        tokens = self.net.forward_features(self.net.tokenize(batch.image, batch.boxes, batch.valid))
        probabilities = self.decide(self.net.forward_head(tokens))
        return probabilities.double().cpu().numpy(), self._read_heads(tokens, batch)

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: DetectorName = "yunet",
        batch_size: int = 32,
        workers: int | None = None,
        **video: Any,
    ) -> Faces:
        """Finds and classifies every face in photos and videos; returns the faces, photo by photo and frame by frame.

        Photos that cannot be read give a warning; `photos` of the result has the status of each. The logger `fer_vit`
        reports files of folders that are not read.

        Args:
            images: A file, a folder, a glob pattern, the bytes of a photo's file, an open file, a PIL image, a uint8
                array (RGB), or a list of these. Results name bytes and files "<bytes 0>", images "image 0".
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: "yunet", "landmarks" or "none"; see `PhotoOptions`.
            batch_size: Photos per batch; the result does not depend on it.
            workers: Processes that read photos. None: one per core.
            video: `min_score`, `every`, `fps`, `start`, `end`, `detect_every` and `smooth`; see `PhotoOptions`.

        Raises:
            ImageError: The only image cannot be read.
            FerVitError: An image does not exist, or an option has a wrong value.
        """
        sources = media.as_sources(images)
        options = PhotoOptions(face, detector, batch_size, workers, **video)
        photos = list(self.recognize(sources, options))
        wrong = [
            f"{photo.path}: {photo.status}" for photo in photos if photo.status not in media.READ
        ]
        if wrong and len(photos) == 1:
            raise ImageError(f"{wrong[0]}.")
        if wrong:
            warnings.warn(
                f"{len(wrong)} of {len(sources)} images cannot be read, the first {wrong[0]}.",
                stacklevel=2,
            )
        if whole := [photo.path for photo in photos if photo.taken_whole]:
            hint = f"{len(whole)} of {len(sources)} images are photos, but each was taken as one face, the first"
            warnings.warn(f'{hint} {whole[0]}. Leave out face="crop".', stacklevel=2)
        faces = (face for photo in photos for face in photo.faces)
        statuses = [
            PhotoStatus(photo.path, photo.status, len(photo.faces), photo.frame, photo.seconds)
            for photo in photos
        ]
        return Faces(faces, statuses, self.origin(options.detector))

    def explain(self, face: FaceResult, method: str = "pixels") -> methods.Explanation:
        """Explains the prediction of this model for a face, also for a face of another process.

        Args:
            face: The face; its photo is read again.
            method: "pixels", "relevance" or "ablation", the methods of `fer-vit visualize`.

        Returns:
            `heat` (1, S, S) of the pixels and `shares` (1, R) of the regions `crop_spec.regions`.

        Raises:
            ImageError: The photo can no longer be read.
            FerVitError: The method is unknown, or the face was cropped for another model.
        """
        if face.crop_size != self.crop_spec.size:
            raise FerVitError(
                f"Expected a face of {self.crop_spec.size} pixels, but got one of {face.crop_size}. "
                "Predict the photo with this model."
            )
        crop = face.crop(face.read_photo(), self.crop_spec.regions)
        image, boxes, valid = (values.to(self.device) for values in crop)
        return methods.explain(self.net, image, boxes, valid, method)

    def features(self, images: Images | Iterable[Images], **options: Any) -> Float32Array:
        """Returns the features (N, D) of the N faces that `predict`, whose arguments it takes, finds."""
        faces = self.predict(images, **options)
        return np.array([face.features for face in faces], np.float32).reshape(
            len(faces), self.net.vit.embed_dim
        )

    def stream(
        self, images: Images | Iterable[Images], **options: Any
    ) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their `faces`, one at a time; arguments as for `predict`."""
        return self.recognize(media.as_sources(images), PhotoOptions(**options))

    def recognize(
        self,
        sources: Sequence[Source],
        options: PhotoOptions,
        started: Started | None = None,
    ) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their faces, in order: finds, classifies and smooths."""
        found = self.find(sources, options, started)
        yield from smooth_faces(self.classify(found, sources, options.detector), options.smooth)

    def find(
        self,
        sources: Sequence[Source],
        options: PhotoOptions,
        started: Started | None = None,
    ) -> Iterator[FoundFaces]:
        """Yields photos and frames, in order, with their faces in batches for `forward`, under a progress bar.

        `started` is a reading of the same sources that began before.
        """
        if started is None or started.spec != self.crop_spec:
            batches = read_sources(self.open_photos(sources, options), options)
        else:
            batches = started.batches
        videos = any(map(media.is_video, sources))
        with tqdm(total=None if videos else len(sources), unit=" images", disable=None) as bar:
            for photos, batch in batches:
                # A photo may contain hundreds of faces, and recorded attention grows with their number.
                chunks = batch.split(CHUNK) if batch else []
                yield photos, [chunk.ready(self.device) for chunk in chunks]
                bar.update(len(photos))

    def classify(
        self, found: Iterable[FoundFaces], sources: Sequence[Source], detector: DetectorName
    ) -> Iterator[Photo[FaceResult]]:
        """Classifies the faces that a detector has found in `sources`."""
        origin = self.origin(detector)
        for photos, chunks in found:
            with few_threads(sum(len(chunk.image) for chunk in chunks)):
                classified = self._classify_photos(photos, chunks, sources, origin)
            yield from classified

    def _classify_photos(
        self,
        photos: Sequence[FoundPhoto],
        chunks: Sequence[Batch],
        sources: Sequence[Source],
        origin: Origin,
    ) -> list[Photo[FaceResult]]:
        """Returns photos with their faces, which lie one after another in the chunks."""
        rows = chain.from_iterable(self._classify(chunk) for chunk in chunks)
        classified = []
        for photo in photos:
            source = sources[photo.source]
            faces = [
                self._result(photo, source, index, next(rows), origin)
                for index in range(len(photo.faces))
            ]
            classified.append(Photo[FaceResult](photo.path, photo.status, faces, *photo[3:]))
        return classified

    @torch.inference_mode()
    def _classify(self, batch: Batch) -> Iterator[Row]:
        """Returns the rows of faces; features per expression are averaged."""
        tokens = self.net.forward_features(self.net.tokenize(batch.image, batch.boxes, batch.valid))
        pooled = self.net.pool(tokens).x  # (B, D), or (B, C, D)
        features = pooled.float().reshape(len(pooled), -1, pooled.shape[-1]).mean(1).cpu().numpy()
        probabilities = self.decide(self.net.classify(pooled)).tolist()
        outputs = self._read_heads(tokens, batch).tolist()
        blurs = measure_blur(batch.image).tolist()
        return map(Row, probabilities, outputs, features, blurs, batch.split(1))

    def _read_heads(self, tokens: Tokens, batch: Batch) -> Array:
        """Returns the values (B, K) of all further heads, in the photo: roll is not the aligned crop's."""
        degrees = np.array([rotation(matrix) for matrix in batch.to_crop.numpy()])
        values = [np.zeros((len(degrees), 0))]
        for head, names in self.net.settings.outputs.items():
            raw = self.net.heads[head](tokens).float()
            decoded = HEADS[head].decode(raw).double().cpu().numpy()
            values.append(HEADS[head].rotate(decoded, names, -degrees))
        return np.concatenate(values, axis=1)

    @property
    def outputs(self) -> list[str]:
        """The columns of the outputs of further heads."""
        return [
            target_column(head, name)
            for head, names in self.net.settings.outputs.items()
            for name in names
        ]

    def _result(
        self, photo: FoundPhoto, source: Source, index: int, row: Row, origin: Origin
    ) -> FaceResult:
        face, batch, spec = photo.faces[index], row.batch, self.crop_spec
        probabilities = dict(zip(self.labels, row.probabilities, strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        to_crop, regions = batch.to_crop[0].double().numpy(), visible_regions(spec, batch, 0)
        shown = regions_in_photo(regions, to_crop, photo.size)
        return FaceResult(
            label=label,
            confidence=probabilities[label],
            probabilities=probabilities,
            path=photo.path,
            face=index,
            box=None if face is None else face.box,
            landmarks=None
            if face is None
            else dict(zip(LANDMARKS, map(tuple, face.landmarks.tolist()), strict=True)),
            score=None if face is None or math.isnan(face.score) else face.score,
            source=source,
            to_crop=to_crop,
            crop_size=spec.size,
            regions=regions if self.net.layout.num_regions else {},
            thresholds=self.thresholds,
            blur=row.blur,
            outside=tuple(name for name in spec.regions if name not in shown),
            link=NetworkLink(self.net),
            frame=photo.frame,
            seconds=photo.seconds,
            track=photo.tracks[index] if photo.tracks else None,
            features=row.features,
            origin=origin,
            outputs=dict(zip(self.outputs, row.outputs, strict=True)),
        )

    def open_photos(self, sources: Sequence[Source], options: PhotoOptions) -> PhotoDataset:
        """Returns the photos as a data set that finds and crops faces."""
        return make_photos(sources, self.crop_spec, options)


@contextmanager
def few_threads(faces: int) -> Iterator[None]:
    """Lets torch compute few faces in one thread.

    Threads that wait for each other on busy cores cost ten times the computation.
    """
    before = torch.get_num_threads()
    if faces > FEW:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def visible_regions(spec: CropSpec, batch: Batch, row: int) -> dict[str, Array]:
    """Returns the box (4,) of each visible region of a face in a batch, xyxy in crop pixels."""
    boxes, valid = batch.boxes[row].cpu().double().numpy(), batch.valid[row].tolist()
    return {name: box for name, box, seen in zip(spec.regions, boxes, valid, strict=True) if seen}


def measure_blur(crops: Tensor) -> Tensor:
    """Returns the blur (B,) of crops (B, C, S, S) in pixels of `SIDE`; NaN without contrast.

    The fourth root of the variance of grey levels over the variance of their Laplacian (Pech-Pacheco et al. 2000): a
    length that does not depend on contrast.
    """
    grey = F.interpolate(crops.mean(1, keepdim=True), (SIDE, SIDE), mode="bilinear", antialias=True)
    edges = F.conv2d(grey, LAPLACIAN.to(grey)[None, None])
    return (grey.var((1, 2, 3)) / edges.var((1, 2, 3))) ** 0.25


def regions_in_photo(
    regions: Mapping[str, Array], to_crop: Array, size: tuple[int, int]
) -> list[str]:
    """Returns the regions, boxes (4,) in crop pixels, whose centre lies in a photo of width and height `size`."""
    boxes = np.array([*regions.values()]).reshape(-1, 4)  # also without regions
    centres = apply(invert(to_crop), (boxes[:, :2] + boxes[:, 2:]) / 2)
    return [
        name
        for name, centre in zip(regions, centres, strict=True)
        if ((centre >= 0) & (centre < size)).all()
    ]


def smooth_faces(
    photos: Iterable[Photo[FaceResult]], constant: float, causal: bool = False
) -> Iterator[Photo[FaceResult]]:
    """Yields photos unchanged, and frames with `smoothed` probabilities: averages of log-probabilities over time.

    The average is Gaussian, without a shift in time, so frames come half a window later. If `causal`, for live video,
    it is exponential over the past, and frames come at once. `constant` is the time constant in seconds; 0: no average.
    """
    for _, frames in groupby(photos, attrgetter("source")):
        yield from _smooth_video(frames, constant, causal)


def _smooth_video(
    frames: Iterable[Photo[FaceResult]], constant: float, causal: bool
) -> Iterator[Photo[FaceResult]]:
    window, done = deque[Timed](), 0  # `done` frames at its start have been yielded
    reach, delay = REACH * constant, -math.inf if causal else REACH * constant
    for frame in chain(frames, [None]):
        now = (
            math.inf
        )  # after the last frame, and for a photo or the end of a damaged video, which have no time
        if frame and frame.seconds is not None:
            now = frame.seconds
            window.append((now, frame))
        while done < len(window) and now - window[done][0] > delay:
            yield _smooth_frame(window[done], window, constant, causal)
            done += 1
        while done and now - window[0][0] > 2 * reach:
            window.popleft()
            done -= 1
        if frame and now == math.inf:
            yield frame


def _smooth_frame(
    timed: Timed, window: Iterable[Timed], constant: float, causal: bool
) -> Photo[FaceResult]:
    seconds, frame = timed
    near = [
        (seconds - time, other) for time, other in window if abs(seconds - time) <= REACH * constant
    ]
    faces = []
    for face in frame.faces:
        same = [(age, one) for age, other in near for one in other.faces if one.track == face.track]
        ages = np.array([age for age, _ in same]) / max(constant, 1e-9)
        weights = np.exp(-ages if causal else -0.5 * ages**2)
        logs = np.log(np.maximum([[*one.probabilities.values()] for _, one in same], FLOOR))
        average = np.exp(weights @ logs / weights.sum())
        values = (average / average.sum()).tolist()
        faces.append(replace(face, smoothed=dict(zip(face.probabilities, values, strict=True))))
    return frame._replace(faces=faces)
