"""Episodes of clips whose conditions change within them, through the command `compare`.

Faces change at known times, whatever the condition, so that no condition may differ from another.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from tests.helpers.commands import run

FPS = 5
DURATIONS = "Seconds per episode"
RATES = "Episodes per minute"
TRANSITIONS = "Transitions per minute"


class Compared(NamedTuple):
    """What `compare` writes and prints."""

    results: dict[str, Any]
    measures: pd.DataFrame
    printed: str

    def values(self, column: str, condition: str) -> list[float]:
        rows = self.measures[self.measures["condition"] == condition]
        return rows[column].tolist()


Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture) -> Compare:
    def compare(clips: list[pd.DataFrame], *words: str) -> Compared:
        path = tmp_path / "clips.parquet"
        pd.concat(clips).to_parquet(path)
        output = tmp_path / "comparison"
        options = ("--by=condition", "--person=subject", "--overwrite", f"--output={output}")
        run("compare", path, *options, *words)
        results = json.loads((output / "results.json").read_text())
        printed = capsys.readouterr().out
        return Compared(results, pd.read_csv(output / "measures.csv"), printed)

    return compare


def clip(person: int, happy: np.ndarray, condition: np.ndarray | list[str | None]) -> pd.DataFrame:
    """A clip of a person at 5 frames per second, whose face is happy or calm in each frame."""
    frames = np.arange(len(happy))
    labels = np.where(happy, "happy", "calm")
    cells: dict[str, Any] = {
        "path": f"{person}.mp4",
        "frame": frames,
        "seconds": frames / FPS,
        "track": 1,
        "face": 0,
        "label": labels,
        "label_smoothed": labels,
        "confidence": 0.9,
        "condition": condition,
        "subject": f"s{person}",
    }
    for prefix in ("p_", "smoothed_"):
        cells[f"{prefix}calm"] = np.where(happy, 0.1, 0.9)
        cells[f"{prefix}happy"] = np.where(happy, 0.9, 0.1)
    return pd.DataFrame(cells)


def blocks(*lengths: int) -> np.ndarray:
    """A face that is calm for the first number of frames, happy for the second, and so on."""
    states = [np.full(length, index % 2 == 1) for index, length in enumerate(lengths)]
    return np.concatenate(states)


Draw = Callable[[np.random.Generator], float]


def exponential(rng: np.random.Generator) -> float:
    return rng.exponential(2)


def fixed(rng: np.random.Generator) -> float:
    return 2.0


def alternate(rng: np.random.Generator, seconds: int, draw: Draw) -> np.ndarray:
    """Whether a face is happy in each frame of a clip that begins at any time of the process."""
    time = -rng.uniform(60, 66)
    happy = bool(rng.integers(2))
    ends = []
    states = []
    while time < seconds:
        time += draw(rng)
        ends.append(time)
        states.append(happy)
        happy = not happy
    frames = np.arange(seconds * FPS) / FPS
    return np.array(states)[np.searchsorted(ends, frames, side="right")]


def phases(*shares: tuple[str | None, float]) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Returns a design with phases, of which each takes a share of a clip."""

    def design(rng: np.random.Generator, number: int) -> np.ndarray:
        bounds = (np.cumsum([share for _, share in shares]) * number).astype(int)
        names = np.array([name for name, _ in shares], object)
        return names[np.searchsorted(bounds, np.arange(number), side="right")]

    return design


