"""Simulates how often the 95% intervals of `evaluate` and `compare` contain the truth, and how
often their tests have p < 0.05 without an effect.

python -m benchmarks.coverage

The truth is the value in a large population that is drawn in the same way. An interval is right if
it contains the truth in 95% of studies, a test if it has p < 0.05 in at most 5% of them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from benchmarks.machine import machine, run_main
from fer_vit.comparison.episodes import (
    RATES,
    SECONDS,
    Sightings,
    find_episodes,
    find_least_room,
    measure_episodes,
)
from fer_vit.geometry import Array, IntArray, Mask
from fer_vit.heads import MOVEMENTS
from fer_vit.report.table import markdown
from fer_vit.stats.bootstrap import TAIL, percentiles, resample_sums
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.hypothesis_tests import group_tests, mcnemar, paired_p
from fer_vit.stats.output_measures import measure, measure_intervals
from fer_vit.stats.persons import (
    NoTest,
    compare_pair,
    intraclass_correlation,
    person_mean,
)
from fer_vit.stats.scores import contributions, score_faces, score_once
from fer_vit.stats.series import mean_course

ALPHA = 0.05
LABELS = ("neutral", "happiness", "sadness", "fear")
FREQUENCIES = np.array([0.5, 0.3, 0.15, 0.05])
FACES_OF_PERSON = 5
POPULATION = 100_000  # persons or faces from which the truth is computed
FEW_STUDIES = 10_000  # of the mean of few, which are fast
FPS = 5
CLIP_FRAMES = 120 * FPS
EPISODE_SECONDS = 3.0
EPISODE_MEASURES = ("Seconds per episode", "Episodes per minute")
SHAPES = {"exponential": 1.0, "gamma": 4.0}  # of durations; the larger, the more regular
Outcomes = dict[str, list[bool]]
"""By interval or test, whether each study's interval has the truth, or its p is below `ALPHA`."""


def append_hit(outcomes: list[bool], result: Estimate, truth: float) -> None:
    """Appends whether an interval contains the truth; nothing for a result without an interval."""
    if result.low is not None and result.high is not None:
        outcomes.append(result.low <= truth <= result.high)


# ------------------------------------------------------------------------- expressions


def draw_faces(
    persons: int, of_person: int, rng: np.random.Generator
) -> tuple[Array, Array, IntArray]:
    """Draws probabilities (N, C), targets (N, C), and the person of each face (N,).

    Persons differ in how well they are recognized, if they have several faces.
    """
    unit = np.repeat(np.arange(persons), of_person)
    label = rng.choice(len(LABELS), len(unit), p=FREQUENCIES)
    clarity = rng.normal(1.2, 1.0 if of_person > 1 else 0.0, persons)[unit]
    logits = rng.normal(size=(len(unit), len(LABELS))) + np.log(FREQUENCIES)
    logits[np.arange(len(unit)), label] += 1 + clarity
    shares = np.exp(1.5 * logits)
    return shares / shares.sum(1, keepdims=True), np.eye(len(LABELS))[label], unit


def expression_scores(persons: int, of_person: int, studies: int) -> Outcomes:
    """Simulates the intervals of the scores of `evaluate`."""
    rng = np.random.default_rng([persons, of_person])
    names = ("accuracy", "macro F1", "UAR", "cross-entropy", "recall of fear")
    probabilities, targets, _ = draw_faces(POPULATION, of_person, rng)
    truth = score_once(probabilities, targets, LABELS)
    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        probabilities, targets, unit = draw_faces(persons, of_person, rng)
        results = score_faces(probabilities, targets, LABELS, unit)
        for name in names:
            append_hit(outcomes[name], results[name], float(truth[name]))
    return outcomes


def model_differences(persons: int, of_person: int, studies: int) -> Outcomes:
    """Simulates two models that are equally good, and differ in their errors."""
    rng = np.random.default_rng([persons, of_person, 1])
    names = ("accuracy", "macro F1", "UAR", "cross-entropy")
    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        probabilities, targets, unit = draw_faces(persons, of_person, rng)
        second = _second_model(probabilities, unit, of_person, rng)
        first = _second_model(probabilities, unit, of_person, rng)
        truth = targets.argmax(1)
        test = mcnemar(first.argmax(1) == truth, second.argmax(1) == truth, unit)
        differences = score_faces(first, targets, LABELS, unit, minus=second)
        differences["accuracy"] = test.difference
        for name in names:
            append_hit(outcomes[name], differences[name], 0.0)
        outcomes["p of McNemar or t"].append(test.p < ALPHA)
        losses = -np.log((first * targets).sum(1)) + np.log((second * targets).sum(1))
        outcomes["p of a mean (paired t)"].append(paired_p(losses, unit) < ALPHA)
    return outcomes


