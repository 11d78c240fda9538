"""Faces in videos: when frames are searched, and whether tracks follow people,
with a drawn and the real detector.
"""

import os
import signal
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice, permutations
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.finder import Archive, paste_head
from fer_vit.errors import ImageError
from fer_vit.face.crop import CropSpec
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import Detector, YuNet
from fer_vit.face.finder import FaceFinder
from fer_vit.face.image import CRASHED, UNREADABLE_VIDEO
from fer_vit.faces import NO_FACE, OK, Faces, PhotoInfo
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.predict import video
from fer_vit.predict.frames import Frame
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.reading import SourceReader, read_batches
from fer_vit.predict.video import MAX_GAP, MAX_WAITING, Tracker, assign, track_faces
from tests.helpers.marks import slow
from tests.helpers.videos import Actor, Blobs, scene, track_scores, write_video

SPEC = CropSpec(size=48)
ZERO = np.zeros((5, 2))
CLIP = PhotoInfo("a.mp4")
squares = pytest.mark.usefixtures("usual_landmarks", "forked")


def walk(  # noqa: ANN201
    start: float,
    speed: float,
    y: float = 180,
    width: float = 110,
    begin: float = 0,
    end: float = 1e9,
):
    return lambda t: (start + speed * t, y, width) if begin <= t < end else None


def tracked(
    detector: Detector, frames: Iterator[Frame], detect_every: int, fill: bool = False
) -> Iterator[Faces]:
    finder = FaceFinder(SPEC, "detect", detector)
    return track_faces(finder, frames, CLIP, detect_every, fill)


def stage(*places: tuple[float, float]) -> Image:
    """A dark picture with bright squares of 60 pixels."""
    image = np.zeros((360, 640, 3), np.uint8)
    for x, y in places:
        image[round(y) : round(y) + 60, round(x) : round(x) + 60] = 255
    return image


def find(
    images: list[Image], detect_every: int
) -> tuple[list[dict[int, tuple[int, int]]], list[int]]:
    """The tracks of each frame with their squares' corners,
    and the frames that were searched as a whole.
    """
    detector = Blobs()
    positions = []
    searched = []
    frames = (Frame(image, number, number / 25) for number, image in enumerate(images))
    for number, faces in enumerate(tracked(detector, frames, detect_every)):
        corners = [tuple(corner) for corner in faces.box[:, :2].round().astype(int).tolist()]
        positions.append(dict(zip(faces.track, corners, strict=True)))
        # faces are followed in squares
        searched += [number] * any(height != width for height, width in detector.seen)
        detector.seen.clear()
    return positions, searched


@squares
def test_faces_are_followed_between_searches() -> None:
    paths = [[(50 + n, 100), (500 - 2 * n, 220)] for n in range(12)]
    frames, searched = find([stage(*places) for places in paths], 5)
    assert searched == [0, 5, 10]
    for places, tracks in zip(paths, frames, strict=True):
        corners = [tracks[track] for track in sorted(tracks, key=frames[0].__getitem__)]
        expected = sorted(places) if places == sorted(places) else places
        assert np.abs(np.array(corners) - expected).max() <= 2
    assert all(tracks.keys() == {1, 2} for tracks in frames)


@squares
def test_a_lost_face_is_searched_for_at_once_and_a_new_one_in_time() -> None:
    still = stage((50, 100), (400, 200))
    jump = stage((50, 100), (400, 20))
    frames, searched = find([still, still, jump, jump, jump, jump, jump, jump], 5)
    assert searched == [0, 2, 7]
    assert [len(tracks) for tracks in frames] == [2] * 8
    more = stage((50, 100), (400, 200), (230, 250))
    frames, searched = find([still, more, more, more, more, more, more], 5)
    assert [len(tracks) for tracks in frames] == [2, 2, 2, 2, 2, 3, 3]
    assert find([still] * 4, 1)[1] == [0, 1, 2, 3]


@squares
def test_every_search_finds_small_faces() -> None:
    large = stage((50, 100), (400, 200))
    more = large.copy()
    more[20:32, 20:32] = 255
    frames, searched = find([large, *[more] * 11], 5)
    assert searched == [0, 5, 10]
    assert [len(tracks) for tracks in frames] == [2] * 5 + [3] * 7


