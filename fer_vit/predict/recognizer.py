"""Prediction with a trained model: `fer_vit.load().predict("photo.jpg")[0].plot()`.

Its stages find faces, classify them, and smooth their probabilities over time. Each takes and
yields photos and frames one after another; sinks, such as tables, take the results.
"""

import hashlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as Pil

from fer_vit.conformal import Thresholds
from fer_vit.engine.choice import Opened, Precision, open_model, open_network
from fer_vit.engine.decode import Predictions, decode
from fer_vit.engine.protocol import Calibration, RawOutputs
from fer_vit.errors import FerVitError, ModelError, short
from fer_vit.explain.methods import REGIONS, choose_method
from fer_vit.extras import missing_extra
from fer_vit.face.crop import CropSpec, check_regions
from fer_vit.face.detectors import DEFAULT_DETECTOR, ChosenDetector, detector_name, find_detector
from fer_vit.face.finder import FaceMode
from fer_vit.faces import (
    Crops,
    Face,
    Faces,
    Origin,
    Photo,
    Scheme,
    Source,
    collect_faces,
    join_crops,
    join_faces,
    no_faces,
)
from fer_vit.geometry import Array, Float32Array
from fer_vit.heads import HeadOutputs
from fer_vit.labels import read_prior
from fer_vit.predict.computed import head_angles, measure_blur, pose_source, regions_in_photo
from fer_vit.predict.face_results import FaceResults, as_results, report_photos, table
from fer_vit.predict.inputs import Images, as_sources, is_video
from fer_vit.predict.photos import PhotoOptions, crop_again, read_photo
from fer_vit.predict.plot import plot_attention
from fer_vit.predict.reading import read_sources
from fer_vit.predict.smoothing import smooth_faces
from fer_vit.processes import warn_of_ipp
from fer_vit.report.explained_face import Attention
from fer_vit.store.hub import DEFAULT_MODEL, WEIGHTS_FILE
from fer_vit.times import Time
from fer_vit.version import __version__

if TYPE_CHECKING:
    import torch

    from fer_vit.model.region_vit import RegionViT
    from fer_vit.predict.explanations import Explanations

FACES_PER_PASS = 64  # faces in one forward pass


def load(
    model: "str | Path | RegionViT | None" = None,
    device: "str | torch.device | None" = None,
    *,
    precision: Precision = "float32",
    revision: str | None = None,
    token: str | bool | None = None,
    prior: str | Path | Mapping[str, float] | None = None,
    classes: Sequence[str] = (),
    name: str | None = None,
) -> "Recognizer":
    """Loads a trained model.

    PyTorch computes on a GPU, and for a checkpoint or a folder without model.onnx. Otherwise ONNX
    Runtime computes, and PyTorch is not imported.

    Raises FerVitError when there is no such model or device, or the model's files are damaged.

    Args:
        model: A shipped model (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a
            folder, "user/name" on the Hugging Face hub, or a network in memory. None: the default
            model.
        device: Where to compute, for example "cpu" or "cuda:1". None or "auto": an NVIDIA or Apple
            GPU if PyTorch is installed and finds one.
        precision: "float32", or "int8" for a model with the file model.int8.onnx, which computes
            twice as fast on the CPU.
        revision: Branch, tag or commit on the hub.
        token: Access token for a private repository on the hub. None: the token of your login.
        prior: See `Recognizer.change_prior`.
        classes: See `Recognizer.change_prior`.
        name: The name of a network in memory, for tables. None: no name.
    """
    warn_of_ipp()
    place = "auto" if device is None else str(device)
    if model is None or isinstance(model, str | os.PathLike):
        path = DEFAULT_MODEL if model is None else model
        opened = open_model(path, place, precision, revision=revision, token=token)
        recognizer = Recognizer(opened, str(path))
    elif _is_network(model):
        if precision != "float32":
            raise FerVitError(f"A network in memory computes in float32, not in {precision}.")
        recognizer = Recognizer(open_network(model, place), name or "")
    else:
        raise FerVitError(
            f"Expected a model's name, its path or a RegionViT, but got a {type(model).__name__}."
        )
    if prior is not None or classes:
        recognizer.change_prior(prior, classes)
    return recognizer


def load_torch(
    model: "str | Path | RegionViT | None" = None,
    device: str | None = None,
    name: str | None = None,
) -> "Recognizer":
    """Loads a model that PyTorch computes, for commands that need its network.

    Arguments and errors as for `load`; `name` is also that of a file or folder.
    """
    if model is None or isinstance(model, str | os.PathLike):
        from fer_vit.store.model_folder import load_network  # not at the top: it imports torch

        name = name or str(model or DEFAULT_MODEL)
        model = load_network(model)
    return load(model, device, name=name)


def _is_network(model: object) -> bool:
    """Returns whether an object is a RegionViT. PyTorch is not imported for another object."""
    if "torch" not in sys.modules:
        return False
    from fer_vit.model.region_vit import RegionViT

    return isinstance(model, RegionViT)


