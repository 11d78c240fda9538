"""Faces in videos: when frames are searched, and whether tracks follow people,
with a drawn and the real detector.
"""

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.finder import Archive, paste_head
from fer_vit.errors import ImageError
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import DETECTORS, Detector
from fer_vit.face.image import CRASHED, UNREADABLE_VIDEO, encode_jpeg
from fer_vit.faces import NO_FACE, OK, Photo
from fer_vit.geometry import TEMPLATE, Array, Image
from fer_vit.predict.photos import PhotoOptions
from tests.helpers.faces import tiny_recognizer
from tests.helpers.marks import slow
from tests.helpers.videos import (
    Actor,
    Blobs,
    matroska,
    number_of,
    numbered,
    scene,
    track_scores,
    write_lossless,
    write_video,
)

ZERO = np.zeros((5, 2))
squares = pytest.mark.usefixtures("usual_landmarks", "forked")
FLOOR = np.asarray(
    cv2.resize(
        np.random.default_rng(1).integers(0, 100, (6, 8, 3), np.uint8),
        (640, 360),
        interpolation=cv2.INTER_CUBIC,
    )
).clip(0, 120)
"""A stage of dim colours, by which a cut is told from a motion."""


def read(path: Path, detector: Detector | str, every: int = 5, **options: object) -> list[Photo]:
    """The frames of a video with their faces, as a model gets them."""
    chosen = PhotoOptions(**{"workers": 0, "detector": detector, "detect_every": every, **options})
    found = tiny_recognizer(("a", "b")).find([path], chosen)
    return [photo for faces in found for photo in faces.photos()]


def tracks_of(frames: Iterable[Photo]) -> list[list[int]]:
    return [photo.faces.track.tolist() for photo in frames]


def walk(  # noqa: ANN201
    start: float,
    speed: float,
    y: float = 180,
    width: float = 110,
    begin: float = 0,
    end: float = 1e9,
):
    return lambda t: (start + speed * t, y, width) if begin <= t < end else None


def stage(*places: tuple[float, float]) -> Image:
    """A dim picture with bright squares of 60 pixels."""
    image = FLOOR.copy()
    for x, y in places:
        image[round(y) : round(y) + 60, round(x) : round(x) + 60] = 255
    return image