@squares
@pytest.mark.parametrize("rate", [10, 25])
@pytest.mark.parametrize("entry", [1, 4, 5, 7, 11])
def test_rows_of_a_person_begin_when_the_person_enters(entry: int, rate: int) -> None:
    alone = [stage((50 + n, 100)) for n in range(entry)]
    together = [stage((50 + n, 100), (400 - 3 * n, 200)) for n in range(entry, 12)]
    images = [*alone, *together]
    frames = (Frame(image, number, number / rate) for number, image in enumerate(images))
    tracks = list(tracked(Blobs(), frames, 5, fill=True))
    assert [faces.infos[0].frame for faces in tracks] == [*range(12)]
    assert [faces.track.tolist() for faces in tracks] == [[1]] * entry + [[1, 2]] * (12 - entry)
    for number, faces in enumerate(tracks[entry:], entry):
        newcomer = faces.box[faces.track == 2][0]
        assert np.abs(newcomer[:2] - (400 - 3 * number, 200)).max() <= 2


@squares
@pytest.mark.parametrize("every", [1, 5, 50])
def test_searches_ahead_of_their_turn_change_no_row(every: int) -> None:
    class Ahead(Blobs):
        parallel = True

    def frames(damaged: bool) -> Iterator[Frame]:
        for number in range(30):
            places = [(50 + 2 * number, 100)]
            if 7 <= number < 18:  # lost between two searches
                places.append((400, 200))
            yield Frame(stage(*places), number, number / 25, shot=number >= 22)
        if damaged:
            raise ImageError("damaged")

    rows = []
    for detector in (Blobs(), Ahead()):
        found = list(tracked(detector, frames(damaged=False), every, fill=True))
        rows.append([(faces.track.tolist(), faces.box.tolist()) for faces in found])
        until_damage = tracked(detector, frames(damaged=True), every, fill=True)
        assert len(list(islice(until_damage, 30))) == 30
        with pytest.raises(ImageError):
            next(until_damage)
    assert rows[0] == rows[1]


@squares
@pytest.mark.parametrize("parallel", [False, True])
def test_frames_before_an_error_of_the_detector_are_kept(parallel: bool) -> None:
    class Failing(Blobs):
        def detect(self, image: Image) -> list[Detection]:
            if image[0, 0, 0] == 1:
                raise ImageError("the detector failed")
            return super().detect(image)

    def frames() -> Iterator[Frame]:
        for number in range(30):
            image = stage((50, 100))
            image[0, 0] = number == 15  # a frame that is searched
            yield Frame(image, number, number / 25)

    detector = Failing()
    detector.parallel = parallel
    found = tracked(detector, frames(), 5, fill=True)
    before = list(islice(found, 15))
    assert [faces.infos[0].frame for faces in before] == [*range(15)]
    assert [len(faces) for faces in before] == [1] * 15
    with pytest.raises(ImageError, match="the detector failed"):
        next(found)


