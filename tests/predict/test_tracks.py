from dataclasses import replace

import numpy as np
import pytest

from fer_vit.face.detect import Face
from fer_vit.geometry import TEMPLATE
from fer_vit.predict.frames import MAX_GAP, Tracker
from tests.helpers.videos import Actor, Seen, as_face, track_scores

TEMPLATE_FACE = np.array(TEMPLATE)


def walk(start: float, speed: float, y: float = 180.0, width: float = 90.0, begin: float = 0.0, end: float = 1e9):  # noqa: ANN201
    return lambda t: (start + speed * t, y, width) if begin <= t < end else None


def seen_at(actors: list[Actor], seconds: float) -> list[Seen]:
    """Where the actors' landmarks are; one that another stands before is hidden."""
    places = [(n, place) for n, actor in enumerate(actors) if (place := actor.place(seconds))]
    return [
        Seen(
            n,
            np.array([x, y]) + (TEMPLATE_FACE - 0.5) * w,
            w,
            not any(m > n and abs(x - u) < 0.8 * w and abs(y - v) < 0.8 * w for m, (u, v, _) in places),
        )
        for n, (x, y, w) in places
    ]


def run(actors: list[Actor], times: np.ndarray, noise: float = 0.02, lost: float = 0.0):  # noqa: ANN201
    """Tracks the visible actors as a detector would see them, with noise in widths, and some lost."""
    rng, tracker, truth, found = np.random.default_rng(0), Tracker(), [], []
    for seconds in times.tolist():
        seen = seen_at(actors, seconds)
        faces = [
            as_face(replace(one, landmarks=one.landmarks + rng.normal(0, noise * one.width, (5, 2))))
            for one in seen
            if one.visible and rng.random() >= lost
        ]
        rng.shuffle(faces)
        numbers = tracker.number(faces, seconds)
        truth.append(seen)
        found.append([(number, face.landmarks) for number, face in zip(numbers, faces, strict=True)])
    return track_scores(truth, found)


CAST = {
    "standing": [Actor(0, walk(100, 0)), Actor(1, walk(300, 0)), Actor(2, walk(500, 0))],
    "crossing": [Actor(0, walk(50, 120)), Actor(1, walk(600, -100))],
    "three crossing": [Actor(0, walk(0, 150)), Actor(1, walk(640, -150)), Actor(2, walk(320, 0, y=190, begin=0.5))],
    "entering and leaving": [
        Actor(0, walk(100, 20)),
        Actor(1, walk(400, 30, begin=1, end=3)),
        Actor(2, walk(250, 0, begin=4)),
    ],
    "a gap": [Actor(0, lambda t: (100 + 60 * t, 180, 90) if not 1 < t < 2.2 else None), Actor(1, walk(450, 0))],
}


@pytest.mark.parametrize("rate", [5, 12.5, 25, 60])
@pytest.mark.parametrize("name", CAST)
def test_tracks_follow_people(name: str, rate: float) -> None:
    scores = run(CAST[name], np.arange(0, 5, 1 / rate))
    assert scores.switches == 0
    assert scores.idf1 > 0.99
    assert scores.mota > 0.99


def test_missed_faces_uneven_times_and_times_that_do_not_pass() -> None:
    for name, actors in CAST.items():
        scores = run(actors, np.arange(0, 5, 0.04), lost=0.2)
        assert scores.switches == 0, name
        assert 0.85 < scores.idf1 < 0.95, name  # a fifth is missing
    times = np.cumsum(np.random.default_rng(0).choice([0.0, 0.01, 0.04, 0.3], 60))
    assert run(CAST["crossing"], times).switches == 0
    assert run(CAST["standing"], np.zeros(10)).switches == 0


def one(x: float, width: float = 90.0) -> Face:
    return as_face(Seen(0, np.array([x, 100.0]) + (TEMPLATE_FACE - 0.5) * width, width, True))


def test_new_tracks() -> None:
    tracker = Tracker()
    assert tracker.number([one(100), one(400)], 0.0) == [0, 1]
    assert tracker.number([], 0.1) == []
    assert tracker.number([one(400), one(100)], 0.2) == [1, 0]  # the detector's order means nothing
    assert tracker.number([one(100), one(700)], 0.3) == [0, 2]  # nobody is so fast
    assert tracker.number([one(100, 250.0)], 0.4) == [3]  # and nobody grows so fast
    assert tracker.number([one(400)], 0.2 + MAX_GAP) == [1]
    assert tracker.number([one(700)], 0.31 + MAX_GAP) == [4]


@pytest.mark.parametrize("step", [2.5, 60.0])
def test_frames_far_apart_keep_tracks(step: float) -> None:
    scores = run([Actor(0, walk(100, 4 / step)), Actor(1, walk(500, 0))], np.arange(0, 8) * step)
    assert scores.switches == 0
    assert scores.idf1 == 1
    tracker = Tracker()
    numbers = [tracker.number(faces, n * step) for n, faces in enumerate([[one(100)], [], [one(100)]])]
    assert numbers == [[0], [], [1]]  # who was away for longer than MAX_GAP is another