class Numbered(Blobs):
    """Notes the numbers of the frames that are searched as a whole; their corner shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.searched: list[int] = []

    def detect(self, image: Image) -> list[Detection]:
        if image.shape[0] != image.shape[1]:  # faces are followed in squares
            self.searched.append(int(image[4, 4, 0]))
        return super().detect(image)


def film(path: Path, images: Sequence[Image], rate: float = 25) -> Path:
    """A video whose frames show their numbers in a corner."""
    for number, image in enumerate(images):
        image[:8, :8] = number
    return write_lossless(path / "a.mkv", images, [number / rate for number in range(len(images))])


@squares
def test_faces_are_followed_between_searches(tmp_path: Path) -> None:
    paths = [[(50 + n, 100), (500 - 2 * n, 220)] for n in range(12)]
    detector = Numbered()
    frames = read(film(tmp_path, [stage(*places) for places in paths]), detector)
    assert detector.searched == [0, 5, 10, 11]  # the last frame is searched, too
    for places, photo in zip(paths, frames, strict=True):
        order = np.argsort(photo.faces.track)
        assert photo.faces.track[order].tolist() == [1, 2]
        corners = sorted(photo.faces.box[order, :2].tolist())
        assert np.abs(np.array(corners) - places).max() <= 2
    assert {photo.faces.infos[0].shot for photo in frames} == {0}


@squares
def test_a_lost_face_is_searched_for_at_once(tmp_path: Path) -> None:
    still = [stage((50, 100), (400, 200)) for _ in range(2)]
    jump = [stage((50, 100), (400, 20)) for _ in range(7)]
    detector = Numbered()
    frames = read(film(tmp_path, [*still, *jump]), detector)
    assert detector.searched == [0, 2, 7, 8]
    assert [len(photo.faces) for photo in frames] == [2] * 9
    detector = Numbered()
    read(film(tmp_path, [stage((50, 100)) for _ in range(4)]), detector, every=1)
    assert detector.searched == [0, 1, 2, 3]


@squares
@pytest.mark.parametrize(("entry", "rate"), [(1, 25), (7, 10), *slow((5, 25), (11, 25))])
@pytest.mark.parametrize("parallel", [False, True])
def test_rows_of_a_person_begin_when_the_person_enters(
    entry: int, rate: int, parallel: bool, tmp_path: Path
) -> None:
    """Also with searches ahead of their turn."""
    alone = [stage((50 + n, 100)) for n in range(entry)]
    together = [stage((50 + n, 100), (400 - 3 * n, 200)) for n in range(entry, 12)]
    detector = Blobs()
    detector.parallel = parallel
    frames = read(film(tmp_path, [*alone, *together], rate), detector)
    assert [photo.frame for photo in frames] == [*range(12)]
    assert tracks_of(frames) == [[1]] * entry + [[1, 2]] * (12 - entry)
    for number, photo in enumerate(frames[entry:], entry):
        newcomer = photo.faces.box[photo.faces.track == 2][0]
        assert np.abs(newcomer[:2] - (400 - 3 * number, 200)).max() <= 2


@squares
@pytest.mark.parametrize("every", [1, *slow(5)])
def test_searches_ahead_of_their_turn_and_damage_change_no_row(every: int, tmp_path: Path) -> None:
    images = []
    for number in range(30):
        places = [(50 + 2 * number, 100)]
        if 7 <= number < 18:  # lost between two searches
            places.append((400, 200))
        images.append(stage(*places) if number < 22 else stage(*places)[::-1, ::-1].copy())
    path = film(tmp_path, images, rate=10)
    rows = []
    for parallel in (False, True):
        detector = Blobs()
        detector.parallel = parallel
        found = read(path, detector, every)
        rows.append([(photo.faces.track.tolist(), photo.faces.box.tolist()) for photo in found])
    assert rows[0] == rows[1]
    assert [photo.faces.infos[0].shot for photo in found] == [0] * 22 + [1] * 8

    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    *before, end = read(path, detector, every)
    assert 5 < len(before) < 30
    assert end.status.startswith("damaged: ")
    assert [photo.status for photo in before] == [OK] * len(before)
    if every == 1:  # the last frame before the damage is searched
        assert tracks_of(before) == [tracks for tracks, _ in rows[0][: len(before)]]


@squares
@pytest.mark.parametrize("parallel", [True, *slow(False)])
def test_frames_before_an_error_of_the_detector_are_kept(parallel: bool, tmp_path: Path) -> None:
    class Failing(Blobs):
        def detect(self, image: Image) -> list[Detection]:
            if image.shape[0] != image.shape[1] and image[4, 4, 0] == 15:
                raise ImageError("the detector failed")
            return super().detect(image)

    detector = Failing()
    detector.parallel = parallel
    frames = read(film(tmp_path, [stage((50, 100)) for _ in range(30)]), detector)
    assert [photo.frame for photo in frames] == [*range(15), None]
    assert [len(photo.faces) for photo in frames] == [1] * 15 + [0]
    assert frames[-1].status == "the detector failed"


@squares
def test_a_face_that_appears_after_the_last_search_has_rows(tmp_path: Path) -> None:
    images = [stage((50, 100)) if number >= 6 else stage() for number in range(9)]
    frames = read(film(tmp_path, images), Blobs())
    assert [len(photo.faces) for photo in frames] == [0] * 6 + [1] * 3


@pytest.mark.slow
def test_rows_of_real_faces_begin_when_they_enter(data_sets: Path, tmp_path: Path) -> None:
    """Heads of FairFace stand and drift before a background, from 5% of the frame's height on."""
    entries = [0, 3, 7, 11]
    sides = [160, 40, 60, 90]
    detector = DETECTORS["yunet"]
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

    images = []
    for number in range(16):
        image = canvas.copy()
        for entry, (head, box) in zip(entries, actors, strict=True):
            if number >= entry:
                paste_head(image, head, box + 2 * (number - entry))
        images.append(image)
    path = write_lossless(tmp_path / "a.mkv", images, [number / 12.5 for number in range(16)])
    first: dict[int, int] = {}
    rows = 0
    for photo in read(path, "yunet"):
        rows += len(photo.faces)
        for track in photo.faces.track:
            first.setdefault(track, photo.frame or 0)
    assert sorted(first.values()) == entries
    assert rows == sum(16 - entry for entry in entries)


