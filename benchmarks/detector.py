"""Trains the built-in face detector, writes it as ONNX for `cv2.FaceDetectorYN`, and compares it with YuNet.

python -m benchmarks.detector detector.onnx --faces fairface --backgrounds backgrounds --cache runs/detector

`--faces` is a folder of square face crops (FairFace), `--backgrounds` a folder of pictures without faces. YuNet finds
the boxes and landmarks of the crops once. Faces of 10 to 300 pixels are then pasted into backgrounds; false detections
in the backgrounds are shown more often. Interrupted training resumes from the checkpoint in `--cache`. If the ONNX file
exists, it is only scored: on `--photos` composed photos of held-out faces, held-out backgrounds and the MP4 files in
`--clips`.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.detector_data import CANVAS, Data, Spot, compose, group_photo, read_data
from benchmarks.machine import in_turns, machine, run_main, write_onnx
from fer_vit.face.detect import (
    PHOTO_SCORE,
    Detector,
    Face,
    FaceDetector,
    box_iou,
    resized,
    yunet_path,
)
from fer_vit.geometry import Array, Image

STRIDES = (8, 16, 32)
RANGES = ((0, 52), (32, 128), (80, 10_000))
"""The sides of the faces, in pixels, that each stride learns; a side in two ranges belongs to both."""
RAW = 0.673
"""The network's score that the file reports as 0.6, the minimum score in photos."""
SHIFT = math.log(0.6 / 0.4) - math.log(RAW / (1 - RAW))
"""Added to the logits of the file."""


