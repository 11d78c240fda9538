"""Cuts: films composed of drawn people and of real clips, with known cuts; and what is no cut."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from fer_vit.face.image import decode_image
from fer_vit.faces import Photo, PhotoInfo
from fer_vit.geometry import Image
from fer_vit.predict.frames import read_frames
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.predict.shots import Cuts
from fer_vit.sources.cartoon import draw_face
from tests.helpers.cameras import watch_all
from tests.helpers.commands import run
from tests.helpers.faces import tiny_recognizer
from tests.helpers.marks import slow
from tests.helpers.videos import Actor, Seen, scene, track_scores, write_video

SIZE = (640, 360)  # width and height of a film


def place(seed: int) -> Image:
    """A room of soft colours, which is the same for a seed."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return np.asarray(cv2.resize(colours, SIZE, interpolation=cv2.INTER_CUBIC), np.uint8)


def portrait(seed: int, background: Image, expression: str = "neutral") -> Image:
    """A drawn person of 220 pixels in the middle of a picture."""
    image = background.copy()
    face, _ = draw_face(expression, seed, 220, colour=True)
    image[70:290, 210:430] = face
    return image


def grey() -> Image:
    return np.full((SIZE[1], SIZE[0], 3), 110, np.uint8)


def drift(image: Image, count: int) -> Iterator[Image]:
    """Frames of a hand-held camera that shows a picture."""
    rng = np.random.default_rng(0)
    for x, y in np.cumsum(rng.normal(0, 1.5, (count, 2)), axis=0):
        matrix = np.array([[1.05, 0, x - 16], [0, 1.05, y - 9]])
        yield np.asarray(cv2.warpAffine(image, matrix, SIZE, borderMode=cv2.BORDER_REFLECT))


def write(path: Path, images: Sequence[Image], rate: float = 25) -> Path:
    return write_video(path, images, [number / rate for number in range(len(images))])


def shots_of(path: Path, **options: float) -> list[int]:
    return [frame.shot for frame in read_frames(path, **options)]  # type: ignore[arg-type]


ROOMS = {
    "other rooms": [portrait(seed, place(seed)) for seed in range(6)],
    "one grey wall": [portrait(seed, grey()) for seed in (7, 33, 5, 12, 60, 33)],
    "one person": [portrait(7, place(seed)) for seed in range(6)],
}