@squares
def test_a_face_is_followed_back_for_ten_frames_at_most(tmp_path: Path) -> None:
    """Frames that wait for faces in later frames take memory."""
    images = [stage((50, 100)), *(stage((50, 100), (400, 200)) for _ in range(34))]
    lengths = [len(photo.faces) for photo in read(film(tmp_path, images), Blobs(), every=30)]
    assert lengths == [1] * 20 + [2] * 15


@squares
def test_a_face_too_small_for_rows_is_not_followed_back(tmp_path: Path) -> None:
    images = [stage() for _ in range(12)]
    for image in images[3:]:
        image[100:112, 50:62] = 255  # 12 of 360 pixels
    frames = read(film(tmp_path, images), Blobs())
    assert [len(photo.faces) for photo in frames] == [0] * 5 + [1] * 7


@squares
@pytest.mark.parametrize("workers", [0, 1])
def test_frames_are_loaded_like_photos(workers: int, tmp_path: Path) -> None:
    images = [stage((50 + 4 * n, 100)) if n < 6 else stage() for n in range(8)]
    write_video(tmp_path / "a.mp4", images, [n / 25 for n in range(8)])
    (tmp_path / "b.mp4").write_text("no video")
    options = PhotoOptions(detector=Blobs(), workers=workers, batch_size=3, every=2)
    sources = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    batches = list(tiny_recognizer(("a", "b")).find(sources, options))
    seen = [photo for faces in batches for photo in faces.photos()]
    assert [(p.index, p.frame, p.status, p.faces.track.tolist()) for p in seen] == [
        *((0, n, OK, [1]) for n in (0, 2, 4)),
        (0, 6, NO_FACE, []),
        (1, None, UNREADABLE_VIDEO, []),
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


def on_floor(image: Image) -> Image:
    """A scene whose grey stage has colours: on a grey one, coming faces look like a cut."""
    grey = (image == 110).all(2)
    shown = image.copy()
    shown[grey] = FLOOR[grey]
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "detect_every", "rate"),
    [
        ("crossing", 5, 10),
        *((name, detect_every, 25) for name in SCENES for detect_every in (1, 10)),
    ],
)
def test_drawn_people_keep_their_numbers(
    name: str, detect_every: int, rate: int, tmp_path: Path
) -> None:
    actors, walls = SCENES[name]
    times = [n / rate for n in range(4 * rate)]
    images, truth = zip(*scene(actors, times, walls=walls), strict=True)
    path = write_video(tmp_path / "a.mp4", map(on_floor, images), times)
    tracks = [
        [*zip(photo.faces.track.tolist(), photo.faces.landmarks, strict=True)]
        for photo in read(path, "yunet", detect_every)
    ]
    scores = track_scores(truth, tracks)
    print(name, detect_every, scores)
    assert scores.switches == 0
    assert scores.idf1 > 0.95
    assert scores.mota > 0.9


# Faces where a detector would find them, in every frame


def face_at(x: float, y: float = 100.0, width: float = 90.0, noise: Array = ZERO) -> Detection:
    landmarks = np.array([x, y]) + (np.array(TEMPLATE) - 0.5) * width + noise * width
    middle = landmarks.mean(0)
    half = 0.4 * width
    return Detection(np.concatenate([middle - half, middle + half]), landmarks, 0.9)


class Scripted(Detector):
    """Finds the faces of a script: a list for each number that a frame shows."""

    def __init__(self, script: Sequence[list[Detection]]) -> None:
        self.script = script

    def detect(self, image: Image) -> list[Detection]:
        return self.script[number_of(image)]

    def confirm(self, image: Image, faces: Sequence[Detection]) -> list[Detection]:
        return list(faces)


def numbers_of(
    script: Sequence[list[Detection]], times: Sequence[float], path: Path
) -> list[list[int]]:
    """The numbers of the faces of a script, frame by frame, in its order."""
    room = np.random.default_rng(0).integers(0, 255, (4, 8, 3), np.uint8)
    pictures = []
    for number in range(len(script)):
        picture = numbered(number)
        picture[40:] = np.kron(room, np.ones((20, 20, 1), np.uint8))
        pictures.append(encode_jpeg(picture))
    milliseconds = [round(1000 * seconds) for seconds in times]
    clip = path / "a.mkv"
    clip.write_bytes(matroska(milliseconds, pictures, (160, 120), milliseconds[-1] + 40))
    frames = read(clip, Scripted(script), every=1)
    assert {photo.faces.infos[0].shot for photo in frames} == {0}
    numbers = []
    for photo, faces in zip(frames, script, strict=True):
        found = zip(photo.faces.box, photo.faces.track, strict=True)
        known = {tuple(box): track for box, track in found}
        numbers.append([known[tuple(face.box)] for face in faces])
    return numbers