def conv(chans: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution with batch norm."""
    return nn.Sequential(
        nn.Conv2d(chans, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    )


class Separable(nn.Module):
    """A depthwise and a pointwise convolution with a residual connection."""

    def __init__(self, chans: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(chans, chans, groups=chans), nn.ReLU(), conv(chans, chans, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps features (B, chans, H, W)."""
        return F.relu(x + self.body(x))


def stage(chans: int, out: int, depth: int) -> nn.Sequential:
    """Halves the resolution, then refines."""
    return nn.Sequential(
        conv(chans, out, stride=2), nn.ReLU(), *[Separable(out) for _ in range(depth)]
    )


class Network(nn.Module):
    """Scores, boxes and landmarks at strides 8, 16 and 32 of images (B, 3, H, W), BGR in [0, 1].

    Each of the three results is (B, 15, H / stride, W / stride): a score's logit, the box's centre and the logarithm of
    its sides, and five points. Lengths are in strides and places are relative to the cell's upper left corner, as
    `cv2.FaceDetectorYN` expects.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(stage(3, 16, 0), stage(16, 24, 0))
        chans, neck = (40, 64, 96), 48
        self.stages = nn.ModuleList([stage(24, 40, 3), stage(40, 64, 4), stage(64, 96, 5)])
        self.lateral = nn.ModuleList([conv(count, neck, 1) for count in chans])
        heads = (
            nn.Sequential(Separable(neck), Separable(neck), nn.Conv2d(neck, 15, 1)) for _ in chans
        )
        self.heads = nn.ModuleList(heads)
        for head in self.heads:
            nn.init.normal_(head[2].weight, std=0.01)
            head[2].bias.data = torch.tensor([-4.0, 0.5, 0.5, 1.0, 1.0, *[0.5] * 10])

    def forward(self, image: Tensor) -> list[Tensor]:
        """Returns the results of the three strides."""
        features, x = [], self.stem(image)
        for one in self.stages:
            features.append(x := one(x))
        results: list[Tensor] = []
        above: Tensor | None = None
        for feature, lateral, head in zip(
            features[::-1], self.lateral[::-1], self.heads[::-1], strict=True
        ):
            x = lateral(feature)
            above = F.relu(x if above is None else x + F.interpolate(above, scale_factor=2.0))
            results.insert(0, head(above))
        return results


CORNERS = np.concatenate(
    [np.stack(np.meshgrid(*[np.arange(0, CANVAS, s)] * 2), -1).reshape(-1, 2) for s in STRIDES]
)
"""Upper left corners (C, 2) in pixels of all cells of a canvas."""
CELLS = [(CANVAS // s) ** 2 for s in STRIDES]
STRIDE, LOW, HIGH = (
    np.repeat(values, CELLS).astype(float) for values in (STRIDES, *zip(*RANGES, strict=True))
)


def assign(faces: Array) -> tuple[Array, Array]:
    """Returns for each cell 1 for a face, 0 for none, -1 for neither, and the face's points (C, 7, 2).

    The cells of a face are those around its centre at the strides of its size; at the next sizes they are neither.
    """
    labels, points = np.zeros(len(STRIDE), np.float32), np.zeros((len(STRIDE), 7, 2), np.float32)
    if len(faces):
        width, height = (faces[:, 1] - faces[:, 0]).T[..., None]  # (F, 1)
        size = np.sqrt(width * height)
        x, y = np.abs(CORNERS + STRIDE[:, None] / 2 - faces[:, :2].mean(1)[:, None]).transpose(
            2, 0, 1
        )
        inside = (x <= np.maximum(0.22 * width, 0.6 * STRIDE)) & (
            y <= np.maximum(0.22 * height, 0.6 * STRIDE)
        )
        near = inside & (size >= LOW / 1.5) & (size < HIGH * 1.5)
        own = inside & (size >= LOW) & (size < HIGH)
        labels[near.any(0)] = -1
        nearest = np.where(own, np.maximum(x / width, y / height), np.inf).argmin(0)
        labels[own.any(0)] = 1
        points = faces[nearest].astype(np.float32)
    return labels, points


def loss_of(results: list[Tensor], labels: Tensor, points: Tensor) -> Tensor:
    """Returns the loss of the three strides' results.

    Scores have the focal loss (Lin et al. 2017), boxes the generalised IoU loss (Rezatofighi et al. 2019),
    landmarks their distance in units of the face.
    """
    flat = torch.cat([result.permute(0, 2, 3, 1).flatten(1, 2) for result in results], 1).float()
    logit, true = flat[..., 0], labels.clamp(min=0)
    each = (
        F.binary_cross_entropy_with_logits(logit, true, reduction="none")
        * (logit.sigmoid() - true).abs() ** 2
    )
    positive = labels == 1
    count = positive.sum().clamp(min=1)
    found, target = flat[positive], points[positive]  # (P, 15), (P, 7, 2)
    corner, stride = (
        torch.from_numpy(part).float()[positive.nonzero()[:, 1]] for part in (CORNERS, STRIDE)
    )
    places = (
        found[:, [1, 2, *range(5, 15)]].view(-1, 6, 2) * stride[:, None, None] + corner[:, None]
    )
    half = found[:, 3:5].clamp(-3, 4).exp() * stride[:, None] / 2
    low, high = places[:, 0] - half, places[:, 0] + half
    common = (
        (torch.minimum(high, target[:, 1]) - torch.maximum(low, target[:, 0])).clamp(min=0).prod(1)
    )
    hull = (torch.maximum(high, target[:, 1]) - torch.minimum(low, target[:, 0])).prod(1)
    sides = target[:, 1] - target[:, 0]
    union = (high - low).prod(1) + sides.prod(1) - common
    giou = common / union - (hull - union) / hull
    distance = (places[:, 1:] - target[:, 2:]).abs().mean((1, 2)) / sides.prod(1).sqrt()
    return ((each * (labels >= 0)).sum() + 2 * (1 - giou).sum() + 2 * distance.sum()) / count


@torch.no_grad()
def find_spots(net: Network, data: Data, rng: np.random.Generator) -> list[Spot]:
    """Returns the parts of the backgrounds, at random scales, with the highest scores above 0.2, at most 1,000."""
    found: list[tuple[float, Spot]] = []
    for number, background in enumerate(data.backgrounds):
        scale = float(np.exp(rng.uniform(np.log(0.5), np.log(2))))
        height, width = (max(1, round(scale * length / 32)) * 32 for length in background.shape[:2])
        zoom = np.array(background.shape[1::-1]) / (width, height)
        results = net(to_tensor([cv2.resize(background, (width, height))]))
        for result, stride in zip(results, STRIDES, strict=True):
            peak = (result[:, :1] == F.max_pool2d(result[:, :1], 5, 1, 2)) & (
                result[:, :1] > math.log(0.2 / 0.8)
            )
            for row, column in peak[0, 0].nonzero().tolist():
                logit, x, y, *sides = result[0, :5, row, column].tolist()
                centre = (np.array([x + column, y + row]) * stride) * zoom
                found.append(
                    (
                        logit,
                        Spot(
                            number, centre, math.exp(sum(sides) / 2) * stride * float(zoom.mean())
                        ),
                    )
                )
    return [spot for _, spot in sorted(found, key=lambda pair: -pair[0])[:1000]]


def train(data: Data, cache: Path, steps: int, batch: int) -> Network:
    """Trains, with a checkpoint every 100 steps; returns the average of the network's weights over the last steps."""
    torch.manual_seed(0)
    net, first = Network().to(memory_format=torch.channels_last), 0
    average = deepcopy(net).eval()
    optimiser = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.02)
    parts = {"net": net, "average": average, "optimiser": optimiser}
    if (checkpoint := cache / "checkpoint.pt").exists():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    spots: list[Spot] = []
    for step in range(first, steps):
        if step >= 800 and (step % 400 == 0 or step == first):
            spots = find_spots(average, data, np.random.default_rng([2, step]))
        rng = np.random.default_rng([1, step])
        canvases, faces = zip(*[compose(data, rng, spots) for _ in range(batch)], strict=True)
        targets = [
            torch.from_numpy(np.stack(part)) for part in zip(*map(assign, faces), strict=True)
        ]
        for group in (
            optimiser.param_groups
        ):  # a warm-up, a plateau, and a linear descent over the last 55 %
            group["lr"] = 4e-3 * min(
                (step + 1) / 300, 1.0, max((steps - step) / (0.55 * steps), 0.004)
            )
        loss = loss_of(net(to_tensor(canvases)), *targets)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
        decay = min(0.998, (step + 1) / (step + 20))
        for mean, now in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
            mean.copy_(mean * decay + now * (1 - decay) if mean.is_floating_point() else now)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {len(spots)} false detections", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == steps:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"step": step + 1}, cache / "new.pt")
            (cache / "new.pt").replace(checkpoint)
    return average


