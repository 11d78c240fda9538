"""Measures the face finder: precision and recall by minimum score and size, and its CPU time.

python -m benchmarks.finder --data DATA --plot_file docs/results/finder.svg

`--data` is a folder with fairface.zip (faces of FairFace), clothes.zip and clothes_hard.zip
(pictures of clothes without heads; the latter are those in which YuNet reports something at 0.25 or
more, with the column `printed` in labels.csv for printed heads), backgrounds.zip (pictures without
faces) and the folder clips. Portraits are composed of FairFace's heads above pictures of clothes
with drawn necks and hair, groups of twelve heads on a background. A third of all pictures, by their
names, is held back: the default score is chosen by the others.
"""

import csv
import hashlib
import io
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import cv2
import numpy as np
from numpy.random import Generator

from benchmarks.machine import machine, run_main
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import PHOTO_SCORE, YuNet, join_sizes
from fer_vit.face.image import decode_image
from fer_vit.face.yunet import yunet_path
from fer_vit.faces import are_uncertain
from fer_vit.geometry import Array, Image

SCORES = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
SIZES = (14, 24, 48, 96, 1000)  # bounds of the classes of true faces, in pixels
CROP = 112  # side of FairFace's pictures
MARGIN = 1 / 6  # of a FairFace picture on each side of the face's box
CLIPS = {  # persons in every frame
    "sad_to_happy.mp4": 1,
    "head-pose-face-detection-female-and-male.mp4": 2,
    "classroom.mp4": 5,
}
SETS = ("portraits", "groups", "clips", "clothes_hard")


class Picture(NamedTuple):
    """A picture and its true faces."""

    kind: str  # one of SETS
    held_back: bool
    image: Image
    boxes: Array | None  # (F, 4); None: only their number is known
    count: int


class Outcome(NamedTuple):
    """What a minimum score does in a picture."""

    kind: str
    held_back: bool
    score: float
    reported: int
    false: int
    sizes: tuple[float, ...]  # side of each true face in pixels
    hits: tuple[bool, ...]  # whether it is found


def held_back(name: str) -> bool:
    """Returns whether a picture belongs to the third that is held back."""
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0


class Archive:
    """The pictures of a zip by name."""

    def __init__(self, path: Path) -> None:
        self.file = zipfile.ZipFile(path)
        self.names = sorted(name for name in self.file.namelist() if name.endswith(".jpg"))

    def draw(self, rng: Generator, held: bool) -> Image:
        """Returns a random picture of one part."""
        while True:
            name = self.names[rng.integers(len(self.names))]
            if held_back(name) == held:
                return self.read(name)

    def read(self, name: str) -> Image:
        """Returns a picture."""
        return decode_image(self.file.read(name))


def paste_head(canvas: Image, head: Image, box: Array) -> None:
    """Draws a FairFace picture into a canvas, faded at its border,
    so that its face has a square box.
    """
    side = box[2] - box[0]
    size = round(side / (1 - 2 * MARGIN))
    left, top = np.round(box[:2] - MARGIN * size).astype(int)
    large = cv2.resize(head, (size, size), interpolation=cv2.INTER_CUBIC)
    x, y = np.meshgrid(*[np.linspace(-1, 1, size)] * 2)
    alpha = np.clip(4 * (1 - np.hypot(x, y * 0.92)), 0, 1)[..., None]
    x0 = max(left, 0)
    y0 = max(top, 0)
    x1 = min(left + size, canvas.shape[1])
    y1 = min(top + size, canvas.shape[0])
    window = slice(y0 - top, y1 - top), slice(x0 - left, x1 - left)
    part = canvas[y0:y1, x0:x1]
    part[:] = (alpha[window] * large[window] + (1 - alpha[window]) * part).astype(np.uint8)


def portrait(rng: Generator, heads: Archive, clothes: Archive, held: bool, height: int) -> Picture:
    """Returns a head with drawn hair and neck above a picture of clothes, before a plain wall."""
    width = round(height * rng.uniform(0.66, 0.85))
    wall = rng.integers(40, 230, 3)
    canvas = np.full((height, width, 3), wall, np.uint8)
    head = heads.draw(rng, held)
    side = height * rng.uniform(0.18, 0.38)
    x = width / 2 + rng.normal(0, 0.03) * width
    y = height * rng.uniform(0.28, 0.38)
    garment = clothes.draw(rng, held)
    top = round(y + 0.75 * side)
    body = cv2.resize(garment, (width, height - top), interpolation=cv2.INTER_CUBIC)
    canvas[top:] = body
    skin = np.median(head[45:75, 40:72].reshape(-1, 3), axis=0)
    hair = head[4:14, 30:80].reshape(-1, 3).mean(0)
    centre = (round(x), round(y))
    axes = (round(0.62 * side), round(rng.uniform(0.75, 1.1) * side))
    cv2.ellipse(canvas, centre, axes, 0, 0, 360, hair.tolist(), -1)
    neck = np.array(
        [
            (x - 0.25 * side, y),
            (x + 0.25 * side, y),
            (x + 0.4 * side, top + 0.15 * side),
            (x - 0.4 * side, top + 0.15 * side),
        ]
    )
    cv2.fillConvexPoly(canvas, neck.round().astype(np.int32), skin.tolist())
    box = np.array([x - side / 2, y - side / 2, x + side / 2, y + side / 2])
    paste_head(canvas, head, box)
    return Picture("portraits", held, canvas, box[None], 1)