def keeps_numbers(actors: list[Actor], times: Sequence[float], path: Path, lost: float = 0) -> bool:
    """Whether each actor has one number. Faces are found with noise unless another stands before,
    or they are lost.
    """
    rng = np.random.default_rng(0)
    script = []
    people = []
    for seconds in times:
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
        script.append([face_at(*places[n], rng.normal(0, 0.02, (5, 2))) for n in seen])
        people.append(seen)
    numbers: list[set[int]] = [set() for _ in actors]
    for seen, tracks in zip(people, numbers_of(script, times, path), strict=True):
        for actor, number in zip(seen, tracks, strict=True):
            numbers[actor].add(number)
    return [len(own) for own in numbers] == [1] * len(actors) == [1] * len(set.union(*numbers))


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


@pytest.mark.parametrize(("rate", "lost"), [(5, 0), (25, 0.2), *slow((12.5, 0), (60, 0))])
@pytest.mark.parametrize("name", CAST)
def test_tracks_follow_people(name: str, rate: float, lost: float, tmp_path: Path) -> None:
    times = np.arange(0, 5, 1 / rate).tolist()
    assert keeps_numbers(CAST[name], times, tmp_path, lost)


def test_uneven_times_and_times_that_do_not_pass(tmp_path: Path) -> None:
    steps = np.random.default_rng(0).choice([0.0, 0.01, 0.04, 0.3], 60)
    assert keeps_numbers(CAST["crossing"], np.cumsum(steps).tolist(), tmp_path)
    assert keeps_numbers(CAST["four"], [0.0] * 10, tmp_path)


def test_new_tracks(tmp_path: Path) -> None:
    script = [
        ([face_at(100), face_at(400)], 0.0, [1, 2]),
        ([], 0.1, []),
        ([face_at(400), face_at(100)], 0.2, [2, 1]),  # the order of detections does not matter
        ([face_at(100), face_at(700)], 0.3, [1, 3]),  # too fast for the same person
        ([face_at(100, width=250.0)], 0.4, [4]),  # too large for the same person
        ([face_at(400)], 2.2, [2]),  # a track ends after two seconds without a face
        ([face_at(700)], 2.31, [5]),
    ]
    faces, times, expected = zip(*script, strict=True)
    assert numbers_of(faces, times, tmp_path) == [*expected]


def test_faces_are_assigned_together(tmp_path: Path) -> None:
    """Both people moved to the right; the nearest face of the second one is the first one."""
    script = [[face_at(100), face_at(145)], [face_at(135), face_at(180)]]
    assert numbers_of(script, [0.0, 0.04], tmp_path) == [[1, 2], [1, 2]]


@pytest.mark.parametrize("step", [2.5, 60.0])
def test_frames_far_apart_keep_tracks(step: float, tmp_path: Path) -> None:
    times = [number * step for number in range(8)]
    assert keeps_numbers([Actor(0, walk(100, 4 / step)), Actor(1, walk(500, 0))], times, tmp_path)
    # away for longer than a track lasts
    script = [[face_at(100)], [], [face_at(100)]]
    assert numbers_of(script, times[:3], tmp_path) == [[1], [], [2]]


@squares
def test_a_video_that_kills_its_worker_is_a_row(tmp_path: Path) -> None:
    images = [stage((50 + 4 * n, 100)) for n in range(8)]
    clips = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    for clip in clips:
        write_video(clip, images, [n / 25 for n in range(8)])
    calls: list[int] = []

    class Deadly(Blobs):
        def find(self, image: Image) -> list[Detection]:
            calls.append(1)
            if len(calls) == 5 and not (tmp_path / "dead").exists():
                (tmp_path / "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().find(image)

    options = PhotoOptions(detector=Deadly(), detect_every=1, batch_size=4, workers=1)
    found = tiny_recognizer(("a", "b")).find(clips, options)
    seen = [info for faces in found for info in faces.infos]
    first = [info.status for info in seen if info.index == 0]
    assert 1 < len(first) < 8
    assert first == [OK] * (len(first) - 1) + [CRASHED]
    assert [info.frame for info in seen if info.index == 1] == [*range(8)]
