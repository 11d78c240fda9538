"""Prediction with a trained model: `fer_vit.load().predict("photo.jpg")[0].plot()`."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, check_regions
from fer_vit.face.detect import CROP_SCORE, PHOTO_SCORE, Detector, DetectorName, make_detector
from fer_vit.geometry import TEMPLATE, Float32Array
from fer_vit.labels import read_prior
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import READ, FaceMode, Images, Photo, PhotoDataset, PhotoOptions, Source, as_sources
from fer_vit.predict.results import FaceResult, Faces
from fer_vit.predict.stages import FoundFaces, classify_faces, find_faces, smooth_faces
from fer_vit.store.folder import load_network
from fer_vit.store.hub import DEFAULT


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
    recognizer = Recognizer(load_network(model, revision=revision, token=token), str(model or DEFAULT))
    if prior is not None or classes:
        recognizer.change_prior(prior, classes)
    device = best_device() if device in (None, "auto") else device
    try:
        recognizer.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Expected an available device, for example cpu, but got {device} ({reason}).") from error
    use_fused_attention(recognizer.net, fused_is_faster(recognizer.device, recognizer.net.layout.num_tokens))
    return recognizer


def best_device() -> str:
    """Returns "cuda" (NVIDIA) or "mps" (Apple) if there is such a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


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
        self.crop_spec = CropSpec(net.config.img_size, tuple(net.config.regions), net.settings.align, template)
        self._detectors: dict[tuple[DetectorName, float], Detector | None] = {}

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def change_prior(self, prior: str | Path | Mapping[str, float] | None, classes: Sequence[str] = ()) -> None:
        """Changes the class prior and the possible classes. Faces then have no prediction set.

        `prior` is "even", the frequency of each class by name, or a JSON file of them; None: as in training. Labels
        that are not in `classes` get a probability of 0; empty: all are possible. Raises FerVitError when these do not
        fit the model, or it does not contain the class frequencies of its training faces.
        """
        if unknown := [name for name in classes if name not in self.labels]:
            raise FerVitError(f"Expected classes among {', '.join(self.labels)}, but got {unknown[0]}.")
        possible = [name for name in self.labels if not classes or name in classes]
        self.conditions = {"classes": ", ".join(possible)} if classes else {}
        frequencies = None
        if prior is not None:
            if not self.net.settings.prior:
                remedy = "Write it again: `fer-vit export FOLDER --checkpoint MODEL --calibrate MANIFEST`."
                raise FerVitError(f"`prior` needs a model with the class frequencies of its training faces. {remedy}")
            by_name = read_prior(prior, possible)
            self.conditions["prior"] = ", ".join(f"{name} {value:.3g}" for name, value in by_name.items())
            frequencies = [by_name.get(name, 0.0) for name in self.labels]
        self.net.change_prior(frequencies, [name in possible for name in self.labels])

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.net.probabilities(self.net(image, boxes, valid))

    @torch.inference_mode()
    def probabilities(self, batch: Batch) -> list[list[float]]:
        """Returns the probability of every expression for each face of a batch from `Batch.ready`."""
        return self(batch.image, batch.boxes, batch.valid).tolist()  # type: ignore[no-any-return]

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: DetectorName = "auto",
        batch_size: int = 32,
        workers: int | None = None,
        **video: Any,
    ) -> Faces:
        """Finds and classifies every face in photos and videos; returns the faces, photo by photo and frame by frame.

        Photos that cannot be read give a warning. Raises FerVitError when an image does not exist, when the only one
        cannot be read, or when an option has a wrong value.

        Args:
            images: A file, a folder, a glob pattern, a PIL image, a uint8 array (RGB), or a list of these.
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: "auto", "builtin", "yunet", "landmarks" or "none"; see `PhotoOptions`.
            batch_size: Photos per batch; the result does not depend on it.
            workers: Processes that read photos. None: one per core.
            video: `every`, `fps`, `start`, `end`, `detect_every` and `smooth`; see `PhotoOptions`.
        """
        sources = as_sources(images)
        photos = list(self.recognize(sources, PhotoOptions(face, detector, batch_size, workers, **video)))
        wrong = [f"{photo.path}: {photo.status}" for photo in photos if photo.status not in READ]
        if wrong and len(photos) == 1:
            raise FerVitError(f"{wrong[0]}.")
        if wrong:
            warnings.warn(f"{len(wrong)} of {len(sources)} images cannot be read, the first {wrong[0]}.", stacklevel=2)
        if whole := [photo.path for photo in photos if photo.taken_whole]:
            hint = f"{len(whole)} of {len(sources)} images are photos, but each was taken as one face, the first"
            warnings.warn(f'{hint} {whole[0]}. Leave out face="crop".', stacklevel=2)
        return Faces(face for photo in photos for face in photo.faces)

    def features(self, images: Images | Iterable[Images], **options: Any) -> Float32Array:
        """Returns the features (N, D) of the N faces that `predict`, whose arguments it takes, finds."""
        faces = self.predict(images, **options)
        return np.array([face.features for face in faces], np.float32).reshape(len(faces), self.net.vit.embed_dim)

    def stream(self, images: Images | Iterable[Images], **options: Any) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their `faces`, one at a time; arguments as for `predict`."""
        return self.recognize(as_sources(images), PhotoOptions(**options))

    def recognize(self, sources: Sequence[Source], options: PhotoOptions) -> Iterator[Photo[FaceResult]]:
        """Yields photos and frames with their faces, in order: the stages find, classify and smooth."""
        found = self.find(sources, options)
        return smooth_faces(classify_faces(self.net, self.crop_spec, found, sources), options.smooth)

    def find(self, sources: Sequence[Source], options: PhotoOptions) -> Iterator[FoundFaces]:
        """Yields photos and frames, in order, with their faces in batches for `forward`."""
        return find_faces(self.open_photos(sources, options), options, self.device)

    def open_photos(self, sources: Sequence[Source], options: PhotoOptions) -> PhotoDataset:
        """Returns the photos as a data set that finds and crops faces."""
        key = (options.detector, CROP_SCORE if options.face == "crop" else PHOTO_SCORE)
        if key not in self._detectors:  # loading takes longer than a photo
            self._detectors[key] = make_detector(*key)
        return PhotoDataset(sources, self.crop_spec, options.face, self._detectors[key])