def _second_model(
    probabilities: Array, unit: IntArray, of_person: int, rng: np.random.Generator
) -> Array:
    """Returns probabilities (N, C) with other errors, which the faces of a person share in part."""
    persons = int(unit.max()) + 1
    noise = rng.normal(0, 0.8, probabilities.shape)
    if of_person > 1:
        noise += rng.normal(0, 0.8, (persons, probabilities.shape[1]))[unit]
    shares = probabilities * np.exp(noise)
    return np.asarray(shares / shares.sum(1, keepdims=True))


def group_differences(persons: int, of_person: int, studies: int) -> Outcomes:
    """Simulates two groups of persons, a third and two thirds, with equal accuracy."""
    rng = np.random.default_rng([persons, of_person, 2])
    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        probabilities, targets, unit = draw_faces(persons, of_person, rng)
        correct = probabilities.argmax(1) == targets.argmax(1)
        first, _ = group_tests(correct, [unit % 3 == 0, unit % 3 > 0], unit)
        append_hit(outcomes["difference of accuracy"], first.difference, 0.0)
        outcomes["p of Fisher or t"].append(first.p < ALPHA)
    return outcomes


def calibration_errors(faces: int, studies: int) -> tuple[float, float]:
    """Returns the mean calibration error of calibrated faces, whose true error is 0, and how often
    the percentile bootstrap would contain 0.
    """
    rng = np.random.default_rng([faces, 3])
    errors = []
    contained = 0
    for _ in range(studies):
        confidence = 1 - 0.75 * rng.beta(0.6, 1.6, faces)
        correct = rng.uniform(size=faces) < confidence
        probabilities = np.column_stack([confidence, 1 - confidence])
        order = confidence < 0.5  # the larger probability first
        probabilities[order] = probabilities[order][:, ::-1]
        correct[order] = ~correct[order]
        targets = np.eye(2)[np.where(correct, 0, 1)]
        bins = contributions(probabilities, targets)["bins"]
        errors.append(np.abs(bins.sum(0)).sum() / faces)
        draws = rng.multinomial(faces, np.full(faces, 1 / faces), 500).astype(float)
        contained += np.percentile(np.abs(draws @ bins).sum(1), 2.5) <= 0
    return float(np.mean(errors)), contained / studies


def means_of_few(units: int, studies: int) -> Outcomes:
    """Simulates intervals of the mean of normal values of few persons or photos, by two methods."""
    rng = np.random.default_rng([units, 7])
    values = rng.normal(size=(units, studies))
    means = resample_sums(values, None) / units  # (R, studies)
    low, high = np.percentile(means, percentiles(units), axis=0)  # (studies,) each
    error = values.std(0, ddof=1) / np.sqrt(units)
    by_t = np.abs(values.mean(0)) <= stats.t.isf(TAIL, units - 1) * error
    return {"bootstrap": ((low <= 0) & (high >= 0)).tolist(), "t": by_t.tolist()}


# ------------------------------------------------------------------------- further heads


def head_measures(persons: int, of_person: int, studies: int) -> Outcomes:
    """Simulates the intervals of measures of further heads, of numbers and of binary targets."""
    rng = np.random.default_rng([persons, of_person, 4])
    truth = {}
    for _, is_binary, names in MEASURED:
        values, targets, _ = draw_output(POPULATION, of_person, is_binary, rng)
        for name in names:
            truth[name] = measure(name, values, targets)

    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        for _, is_binary, names in MEASURED:
            values, targets, unit = draw_output(persons, of_person, is_binary, rng)
            results = measure_intervals(names, values, targets, unit)
            for name in names:
                append_hit(outcomes[name], results[name], truth[name])
    return outcomes


MEASURED = (
    (MOVEMENTS, False, ("r", "MAE")),
    ("affect", False, ("CCC", "RMSE")),
    (MOVEMENTS, True, ("F1", "AUROC")),
)
"""Heads, whether their targets are binary, and measures."""


