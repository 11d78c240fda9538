"""The faces of a report: people in videos over time, frames to show of them, and explanations.

B faces, C labels, R regions, V views of attention, of which L are heads, E explanations of a face.
"""

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
from fer_vit.face.crop import CropSpec
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import ImageError, read_image
from fer_vit.faces import Face, Faces, join
from fer_vit.geometry import Array, Image
from fer_vit.model.attention import has_bf16
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.photos import PhotoOptions, as_samples
from fer_vit.predict.plot import face_view
from fer_vit.predict.recognizer import CHUNK, Recognizer
from fer_vit.report.draw import Attention, FaceView
from fer_vit.report.html import Attributed, Evidence

PICTURES = 120
"""Pictures of one person, at most.

All people in one video have at most four times as many, but at least one each.
"""
POINTS = 1000  # points of a curve, at most: means over as many equal spans of the video
FRAMES_AT_ONCE = 8  # frames that are explained together
MEMORY = 2_000_000_000  # bytes for the faces that are explained together
VECTORS = 16  # values of a token in a block, in vectors of its width
VALUE_BYTES = 16  # of a value with its gradients: measured with additive attention at 224 pixels
HEAT_GRID = 24
"""Rows and columns of a heat map: each cell is a mean, since single pixels are hard to see."""
LabelChoice = Literal["predicted", "all"]
Shown: TypeAlias = tuple[Face, Image | None]
"""A face, and its photo or frame (H, W, 3); None: it is read from the photo's path."""