def group(rng: Generator, heads: Archive, backgrounds: Archive, held: bool) -> Picture:
    """Returns twelve heads of 14 to 130 pixels in a grid on a background of 640 pixels."""
    canvas = cv2.resize(backgrounds.draw(rng, held), (640, 480), interpolation=cv2.INTER_CUBIC)
    boxes = []
    for cell in range(12):
        side = np.exp(rng.uniform(np.log(14), np.log(100)))
        centre = (np.array([cell % 4, cell // 4]) + 0.5) * 160 + rng.uniform(-20, 20, 2)
        box = np.concatenate([centre - side / 2, centre + side / 2])
        paste_head(canvas, heads.draw(rng, held), box)
        boxes.append(box)
    return Picture("groups", held, canvas, np.array(boxes), 12)


MASKS = ((90, 150, 200), (235, 235, 235), (30, 30, 35))  # surgical, white and black


def cover(rng: Generator, canvas: Image, box: Array, kind: str) -> None:
    """Draws a mask, sunglasses or a hand over the face in a box (4,)."""
    side = box[2] - box[0]

    def place(x: float, y: float) -> tuple[int, int]:
        return round(box[0] + x * side), round(box[1] + y * side)

    if kind == "mask":
        colour = np.clip(np.array(MASKS[rng.integers(len(MASKS))]) + rng.normal(0, 15, 3), 0, 255)
        corners = [(0.06, 0.55), (0.5, 0.45), (0.94, 0.55), (0.88, 0.85), (0.5, 1.05), (0.12, 0.85)]
        outline = np.array([place(x, y) for x, y in corners], np.int32)
        cv2.fillConvexPoly(canvas, outline, colour.tolist(), cv2.LINE_AA)
        for y in (0.65, 0.78, 0.9):
            cv2.line(
                canvas, place(0.14, y), place(0.86, y), (0.85 * colour).tolist(), 1, cv2.LINE_AA
            )
    if kind == "sunglasses":
        dark = rng.integers(5, 50, 3).tolist()
        axes = (round(0.19 * side), round(0.13 * side))
        for x in (0.28, 0.72):
            cv2.ellipse(canvas, place(x, 0.36), axes, 0, 0, 360, dark, -1, cv2.LINE_AA)
        cv2.line(canvas, place(0.05, 0.33), place(0.95, 0.33), dark, max(1, round(0.03 * side)))
    if kind == "hand":
        x, y = np.clip((box[:2] + 0.3 * side).astype(int), 0, np.array(canvas.shape[1::-1]) - 1)
        skin = (canvas[y, x] * rng.uniform(0.8, 1.1)).clip(0, 255).tolist()
        across = rng.uniform(0.3, 0.7)
        for finger in range(4):
            centre = place(across + 0.11 * (finger - 1.5), 0.85 + 0.03 * abs(finger - 1.5))
            axes = (round(0.06 * side), round(0.3 * side))
            cv2.ellipse(canvas, centre, axes, 8 * (finger - 1.5), 0, 360, skin, -1, cv2.LINE_AA)


def turned(rng: Generator, picture: Picture) -> Picture:
    """Returns a portrait turned by 45 degrees to one side."""
    assert picture.boxes is not None
    (box,) = picture.boxes
    centre = (box[:2] + box[2:]) / 2
    matrix = cv2.getRotationMatrix2D(centre.tolist(), 45 * rng.choice([-1, 1]), 1)
    size = picture.image.shape[1::-1]
    image = cv2.warpAffine(picture.image, matrix, size, borderMode=cv2.BORDER_REPLICATE)
    return picture._replace(image=np.asarray(image, np.uint8))


ODD = ("plain", "mask", "sunglasses", "hand", "turned by 45 degrees")


def odd_portrait(
    rng: Generator, heads: Archive, clothes: Archive, held: bool, kind: str
) -> Picture:
    """Returns a portrait of 640 pixels whose face is covered or turned."""
    picture = portrait(rng, heads, clothes, held, 640)
    if kind == ODD[-1]:
        picture = turned(rng, picture)
    else:
        assert picture.boxes is not None
        cover(rng, picture.image, picture.boxes[0], kind)
    return picture._replace(kind=kind)


def measure_odd(data: Path, detector: YuNet, count: int) -> str:
    """Returns how many covered and turned faces are found at the default score, as Markdown."""
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    lines = ["| portraits, held back | faces found | uncertain | false |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for kind in ODD:
        results = []
        uncertain = 0
        for number in range(count):
            rng = np.random.default_rng([4, number])
            picture = odd_portrait(rng, heads, clothes, True, kind)
            detections = detector.confirm(picture.image, detector.find(picture.image))
            results.append(compare(picture, PHOTO_SCORE, detections))
            scores = np.array([face.score for face in detections])
            uncertain += int(are_uncertain(scores, detector.sure_score).sum())
        hits = sum(hit for result in results for hit in result.hits)
        false = sum(result.false for result in results)
        lines.append(f"| {kind} | {hits} of {count} | {uncertain} | {false} |")
    return "\n".join(lines)


def frames(path: Path, step: int) -> Iterator[Image]:
    """Yields every `step`th frame of a clip, RGB."""
    capture = cv2.VideoCapture(str(path))
    number = 0
    success, image = capture.read()
    while success:
        if number % step == 0:
            yield np.ascontiguousarray(image[..., ::-1])
        success, image = capture.read()
        number += 1


def pictures(data: Path, count: int) -> Iterator[Picture]:
    """Yields the pictures of all sets; `count` portraits and a third as many groups."""
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    backgrounds = Archive(data / "backgrounds.zip")
    hard = Archive(data / "clothes_hard.zip")
    for number in range(count):
        rng = np.random.default_rng([0, number])
        height = (640, 960, 1350)[number // 3 % 3]
        yield portrait(rng, heads, clothes, number % 3 == 0, height)
    for number in range(count // 3):
        yield group(np.random.default_rng([1, number]), heads, backgrounds, number % 3 == 0)
    for clip, persons in CLIPS.items():
        for image in frames(data / "clips" / clip, 12):
            yield Picture("clips", held_back(clip), image, None, persons)
    labels = io.StringIO(hard.file.read("clothes_hard/labels.csv").decode())
    printed = {row["path"]: row["printed"] == "1" for row in csv.DictReader(labels)}
    for name in hard.names:
        if not printed.get(name, printed.get(Path(name).name, False)):
            yield Picture("clothes_hard", held_back(name), hard.read(name), np.zeros((0, 4)), 0)


def outcomes(picture: Picture, detector: YuNet) -> Iterator[Outcome]:
    """Yields what every minimum score does in a picture; the network runs once."""
    fine, coarse = detector.search(picture.image)
    for score in SCORES:
        kept = [[face for face in faces if face.score >= score] for faces in (fine, coarse)]
        joined = join_sizes(*kept, longest=max(picture.image.shape[:2]))
        yield compare(picture, score, detector.confirm(picture.image, joined))


def compare(picture: Picture, score: float, detections: list[Detection]) -> Outcome:
    """Returns how many faces are true: centred in a true face's box,
    and of half to twice its size, one each.
    """
    if picture.boxes is None:  # in clips, only the number of persons is known
        true = min(len(detections), picture.count)
        hits = tuple(index < true for index in range(picture.count))
        return Outcome(
            picture.kind,
            picture.held_back,
            score,
            reported=len(detections),
            false=len(detections) - true,
            sizes=(np.nan,) * picture.count,
            hits=hits,
        )
    free = list(range(len(detections)))
    hits = []
    for box in picture.boxes:
        matching = [index for index in free if matches(detections[index], box)]
        hits.append(bool(matching))
        free = [index for index in free if index not in matching[:1]]
    sizes = tuple((picture.boxes[:, 2] - picture.boxes[:, 0]).tolist())
    return Outcome(
        picture.kind,
        picture.held_back,
        score,
        reported=len(detections),
        false=len(free),
        sizes=sizes,
        hits=tuple(hits),
    )


def matches(face: Detection, box: Array) -> bool:
    """Returns whether a face is centred in a true face's box (4,),
    and has half to twice its size.
    """
    inside = (box[:2] <= face.centre).all() and (face.centre <= box[2:]).all()
    return bool(inside) and 0.5 < face.side / (box[2] - box[0]) < 2


def table(results: list[Outcome], held: bool) -> str:
    """Returns recall and false faces by set and score, as Markdown."""
    heading = "minimum score, held back" if held else "minimum score"
    lines = [f"| {heading} | " + " | ".join(SETS) + " |"]
    lines.append("| ---: |" + " ---: |" * len(SETS))
    for score in SCORES:
        cells = []
        for kind in SETS:
            cell = [r for r in results if (r.kind, r.held_back, r.score) == (kind, held, score)]
            hits = [hit for result in cell for hit in result.hits]
            false = sum(result.false for result in cell)
            text = f"{false} false in {len(cell)}"
            if hits:
                text = f"{sum(hits)} of {len(hits)}, {text}"
            cells.append(text)
        lines.append(f"| {score:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def recall_by_size(results: list[Outcome], score: float) -> dict[str, tuple[int, int]]:
    """Returns found and all true faces by size class, over composed pictures."""
    counts = {}
    for low, high in pairwise(SIZES):
        hits = []
        for result in results:
            if result.score == score:
                pairs = zip(result.sizes, result.hits, strict=True)
                hits += [hit for size, hit in pairs if low <= size < high]
        counts[f"{low} to {high} px"] = sum(hits), len(hits)
    return counts


def plot(results: list[Outcome], path: Path) -> None:
    """Draws recall by size, and false faces per 100 pictures of clothes, over the minimum score."""
    import matplotlib.pyplot as plt  # only here: tests read the other parts

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    by_size = [recall_by_size(results, score) for score in SCORES]
    for name in by_size[0]:
        recall = [100 * counts[name][0] / max(counts[name][1], 1) for counts in by_size]
        left.plot(SCORES, recall, marker=".", label=name)
    left.set(xlabel="minimum score", ylabel="faces found (%)", ylim=(0, 102))
    left.legend(title="side of the face", fontsize=8)
    for kind in ("clothes_hard", "portraits", "groups"):
        false = [
            100 * np.mean([r.false for r in results if (r.kind, r.score) == (kind, score)])
            for score in SCORES
        ]
        right.plot(SCORES, false, marker=".", label=kind.replace("_", ", "))
    right.set(xlabel="minimum score", ylabel="false faces per 100 pictures", yscale="symlog")
    right.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def cpu_time(find: Callable[[], object], seconds: float = 2.0) -> str:
    """Returns minimum and median of the CPU time of a call in milliseconds,
    all threads included.
    """
    find()
    times = []
    while sum(times) < seconds:
        start = time.process_time()
        find()
        times.append(time.process_time() - start)
    return f"{1000 * min(times):.1f} ({1000 * median(times):.1f})"


def opencv_as_in_0_1(path: Path, image: Image) -> None:
    """Finds faces as fer-vit 0.1 did with YuNet: two sizes through OpenCV."""
    for side in (min(max(image.shape[:2]), 1280), 224):
        scale = side / max(image.shape[:2])
        small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        net = cv2.FaceDetectorYN.create(str(path), "", small.shape[1::-1], 0.6)
        net.detect(np.ascontiguousarray(small[..., ::-1]))


def measure_time(data: Path) -> str:
    """Returns the CPU time of finding faces and landmarks in portraits by size,
    and of OpenCV, as Markdown.
    """
    heads = Archive(data / "fairface.zip")
    clothes = Archive(data / "clothes.zip")
    path = yunet_path()
    detector = YuNet(path)
    lines = [
        "| longer side | ms, faces and landmarks: minimum (median) | ms, OpenCV as in 0.1, faces "
        "only |"
    ]
    lines.append("| ---: | ---: | ---: |")
    for side in (1350, 640, 250):
        image = portrait(np.random.default_rng(side), heads, clothes, True, side).image
        now = cpu_time(lambda image=image: detector.confirm(image, detector.find(image)))
        before = cpu_time(lambda image=image: opencv_as_in_0_1(path, image))
        lines.append(f"| {side} | {now} | {before} |")
    return "\n".join(lines)


def main(*, data: Path, plot_file: Path | None = None, count: int = 210) -> None:
    """Prints tables and draws the plot."""
    cv2.setNumThreads(1)
    print(machine())
    print(measure_time(data))
    print(f"\n{measure_odd(data, YuNet(yunet_path()), count)}")
    detector = YuNet(yunet_path(), min(SCORES))
    results = [
        outcome for picture in pictures(data, count) for outcome in outcomes(picture, detector)
    ]
    for held in (False, True):
        print(f"\n{table(results, held)}")
    for score in (0.5, 0.6, 0.7, 0.8):
        print(score, recall_by_size(results, score))
    if plot_file is not None:
        plot(results, plot_file)


if __name__ == "__main__":
    run_main(main)