def draw_output(
    persons: int, of_person: int, is_binary: bool, rng: np.random.Generator
) -> tuple[Array, Array, IntArray]:
    """Draws values and targets (N,) of an output, and the person of each face (N,)."""
    unit = np.repeat(np.arange(persons), of_person)
    common = 0.5 if of_person > 1 else 0.0
    target = rng.normal(size=len(unit)) + common * rng.normal(size=persons)[unit]
    error = rng.normal(size=len(unit)) + common * rng.normal(size=persons)[unit]
    value = 0.6 * target + 0.6 * error
    if is_binary:
        return stats.norm.cdf(value), (target > 0.8).astype(float), unit
    return np.tanh(value / 2), np.tanh(target / 2), unit


# ------------------------------------------------------------------------- compare


def draw_shares(persons: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draws two measures of persons (P,): normal means, and shares of a rare label."""
    rate = rng.beta(0.5, 6, persons)
    return {"normal": rng.normal(0.3, 0.1, persons), "rare shares": rng.binomial(20, rate) / 20}


def means_of_persons(persons: int, studies: int) -> Outcomes:
    """Simulates means, differences and tests of `compare`, without a difference."""
    rng = np.random.default_rng([persons, 5])
    truth = {"normal": 0.3, "rare shares": 0.5 / 6.5}
    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        first = draw_shares(persons, rng)
        second = draw_shares(persons, rng)
        for name, values in first.items():
            append_hit(outcomes[f"mean, {name}"], person_mean(values, 0, 1), truth[name])
            for design, paired in (("paired", True), ("Welch", False)):
                test = compare_pair(values, second[name], paired)
                if isinstance(test, NoTest):
                    continue
                append_hit(outcomes[f"{design}, {name}"], test.difference, 0.0)
                outcomes[f"p by t, {design}, {name}"].append(test.p < ALPHA)
                outcomes[f"p by ranks, {design}, {name}"].append(test.p_by_ranks < ALPHA)
        series = rng.normal(size=(persons, 1)) + rng.normal(size=(persons, 2))
        course = mean_course(series)
        outcomes["mean over time"].append(bool(course.low[0] <= 0 <= course.high[0]))
        photos = rng.normal(size=(persons, 1)) + rng.normal(size=(persons, 3))
        owner = np.repeat(np.arange(persons), 3)
        append_hit(outcomes["ICC(1)"], intraclass_correlation(photos.ravel(), owner), 0.5)
    return outcomes


# ------------------------------------------------------------------------- episodes


def draw_happy(frames: int, shape: float, rng: np.random.Generator) -> Mask:
    """Draws whether a face is happy in each frame; it changes whatever the condition."""
    seconds = rng.gamma(shape, EPISODE_SECONDS / shape, int(2 * frames / FPS) + 40)
    ends = np.cumsum(seconds) - 20 * EPISODE_SECONDS - rng.uniform(0, 2 * EPISODE_SECONDS)
    number = np.searchsorted(ends, np.arange(frames) / FPS, side="right")
    return np.asarray((number + rng.integers(2)) % 2 == 0)


def draw_phases(*shares: float) -> Callable[[np.random.Generator], IntArray]:
    """Returns a design of phases in turn, 0 and 1, each with a share of the clip."""
    bounds = np.cumsum(shares) * CLIP_FRAMES
    phase = np.searchsorted(bounds, np.arange(CLIP_FRAMES), side="right")
    return lambda rng: np.asarray(phase % 2)


def draw_turns(coded: float) -> Callable[[np.random.Generator], IntArray]:
    """Returns a design of turns of 4 to 6 and 1 to 3 s, of which a share is coded; else -1."""

    def draw(rng: np.random.Generator) -> IntArray:
        condition = np.full(CLIP_FRAMES, -1)
        frame = 0
        turn = int(rng.integers(2))
        while frame < CLIP_FRAMES:
            length = int(FPS * (rng.uniform(1, 3) if turn else rng.uniform(4, 6)))
            condition[frame : frame + int(coded * length)] = turn
            frame += length
            turn = 1 - turn
        return condition

    return draw


EPISODE_DESIGNS: Mapping[str, Callable[[np.random.Generator], IntArray]] = {
    "two phases of 60 s": draw_phases(1 / 2, 1 / 2),
    "three phases of 40 s": draw_phases(1 / 3, 1 / 3, 1 / 3),
    "phases of 100 and 20 s": draw_phases(5 / 6, 1 / 6),
    "turns of about 5 and 2 s": draw_turns(1.0),
    "the first half of these turns": draw_turns(0.5),
}


def episode_tests(design: str, shape: float, persons: int, studies: int) -> Outcomes:
    """Simulates the tests of episodes of persons with one clip, without an effect."""
    rng = np.random.default_rng([len(design), int(shape), persons, 7])
    outcomes: Outcomes = defaultdict(list)
    for _ in range(studies):
        happy = np.concatenate([draw_happy(CLIP_FRAMES, shape, rng) for _ in range(persons)])
        condition = np.concatenate([EPISODE_DESIGNS[design](rng) for _ in range(persons)])
        person, frame = np.divmod(np.arange(persons * CLIP_FRAMES), CLIP_FRAMES)
        seen = Sightings(np.arange(len(happy)), happy.astype(int), frame / FPS, frame > 0)
        observation = np.where(condition >= 0, 2 * person + condition, -1)
        episodes = find_episodes(seen, observation)
        least_room = find_least_room(episodes, 2)
        measured = measure_episodes(
            seen, observation, episodes, least_room, ["calm", "happy"], 2 * persons
        )
        for kind in (SECONDS, RATES):
            values = measured[kind]["happy"]
            test = compare_pair(values[0::2], values[1::2], paired=True)
            if not isinstance(test, NoTest):
                outcomes[kind.title].append(test.p < ALPHA)
    return outcomes


# ------------------------------------------------------------------------- report


def table(columns: Mapping[str, Outcomes]) -> str:
    """Returns a row for each interval and test, a column for each size of a study."""
    names = list(dict.fromkeys(name for outcomes in columns.values() for name in outcomes))
    rows = [["", *columns]]
    for name in names:
        cells = []
        for outcomes in columns.values():
            hits = outcomes.get(name, [])
            cells.append(f"{np.mean(hits):.1%}" if hits else "-")
        rows.append([name, *cells])
    return markdown(rows)


def main(studies: int = 1000) -> None:
    """Runs the simulations."""
    print(machine(), flush=True)
    error = 1.96 * np.sqrt(0.95 * 0.05 / studies)
    print(f"{studies:,} studies each: 95% is 95% +- {error:.1%}\n", flush=True)
    sizes = {"100 faces": (100, 1), "300 faces": (300, 1)}
    for persons in (8, 15, 30, 100):
        sizes[f"{persons} persons of {FACES_OF_PERSON}"] = (persons, FACES_OF_PERSON)
    simulations = {
        "Scores": expression_scores,
        "Difference of two models": model_differences,
        "Difference of groups": group_differences,
        "Further heads": head_measures,
    }
    for title, simulate in simulations.items():
        columns = {}
        for name, (persons, of_person) in sizes.items():
            columns[name] = simulate(persons, of_person, studies)
        print(f"{title}\n\n{table(columns)}", flush=True)

    few = {str(count): means_of_few(count, FEW_STUDIES) for count in (2, 3, 4, 5, 6, 8, 15)}
    print(f"Means of few persons or photos\n\n{table(few)}", flush=True)

    by_persons = {f"{count} persons": means_of_persons(count, studies) for count in (6, 8, 15, 30)}
    print(f"Compare\n\n{table(by_persons)}", flush=True)

    rows = [["", *(f"{name}, {title}" for name in SHAPES for title in EPISODE_MEASURES)]]
    for design in EPISODE_DESIGNS:
        row = [design]
        for shape in SHAPES.values():
            outcomes = episode_tests(design, shape, 24, studies)
            row += [f"{np.mean(outcomes[title]):.1%}" for title in EPISODE_MEASURES]
        rows.append(row)
    print(f"Episodes: p < {ALPHA} without an effect\n\n{markdown(rows)}", flush=True)

    rows = [["faces", "mean calibration error", "bootstrap contains 0"]]
    for count in (100, 300, 1000, 3500):
        mean, contained = calibration_errors(count, studies)
        rows.append([f"{count:,}", f"{mean:.3f}", f"{contained:.1%}"])
    print(f"Calibration error of calibrated faces\n\n{markdown(rows)}", flush=True)


if __name__ == "__main__":
    run_main(main)