def turns(coded: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Returns a design with turns of about 5 s and 2 s, of which the first share is coded."""

    def design(rng: np.random.Generator, number: int) -> np.ndarray:
        conditions = np.full(number, None, object)
        frame = 0
        talks = bool(rng.integers(2))
        while frame < number:
            length = int(FPS * (rng.uniform(4, 6) if talks else rng.uniform(1, 3)))
            conditions[frame : frame + int(coded * length)] = "a" if talks else "b"
            frame += length
            talks = not talks
        return conditions

    return design


DESIGNS = {
    "two phases": (phases(("a", 0.5), ("b", 0.5)), []),
    "three phases": (phases(("a", 1 / 3), ("b", 1 / 3), ("a", 1 / 3)), []),
    "unequal phases": (phases(("a", 0.75), ("b", 0.25)), []),
    "turns": (turns(1.0), []),
    "half of each turn is coded": (turns(0.5), []),
    "a gap between phases": (phases(("a", 0.4), (None, 0.2), ("b", 0.4)), []),
    "rest": (phases(("a", 0.5), ("b", 0.5)), ["--rest=0-20"]),
}


@pytest.mark.parametrize("draw", [exponential, fixed])
@pytest.mark.parametrize("name", DESIGNS)
def test_conditions_do_not_differ_where_the_face_ignores_them(
    name: str, draw: Draw, compare: Compare
) -> None:
    design, words = DESIGNS[name]
    rng = np.random.default_rng(2)
    clips = []
    for person in range(30):
        happy = alternate(rng, 120, draw)
        clips.append(clip(person, happy, design(rng, len(happy))))
    compared = compare(clips, *words)

    for title in (DURATIONS, RATES, TRANSITIONS):
        tests = compared.results[title]["differences"]
        assert len(tests) == 2
        for contrast, test in tests.items():
            if test is None:  # without a difference in any person
                assert draw is fixed, contrast
            else:
                assert abs(test["t"]) < 3.5, contrast
    for condition in ("a", "b"):
        for label in ("calm", "happy"):
            seconds = compared.results[DURATIONS]["means"][label][condition]["mean"]
            rate = compared.results[RATES]["means"][label][condition]["mean"]
            if draw is fixed:
                assert seconds == pytest.approx(2)
            assert seconds == pytest.approx(2.2, rel=0.25)
            assert rate == pytest.approx(14, rel=0.2)


def test_a_longer_expression_in_one_condition_is_found(compare: Compare) -> None:
    """A face that turns happy stays so for 2 s while the person listens, and 4 s otherwise."""
    rng = np.random.default_rng(1)
    clips = []
    for person in range(24):
        conditions = turns(1.0)(rng, 120 * FPS)
        happy = np.zeros(len(conditions), bool)
        frame = 0
        while frame < len(happy):
            frame += 1 + int(FPS * rng.exponential(3))
            listens = conditions[min(frame, len(happy) - 1)] == "b"
            length = (2 if listens else 4) * FPS + rng.integers(-2, 3)
            happy[frame : frame + length] = True
            frame += length
        clips.append(clip(person, happy, conditions))
    compared = compare(clips)
    tests = compared.results[DURATIONS]["differences"]
    assert tests["happy: b - a"]["difference"]["mean"] == pytest.approx(-2, abs=0.2)
    assert tests["happy: b - a"]["p corrected"] < 0.001
    assert abs(tests["calm: b - a"]["t"]) < 3


def test_turns_do_not_cut_an_expression_that_changes_every_6_s(compare: Compare) -> None:
    rng = np.random.default_rng(2)
    clips = []
    for person in range(12):
        conditions: list[str] = []
        for turn in range(24):
            talks = turn % 2 == 1
            length = rng.integers(12, 18) if talks else rng.integers(4, 7)
            conditions += length * ["talk" if talks else "listen"]
        happy = (np.arange(len(conditions)) + rng.integers(60)) // 30 % 2 == 1
        clips.append(clip(person, happy, conditions))
    compared = compare(clips)
    seconds = compared.measures[["seconds_calm", "seconds_happy"]].to_numpy()
    seconds = seconds[np.isfinite(seconds)]
    assert len(seconds) > 20
    assert seconds == pytest.approx(6)
    sentences = compared.results["sentences"]
    assert not any("higher" in line or "lower" in line for line in sentences[DURATIONS])


def test_a_change_at_a_boundary_is_a_transition_of_the_condition_that_begins(
    compare: Compare,
) -> None:
    clips = []
    for person in range(6):
        conditions = [["listen", "talk"][frame // 10 % 2] for frame in range(120)]
        clips.append(clip(person, np.array(conditions) == "talk", conditions))
    compared = compare(clips)
    assert compared.values("transitions_calm to happy", "talk") == pytest.approx([30] * 6)
    assert compared.values("transitions_happy to calm", "talk") == [0] * 6
    assert compared.values("transitions_calm to happy", "listen") == [0] * 6
    # 5 changes to calm in 12 s, without the first frame, before which no face is seen
    assert compared.values("transitions_happy to calm", "listen") == pytest.approx(
        [5 / (11.8 / 60)] * 6
    )
    assert compared.values("seconds_happy", "talk") == pytest.approx([2] * 6)
    assert compared.values("seconds_calm", "listen") == pytest.approx([2] * 6)
    counts = {"lasting beyond the condition": 0, "beginning not compared": 0}  # in both
    assert compared.results["episodes"] == {
        "listen": {"counted": 30, "too late for a duration": 0, "beginning not seen": 6} | counts,
        "talk": {"counted": 36, "too late for a duration": 6, "beginning not seen": 0} | counts,
    }


@pytest.mark.parametrize("coded", [5, 3])
def test_a_smile_of_20_s_is_one_episode_across_many_turns(coded: int, compare: Compare) -> None:
    """Turns last for 1 s, of which all or a part is coded."""
    happy = np.zeros(200, bool)
    happy[50:150] = True  # from 10 s on, at the start of a turn of a
    conditions: list[str | None] = []
    for turn in range(40):
        conditions += coded * ["ab"[turn % 2]] + (5 - coded) * [None]
    compared = compare([clip(0, happy, conditions)])
    assert compared.values("seconds_happy", "a") == [20]
    assert np.isnan(compared.values("seconds_happy", "b")).all()
    assert compared.values("episodes_happy", "b") == [0]
    counts = compared.results["episodes"]
    assert counts["a"] == {
        "counted": 2,  # the smile, and the calm after it
        "lasting beyond the condition": 2,
        "too late for a duration": 1,
        "beginning not seen": 1,
        "beginning not compared": 0,
    }
    assert sum(counts["b"].values()) == 0
    assert "in which they begin: 2 of a, 0 of b." in compared.printed


@pytest.mark.parametrize("words", [["--rest=0-4"], []])
def test_an_episode_that_begins_in_frames_without_a_condition_is_left_out(
    words: list[str], compare: Compare
) -> None:
    """The smile begins at 3 s. The first 4 s are rest, or have no condition."""
    happy = blocks(15, 15, 10, 5, 15)
    conditions = [None] * 20 + ["a"] * 20 + ["b"] * 20
    if words:
        conditions[:20] = ["a"] * 20
    compared = compare([clip(0, happy, conditions)], *words)
    assert np.isnan(compared.values("seconds_happy", "a")).all()
    assert compared.values("episodes_happy", "a") == [0]
    assert compared.values("episodes_calm", "a") == [15]
    assert compared.values("seconds_happy", "b") == [1]
    assert compared.results["episodes"]["a"] == {
        "counted": 1,  # the calm after the smile
        "lasting beyond the condition": 0,
        "too late for a duration": 1,  # calm lasts until the end, so that its length is unknown
        "beginning not seen": 0,
        "beginning not compared": 1,
    }
    assert "not compared: 1 of a, 0 of b." in compared.printed


def cut_sights() -> Iterator[pd.DataFrame]:
    """A clip of 16 s in several ways in which the face is not followed from 6 to 8 s."""
    whole = clip(0, blocks(10, 10, 30, 10, 20), ["a"] * 40 + ["b"] * 40)
    gap = (whole["seconds"] >= 6) & (whole["seconds"] < 8)
    yield whole[~gap]  # rows are missing
    faceless = whole.copy()
    described = ["path", "frame", "seconds", "condition", "subject"]
    faceless.loc[gap, [name for name in whole if name not in described]] = None
    yield faceless
    other = whole.copy()
    other.loc[gap, "track"] = 2
    yield other
    named = whole.copy()
    named["subject"] = np.where(gap, "another", "s0")
    yield named


@pytest.mark.parametrize("index", range(4))
def test_an_episode_in_which_a_face_is_lost_has_no_duration(index: int, compare: Compare) -> None:
    """The calm from 4 to 10 s is cut; the smiles from 2 to 4 s and 10 to 12 s are whole."""
    compared = compare([[*cut_sights()][index]])
    table = compared.measures[compared.measures["person"] != "another"].set_index("condition")
    assert table.loc["a", "seconds_happy"] == pytest.approx(2)
    assert table.loc["b", "seconds_happy"] == pytest.approx(2)
    assert table["seconds_calm"].isna().all()
    assert "No durations of calm:" in compared.printed
    counts = compared.results["episodes"]
    late = counts["a"]["too late for a duration"] + counts["b"]["too late for a duration"]
    starts = counts["a"]["beginning not seen"] + counts["b"]["beginning not seen"]
    others = 1 if index > 1 else 0  # the sight in between
    assert (late, starts) == (2, 2 + others)


def test_rows_without_a_person_do_not_cut_an_episode(compare: Compare) -> None:
    """A coding by frame leaves both cells empty where nothing is coded."""
    table = clip(0, blocks(10, 30, 20), ["a"] * 30 + ["b"] * 30)
    table.loc[20:25, ["condition", "subject"]] = None
    assert compare([table]).values("seconds_happy", "a") == [6]


def test_durations_are_of_episodes_that_begin_early_enough(compare: Compare) -> None:
    """The last smile, of 4 s, begins 3 s before the end, and all others are as short as 1 s."""
    clips = []
    for person in range(10):
        happy = blocks(*8 * (10, 5), 10, 10, 15)
        clips.append(clip(person, happy, ["a"] * 60 + ["b"] * 95))
    compared = compare(clips)
    mean = (4 * 1 + 2) / 5
    assert compared.values("seconds_happy", "a") == pytest.approx([1] * 10)
    assert compared.values("seconds_happy", "b") == pytest.approx([mean] * 10)
    # nine of ten smiles of nine of ten... last
    assert compared.results["seconds in sight for a duration"]["happy"] == pytest.approx(2)
