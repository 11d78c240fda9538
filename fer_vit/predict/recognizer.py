"""A trained model at work: photos in, faces with their expressions out. The same for the command line and for Python.

    from fer_vit import load

    model = load()
    faces = model.predict("photo.jpg")
    faces[0].plot()

B images, R regions, C classes.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm

from fer_vit.data.dataset import FaceDataset
from fer_vit.data.manifest import Manifest
from fer_vit.data.sample import Batch, collate
from fer_vit.data.schema import Split
from fer_vit.errors import WORKER_DIED, FerVitError
from fer_vit.face.crop import CropSpec, mirror
from fer_vit.face.detect import CROP_SCORE, Face, YuNet
from fer_vit.face.regions import check_regions
from fer_vit.geometry import LANDMARKS, TEMPLATE
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.inputs import Images, Source, as_sources
from fer_vit.predict.photos import NO_FACE, OK, FaceMode, Photo, PhotoDataset, photo_loader
from fer_vit.predict.results import FaceResult
from fer_vit.processes import cores
from fer_vit.store.folder import load_network

DetectorName = Literal["yunet", "none"]
PART = 64
"""Faces that the model sees at once."""


def load(
    model: str | Path | None = None,
    device: str | torch.device | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> "Recognizer":
    """Loads a trained model.

    Args:
        model: A model that fer-vit ships (`fer-vit models` lists them), a checkpoint of `fer-vit fit`, a folder, or
            "user/name" on the Hugging Face hub. None: the best that is shipped.
        device: Where to compute. None: the GPU if there is one.
        revision: Branch, tag or commit on the hub.
        token: Of a private repository on the hub; None takes the one you logged in with.

    Raises:
        FerVitError: There is no such model or device, or the model's files are not whole or not fer-vit's.
    """
    recognizer = Recognizer(load_network(model, revision=revision, token=token))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        recognizer.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FerVitError(f"Expected a device that is here, for example cpu, but got {device} ({reason}).") from error
    use_fused_attention(recognizer.net, fused_is_faster(recognizer.device, recognizer.net.layout.num_tokens))
    return recognizer


class Recognizer(nn.Module):
    """A RegionViT with what its use needs: cropping before, names and calibrated probabilities after.

    Args:
        net: The model.

    Attributes:
        labels: The C expressions in the order of the probabilities.
        crop_spec: How a face becomes a crop.

    Raises:
        FerVitError: The model names a region that does not exist.
    """

    def __init__(self, net: RegionViT) -> None:
        super().__init__()
        check_regions(net.config.regions)
        self.net = net
        self.eval()
        self.labels = net.labels
        self.crop_spec = CropSpec(net.config.img_size, tuple(net.config.regions), net.align, net.template or TEMPLATE)
        self._finders: dict[FaceMode, YuNet] = {}

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.parameters()).device

    def forward(self, image: Tensor, boxes: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Returns probabilities (B, C); arguments as for `RegionViT`."""
        return self.net.probabilities(self.net(image, boxes, valid))

    def predict(
        self,
        images: Images | Iterable[Images],
        *,
        face: FaceMode = "detect",
        detector: DetectorName = "yunet",
        batch_size: int = 32,
        workers: int | None = None,
    ) -> list[FaceResult]:
        """Finds and classifies every face in photos.

        Args:
            images: A file, a folder, a glob pattern, a PIL image, an array of uint8 (RGB), or a list of these.
            face: "detect" finds every face; "crop" takes each image as the crop of one face.
            detector: Finds faces or, in crops, landmarks. With "none" crops count as framed like the model's own.
            batch_size: Photos per batch; the result does not depend on it.
            workers: Processes that read photos; all cores when left out.

        Returns:
            The faces, photo by photo. A photo without a face has none; those that cannot be read are warned about.

        Raises:
            FerVitError: An image is not there, or the only one cannot be read, or an option is unknown.
        """
        sources = as_sources(images)
        found: list[FaceResult] = []
        wrong: list[str] = []
        for photo, faces in self.stream(sources, face, detector, batch_size, workers):
            found += faces
            if photo.status not in (OK, NO_FACE):
                wrong.append(f"{photo.path}: {photo.status}")
        if wrong and len(sources) == 1:
            raise FerVitError(f"{wrong[0]}.")
        if wrong:
            warnings.warn(f"{len(wrong)} of {len(sources)} images cannot be read, the first {wrong[0]}.", stacklevel=2)
        return found

    def stream(
        self, sources: Sequence[Source], face: FaceMode, detector: DetectorName, batch_size: int, workers: int | None
    ) -> Iterator[tuple[Photo, list[FaceResult]]]:
        """Yields every photo with its faces, in order; arguments as for `predict`."""
        place = iter(sources)
        for photos, parts in self.batches(sources, face, detector, batch_size, workers):
            found = ((row, part, shares) for part in parts for row, shares in enumerate(self.probabilities(part)))
            for photo, source in zip(photos, place, strict=False):
                faces = zip(enumerate(photo.faces), found, strict=False)
                yield photo, [self._result(photo, source, number, face, *its) for (number, face), its in faces]

    @torch.inference_mode()
    def probabilities(self, part: Batch) -> list[list[float]]:
        """Returns the probability of every expression for each face of a batch that is ready."""
        return self(part.image, part.boxes, part.valid).tolist()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def judge(self, manifest: str | Path, split: Split = "val", mirrored: bool = False) -> tuple[Tensor, Tensor]:
        """Computes the logits of the labelled faces of a manifest.

        Args:
            manifest: A Parquet table of `fer-vit prepare` with the model's labels in their order.
            split: Which of its rows.
            mirrored: Look at every face in a mirror.

        Returns:
            Logits (N, C) before the temperature, and the share of every class (N, C).

        Raises:
            FerVitError: The manifest is not there, has other labels, or not every row has one.
        """
        batches, targets = self.labelled(manifest, split, mirrored)
        logits = [self.net(part.image, part.boxes, part.valid).float().cpu() for part in batches]
        return torch.cat(logits), targets

    def labelled(
        self, manifest: str | Path, split: Split = "val", mirrored: bool = False, most: int | None = None
    ) -> tuple[Iterator[Batch], Tensor]:
        """Reads the labelled faces of a manifest under a progress bar.

        Args:
            manifest: A Parquet table of `fer-vit prepare` with the model's labels in their order.
            split: Which of its rows.
            mirrored: Look at every face in a mirror.
            most: No more faces than these, evenly spaced. None: all.

        Returns:
            Batches ready for the model, and the share of every class (N, C).

        Raises:
            FerVitError: The manifest is not there, has other labels, or not every row has one.
        """
        rows = Manifest.read(manifest, [split]).split(split)
        if list(rows.names) != self.labels:
            raise FerVitError(
                f"Expected labels {', '.join(self.labels)} in {manifest}, but got {', '.join(rows.names)}."
            )
        dataset = FaceDataset(
            rows, self.crop_spec, (lambda crop, points, _: mirror(crop, points)) if mirrored else None
        )
        if dataset.targets is None or not len(dataset):
            raise FerVitError(f"Expected rows with labels in the {split} split of {manifest}. Prepare it with labels.")
        places = np.linspace(0, len(dataset) - 1, min(most or len(dataset), len(dataset))).round().astype(int).tolist()
        loader = DataLoader(Subset(dataset, places), PART, collate_fn=collate)
        bar = tqdm(loader, unit=" batches", disable=None, leave=False)
        return (part.ready(self.device) for part in bar), torch.from_numpy(dataset.targets[places]).float()

    def _result(
        self, photo: Photo, source: Source, number: int, face: Face | None, row: int, part: Batch, shares: list[float]
    ) -> FaceResult:
        probabilities = dict(zip(self.labels, shares, strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        names, boxes = self.crop_spec.regions, part.boxes[row].cpu().double().numpy()
        seen = part.valid[row].nonzero().flatten().tolist() if self.net.layout.num_regions else []
        return FaceResult(
            label=label,
            confidence=probabilities[label],
            probabilities=probabilities,
            path=photo.path,
            face=number,
            box=None if face is None else face.box,
            landmarks=None if face is None else dict(zip(LANDMARKS, map(tuple, face.landmarks.tolist()), strict=True)),
            score=None if face is None else face.score,
            source=source,
            to_crop=part.to_crop[row].double().numpy(),
            crop_size=self.crop_spec.size,
            regions={names[i]: boxes[i] for i in seen},
        )

    def _finder(self, face: FaceMode) -> YuNet:
        """Returns the detector for a mode; reading it anew would take longer than a photo."""
        if face not in self._finders:
            self._finders[face] = YuNet(min_score=CROP_SCORE) if face == "crop" else YuNet()
        return self._finders[face]

    def batches(
        self, sources: Sequence[Source], face: FaceMode, detector: DetectorName, batch_size: int, workers: int | None
    ) -> Iterator[tuple[list[Photo], list[Batch]]]:
        """Yields photos, and all their faces in parts for the model, under a progress bar in images per second.

        Arguments as for `predict`.

        Raises:
            FerVitError: The options contradict each other.
        """
        if face not in get_args(FaceMode) or detector not in get_args(DetectorName):
            modes = f"face {' or '.join(get_args(FaceMode))}, and detector {' or '.join(get_args(DetectorName))}"
            raise FerVitError(f"Expected {modes}, but got {face} and {detector}.")
        if batch_size < 1 or (workers or 0) < 0:
            raise FerVitError(
                f"Expected a positive batch size and number of workers, but got {batch_size} and {workers}."
            )
        if face == "detect" and detector == "none":
            raise FerVitError(
                "`--face detect` needs a detector. Use `--face crop` for images that are face crops already."
            )
        finder = self._finder(face) if detector == "yunet" else None
        dataset = PhotoDataset(sources, self.crop_spec, face, finder)
        workers = cores() if workers is None else workers
        # Starting processes costs seconds; a handful of photos is read sooner without.
        loader = photo_loader(dataset, batch_size, workers if len(sources) > batch_size else 0)
        with tqdm(total=len(sources), unit=" images", disable=None) as bar, _readable_errors():
            for photos, batch in loader:
                # A photo may hold hundreds of faces, and the attention that is recorded grows with them.
                yield photos, [part.ready(self.device) for part in batch.split(PART)] if batch else []
                bar.update(len(photos))


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turns the ends that a machine too small makes into lines that say what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise FerVitError("The GPU has too little memory for this model. Free some, or hide the GPU.") from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise FerVitError(WORKER_DIED) from error
