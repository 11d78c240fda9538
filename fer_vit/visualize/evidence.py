"""The faces of a report: people in videos over time, the frames of which pictures are made, and explanations."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from tqdm import tqdm

from fer_vit.data.dataset import Batch, collate
from fer_vit.explain.methods import explain_each
from fer_vit.explain.trace import Trace, attention_views, interactions, trace
from fer_vit.face.face import Face
from fer_vit.face.image import ImageError, read_image
from fer_vit.geometry import Array, Image
from fer_vit.model.attention import has_bf16
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import Photo, PhotoDataset, PhotoOptions
from fer_vit.predict.recognizer import CHUNK, Recognizer, visible_regions
from fer_vit.predict.results import FaceResult
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import Evidence

PICTURES = 120
"""Pictures of one person, at most; and of all people in one video four times as many, but at least one of each."""
POINTS = 1000  # points of a curve, at most: means over as many equal spans of the video
FRAMES = 8  # frames that are explained together
MEMORY = 2_000_000_000  # bytes for the faces that are explained together
VECTORS = 16  # values of a token in a block, in vectors of its width
BYTES = 16  # of a value with its gradients: as measured with additive attention at 224 pixels
LabelChoice = Literal["predicted", "all"]
Shown: TypeAlias = tuple[FaceResult, Image | None]
"""A face, and its photo or frame (H, W, 3); None: it is read from the photo's path."""
GRID = (
    24  # rows and columns of a heat map: each cell is a mean, since single pixels are hard to see
)