class Recognizer:
    """A trained model with cropping, labels and calibrated probabilities; `load` returns one.

    Attributes:
        engine: What computes the network.
        settings: What prediction needs besides the network.
        name: The name or path of the model.
        labels: The C expressions in the order of the probabilities.
        conditions: `prior` and `classes` if they were changed.
    """

    def __init__(self, opened: Opened, name: str = "") -> None:
        self.engine, self.settings, self._folder, self._net = opened
        check_regions(self.settings.crop.regions)
        self.name = name
        self.labels = self.settings.labels
        self.conditions: dict[str, str] = {}
        self._frequencies: list[float] | None = None
        self._possible = [True] * len(self.labels)

    def __repr__(self) -> str:
        return f"<Recognizer {self.name}: {type(self.engine).__name__} on {self.device}>"

    @property
    def net(self) -> "RegionViT":
        """The network in torch, which explanations need. It is loaded when it is needed first.

        Raises FerVitError when PyTorch is not installed, or the folder has no weights for it, or
        others than the engine's.
        """
        if self._net is None:
            if find_spec("torch") is None:
                raise missing_extra("An explanation", "torch")
            # not at the top: PyTorch may be missing
            from fer_vit.store.model_folder import hash_weights, load_network

            net = load_network(self._folder)
            if hash_weights(net.state_dict()) != self.engine.fingerprint.partition(" ")[0]:
                raise ModelError(
                    f"The ONNX file in {self._folder} has different weights from {WEIGHTS_FILE}. "
                    "Write the folder again: `fer-vit export FOLDER --onnx`."
                )
            self._net = net
            self._net.settings = self.settings
            self._net.change_prior(self._frequencies, self._possible)
        return self._net

    @property
    def crop_spec(self) -> CropSpec:
        """How a face becomes the input of the network."""
        return self.settings.crop

    @property
    def device(self) -> str:
        """Where the model computes, in torch's words."""
        return self.engine.device

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
        labels = self.labels
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
            if not self.settings.prior:
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
        self._frequencies = frequencies
        self._possible = [label in possible for label in labels]
        self.conditions = conditions
        if self._net is not None:
            from fer_vit.model.region_vit import share_tensors  # not at the top: it imports torch

            # The network is not changed, because other code may use it, too.
            self._net = share_tensors(self._net)
            self._net.change_prior(self._frequencies, self._possible)

    @property
    def _calibration(self) -> Calibration:
        """The temperature and the thresholds for this engine."""
        settings = self.settings
        return self.engine.calibration or Calibration(settings.temperature, settings.thresholds)

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds of prediction sets; empty without a calibration for the current prior."""
        return {} if self.conditions else self._calibration.thresholds

    @property
    def fingerprint(self) -> str:
        """The hash of the weights and settings for prediction; kinds of engines have the same."""
        facts = (self.settings, self.engine.calibration, self.conditions, self.engine.fingerprint)
        return hashlib.sha256(str(facts).encode()).hexdigest()[:16]

    def read(self, crops: Crops) -> Predictions:
        """Returns what all heads predict for one or more crops."""
        return self.decode(self.engine.run(crops), crops)

    def decode(self, raw: RawOutputs, crops: Crops) -> Predictions:
        """Converts the raw outputs of the engine for some crops to predictions."""
        temperature = self._calibration.temperature
        settings = replace(self.settings, temperature=temperature)
        possible = [] if all(self._possible) else self._possible
        offset = settings.offset(self._frequencies, possible)
        return decode(raw, crops.to_crop, settings, offset)

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

    def explain(
        self, faces: Face | Faces | Sequence[Face], method: str | None = None
    ) -> "Explanations":
        """Explains the predictions of this model, also for faces of another process.

        `model.explain(faces).plot()` draws the first face.

        Args:
            faces: A face, or N faces; their photos are read again.
            method: The method, as for `fer-vit visualize`. None: "pixels", or "regions" without
                PyTorch.

        Returns:
            The attributions: `heat` (N, S, S) of the pixels, `shares` (N, R) of the regions, and a
            method that draws them.

        Raises:
            ImageError: A photo can no longer be read.
            FerVitError: The method is unknown or needs PyTorch, the faces were cropped for another
                model, or there are none.
        """
        faces = collect_faces(faces)
        if not len(faces):
            raise FerVitError("Expected one or more faces to explain, but got none.")
        from fer_vit.predict import explanations  # not at the top: few need it

        method = choose_method(method)
        crops = self._crop_again(faces)
        if method == REGIONS:
            raw = self.engine.run(crops)
            probabilities = self.decode(raw, crops).probabilities
            arrays = explanations.explain_by_regions(self.engine, crops, raw, probabilities)
        else:
            arrays = explanations.explain_by_network(self.net, self.device, crops, method)
        regions = self.crop_spec.regions
        return explanations.Explanations(list(faces), self.labels, regions, **arrays)

    def attend(self, face: Face) -> Attention:
        """Returns the attention of this model on a face, whose photo is read again."""
        if not isinstance(face, Face):
            raise FerVitError(
                f"Expected one face, such as `faces[0]`, but got a {type(face).__name__}."
            )
        from fer_vit.predict.explanations import attend_crop  # not at the top: few need it

        return attend_crop(self.net, self.device, self._crop_again(face.alone))

    def plot_attention(self, face: Face, file: str | Path | None = None) -> Pil.Image:
        """Draws the attention between the regions of a face, and from them to the output.

        Args:
            face: The face; its photo is read again.
            file: Where to save the picture (.svg, .pdf or .png).
        """
        return plot_attention(face, self.attend(face), self.crop_spec.regions, file)

    def _crop_again(self, faces: Faces) -> Crops:
        """Reads the photos of faces again; returns the crops of the faces."""
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
        crops = []
        for photo in faces.photos():
            if len(photo.faces):
                crops.append(crop_again(photo.faces, read_photo(photo.faces[0])))
        return join_crops(crops)

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
        batches: Iterator[Faces] | None = None,
    ) -> Iterator[FaceResults]:
        """Yields each photo and frame, in order, with its faces: finds, classifies and smooths.

        `batches` as for `find`.
        """
        found_faces = self.find(sources, options, batches)
        classified = self.classify(found_faces, sources, options.detector)
        yield from smooth_faces(classified, options.smooth)

    def recognize_crops(
        self, photos: Sequence[Source], options: PhotoOptions
    ) -> Iterator[FaceResults]:
        """Yields photos, in order, with their classified faces, which keep their crops."""
        for faces in self.find(photos, options):
            (classified,) = self.classify([faces], photos, options.detector)
            yield replace(classified, crops=faces.crops)

    def find(
        self,
        sources: Sequence[Source],
        options: PhotoOptions,
        batches: Iterator[Faces] | None = None,
    ) -> Iterator[Faces]:
        """Yields batches of photos and frames, in order, with their faces and the crops of these.

        A terminal shows a progress bar. `batches` are those of a reading of the same sources, for
        this model, that began earlier.
        """
        if batches is None:
            batches = read_sources(sources, self.crop_spec, options)
        # The number of frames of a video is known only at its end.
        total = None if any(map(is_video, sources)) else len(sources)
        if not (sys.stderr and sys.stderr.isatty()):
            yield from batches
            return
        from tqdm import tqdm  # not at the top: its import takes a twentieth of a photo's time

        with tqdm(total=total, unit=" images") as bar:
            for faces in batches:
                yield faces
                bar.update(len(faces.infos))

    def classify(
        self,
        found_faces: Iterable[Faces],
        sources: Sequence[Source],
        detector: ChosenDetector,
    ) -> Iterator[FaceResults]:
        """Classifies the faces that a detector has found in `sources`."""
        scheme = self.scheme(detector)
        for faces in found_faces:
            infos = tuple(replace(info, source=sources[info.index]) for info in faces.infos)
            if faces.crops is None:
                yield as_results(no_faces(infos, scheme))
                continue
            columns_of_parts: list[dict[str, Array]] = []
            for part in faces.crops.split(FACES_PER_PASS):  # a photo may have hundreds of faces
                columns_of_parts.append(self.read(part)._asdict() | self._crop_columns(part))
            columns: dict[str, Any] = {}
            for name in columns_of_parts[0]:
                columns[name] = np.concatenate([part[name] for part in columns_of_parts])
            predicted = replace(faces, infos=infos, scheme=scheme, crops=None, **columns)
            classified = replace(
                predicted,
                angles=head_angles(predicted),
                in_photo=regions_in_photo(predicted),
                smoothed=np.full_like(predicted.probabilities, np.nan),
                smoothed_outputs=np.full_like(predicted.outputs, np.nan),
            )
            yield as_results(classified)

    def _crop_columns(self, crops: Crops) -> dict[str, Array]:
        """Returns the attributes of `Faces` that B crops have without the network, by name."""
        takes_regions = self.engine.takes_regions
        return {
            "blur": measure_blur(crops.image.mean(3, dtype=np.float32) / np.float32(255)),
            "to_crop": crops.to_crop.astype(float),
            "boxes": crops.boxes.astype(float),
            "visible": crops.valid if takes_regions else np.zeros_like(crops.valid),
        }

    @property
    def outputs(self) -> HeadOutputs:
        """The outputs of further heads."""
        return self.settings.outputs

    @property
    def heads(self) -> list[str]:
        """The names of the heads: the expression, the pose, and further heads."""
        return self.outputs.all_heads

    def scheme(self, detector: ChosenDetector) -> Scheme:
        """Returns the scheme of the faces that this model and a detector predict."""
        return Scheme(
            labels=tuple(self.labels),
            outputs=self.outputs,
            regions=self.crop_spec.regions,
            crop_size=self.crop_spec.size,
            align=self.crop_spec.align,
            template=self.crop_spec.template,
            features=self.engine.width,
            thresholds=self.thresholds,
            sure_score=find_detector(detector).sure_score,
            origin=self.origin(detector),
        )