def to_tensor(canvases: Sequence[Image]) -> Tensor:
    """Returns images (B, 3, H, W) in [0, 1] with the channels last in memory."""
    return torch.from_numpy(np.stack(canvases)).permute(0, 3, 1, 2).float() / 255


class Exported(nn.Module):
    """The network with YuNet's twelve results."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Returns scores (1, C, 1) twice, boxes (1, C, 4) and landmarks (1, C, 10), each at three strides."""
        flat = [result.permute(0, 2, 3, 1).reshape(1, -1, 15) for result in self.net(image)]
        scores = [part[..., :1].sigmoid() for part in flat]
        boxes, points = ([part[..., cut] for part in flat] for cut in (slice(1, 5), slice(5, 15)))
        return (*scores, *[torch.clone(score) for score in scores], *boxes, *points)


def write(net: Network, path: Path) -> None:
    """Writes the network as ONNX with YuNet's results.

    `cv2.FaceDetectorYN` scores a face by the root of the product of `cls` and `obj`, which here are the same.
    """
    net = deepcopy(net).to(memory_format=torch.contiguous_format)
    net.stem[0][0][0].weight.data /= 255  # OpenCV's pixels
    for head in net.heads:
        head[2].bias.data[0] += SHIFT
    height, width = (torch.export.Dim(name, min=2, max=64) * 32 for name in ("h", "w"))
    names = [f"{kind}_{stride}" for kind in ("cls", "obj", "bbox", "kps") for stride in STRIDES]
    write_onnx(
        Exported(net).eval(), torch.zeros(1, 3, 640, 480), path, input_names=["input"], output_names=names,
        dynamic_shapes={"image": {2: height, 3: width}},
    )  # fmt: skip


def score(path: Path, data: Data, clips: Path | None, count: int) -> None:
    """Prints the recall of faces, the false faces and the time of a detector and YuNet. In clips, YuNet is right."""
    cv2.setNumThreads(1)
    yunet = FaceDetector(yunet_path(), 0.7)
    detectors = {"YuNet": yunet, "built-in": FaceDetector(path)}
    photos = {
        "composed": [group_photo(data, np.random.default_rng([0, row])) for row in range(count)]
    }
    videos = sorted(clips.glob("*.mp4")) if clips else []
    photos["clips"] = [(image, yunet(image)) for video in videos for image in read_frames(video)]
    for name, some in photos.items():
        for least in (14, 24):
            print(
                f"{name}, faces >= {least} px:",
                *(recall(who, one, some, least) for who, one in detectors.items()),
            )
    plain = [resized(np.ascontiguousarray(image[..., ::-1]), 640) for image in data.backgrounds]
    for who, detector in detectors.items():
        false = sum(len(detector(image)) for image in plain)
        net = cv2.FaceDetectorYN.create(str(detector.path), "", (640, 480), PHOTO_SCORE)
        (times,) = in_turns({who: partial(net.detect, cv2.resize(plain[0], (640, 480)))}).values()
        print(
            f"{who}: {false} false faces in {len(plain)} backgrounds, {1000 * median(times):.1f} ms at 640 x 480"
        )


def read_frames(video: Path, step: int = 8) -> list[Image]:
    """Returns every `step`th frame of a clip, 640 pixels on the longer side."""
    capture, frames = cv2.VideoCapture(str(video)), []
    while (read := capture.read())[0]:
        frames.append(read[1])
    return [resized(np.ascontiguousarray(frame[..., ::-1]), 640) for frame in frames[::step]]


def recall(
    who: str, detector: Detector, photos: list[tuple[Image, list[Face]]], least: float
) -> str:
    """Returns as text how many faces of at least `least` pixels are found, and the median IoU of their boxes."""
    overlaps = []
    for image, true in photos:
        found = detector(image)
        large = [face for face in true if np.prod(face.box[2:] - face.box[:2]) >= least**2]
        overlaps += [max((box_iou(face, other) for other in found), default=0.0) for face in large]
    hits = [value for value in overlaps if value >= 0.5]
    return f"{who} {len(hits)} of {len(overlaps)}, median IoU {median(hits or [0]):.2f};"


def main(
    output: Path, *, faces: Path, backgrounds: Path, cache: Path, clips: Path | None = None,
    steps: int = 5000, batch: int = 32, photos: int = 40,
) -> None:  # fmt: skip
    """Trains unless the ONNX file exists, then scores it."""
    cache.mkdir(parents=True, exist_ok=True)
    print(machine())
    learned, held_out = (
        read_data(faces, backgrounds, cache, part) for part in ("train", "held out")
    )
    if not output.exists():
        write(train(learned, cache, steps, batch), output)
    score(output, held_out, clips, photos)


if __name__ == "__main__":
    run_main(main)