@dataclass
class Timeline:
    """One track of a video: when it was there, with which smoothed probabilities (C,), and the faces to show of it."""

    track: int
    times: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    faces: list[FaceResult] = field(default_factory=list)
    changes: list[FaceResult] = field(default_factory=list)  # where the smoothed expression changes
    most: int = PICTURES
    _frame: int = 0  # the last one, counted among those that were read
    _stride: int = 1
    _label: str | None = None

    def pictures(self, most: int) -> list[FaceResult]:
        """Returns at most so many faces to show: where the expression changes, and evenly chosen ones."""
        most = max(1, min(most, self.most))
        changes = {face.frame: face for face in evenly(self.changes, most // 2)}
        others = [face for face in self.faces if face.frame not in changes]
        return sorted(
            [*changes.values(), *evenly(others, most - len(changes))],
            key=lambda face: face.frame or 0,
        )

    def add(self, face: FaceResult, seconds: float, frame: int) -> None:
        """Adds a face; of those to show every second one is dropped each time there are twice as many as needed."""
        if self.times and frame > self._frame + 1:
            self.gaps.append((self.times[-1], seconds))
        if self.times and face.label_smoothed != self._label:
            self.changes.append(face)
        self._label = face.label_smoothed
        if len(self.times) % self._stride == 0:
            self.faces.append(face)
            if len(self.faces) > 2 * PICTURES:
                self.faces, self._stride = self.faces[::2], 2 * self._stride
        self.times.append(seconds)
        self.shares.append([*face.smoothed.values()])
        self._frame = frame


@dataclass
class Video:
    """The people of a video by track, and the times of its first and last frame."""

    start: float
    end: float
    people: dict[int, Timeline] = field(default_factory=dict)

    def pictures(self) -> Iterator[FaceResult]:
        """Yields the faces to show of each person."""
        for person in self.people.values():
            yield from person.pictures(4 * PICTURES // len(self.people))

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields what `page.js` draws of each person, as JSON values: times in seconds, shares in thousandths."""
        for person in self.people.values():
            times = np.array(person.times)
            span = np.floor((times - self.start) * POINTS / (self.end - self.start or 1.0)).clip(
                max=POINTS - 1
            )
            _, first, count = np.unique(span, return_index=True, return_counts=True)
            shares = np.add.reduceat(np.array(person.shares), first) / count[:, None]
            yield {
                "name": name,
                "track": person.track,
                "frames": len(times),
                "start": round(self.start, 3),
                "end": round(self.end, 3),
                "times": (np.add.reduceat(times, first) / count).round(3).tolist(),
                "shares": (1000 * shares.T).round().astype(int).tolist(),
                "gaps": np.round(person.gaps, 3).tolist(),
            }


def evenly(faces: Sequence[FaceResult], most: int) -> list[FaceResult]:
    """Returns at most so many of some faces, evenly chosen."""
    return [faces[round(place)] for place in np.linspace(0, len(faces) - 1, min(most, len(faces)))]


def limit(videos: Iterable[Video], most: int) -> bool:
    """Leaves at most so many faces, as many of each person, the longest seen ones; returns whether any was left out."""
    people = [(video, track) for video in videos for track in video.people]
    people.sort(key=lambda one: -len(one[0].people[one[1]].times))
    for video, track in people[most:]:
        del video.people[track]
    kept = [video.people[track] for video, track in people[:most]]
    for person in kept:
        person.most = most // len(kept)
    return len(people) > most or any(len(person.faces) > person.most for person in kept)


def watch(photos: Iterable[Photo[FaceResult]]) -> tuple[dict[str, Video], Counter[str]]:
    """Follows the people in videos by path; also counts the frames by status."""
    videos: dict[str, Video] = {}
    status: Counter[str] = Counter()
    for frame, photo in enumerate(photos):
        status[photo.reason] += 1
        if photo.seconds is None:  # the end of a video that broke
            continue
        video = videos.setdefault(photo.path, Video(photo.seconds, photo.seconds))
        video.end = photo.seconds
        for face in photo.faces:
            track = face.track or 0
            video.people.setdefault(track, Timeline(track)).add(face, photo.seconds, frame)
    return videos, status


def pictures(
    model: Recognizer, videos: Mapping[str, Video], options: PhotoOptions
) -> Iterator[tuple[Sequence[Shown], Sequence[Batch]]]:
    """Yields the faces to show, in the frames that are read again, and as the model's input."""
    photos = PhotoDataset((), model.crop_spec, options.face, None)
    for path, video in videos.items():
        from fer_vit.predict.frames import read_frames  # only here: PyAV may not be installed

        wanted: defaultdict[int, list[FaceResult]] = defaultdict(list)
        for result in video.pictures():
            wanted[result.frame or 0].append(result)
        frames = islice(read_frames(Path(path), only=wanted), len(wanted))
        with tqdm(total=len(wanted), desc="explaining", unit=" frames", disable=None) as bar:
            while some := list(islice(frames, FRAMES)):
                found = [(face, frame.image) for frame in some for face in wanted[frame.number]]
                crops = (
                    photos.crop_faces(image, 1, [_face(face)], path)[0] for face, image in found
                )
                yield found, [chunk.ready(model.device) for chunk in collate([*crops]).split(CHUNK)]
                bar.update(len(some))


def _face(result: FaceResult) -> Face | None:
    """Returns a face as the detector found it; None without landmarks."""
    if result.box is None or result.landmarks is None:
        return None
    return Face(
        result.box,
        np.array([*result.landmarks.values()]),
        np.nan if result.score is None else result.score,
    )


def explain_faces(
    model: Recognizer,
    faces: Iterable[Shown],
    chunks: Iterable[Batch],
    method: str,
    labels: LabelChoice = "predicted",
) -> Iterator[tuple[FaceResult, FaceView, Evidence]]:
    """Yields each face with its explanation; `chunks` are the crops, ready for the model, perhaps with more faces."""
    faces = iter(faces)
    read = lru_cache(maxsize=1)(_read_again)  # workers return only crops, since photos can be large
    most = faces_at_once(model.net)
    for part in chain.from_iterable(chunk.split(most) for chunk in chunks):
        wanted = list(islice(faces, len(part.path)))
        if not wanted:
            return
        chunk = next(part.split(len(wanted)))
        seen = trace(model.net, chunk.image, chunk.boxes, chunk.valid)
        explanations = zip(explain_labels(model.net, seen, method, labels), wanted, strict=True)
        for row, (evidence, (face, image)) in enumerate(explanations):
            picture = read(face.path) if image is None else image
            if picture is None:  # what the model saw
                crop = (255 * chunk.image[row]).round().byte().permute(1, 2, 0).cpu().numpy()
                view = replace(face.view(crop), box=None, to_crop=np.eye(2, 3))
            else:
                view = face.view(picture)
            yield (
                face,
                replace(view, regions=visible_regions(model.crop_spec, chunk, row)),
                evidence,
            )


def faces_at_once(net: RegionViT) -> int:
    """Returns how many faces are explained together: as many as `MEMORY` holds, but at least one.

    Gradients need the values of every block: some vectors for each token, and numbers for each pair
    of tokens, which with additive attention are vectors (`AdditiveAttention.score`).
    """
    tokens, width = net.layout.num_tokens, int(net.vit.embed_dim)
    blocks = len(net.vit.blocks)
    additive = net.config.attention == "additive"
    pair = width if additive else 4 * int(net.vit.blocks[0].attn.num_heads)
    numbers = blocks * tokens * (VECTORS * width + tokens * pair)
    return max(1, MEMORY // (numbers * BYTES))


def explain_labels(
    net: RegionViT, seen: Trace, method: str, labels: LabelChoice = "predicted"
) -> Iterator[Evidence]:
    """Yields the attribution for the predicted label of each face, or for all, and for it rather than the second."""
    order = seen.logits.argsort(dim=1, descending=True, stable=True)
    number = order.shape[1] if labels == "all" else 1
    ranked = torch.eye(order.shape[1], device=order.device)[order].unbind(
        1
    )  # (B, C) each, the most probable first
    directions = torch.stack([*ranked[:number], ranked[0] - ranked[min(1, len(ranked) - 1)]])
    # Half the time in bfloat16, as near to a finer integration. Changes by masked tokens are too small for it.
    with torch.autocast("cpu", torch.bfloat16, enabled=method == "pixels" and has_bf16("cpu")):
        explanations = explain_each(net, seen, method, directions)
    attention = [_array(values) for values in attention_views(seen, interactions(net, seen))]
    for row, ranking in enumerate(order.tolist()):
        heat = [_array(adaptive_avg_pool2d(one.heat[row, None], GRID)[0]) for one in explanations]
        *each, contrast = zip((_array(one.shares[row]) for one in explanations), heat, strict=True)
        own = Attention(*(values[row] for values in attention))
        yield Evidence(ranking, dict(zip(ranking, each, strict=False)), contrast, own)


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _read_again(path: str) -> Image | None:
    try:
        return read_image(Path(path))
    except ImageError:
        return None