@pytest.mark.parametrize("rate", [10, *slow(60)])
@pytest.mark.parametrize("name", ["one grey wall", *slow("one person", "other rooms")])
def test_cuts_are_where_the_picture_jumps(name: str, rate: int, tmp_path: Path) -> None:
    lengths = [rate, rate // 2, rate, 5, rate, rate]
    images = []
    expected = []
    for shot, (room, length) in enumerate(zip(ROOMS[name], lengths, strict=True)):
        images += drift(room, length)
        expected += [shot] * length
    assert shots_of(write(tmp_path / "film.mp4", images, rate)) == expected


def test_frames_that_are_left_out_count(tmp_path: Path) -> None:
    images = [image for room in ROOMS["other rooms"][:3] for image in drift(room, 25)]
    path = write(tmp_path / "film.mp4", images)
    for options in ({"every": 4}, {"fps": 5.0}, {"start": 1.2}):
        for frame in read_frames(path, **options):  # type: ignore[arg-type]
            assert frame.shot == frame.number // 25


def light(image: Image, gain: float, lift: float = 0) -> Image:
    return np.asarray(np.clip(image * gain + lift, 0, 255), np.uint8)


def lamp(image: Image) -> Image:
    """The light of a window on the left, where there was light from everywhere."""
    return np.asarray(image * np.linspace(1, 0.3, image.shape[1])[None, :, None], np.uint8)


def upper_flash(image: Image) -> Image:
    """A flash in the upper part, as cameras that read line by line show it."""
    flashed = image.copy()
    flashed[:200] = light(flashed[:200], 1.8, 120)
    return flashed


def moved(image: Image, x: float, y: float, scale: float = 1.6) -> Image:
    width, height = SIZE
    matrix = np.array([[scale, 0, x * width], [0, scale, y * height]])
    matrix[:, 2] -= (scale - 1) / 2 * np.array(SIZE)
    return np.asarray(cv2.warpAffine(image, matrix, SIZE, borderMode=cv2.BORDER_REFLECT))


def shaken(images: Sequence[Image]) -> Iterator[Image]:
    rng = np.random.default_rng(0)
    for image in images:
        yield moved(image, *rng.uniform(-0.02, 0.02, 2))


# What happens to the frames of one shot, from frame 12 on.
CHANGES: dict[str, Callable[[list[Image]], list[Image]]] = {
    "another light": lambda rest: [lamp(image) for image in rest],
    "a flash": lambda rest: [light(rest[0], 1.8, 120), *rest[1:]],
    "a long flash": lambda rest: [*(light(image, 2, 150) for image in rest[:3]), *rest[3:]],
    "half a flash": lambda rest: [upper_flash(rest[0]), *rest[1:]],
    "three flashes": lambda rest: [
        upper_flash(image) if number in (0, 5, 6, 10) else image
        for number, image in enumerate(rest)
    ],
    "a lost frame": lambda rest: [place(99), *rest[1:]],
    "black": lambda rest: [*(light(image, 0) for image in rest[:8]), *rest[8:]],
    "a fade": lambda rest: [
        light(image, abs(1 - number / 10)) for number, image in enumerate(rest)
    ],
    "a fast pan": lambda rest: [
        moved(image, 0.25 - 0.12 * min(number, 4), 0) for number, image in enumerate(rest)
    ],
    "a shaking camera": lambda rest: list(shaken(rest)),
    "a zoom": lambda rest: [
        moved(image, 0, 0, 1 + 0.06 * number) for number, image in enumerate(rest)
    ],
}


OFTEN = ("another light", "black", "a fast pan")
"""Changes of most kinds; the default tests have these."""


@pytest.mark.parametrize(
    "change", [*OFTEN, *slow(*(name for name in CHANGES if name not in OFTEN))]
)
def test_light_and_motion_are_no_cut(change: str, tmp_path: Path) -> None:
    images = list(drift(portrait(7, place(3)), 34))
    if change in ("a fast pan", "a shaking camera"):
        images = [moved(image, 0.25 if change == "a fast pan" else 0, 0) for image in images]
        images[12:] = CHANGES[change](list(drift(portrait(7, place(3)), 34))[12:])
    else:
        images[12:] = CHANGES[change](images[12:])
    assert set(shots_of(write(tmp_path / "shot.mp4", images))) == {0}


@pytest.mark.slow
def test_portraits_of_two_people_in_one_place_differ(data_sets: Path, tmp_path: Path) -> None:
    """A film of portraits, each longer than a flash: neighbours are other people."""
    with zipfile.ZipFile(data_sets / "diffusionfer.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("neutral/")]
        portraits = [decode_image(archive.read(name)) for name in names[:80] if name[-1] != "/"]
    images = [cv2.resize(each, SIZE) for each in portraits for _ in range(6)]
    cuts = np.diff(shots_of(write(tmp_path / "film.mp4", images)))
    assert cuts.sum() > 0.96 * (len(portraits) - 1)


@pytest.mark.slow
def test_black_between_two_shots_is_one_cut(tmp_path: Path) -> None:
    black = [np.zeros_like(grey())] * 8
    people = [list(drift(portrait(seed, place(seed)), 25)) for seed in range(3)]
    path = write(tmp_path / "film.mp4", [*people[0], *black, *people[1], *black, *people[2]])
    shots = np.array(shots_of(path))
    assert np.flatnonzero(np.diff(shots)).tolist() == [32, 65]  # the first frame of the next shot


def test_a_cut_in_the_last_frame_is_found(tmp_path: Path) -> None:
    images = [*drift(portrait(7, place(0)), 20), portrait(21, place(1))]
    assert shots_of(write(tmp_path / "film.mp4", images)) == [0] * 20 + [1]


def test_cuts_are_counted_by_video() -> None:
    """The status of a damaged video takes no cut back."""
    cuts = Cuts()
    for index, shot in [(0, 0), (0, 0), (0, 2), (1, 0), (1, None), (1, 5), (1, 6), (2, None)]:
        cuts.add(PhotoInfo("a.mp4", index=index, shot=shot))
    assert cuts.count == 3


# ---------------------------------------------------------------- tracks


def film_of_three() -> tuple[list[Image], list[list[Seen]]]:
    """Three drawn people who stand in the same place one after another, each a second."""
    images = []
    truth = []
    for number, seed in enumerate((7, 21, 48)):
        actor = Actor(seed, lambda t: (320 + 8 * t, 180, 150))
        for image, seen in scene([actor], [n / 10 for n in range(10)]):
            room = place(number)
            stage = (image == 110).all(2)
            image[stage] = room[stage]
            images.append(image)
            truth.append([Seen(number, person.landmarks, person.width, True) for person in seen])
    return images, truth


def track(path: Path, **options: object) -> list[Photo]:
    """The frames of a film with their faces, as a model gets them."""
    model = tiny_recognizer(("a", "b"))
    found = model.find([path], PhotoOptions(**{"workers": 0, **options}))
    return [photo for faces in found for photo in faces.photos()]


@pytest.mark.parametrize(("every", "black"), [(3, 3), *slow((1, 0))])
def test_three_people_in_one_place_are_three_tracks(every: int, black: int, tmp_path: Path) -> None:
    images, truth = film_of_three()
    for start in (20, 10):
        images[start:start] = [np.zeros_like(grey())] * black
        truth[start:start] = [[] for _ in range(black)]
    found = track(write(tmp_path / "film.mp4", images, 10), every=every)
    tracks = [
        [*zip(photo.faces.track.tolist(), photo.faces.landmarks, strict=True)] for photo in found
    ]
    scores = track_scores(truth[::every], tracks)
    assert scores.switches == 0
    assert scores.idf1 > 0.99
    assert {number for numbers in tracks for number, _ in numbers} == {1, 2, 3}


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of three people, 10 frames each."""
    images, _ = film_of_three()
    return write(tmp_path_factory.mktemp("film") / "film.mp4", images, 10)


def test_a_cut_ends_the_tracks_of_live_video(film: Path) -> None:
    images = [frame.image for frame in read_frames(film)]
    seen = [
        frame.faces for frame in watch_all(tiny_recognizer(("a", "b")), images, np.arange(30) / 10)
    ]
    assert [faces.track.tolist() for faces in seen] == [[1]] * 10 + [[2]] * 10 + [[3]] * 10
    assert [faces.infos[0].shot for faces in seen] == [0] * 10 + [1] * 10 + [2] * 10


def test_crops_of_several_shots_are_several_tracks(film: Path) -> None:
    found = track(film, face="crop", detector="none")
    tracks = [photo.faces.track.tolist() for photo in found]
    assert tracks == [[1]] * 10 + [[2]] * 10 + [[3]] * 10


@pytest.fixture(scope="module")
def model() -> Recognizer:
    return load("ferplus-fairface-small", "cpu")


def test_a_shot_of_a_film_is_predicted_as_if_it_were_alone(model: Recognizer, film: Path) -> None:
    """No track and no average goes over a cut."""
    whole = model.predict(film, workers=0)
    assert whole.track.tolist() == [1] * 10 + [2] * 10 + [3] * 10
    for start in range(1, 3):
        alone = model.predict(film, workers=0, start=start, end=start + 1)
        shot = whole[10 * start : 10 * start + 10]
        assert alone.frame.tolist() == shot.frame.tolist()
        assert np.allclose(alone.box, shot.box)
        assert np.allclose(alone.smoothed, shot.smoothed, atol=1e-5)


@pytest.mark.slow
def test_commands_state_the_number_of_cuts(
    film: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("predict", film, "--checkpoint", checkpoint, "--output", tmp_path / "faces.csv")
    assert "2 cuts: after a cut, each person has a new number" in "".join(capsys.readouterr())
    run("predict", film, "--checkpoint", checkpoint, "--output", tmp_path / "t.csv", "--end=1")
    assert "cut" not in "".join(capsys.readouterr())
    words = ["--output", tmp_path / "report", "--every=5", "--method=relevance"]
    run("visualize", film, "--checkpoint", checkpoint, *words)
    assert "2 cuts: after a cut" in "".join(capsys.readouterr())


# ---------------------------------------------------------------- real clips


def real_shot(path: Path, count: int) -> list[Image]:
    images = []
    for frame in read_frames(path):
        images.append(np.asarray(cv2.resize(frame.image, SIZE), np.uint8))
    return images[:count]


def test_clips_of_one_shot_have_no_cut(clips: Path) -> None:
    for path in sorted(clips.glob("*.mp4")):
        assert set(shots_of(path)) == {0}, path.name


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another light", "half a flash", "a fast pan", "a fade"])
def test_light_and_motion_in_clips_are_no_cut(change: str, clips: Path, tmp_path: Path) -> None:
    for clip in sorted(clips.glob("*.mp4")):
        images = real_shot(clip, 34)
        if change == "a fast pan":
            images[:12] = [moved(image, 0.25, 0) for image in images[:12]]
        images[12:] = CHANGES[change](images[12:])
        assert set(shots_of(write(tmp_path / "shot.mp4", images))) == {0}, clip.name


@pytest.mark.slow
def test_cuts_between_clips(clips: Path, tmp_path: Path) -> None:
    shots = [real_shot(clip, 40) for clip in sorted(clips.glob("*.mp4"))]
    order = [0, 2, 1, 2, 0, 1]
    images = [image for shot in order for image in shots[shot]]
    path = write(tmp_path / "film.mp4", images)
    assert shots_of(path) == [number for number in range(6) for _ in range(40)]
