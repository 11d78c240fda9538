"""Prediction with a trained model: `fer_vit.load().predict("photo.jpg")[0].plot()`.

Its stages find faces, classify them, and smooth their probabilities over time. Each takes and
yields photos and frames one after another; sinks, such as tables, take the results.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from PIL import Image as Pil
from torch import Tensor, nn
from tqdm import tqdm

import fer_vit.explain.methods as methods
from fer_vit.conformal import Thresholds
from fer_vit.data.dataset import Batch, collate
from fer_vit.errors import FerVitError, short
from fer_vit.explain.trace import attention_views, trace
from fer_vit.face.crop import check_regions
from fer_vit.face.detectors import DEFAULT_DETECTOR, ChosenDetector, detector_name, find_detector
from fer_vit.face.finder import FaceMode
from fer_vit.faces import (
    Face,
    Faces,
    Origin,
    Photo,
    Scheme,
    Source,
    collect_faces,
    join_faces,
    no_faces,
)
from fer_vit.geometry import Array, Float32Array, rotation
from fer_vit.heads import EXPRESSION, target_column, values_in_photo
from fer_vit.labels import read_prior
from fer_vit.losses import decode
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT, share_tensors
from fer_vit.model.tokens import Tokens
from fer_vit.predict.computed import head_angles, measure_blur, pose_source, regions_in_photo
from fer_vit.predict.explanations import Explanations
from fer_vit.predict.inputs import Images, as_sources, is_video
from fer_vit.predict.photos import PhotoOptions, crop_again
from fer_vit.predict.plot import plot_attention, read_photo
from fer_vit.predict.reading import Started, make_finder, read_sources
from fer_vit.predict.results import FaceResults, as_results, report_photos, table
from fer_vit.predict.smoothing import smooth_faces
from fer_vit.predict.threads import compute_in_forks, few_threads
from fer_vit.report.draw import Attention
from fer_vit.store.folder import load_network
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.times import Time
from fer_vit.version import __version__
from fer_vit.wording import fill_docstring

FACES_PER_PASS = 64  # faces in one forward pass
FACES_EXPLAINED_AT_ONCE = 8  # faces that are explained together


class FoundFaces(NamedTuple):
    """Photos or frames with their faces."""

    faces: Faces
    batches: list[Batch]  # crops of the faces for the network, in the same order


class Predictions(NamedTuple):
    """What a model predicts for B faces."""

    probabilities: Array  # (B, C), the probability of each expression
    # (B, K), the outputs of further heads, in the photo and in the order of `Recognizer.outputs`
    outputs: Array
    features: Float32Array  # (B, D), the input of the classifier


def load(
    model: str | Path | RegionViT | None = None,
    device: str | torch.device | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    prior: str | Path | Mapping[str, float] | None = None,
    classes: Sequence[str] = (),
    name: str | None = None,
) -> "Recognizer":
    """Loads a trained model.

    Raises FerVitError when there is no such model or device, or the model's files are damaged.

    Args:
        model: A shipped model (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a
            folder, "user/name" on the Hugging Face hub, or a network in memory. None: the default
            model.
        device: Where to compute, for example "cpu" or "cuda:1". None or "auto": an NVIDIA or Apple
            GPU if there is one.
        revision: Branch, tag or commit on the hub.
        token: Access token for a private repository on the hub. None: the token of your login.
        prior: See `Recognizer.change_prior`.
        classes: See `Recognizer.change_prior`.
        name: The name of a network in memory, for tables. None: no name.
    """
    if isinstance(model, RegionViT):
        recognizer = Recognizer(model, name or "")
    elif model is not None and not isinstance(model, str | os.PathLike):
        raise FerVitError(
            f"Expected a model's name, its path or a RegionViT, but got a {type(model).__name__}."
        )
    else:
        net = load_network(model, revision=revision, token=token)
        recognizer = Recognizer(net, str(model or DEFAULT_MODEL))
    if prior is not None or classes:
        recognizer.change_prior(prior, classes)
    if device in (None, "auto"):
        device = _best_device()
    try:
        # On torch's device for shapes, weights would be lost.
        if torch.device(device).type == "meta":
            raise RuntimeError("it computes nothing")
        recognizer.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
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
        compute_in_forks()
        self.net = net
        self.name = name  # the name or path of the model
        self.eval()
        self.labels = net.settings.labels  # the C expressions in the order of the probabilities
        self.conditions: dict[str, str] = {}  # `prior` and `classes` if they were changed
        self.crop_spec = net.settings.crop

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        compute_in_forks()  # `__init__` is not called for a copy from another process

    def train(self, mode: bool = True) -> Self:
        """Does nothing: with dropout, as in training, predictions would be random."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def origin(self, detector: ChosenDetector = DEFAULT_DETECTOR) -> Origin:
        """Returns what each row of a table records: model, detector, version and today's date."""
        return Origin(
            model=self.name or None,
            detector=detector_name(detector),
            fer_vit_version=__version__,
            predicted_on=date.today().isoformat(),
            pose_from=pose_source(self.outputs),
        )

    def change_prior(
        self, prior: str | Path | Mapping[str, float] | None, classes: Sequence[str] = ()
    ) -> None:
        """Changes the class prior and the possible classes. Faces then have no prediction set.

        Each call replaces earlier changes; `change_prior(None)` restores the prior and the classes
        of training. `prior` is "even", the frequency of each class by name, or a JSON file of these
        frequencies; None: as in training. Labels that are not in `classes` get a probability of 0;
        empty: all labels are possible. Raises FerVitError when the arguments do not fit the model,
        or the model does not contain the class frequencies of its training faces.
        """
        labels = self.net.settings.labels
        classes = [classes] if isinstance(classes, str) else classes
        unknown = set(classes).difference(labels)
        if unknown:
            raise FerVitError(
                f"Expected classes among {', '.join(labels)}, but got {min(unknown)}."
            )
        possible = [label for label in labels if not classes or label in classes]
        conditions = {"classes": ", ".join(possible)} if classes else {}
        frequencies = None
        if prior is not None:
            if not self.net.settings.prior:
                command = "fer-vit export FOLDER --checkpoint MODEL --calibrate MANIFEST"
                remedy = f"Write it again: `{command}`."
                raise FerVitError(
                    "`prior` needs a model with the class frequencies of its training faces. "
                    f"{remedy}"
                )
            by_label = read_prior(prior, possible)
            conditions["prior"] = ", ".join(
                f"{label} {value:.3g}" for label, value in by_label.items()
            )
            frequencies = [by_label.get(label, 0.0) for label in labels]
        # The network is not changed, because other code may use it, too.
        net = share_tensors(self.net)
        net.change_prior(frequencies, [label in possible for label in labels])
        self.net = net
        self.conditions = conditions

    def forward(
        self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.net.probabilities(self.net.logits(image, boxes, valid))

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of prediction sets; empty without a calibration for the current prior."""
        return {} if self.conditions else self.net.settings.thresholds

    @torch.inference_mode()
    def read(self, batch: Batch) -> Predictions:
        """Returns what all heads predict for the faces of a batch from `Batch.ready`."""
        tokens = self.net.encode(self.net.tokenize(batch.image, batch.boxes, batch.valid))
        pooled = self.net.pool(tokens).x  # (B, D), or (B, C, D)
        features = pooled.float().reshape(len(pooled), -1, pooled.shape[-1]).mean(1)  # (B, D)
        probabilities = self.net.probabilities(self.net.classify(pooled))  # (B, C)
        return Predictions(
            probabilities=probabilities.double().cpu().numpy(),
            outputs=self._read_heads(tokens, batch),
            features=features.cpu().numpy(),
        )

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: ChosenDetector = DEFAULT_DETECTOR,
        batch_size: int = 32,
        workers: int | None = None,
        min_score: float | None = None,
        every: int = 1,
        fps: float | None = None,
        start: Time = 0.0,
        end: Time = math.inf,
        detect_every: int = 5,
        smooth: float = 0.25,
    ) -> FaceResults:
        """Finds and classifies every face in photos and videos.

        Returns the faces, photo by photo and frame by frame. Photos that cannot be read give a
        warning; `photos()` of the result has the status of each. The logger `fer_vit` reports files
        of folders that are not read.

        Args:
            images: A file, a folder, a glob pattern, the bytes of a photo's file, an open file, a
                PIL image, a uint8 array (RGB), or a list of these. In results, bytes and open files
                are named "<bytes 0>", and images "image 0".
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: A name, or an object with the method `find`; see `PhotoOptions`.
            batch_size: Photos per batch; the result does not depend on it.
            workers: Processes that read photos. None: one per core.
            min_score: Faces with a lower score of the detector are left out. None: see
                `PhotoOptions`.
            every: Use every n-th frame of a video.
            fps: Use at most this many frames per second of a video.
            start: Begin this long after the first frame of a video: seconds, or "[h:]m:s".
            end: End this long after the first frame of a video: seconds, or "[h:]m:s".
            detect_every: Search the full frame for faces every n-th frame of a video, and track
                them in between.
            smooth: Time constant of the smoothed probabilities in seconds; 0: no average.

        Raises:
            ImageError: The only image cannot be read.
            FerVitError: An image does not exist, or an option has a wrong value.
        """
        sources = as_sources(images)
        options = PhotoOptions(
            face=face,
            detector=detector,
            batch_size=batch_size,
            workers=workers,
            every=every,
            fps=fps,
            start=start,
            end=end,
            detect_every=detect_every,
            smooth=smooth,
            min_score=min_score,
        )
        batches = list(self.recognize(sources, options))
        scheme = self.scheme(options.detector)
        faces = join_faces([as_results(no_faces(scheme=scheme)), *batches])
        report_photos(faces.infos)
        return faces

    def predict_batch(self, photos: Any, **options: Any) -> Any:
        """Returns the rows of `fer-vit predict` for a table of photos, both in pyarrow.

        This is the function that Ray Data, Spark and Dask apply to each batch. No photo raises an
        error: one that cannot be read has a row with the reason as its `status`. If a path is that
        of a video, the table has the columns of videos.

        Args:
            photos: A table or record batch with the column `path`, and optionally `bytes` with the
                content of each photo's file; where `bytes` is empty, the file is read.
            options: As for `predict`. The default of `workers` is 0, because the framework runs
                several processes.

        Raises:
            FerVitError: There is no column `path`, or an option has a wrong value.
        """
        names = photos.schema.names
        if "path" not in names:
            raise FerVitError(
                f"Expected a table with the column path, but got {short(', '.join(names))}."
            )
        paths = [path or "" for path in photos.column("path").to_pylist()]
        contents: list[bytes | None] = [None] * len(paths)
        if "bytes" in names:
            contents = photos.column("bytes").to_pylist()
        sources: list[Source] = []
        for path, content in zip(paths, contents, strict=True):
            sources.append(Path(path) if content is None else content)
        chosen = PhotoOptions(**{"workers": 0, **options})
        found = self.recognize(sources, chosen)
        faces = join_faces([as_results(no_faces(scheme=self.scheme(chosen.detector))), *found])
        infos = tuple(replace(info, path=paths[info.index]) for info in faces.infos)
        return table(replace(faces, infos=infos))

    @fill_docstring(METHODS=methods.METHODS_HELP)
    def explain(self, faces: Face | Faces | Sequence[Face], method: str = "pixels") -> Explanations:
        """Explains the predictions of this model, also for faces of another process.

        `model.explain(faces).plot()` draws the first face.

        Args:
            faces: A face, or N faces; their photos are read again.
            method: The method, as for `fer-vit visualize`. {METHODS}.

        Returns:
            The attributions: `heat` (N, S, S) of the pixels, `shares` (N, R) of the regions, and a
            method that draws them.

        Raises:
            ImageError: A photo can no longer be read.
            FerVitError: The method is unknown, the faces were cropped for another model, or there
                are none.
        """
        faces = collect_faces(faces)
        if not len(faces):
            raise FerVitError("Expected one or more faces to explain, but got none.")
        chunks = []
        for batch in self._make_batch(faces).split(FACES_EXPLAINED_AT_ONCE):
            chunk = methods.explain(self.net, batch.image, batch.boxes, batch.valid, method)
            chunks.append(chunk)
        return Explanations(
            faces=list(faces),
            labels=self.labels,
            regions=self.crop_spec.regions,
            probabilities=torch.cat([chunk.probabilities for chunk in chunks]),
            scores=torch.cat([chunk.scores for chunk in chunks]),
            heat=torch.cat([chunk.heat for chunk in chunks]),
            shares=torch.cat([chunk.shares for chunk in chunks]),
        )

    def attend(self, face: Face) -> Attention:
        """Returns the attention of this model on a face, whose photo is read again."""
        if not isinstance(face, Face):
            raise FerVitError(
                f"Expected one face, such as `faces[0]`, but got a {type(face).__name__}."
            )
        batch = self._make_batch(face.alone)
        views = attention_views(trace(self.net, batch.image, batch.boxes, batch.valid))
        return Attention(
            relations=views.relations[0].double().cpu().numpy(),
            output=views.output[0].double().cpu().numpy(),
            patches=views.patches[0].double().cpu().numpy(),
            distance=views.distance[0].double().cpu().numpy(),
        )

    def plot_attention(self, face: Face, file: str | Path | None = None) -> Pil.Image:
        """Draws the attention between the regions of a face, and from them to the output.

        Args:
            face: The face; its photo is read again.
            file: Where to save the picture (.svg, .pdf or .png).
        """
        return plot_attention(face, self.attend(face), self.crop_spec.regions, file)

    def _make_batch(self, faces: Faces) -> Batch:
        """Reads the photos of faces again; returns the crops of the faces for the network."""
        scheme = faces.scheme
        spec = self.crop_spec
        compared = {
            "size": (spec.size, scheme.crop_size),
            "regions": (spec.regions, scheme.regions),
            "align": (spec.align, scheme.align),
            "template": (spec.template, scheme.template),
        }
        different = [name for name, (expected, actual) in compared.items() if expected != actual]
        if different:
            raise FerVitError(
                "Expected faces that were cropped for this model, but got crops with another "
                f"{', '.join(different)}. Predict the photos with this model."
            )
        samples = []
        for photo in faces.photos():
            if len(photo.faces):
                samples += crop_again(photo.faces, read_photo(photo.faces[0]))
        return collate(samples).ready(self.device)

    def features(self, images: Images | Iterable[Images], **options: Any) -> Float32Array:
        """Returns the features (N, D) of the faces that `predict` finds with these arguments."""
        return self.predict(images, **options).features

    def stream(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: ChosenDetector = DEFAULT_DETECTOR,
        batch_size: int = 32,
        workers: int | None = None,
        min_score: float | None = None,
        every: int = 1,
        fps: float | None = None,
        start: Time = 0.0,
        end: Time = math.inf,
        detect_every: int = 5,
        smooth: float = 0.25,
    ) -> Iterator[Photo]:
        """Yields photos and frames with their `faces`, one at a time.

        Arguments as for `predict`; wrong ones are an error before the first photo is requested.
        """
        sources = as_sources(images)
        options = PhotoOptions(
            face=face,
            detector=detector,
            batch_size=batch_size,
            workers=workers,
            every=every,
            fps=fps,
            start=start,
            end=end,
            detect_every=detect_every,
            smooth=smooth,
            min_score=min_score,
        )
        return (photo for faces in self.recognize(sources, options) for photo in faces.photos())

    def recognize(
        self,
        sources: Sequence[Source],
        options: PhotoOptions,
        started: Started | None = None,
    ) -> Iterator[FaceResults]:
        """Yields each photo and frame, in order, with its faces: finds, classifies and smooths."""
        found_faces = self.find(sources, options, started)
        classified = self.classify(found_faces, sources, options.detector)
        yield from smooth_faces(classified, options.smooth)

    def find(
        self,
        sources: Sequence[Source],
        options: PhotoOptions,
        started: Started | None = None,
    ) -> Iterator[FoundFaces]:
        """Yields photos and frames, in order, with their faces in batches for `forward`.

        A progress bar is shown. `started` is a reading of the same sources that began earlier; it
        is not used if it has crops for another model.
        """
        if started is None or started.spec != self.crop_spec:
            batches = read_sources(sources, make_finder(self.crop_spec, options), options)
        else:
            batches = started.batches
        # The number of frames of a video is known only at its end.
        total = None if any(map(is_video, sources)) else len(sources)
        with tqdm(total=total, unit=" images", disable=None) as bar:
            for faces, crops in batches:
                # A photo may contain hundreds of faces, and recorded attention grows with their
                # number.
                chunks = crops.split(FACES_PER_PASS) if crops else []
                yield FoundFaces(faces, [chunk.ready(self.device) for chunk in chunks])
                bar.update(len(faces.infos))

    def classify(
        self,
        found_faces: Iterable[FoundFaces],
        sources: Sequence[Source],
        detector: ChosenDetector,
    ) -> Iterator[FaceResults]:
        """Classifies the faces that a detector has found in `sources`."""
        scheme = self.scheme(detector)
        for faces, batches in found_faces:
            infos = tuple(replace(info, source=sources[info.index]) for info in faces.infos)
            if not batches:
                yield as_results(no_faces(infos, scheme))
                continue
            columns_of_batches: list[dict[str, Array]] = []
            with few_threads(len(faces)):
                for batch in batches:
                    columns_of_batches.append(
                        self.read(batch)._asdict() | self._crop_columns(batch)
                    )
            columns: dict[str, Any] = {}
            for name in columns_of_batches[0]:
                columns[name] = np.concatenate([batch[name] for batch in columns_of_batches])
            predicted = replace(faces, infos=infos, scheme=scheme, **columns)
            classified = replace(
                predicted,
                angles=head_angles(predicted),
                in_photo=regions_in_photo(predicted),
                smoothed=np.full_like(predicted.probabilities, np.nan),
                smoothed_outputs=np.full_like(predicted.outputs, np.nan),
            )
            yield as_results(classified)

    def _crop_columns(self, batch: Batch) -> dict[str, Array]:
        """Returns the attributes of `Faces` that B crops have without the network, by name."""
        valid = batch.valid.cpu().numpy()
        return {
            "blur": measure_blur(batch.image).double().cpu().numpy(),
            "to_crop": batch.to_crop.double().cpu().numpy(),
            "boxes": batch.boxes.double().cpu().numpy(),
            "visible": valid if self.net.layout.num_regions else np.zeros_like(valid),
        }

    def _read_heads(self, tokens: Tokens, batch: Batch) -> Array:
        """Returns the values (B, K) of further heads; roll is in the photo, not in the crop."""
        degrees = np.array([rotation(matrix) for matrix in batch.to_crop.numpy()])  # (B,)
        values = [np.zeros((len(degrees), 0))]  # the result for a model without further heads
        for head, names in self.net.settings.outputs.items():
            raw = self.net.heads[head](tokens).float()  # (B, K) of this head
            decoded = decode(head, raw).double().cpu().numpy()
            values.append(values_in_photo(head, names, decoded, degrees))
        return np.concatenate(values, axis=1)

    @property
    def outputs(self) -> list[str]:
        """The columns of the outputs of further heads; each head has one or more outputs."""
        columns = []
        for head, names in self.net.settings.outputs.items():
            columns += [target_column(head, name) for name in names]
        return columns

    @property
    def heads(self) -> list[str]:
        """The names of the heads: the expression, the pose, and further heads."""
        return list_head_names(self.net.settings.outputs)

    def scheme(self, detector: ChosenDetector) -> Scheme:
        """Returns the scheme of the faces that this model and a detector predict."""
        return Scheme(
            labels=tuple(self.labels),
            outputs=tuple(self.outputs),
            regions=self.crop_spec.regions,
            crop_size=self.crop_spec.size,
            align=self.crop_spec.align,
            template=self.crop_spec.template,
            features=self.net.vit.embed_dim,
            thresholds=self.thresholds,
            sure_score=find_detector(detector).sure_score,
            origin=self.origin(detector),
        )


def _best_device() -> str:
    """Returns the name of a GPU if there is one, else of the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def list_head_names(further: Iterable[str]) -> list[str]:
    """Returns the names of all heads of a model, given its further heads.

    Each model has an expression and a pose; without a head `pose`, landmarks give the pose.
    """
    return [EXPRESSION, "pose", *(head for head in further if head != "pose")]