@squares
@pytest.mark.parametrize(("megabytes", "most"), [(25, 14), (100, 7)])
def test_few_large_frames_are_held(
    megabytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames are small, and the limits of bytes are scaled to them."""
    scale = stage().nbytes / (megabytes * 1_000_000)
    for name in ("MAX_BYTES_AHEAD", "MAX_WAITING_BYTES"):
        monkeypatch.setattr(video, name, int(getattr(video, name) * scale))

    class Ahead(Blobs):
        parallel = True

    images = []
    held = []

    def frames() -> Iterator[Frame]:
        for number in range(40):
            image = stage((50 + number, 100))
            images.append(weakref.ref(image))
            held.append(sum(reference() is not None for reference in images))
            yield Frame(image, number, number / 25)

    rows = list(tracked(Ahead(), video.decode_ahead(frames()), 5, fill=True))
    assert len(rows) == 40
    assert max(held) <= most


@squares
@pytest.mark.parametrize("damaged", [False, True])
def test_a_face_that_appears_after_the_last_search_has_rows(damaged: bool) -> None:
    def frames() -> Iterator[Frame]:
        for number in range(9):
            image = stage((50, 100)) if number >= 6 else stage()
            yield Frame(image, number, number / 25)
        if damaged:
            raise ImageError("damaged")

    tracks = []
    with pytest.raises(ImageError) if damaged else nullcontext():
        for faces in tracked(Blobs(), frames(), 5, fill=True):
            tracks.append(faces)
    assert [len(faces) for faces in tracks] == [0] * 6 + [1] * 3


def test_rows_of_real_faces_begin_when_they_enter(yunet: Path, data_sets: Path) -> None:
    """Heads of FairFace stand and drift before a background, from 5% of the frame's height on."""
    entries = [0, 3, 7, 11]
    sides = [160, 40, 60, 90]
    detector = YuNet(yunet)
    heads = Archive(data_sets / "fairface.zip")
    rng = np.random.default_rng(0)
    canvas = Archive(data_sets / "backgrounds.zip").draw(rng, True)
    canvas = cv2.resize(canvas, (1280, 720), interpolation=cv2.INTER_CUBIC)
    assert detector.find(canvas) == []

    actors = []
    for number, side in enumerate(sides):
        start = np.array([150 + 280 * number, 200])
        box = np.concatenate([start, start + side])
        while True:  # a head that is found at this size
            shown = canvas.copy()
            head = heads.draw(rng, True)
            paste_head(shown, head, box)
            if len(detector.find(shown)) == 1:
                break
        actors.append((head, box))

    frames = []
    for number in range(16):
        image = canvas.copy()
        for entry, (head, box) in zip(entries, actors, strict=True):
            if number >= entry:
                paste_head(image, head, box + 2 * (number - entry))
        frames.append(Frame(image, number, number / 12.5))
    first: dict[int, int] = {}
    rows = 0
    for faces in tracked(detector, iter(frames), 5, fill=True):
        rows += len(faces)
        for track in faces.track:
            first.setdefault(track, faces.infos[0].frame or 0)
    assert sorted(first.values()) == entries
    assert rows == sum(16 - entry for entry in entries)


@squares
def test_few_frames_wait_between_rare_searches() -> None:
    taken = []
    images = [stage((50, 100)), *[stage((50, 100), (400, 200))] * 40]
    frames = (
        taken.append(number) or Frame(image, number, number / 25)  # type: ignore[func-returns-value]
        for number, image in enumerate(images)
    )
    waiting = []
    lengths = []
    for faces in tracked(Blobs(), frames, 30, fill=True):
        waiting.append(len(taken) - 1 - (faces.infos[0].frame or 0))
        lengths.append(len(faces))
    assert max(waiting) < MAX_WAITING
    assert lengths.index(2) == 30 - (MAX_WAITING - 2)


@squares
def test_a_face_too_small_for_rows_is_not_followed_back() -> None:
    images = [stage() for _ in range(12)]
    for image in images[3:]:
        image[100:112, 50:62] = 255  # 12 of 360 pixels
    frames = (Frame(image, number, number / 25) for number, image in enumerate(images))
    tracks = list(tracked(Blobs(), frames, 5, fill=True))
    assert [len(faces) for faces in tracks] == [0] * 5 + [1] * 7


@squares
def test_frames_before_damage_are_kept_and_live_frames_do_not_wait() -> None:
    def damaged(count: int) -> Iterator[Frame]:
        for number in range(count):
            yield Frame(stage((50, 100)), number, number / 25)
        raise ImageError("damaged")

    numbers: list[int | None] = []
    with pytest.raises(ImageError, match="damaged"):
        numbers.extend(faces.infos[0].frame for faces in tracked(Blobs(), damaged(7), 5, fill=True))
    assert numbers == [*range(7)]

    read = []
    frames = (read.append(number) or frame for number, frame in enumerate(damaged(9)))  # type: ignore[func-returns-value]
    live = tracked(Blobs(), frames, 5)
    seen = [(next(live).infos[0].frame, len(read)) for _ in range(8)]
    assert seen == [(n, n + 1) for n in range(8)]


@squares
@pytest.mark.parametrize("workers", [0, 1])
def test_frames_are_loaded_like_photos(workers: int, tmp_path: Path) -> None:
    images = [stage((50 + 4 * n, 100)) if n < 6 else stage() for n in range(8)]
    write_video(tmp_path / "a.mp4", images, [n / 25 for n in range(8)])
    (tmp_path / "b.mp4").write_text("no video")
    sources = [tmp_path / "photo.png", tmp_path / "a.mp4", tmp_path / "b.mp4"]
    reader = SourceReader(sources, FaceFinder(SPEC, "detect", Blobs()), PhotoOptions(every=2))
    batches = list(read_batches(reader, range(1, 3), 3, workers))
    seen = [photo for faces in batches for photo in faces.photos()]
    assert [(p.index, p.frame, p.status, p.faces.track.tolist()) for p in seen] == [
        *((1, n, OK, [1]) for n in (0, 2, 4)),
        (1, 6, NO_FACE, []),
        (2, None, UNREADABLE_VIDEO, []),
    ]
    assert [p.seconds for p in seen[:4]] == pytest.approx([0, 0.08, 0.16, 0.24])
    assert [len(faces.crops) for faces in batches if faces.crops] == [3]
    # the square fills the crop, but for its border
    assert batches[0].crops.image[:, 2:-2, 2:-2].mean() > 240


def mood(t: float) -> str:
    return ("neutral", "happiness", "sadness")[int(t / 1.5) % 3]


SCENES: dict[str, tuple[list[Actor], list[range]]] = {
    "crossing": ([Actor(7, walk(60, 110), mood), Actor(21, walk(590, -110), mood)], []),
    "wall": ([Actor(7, walk(70, 110)), Actor(33, walk(540, 8, y=120), mood)], [range(220, 330)]),
    "coming and going": (
        [
            Actor(7, walk(90, 0), mood),
            Actor(21, walk(330, 20, begin=1, end=3)),
            Actor(33, walk(760, -90)),
        ],
        [],
    ),
    "four": (
        [
            Actor(s, walk(90 + 150 * i, 5, y=130 + 60 * (i % 2)), mood)
            for i, s in enumerate((7, 21, 33, 48))
        ],
        [],
    ),
}


@pytest.mark.parametrize(
    ("name", "detect_every", "rate"),
    [
        ("crossing", 5, 10),
        *slow(*((name, detect_every, 25) for name in SCENES for detect_every in (1, 10))),
    ],
)
def test_drawn_people_keep_their_numbers(
    name: str, detect_every: int, rate: int, yunet: Path
) -> None:
    actors, walls = SCENES[name]
    times = [n / rate for n in range(4 * rate)]
    images, truth = zip(*scene(actors, times, walls=walls), strict=True)
    frames = (Frame(image, number, times[number]) for number, image in enumerate(images))
    tracks = [
        [*zip(faces.track.tolist(), faces.landmarks, strict=True)]
        for faces in tracked(YuNet(yunet), frames, detect_every)
    ]
    scores = track_scores(truth, tracks)
    print(name, detect_every, scores)
    assert scores.switches == 0
    assert scores.idf1 > 0.95
    assert scores.mota > 0.9


def face_at(x: float, y: float = 100.0, width: float = 90.0, noise: Array = ZERO) -> Detection:
    """A face where a detector would find it."""
    landmarks = np.array([x, y]) + (np.array(TEMPLATE) - 0.5) * width + noise * width
    middle = landmarks.mean(0)
    half = 0.4 * width
    return Detection(np.concatenate([middle - half, middle + half]), landmarks, 0.9)


def keeps_numbers(actors: list[Actor], times: np.ndarray, lost: float = 0.0) -> bool:
    """Whether each actor has one number. Faces are found with noise unless another stands before,
    or they are lost.
    """
    rng = np.random.default_rng(0)
    tracker = Tracker()
    numbers = [set() for _ in actors]
    for seconds in times.tolist():
        places = {n: place for n, actor in enumerate(actors) if (place := actor.place(seconds))}
        seen = [
            n
            for n, (x, y, w) in places.items()
            if not any(
                m > n and abs(x - u) < 0.8 * w and abs(y - v) < 0.8 * w
                for m, (u, v, _) in places.items()
            )
            and rng.random() >= lost
        ]
        rng.shuffle(seen)
        faces = [face_at(*places[n], rng.normal(0, 0.02, (5, 2))) for n in seen]
        for actor, number in zip(seen, tracker.number_faces(faces, seconds), strict=True):
            numbers[actor].add(number)
    return all(len(person_numbers) == 1 for person_numbers in numbers) and len(
        set.union(*numbers)
    ) == len(actors)


CAST = {name: actors for name, (actors, _) in SCENES.items()} | {
    "crossing": [Actor(0, walk(50, 120, width=90)), Actor(1, walk(600, -100, width=90))],
    "three crossing": [
        Actor(0, walk(0, 150)),
        Actor(1, walk(640, -150)),
        Actor(2, walk(320, 0, y=190, begin=0.5)),
    ],
    "a gap": [
        Actor(0, lambda t: (100 + 60 * t, 180, 90) if not 1 < t < 2.2 else None),
        Actor(1, walk(450, 0)),
    ],
}


@pytest.mark.parametrize("name", CAST)
def test_tracks_follow_people(name: str) -> None:
    for rate in (5, 12.5, 25, 60):
        assert keeps_numbers(CAST[name], np.arange(0, 5, 1 / rate))
    assert keeps_numbers(CAST[name], np.arange(0, 5, 0.04), lost=0.2)


def test_uneven_times_and_times_that_do_not_pass() -> None:
    assert keeps_numbers(
        CAST["crossing"], np.cumsum(np.random.default_rng(0).choice([0.0, 0.01, 0.04, 0.3], 60))
    )
    assert keeps_numbers(CAST["four"], np.zeros(10))


def test_new_tracks() -> None:
    tracker = Tracker()
    assert tracker.number_faces([face_at(100), face_at(400)], 0.0) == [1, 2]
    assert tracker.number_faces([], 0.1) == []
    # the order of detections does not matter
    assert tracker.number_faces([face_at(400), face_at(100)], 0.2) == [
        2,
        1,
    ]
    # too fast for the same person
    assert tracker.number_faces([face_at(100), face_at(700)], 0.3) == [
        1,
        3,
    ]
    # too large for the same person
    assert tracker.number_faces([face_at(100, width=250.0)], 0.4) == [4]
    assert tracker.number_faces([face_at(400)], 0.2 + MAX_GAP) == [2]
    assert tracker.number_faces([face_at(700)], 0.31 + MAX_GAP) == [5]


@pytest.mark.parametrize("step", [2.5, 60.0])
def test_frames_far_apart_keep_tracks(step: float) -> None:
    assert keeps_numbers(
        [Actor(0, walk(100, 4 / step)), Actor(1, walk(500, 0))], np.arange(0, 8) * step
    )
    tracker = Tracker()
    numbers = [
        tracker.number_faces(faces, n * step)
        for n, faces in enumerate([[face_at(100)], [], [face_at(100)]])
    ]
    assert numbers == [[1], [], [2]]  # away for longer than MAX_GAP


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1, 4), (4, 1), (3, 3), (2, 5)])
def test_faces_are_assigned_at_the_least_cost(
    shape: tuple[int, int], rng: np.random.Generator
) -> None:
    """Against all permutations."""
    costs = rng.random(shape)
    pairs = assign(costs)
    wide = costs if shape[0] <= shape[1] else costs.T
    orders = permutations(range(wide.shape[1]), wide.shape[0])
    least = min(sum(wide[row, column] for row, column in enumerate(order)) for order in orders)
    assert sum(costs[row, column] for row, column in pairs) == pytest.approx(least)
    assert len(pairs) == min(shape)


@squares
def test_a_video_that_kills_its_worker_is_a_row(tmp_path: Path) -> None:
    images = [stage((50 + 4 * n, 100)) for n in range(8)]
    for name in ("a.mp4", "b.mp4"):
        write_video(tmp_path / name, images, [n / 25 for n in range(8)])

    calls: list[int] = []

    class Deadly(Blobs):
        def find(self, image: Image) -> list[Detection]:
            calls.append(1)
            if len(calls) == 5 and not (tmp_path / "dead").exists():
                (tmp_path / "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().find(image)

    clips = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    finder = FaceFinder(SPEC, "detect", Deadly())
    reader = SourceReader(clips, finder, PhotoOptions(detect_every=1))
    seen = [info for faces in read_batches(reader, range(2), 4, 1) for info in faces.infos]
    first = [info.status for info in seen if info.index == 0]
    assert 1 < len(first) < 8
    assert first == [OK] * (len(first) - 1) + [CRASHED]
    assert [info.frame for info in seen if info.index == 1] == [*range(8)]