@dataclass
class Timeline:
    """One track of a video.

    When it was visible, with which smoothed probabilities (C,), and the faces to show of it.
    """

    track: int
    times: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    faces: list[Face] = field(default_factory=list)
    changes: list[Face] = field(default_factory=list)  # where the smoothed expression changes
    max_pictures: int = PICTURES
    _frame: int = 0  # the last one, counted among those that were read
    _stride: int = 1
    _label: str | None = None

    def pictures(self, most: int) -> list[Face]:
        """Returns at most `most` faces to show, at least one.

        Up to half of them are where the expression changes, the others at even intervals.
        """
        most = max(1, min(most, self.max_pictures))
        changes = {face.frame: face for face in evenly(self.changes, most // 2)}
        steady = [face for face in self.faces if face.frame not in changes]
        chosen = list(changes.values())
        chosen += evenly(steady, most - len(changes))
        return sorted(chosen, key=lambda face: face.frame or 0)

    def add(self, face: Face, seconds: float, frame: int) -> None:
        """Adds a face.

        Of those to show every second one is dropped each time there are twice as many as needed.
        """
        if self.times and frame > self._frame + 1:
            self.gaps.append((self.times[-1], seconds))
        if self.times and face.label_smoothed != self._label:
            self.changes.append(face)
        self._label = face.label_smoothed

        if len(self.times) % self._stride == 0:
            self.faces.append(face)
            if len(self.faces) > 2 * PICTURES:
                self.faces = self.faces[::2]
                self._stride *= 2

        self.times.append(seconds)
        self.shares.append(list(face.smoothed.values()))
        self._frame = frame


@dataclass
class Video:
    """The people of a video by track, and the times of its first and last frame."""

    start: float
    end: float
    people: dict[int, Timeline] = field(default_factory=dict)

    def pictures(self) -> Iterator[Face]:
        """Yields the faces to show of each person."""
        for person in self.people.values():
            yield from person.pictures(4 * PICTURES // len(self.people))

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields what `page.js` draws of each person, as JSON values.

        Times are in seconds, shares in thousandths.
        """
        duration = self.end - self.start or 1.0
        for person in self.people.values():
            times = np.array(person.times)  # (T,)
            shares = np.array(person.shares)  # (T, C)

            # Means over equal spans of the video.
            span = np.floor((times - self.start) * POINTS / duration).clip(max=POINTS - 1)
            _, first, count = np.unique(span, return_index=True, return_counts=True)
            mean_times = np.add.reduceat(times, first) / count  # (points,)
            mean_shares = np.add.reduceat(shares, first) / count[:, None]  # (points, C)
            yield {
                "name": name,
                "track": person.track,
                "frames": len(times),
                "start": round(self.start, 3),
                "end": round(self.end, 3),
                "times": mean_times.round(3).tolist(),
                "shares": (1000 * mean_shares.T).round().astype(int).tolist(),
                "gaps": np.round(person.gaps, 3).tolist(),
            }


def evenly(faces: Sequence[Face], most: int) -> list[Face]:
    """Returns at most `most` faces at even intervals."""
    places = np.linspace(0, len(faces) - 1, min(most, len(faces)))
    return [faces[round(place)] for place in places]


def limit(videos: Mapping[str, Video], most: int) -> tuple[dict[str, Video], bool]:
    """Returns videos with at most `most` faces to show, and whether any was left out.

    Each person has as many as the others; the people that are seen longest are kept.
    """
    people = []
    for path, video in videos.items():
        for person in video.people.values():
            people.append((path, person))
    people.sort(key=lambda item: -len(item[1].times))
    kept = people[:most]
    left_out = len(people) > most
    if any(len(person.faces) > most // len(kept) for _, person in kept):
        left_out = True

    limited = {}
    for path, video in videos.items():
        tracks = {person.track for kept_path, person in kept if kept_path == path}
        remaining = {}
        for track, person in video.people.items():
            if track in tracks:
                remaining[track] = replace(person, max_pictures=most // len(kept))
        limited[path] = replace(video, people=remaining)
    return limited, left_out


def watch(frames: Iterable[Faces]) -> tuple[dict[str, Video], Counter[str]]:
    """Follows the people in videos by path; also counts the frames by status."""
    videos: dict[str, Video] = {}
    status: Counter[str] = Counter()
    for frame, faces in enumerate(frames):
        (info,) = faces.infos
        status[info.reason] += 1
        if info.seconds is None:  # the end of a video that broke
            continue
        video = videos.setdefault(info.path, Video(info.seconds, info.seconds))
        video.end = info.seconds
        for face in faces:
            track = face.track or 0
            person = video.people.setdefault(track, Timeline(track))
            person.add(face, info.seconds, frame)
    return videos, status


def pictures(
    model: Recognizer, videos: Mapping[str, Video], options: PhotoOptions
) -> Iterator[tuple[Sequence[Shown], Sequence[Batch]]]:
    """Yields the faces to show, in the frames that are read again, and as the model's input."""
    finder = FaceFinder(model.crop_spec, options.face)
    for path, video in videos.items():
        from fer_vit.predict.frames import read_frames  # only here: PyAV may not be installed

        wanted: defaultdict[int, list[Face]] = defaultdict(list)
        for result in video.pictures():
            wanted[result.frame or 0].append(result)
        frames = islice(read_frames(Path(path), only=wanted), len(wanted))
        with tqdm(total=len(wanted), desc="explaining", unit=" frames", disable=None) as bar:
            while read := list(islice(frames, FRAMES_AT_ONCE)):
                shown: list[Shown] = []
                crops = []
                for frame in read:
                    faces = wanted[frame.number]
                    shown += [(face, frame.image) for face in faces]
                    crops += finder.crop(frame.image, join([face.alone for face in faces]))
                chunks = collate(as_samples(crops, path)).split(CHUNK)
                yield shown, [chunk.ready(model.device) for chunk in chunks]
                bar.update(len(read))


def explain_faces(
    model: Recognizer,
    faces: Iterable[Shown],
    chunks: Iterable[Batch],
    method: str,
    labels: LabelChoice = "predicted",
) -> Iterator[tuple[Face, FaceView, Evidence]]:
    """Yields each face with its explanation.

    `chunks` are the crops of the faces, ready for the model, perhaps with more faces.
    """
    faces = iter(faces)
    read = lru_cache(maxsize=1)(_read_again)  # workers return only crops, since photos can be large
    most = faces_at_once(model.net)
    for part in chain.from_iterable(chunk.split(most) for chunk in chunks):
        wanted = list(islice(faces, len(part.path)))
        if not wanted:
            return
        batch = next(part.split(len(wanted)))
        seen = trace(model.net, batch.image, batch.boxes, batch.valid)
        explanations = explain_labels(model.net, seen, method, labels)
        for row, ((face, image), evidence) in enumerate(zip(wanted, explanations, strict=True)):
            picture = read(face.path) if image is None else image
            if picture is None:  # what the model saw
                crop = (255 * batch.image[row]).round().byte().permute(1, 2, 0).cpu().numpy()
                view = replace(face_view(face, crop), box=None, to_crop=np.eye(2, 3))
            else:
                view = face_view(face, picture)
            view = replace(view, regions=visible_regions(model.crop_spec, batch, row))
            yield face, view, evidence


def visible_regions(spec: CropSpec, batch: Batch, row: int) -> dict[str, Array]:
    """Returns the box (4,) of each visible region of a face in a batch, xyxy in crop pixels."""
    boxes = batch.boxes[row].cpu().double().numpy()  # (R, 4)
    valid = batch.valid[row].tolist()
    return {name: box for name, box, seen in zip(spec.regions, boxes, valid, strict=True) if seen}


def faces_at_once(net: RegionViT) -> int:
    """Returns how many faces are explained together: as many as `MEMORY` holds, but at least one.

    Gradients need the values of every block: some vectors for each token, and numbers for each pair
    of tokens, which with additive attention are vectors (`AdditiveAttention.score`).
    """
    blocks = len(net.vit.blocks)
    tokens = net.layout.num_tokens
    width = int(net.vit.embed_dim)
    pair = 4 * int(net.vit.blocks[0].attn.num_heads)
    if net.config.attention == "additive":
        pair = width
    values = blocks * tokens * (VECTORS * width + tokens * pair)
    return max(1, MEMORY // (values * VALUE_BYTES))


def explain_labels(
    net: RegionViT, seen: Trace, method: str, labels: LabelChoice = "predicted"
) -> Iterator[Evidence]:
    """Yields the evidence for each face.

    The predicted label or all are explained, and the predicted one rather than the second.
    """
    order = seen.logits.argsort(dim=1, descending=True, stable=True)  # (B, C)
    classes = order.shape[1]
    number = classes if labels == "all" else 1

    # Directions (B, C) of the labels, the most probable first, and of the contrast.
    ranked = torch.eye(classes, device=order.device)[order].unbind(1)
    contrast = ranked[0] - ranked[min(1, classes - 1)]
    directions = torch.stack([*ranked[:number], contrast])  # (E, B, C)

    # Half the time in bfloat16, as near to a finer integration. Changes by masked tokens are too
    # small for it.
    with torch.autocast("cpu", torch.bfloat16, enabled=method == "pixels" and has_bf16("cpu")):
        explanations = explain_each(net, seen, method, directions)
    views = attention_views(seen, interactions(net, seen))
    relations = _array(views.relations)  # (B, V, R, R)
    output = _array(views.output)  # (B, V, R)
    patches = _array(views.patches)  # (B, V, rows, columns)
    distance = _array(views.distance)  # (B, L)

    for row, ranking in enumerate(order.tolist()):
        attributed = []
        for explanation in explanations:
            heat = adaptive_avg_pool2d(explanation.heat[row, None], HEAT_GRID)[0]
            attributed.append(Attributed(_array(explanation.shares[row]), _array(heat)))
        yield Evidence(
            order=ranking,
            labels=dict(zip(ranking[:number], attributed[:number], strict=True)),
            contrast=attributed[number],
            attention=Attention(relations[row], output[row], patches[row], distance[row]),
        )


def _array(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _read_again(path: str) -> Image | None:
    """Returns a photo; None if it can no longer be read."""
    try:
        return read_image(Path(path))
    except ImageError:
        return None
