"""Averages against pandas, and episodes of clips against values counted by hand."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_ind

from fer_vit.comparison.kinds import SHARE_TITLE, MeasureKind
from fer_vit.comparison.observations import make_study
from fer_vit.comparison.page import clearness
from fer_vit.comparison.prose import MAX_NAMES, measure_names, methods, sentences, size_text
from fer_vit.comparison.results import ContrastTest, compare_kind, compute_results
from fer_vit.comparison.study import ConditionCounts, Study, choose_design
from fer_vit.comparison.tables import measure_table
from fer_vit.errors import FerVitError
from fer_vit.evaluation.read import read_predictions
from fer_vit.predict.smoothing import RECORDED
from fer_vit.stats.persons import Difference, MeansTest
from fer_vit.stats.series import Rest, bin_values


def study(table: pd.DataFrame, folder: Path, baseline: str | None = None) -> Study:
    path = folder / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    return make_study(read_predictions(path, videos=True), "condition", "subject", baseline)


@pytest.mark.parametrize(
    ("number", "baseline", "most"),
    [(20, None, 0), (21, None, 20), (60, None, 20), (50, "c0", 0), (51, "c0", 50)],
)
def test_the_number_of_conditions_is_limited(
    number: int, baseline: str | None, most: int, tmp_path: Path
) -> None:
    """All pairs of 50 conditions took minutes; with a baseline there are 49."""
    places = np.arange(2 * number)
    table = pd.DataFrame({"path": [f"{place}.png" for place in places], "face": 0})
    table["subject"] = places // number
    table["condition"] = [f"c{place}" for place in places % number]
    table = table.assign(p_calm=0.6, p_happy=0.4, label="calm")
    if not most:
        assert len(study(table, tmp_path, baseline).conditions) == number
        return
    with pytest.raises(FerVitError, match=rf"at most {most} .*`condition`.* {number}\.") as raised:
        study(table, tmp_path, baseline)
    assert ("baseline" in str(raised.value)) == (number == 21)


def photos(rng: np.random.Generator) -> pd.DataFrame:
    """Photos with two faces each, of ten persons; the last one is in one condition only."""
    rows = [
        {
            "path": f"{person}{condition}{photo}.png",
            "subject": person,
            "condition": condition,
            "face": face,
        }
        for person in range(10)
        for condition in ("rest", "film")[: 1 if person == 9 else 2]
        for photo in range(1 + person % 3)
        for face in (0, 1)
    ]
    happy = rng.uniform(size=len(rows))
    table = pd.DataFrame(rows).assign(
        p_calm=1 - happy, p_happy=happy, label=np.where(happy > 0.5, "happy", "calm")
    )
    table.loc[3, "label"] = None  # below `--min_confidence`
    return table


def test_photos_are_averaged_by_person_and_condition(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    table = photos(rng)
    compared = study(table, tmp_path, baseline="rest")
    assert [*compared.conditions] == ["rest", "film"]
    assert [kind.title for kind in compared.kinds] == [
        "Mean probability",
        SHARE_TITLE,
    ]
    table["named"] = np.where(table["label"].isna(), np.nan, table["label"] == "happy")
    by_photo = table.groupby(["subject", "condition", "path"])[["p_happy", "named"]].mean()
    for kind, column in zip(compared.kinds, ("p_happy", "named"), strict=True):
        expected = by_photo[column].groupby(["subject", "condition"]).mean().unstack()
        for condition, means in compared.person_means(kind.values["happy"]).items():
            assert means == pytest.approx(expected[condition].to_numpy(), abs=1e-6, nan_ok=True)
    counts = ConditionCounts(persons=9, observations=18, faces=36, without_face=0)
    assert compared.counts()["film"] == counts
    (line,) = [note for note in compared.notes if "averaged" in note]
    assert " 37 photos " in line, "every photo has two faces"


def test_measures_of_photos_have_the_means_that_are_compared(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    compared = study(photos(rng), tmp_path, baseline="rest")
    outcomes = [compare_kind(compared, kind) for kind in compared.kinds]
    table = measure_table(compared)
    rows = pd.DataFrame(table.rows, columns=[*table.columns])
    assert len(rows) == len(compared.paths)
    means = rows.groupby(["condition", "person"]).mean(numeric_only=True)
    for outcome, prefix in zip(outcomes, ("p_", "share_"), strict=True):
        for measure, row in outcome.means.items():
            for condition, mean in row.items():
                persons = means.loc[condition, prefix + measure]
                assert mean.mean == pytest.approx(persons.mean())
                assert mean.sd == pytest.approx(persons.std())


@pytest.mark.parametrize(("rest", "missing"), [(None, 3), (Rest(0, 1), 1)])
def test_frames_without_a_face_are_counted_by_condition(
    rest: Rest | None, missing: int, tmp_path: Path
) -> None:
    clips = pd.concat([clip("a.mp4", "h--hh-h", "film"), clip("b.mp4", "cchhcch", "rest")])
    clips["confidence"] = clips[["p_calm", "p_happy"]].max(axis=1)
    clips.to_csv(tmp_path / "faces.csv", index=False)
    faces = read_predictions(tmp_path / "faces.csv", videos=True)
    compared = make_study(faces, "condition", "subject", rest=rest)
    counted = {name: counts.without_face for name, counts in compared.counts().items()}
    assert counted == {"film": missing, "rest": 0}
    assert not any("averaged" in note for note in compared.notes), "no frame has several faces"


def test_photos_that_cannot_be_read_do_not_count_as_without_a_face(tmp_path: Path) -> None:
    rows = []
    for path, status in (("a", "ok"), ("b", "no face"), ("c", "not an image"), ("d", "ok")):
        happy = 0.5 if status == "ok" else None
        row = {"path": path, "status": status, "condition": "film", "subject": "s"}
        row["label"] = "calm" if happy else None
        row |= {"p_calm": happy, "p_happy": happy, "confidence": happy}
        rows.append(row)
    table = pd.DataFrame(rows).assign(condition=["film", "film", "film", "rest"])
    assert study(table, tmp_path).counts()["film"].without_face == 1
    table["condition"] = ["film", "dark", "film", "rest"]
    compared = study(table, tmp_path)
    assert [*compared.conditions] == ["film", "rest"]
    (line,) = [line for line in methods({}, compared, compute_results(compared)) if "dark" in line]
    assert " 1 photo or frame" in line


def clip(path: str, labels: str, condition: str) -> pd.DataFrame:
    """A clip at 4 frames per second; "-" is a frame without a face."""
    rows = []
    for frame, letter in enumerate(labels):
        happy = 0.9 if letter == "h" else 0.1
        label = {"-": None, "h": "happy"}.get(letter, "calm")
        face = {
            "path": path,
            "frame": frame,
            "seconds": frame / 4,
            "condition": condition,
            "subject": path[0],
        }
        cells = {"face": 0, "track": 1, "p_calm": 1 - happy, "p_happy": happy, "label": label}
        cells |= {"label_smoothed": label, "smoothed_calm": 1 - happy, "smoothed_happy": happy}
        if letter == "-":
            cells = dict.fromkeys(cells)
        rows.append(face | cells)
    return pd.DataFrame(rows)


def test_episodes_and_transitions_of_clips(tmp_path: Path) -> None:
    others = [clip(f"{person}2.mp4", "cchc", "film") for person in "bcdef"]
    table = pd.concat(
        [clip("a1.mp4", "cchh-hcccccc", "rest"), clip("a2.mp4", "hhcc", "film"), *others]
    )
    compared = study(table, tmp_path)
    kinds = {kind.title: kind.values for kind in compared.kinds}

    def of_a(title: str) -> list[list[float]]:
        """The values of the first person: a list for each condition,
        with a number for each measure.
        """
        return np.transpose(
            [
                [row[0] for row in compared.person_means(per_label).values()]
                for per_label in kinds[title].values()
            ]
        ).tolist()

    assert [*compared.conditions] == ["film", "rest"]
    # The frame without a face, and the ends of the clips, cut all episodes of the first person,
    # whose face is followed for 2.25 s of the rest.
    assert np.isnan(of_a("Seconds per episode")).all()
    assert of_a("Episodes per minute") == [[80, 0], pytest.approx([60 / 2.25, 60 / 2.25])]
    assert list(kinds["Transitions per minute"]) == ["calm to happy", "happy to calm"]
    assert of_a("Transitions per minute") == [[0, 80], pytest.approx([60 / 2.25, 60 / 2.25])]


def test_frames_below_the_least_confidence_count_in_no_duration(tmp_path: Path) -> None:
    """`predict --min_confidence` leaves their smoothed label empty; `--intervals` omits them."""
    rest = clip("a1.mp4", "cccchhhh", "rest")
    low = [2, 3, 6]
    rest.loc[low, ["smoothed_calm", "smoothed_happy"]] = (0.55, 0.45)
    rest.loc[low, "label_smoothed"] = None
    kinds = {
        kind.title: kind.values
        for kind in study(pd.concat([rest, clip("a2.mp4", "hhcc", "film")]), tmp_path).kinds
    }
    seconds = kinds["Seconds per episode"]
    assert seconds["happy"] == pytest.approx([np.nan, 0.5], nan_ok=True)  # film, rest
    assert kinds["Episodes per minute"]["happy"] == pytest.approx([0, 2 * 60 / 1.75])
    assert [*kinds["Transitions per minute"]] == ["happy to calm"]  # in the film
    assert kinds[SHARE_TITLE]["calm"] == pytest.approx([0.5, 2 / 5])


def test_a_clip_of_one_frame_has_no_rate(tmp_path: Path) -> None:
    table = pd.concat([clip("a1.mp4", "c", "rest"), clip("a2.mp4", "hhcc", "film")])
    kinds = {kind.title: kind.values for kind in study(table, tmp_path).kinds}
    film, rest = kinds["Episodes per minute"]["calm"]
    assert film == pytest.approx(80)
    assert np.isnan(rest)


def people(*letters: str) -> tuple[np.ndarray, np.ndarray]:
    """Who is in the first and in the second condition: a, b, or ab for both."""
    return (
        np.array(["a" in person for person in letters]),
        np.array(["b" in person for person in letters]),
    )


@pytest.mark.parametrize(
    ("letters", "paired", "left_out"),
    [
        (["ab"] * 8, True, 0),
        (["ab"] * 8 + ["a"], True, 1),
        (["a"] * 20 + ["b"] * 20 + ["ab"], False, 1),
        (["a"] * 7 + ["b"] * 6, False, 0),
        (["ab"] * 9 + ["a"] * 11, True, 11),
        (["ab"] * 10 + ["a"] * 10 + ["b"] * 10, True, 20),
        (["ab"] * 6 + ["a"] * 17 + ["b"] * 16, False, 6),
    ],
)
def test_the_design_that_fits_most_persons(letters: list[str], paired: bool, left_out: int) -> None:
    design = choose_design(*people(*letters))
    assert design.paired == paired
    assert design.excluded.sum() == left_out
    assert design.persons.sum() + left_out == len(letters)


def test_one_person_in_both_groups_leaves_the_tests_between_persons(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    rows = [(f"s{number}", "film" if number % 2 else "rest") for number in range(40)]
    rows.append(("s1", "rest"))
    happy = rng.uniform(size=len(rows))
    table = pd.DataFrame(rows, columns=["subject", "condition"]).assign(
        path=[f"{number}.png" for number in range(len(rows))],
        p_calm=1 - happy,
        p_happy=happy,
        label=np.where(happy > 0.5, "happy", "calm"),
    )
    compared = study(table, tmp_path)
    design = compared.design("film", "rest")
    assert not design.paired
    assert compared.names_of(design.excluded) == ["s1"]
    (test,) = [
        comparison.test
        for comparison in compare_kind(compared, compared.kinds[0]).tested
        if comparison.measure == "happy"
    ]
    assert (test.num_first, test.num_second) == (19, 20)
    groups = table[table["subject"] != "s1"].groupby("condition")["p_happy"]
    expected = ttest_ind(groups.get_group("rest"), groups.get_group("film"), equal_var=False)
    assert test.p == pytest.approx(expected.pvalue, abs=1e-6)


def test_the_order_of_rows_has_no_effect(tmp_path: Path) -> None:
    clips = [
        clip(f"{person}{part}.mp4", "cchhcchhhc", "ab"[part]) for person in "pqr" for part in (0, 1)
    ]
    table = pd.concat(clips)
    expected = study(table, tmp_path)
    for changed in (table.sort_values("label"), table[::-1], table.sample(frac=1, random_state=0)):
        compared = study(changed, tmp_path)
        for kind, expected_kind in zip(compared.kinds, expected.kinds, strict=True):
            assert kind.values.keys() == expected_kind.values.keys()
            for name, values in kind.values.items():
                assert values == pytest.approx(expected_kind.values[name], nan_ok=True)


def test_missing_words_are_no_persons_and_no_conditions(tmp_path: Path) -> None:
    table = pd.concat(
        [clip(f"{person}{part}.mp4", "cchh", "ab"[part]) for person in "pqr" for part in (0, 1)]
    )
    table = table.reset_index(drop=True)
    for row, word in ((0, "NA"), (5, "#N/A"), (9, " ")):
        table.loc[row, "subject"] = word
    table.loc[13, "condition"] = "n/a"
    compared = study(table, tmp_path)
    assert compared.person_names == ["p", "q", "r"]
    assert compared.unassigned_faces == 4
    assert [*compared.conditions] == ["a", "b"]
    notes = "\n".join(compared.notes)
    for words in ("1 #N/A", "1 NA", "1 n/a", "3 of 24", "1 of 24"):
        assert words in notes
    for cell, message in (("-", "got `-` for "), ("B", "`B` and `b`|`b` and `B`")):
        table.loc[13, "condition"] = cell
        with pytest.raises(FerVitError, match=message):
            study(table, tmp_path)


def test_outputs_of_heads_are_compared_by_person(tmp_path: Path, rng: np.random.Generator) -> None:
    table = photos(rng)
    table["move_jawOpen"] = rng.uniform(size=len(table)) + 0.3 * (table["condition"] == "film")
    table["yaw"] = np.where(
        rng.uniform(size=len(table)) < 0.3, np.nan, rng.normal(0, 20, len(table))
    )
    table["valence"] = np.nan
    compared = study(table, tmp_path, baseline="rest")
    kinds = {kind.title: kind for kind in compared.kinds[2:]}
    assert [*kinds] == ["Movements", "Head pose"]
    for title, column in {"Movements": "move_jawOpen", "Head pose": "yaw"}.items():
        by_photo = table.groupby(["subject", "condition", "path"])[column].mean()
        expected = by_photo.groupby(["subject", "condition"]).mean().unstack()
        (values,) = kinds[title].values.values()
        for condition, means in compared.person_means(values).items():
            assert means == pytest.approx(expected[condition].to_numpy(), abs=1e-6, nan_ok=True)
    (comparison,) = compare_kind(compared, kinds["Movements"]).comparisons
    assert isinstance(comparison, ContrastTest)
    assert comparison.measure == "jawOpen"


def test_no_difference_of_shares_is_above_one(tmp_path: Path) -> None:
    """Six of seven persons differ: the t interval alone would end at 121 percentage points."""
    table = photos(np.random.default_rng(0))
    table = table[table["subject"] < 7].copy()
    happy = (table["condition"] == "film") & (table["subject"] != 3)
    table["label"] = np.where(happy, "happy", "calm")
    table["p_happy"] = np.where(happy, 0.75, 0.25)
    table["p_calm"] = 1 - table["p_happy"]
    compared = study(table, tmp_path, baseline="rest")
    (kind,) = [kind for kind in compared.kinds if kind.title == SHARE_TITLE]
    tests = {each.measure: each.test for each in compare_kind(compared, kind).tested}
    for label, sign in (("happy", 1), ("calm", -1)):
        difference = tests[label].difference
        assert difference.mean == pytest.approx(sign * 6 / 7)
        bounds = sorted([abs(difference.low), abs(difference.high)])
        assert bounds == pytest.approx([0.5075, 1], abs=1e-3)


@pytest.mark.parametrize(("rest", "turned"), [(5.0, 12.0), (178.0, -175.0)])
def test_outputs_of_clips_change_from_rest(tmp_path: Path, rest: float, turned: float) -> None:
    """Angles change the shorter way, also across half a turn."""
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["roll"] = np.where(table["seconds"] < 1, rest, turned)
    path = tmp_path / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    faces = read_predictions(path, videos=True)
    compared = make_study(faces, "condition", "subject", rest=Rest(0, 0.25))
    (kind,) = [kind for kind in compared.kinds if kind.title.startswith("Head pose")]
    # Four frames of the seven after the first are turned by 7 degrees more.
    assert kind.values["roll"] == pytest.approx([4, 4])
    assert kind.form == "+.1f"


@pytest.mark.parametrize("turn", [0.0, 90.0, 177.0, 180.0])
def test_angles_are_averaged_as_directions(
    tmp_path: Path, rng: np.random.Generator, turn: float
) -> None:
    """A camera that is turned changes all rolls by one number, and no difference."""
    table = photos(rng)
    upright = rng.normal(0, 5, len(table)) + 4 * (table["condition"] == "film")
    expected = upright.groupby([table["subject"], table["condition"]]).mean().unstack()
    table["roll"] = (upright + turn + 180) % 360 - 180
    compared = study(table, tmp_path, baseline="rest")
    (kind,) = [kind for kind in compared.kinds if kind.title == "Head pose"]
    (comparison,) = compare_kind(compared, kind).comparisons
    difference = expected["film"] - expected["rest"]
    assert isinstance(comparison, ContrastTest)
    assert comparison.test.difference.mean == pytest.approx(difference.mean(), abs=1e-4)
    cells = compared.person_means(kind.values["roll"])
    for condition, means in cells.items():
        away = means - turn - expected[condition].to_numpy()
        away = away[np.isfinite(away)]
        assert len(away) == (10 if condition == "rest" else 9)
        np.testing.assert_allclose((away + 180) % 360, 180, atol=1e-3)


def test_opposite_angles_have_no_mean(tmp_path: Path) -> None:
    """-90 and 90 degrees cancel: in a clip, in a person's clips, and in the interval of rest."""
    clips = []
    for name, condition, rolls in (
        ("a1", "x", [90, -90]),
        ("a2", "y", [90, 90]),
        ("a3", "y", [-90, -90]),
        ("b1", "x", [10, 20]),
        ("b2", "y", [170, -170]),
    ):
        part = clip(f"{name}.mp4", "cccc", condition)
        part["roll"] = np.tile(rolls, 2)
        clips.append(part)
    compared = study(pd.concat(clips), tmp_path)
    (kind,) = [kind for kind in compared.kinds if kind.title == "Head pose"]
    values = dict(zip(compared.paths, kind.values["roll"], strict=True))
    assert np.isnan(values["a1.mp4"])
    assert abs(values["a2.mp4"]) == pytest.approx(90)
    means = compared.person_means(kind.values["roll"], kind.period)
    assert np.isnan(means["y"][0])
    assert abs(means["y"][1]) == pytest.approx(180)
    assert means["x"] == pytest.approx([np.nan, 15], nan_ok=True)

    faces = read_predictions(tmp_path / "faces.csv", videos=True)
    rested = make_study(faces, "condition", "subject", rest=Rest(0, 0.5))
    (kind,) = [kind for kind in rested.kinds if kind.title.startswith("Head pose")]
    changes = dict(zip(rested.paths, kind.values["roll"], strict=True))
    assert np.isnan(changes["a1.mp4"])
    assert changes["b2.mp4"] == pytest.approx(0, abs=1e-9)


def test_frames_before_0_belong_to_the_start_of_a_clip(tmp_path: Path) -> None:
    """The times of some videos begin below 0: these frames are rest, and in the first bin."""
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["seconds"] -= 0.25
    table["valence"] = np.where(table["seconds"] < 0.2, 0.0, 0.5)  # two frames
    path = tmp_path / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    faces = read_predictions(path, videos=True)
    compared = make_study(faces, "condition", "subject", rest=Rest(0, 0.2))
    assert compared.face_counts.tolist() == [6, 6]
    (kind,) = [kind for kind in compared.kinds if kind.title.startswith("Valence")]
    assert kind.values["valence"] == pytest.approx([0.5, 0.5])

    whole = make_study(faces, "condition", "subject")
    series = bin_values(whole.probabilities, whole.seconds, whole.observation_of_face, 0.5)
    expected = table["p_happy"].to_numpy()[:3].mean()
    assert series[0, 0, whole.labels.index("happy")] == pytest.approx(expected)


def test_means_and_changes_from_rest_are_of_values_before_smoothing(tmp_path: Path) -> None:
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["smoothed_happy"] = np.where(table["seconds"] < 1, 0.2, 0.6)
    table["smoothed_calm"] = 1 - table["smoothed_happy"]
    means = study(table, tmp_path).kinds[0]
    assert means.values["happy"] == pytest.approx([0.5, 0.5])  # the mean of 0.1 and 0.9

    faces = read_predictions(tmp_path / "faces.csv", videos=True)
    changed = make_study(faces, "condition", "subject", rest=Rest(0, 1))
    assert changed.kinds[0].values["happy"] == pytest.approx([0.8, 0.8])  # from 0.1 to 0.9
    happy = changed.labels.index("happy")
    assert changed.probabilities[:, happy] == pytest.approx(np.full(8, 0.4))  # from 0.2 to 0.6


def test_methods_describe_the_smoothing_of_clips(tmp_path: Path) -> None:
    table = pd.concat([clip("a.mp4", "cchh", "x"), clip("b.mp4", "cchh", "y")])
    compared = study(table, tmp_path)
    results = compute_results(compared)
    recorded = methods({"version": "0.1", "smooth": "0.4"}, compared, results)
    assert RECORDED.describe("0.4") in recorded[0]


@pytest.mark.parametrize(("second", "direction"), [("film", "higher"), ("early", "lower")])
def test_a_sentence_has_size_and_interval_of_its_direction(second: str, direction: str) -> None:
    values = np.concatenate([np.linspace(0.1, 0.2, 8), np.linspace(0.5, 0.8, 8)])
    person = np.tile(np.arange(8), 2)
    is_rest = (np.arange(16) < 8) == (second == "film")
    kind = MeasureKind(
        title="Mean probability",
        phrase="the mean probability",
        subject="the mean probability of",
        prefix="p_",
        form=".3f",
        unit="",
        values={"happy": values},
    )
    compared = Study(
        conditions={"rest": is_rest, second: ~is_rest},
        pairs=[("rest", second)],
        person_names=[*"abcdefgh"],
        person=person,
        paths=[f"{number}.png" for number in range(16)],
        face_counts=np.ones(16, int),
        kinds=[kind],
        labels=["happy"],
        observation_of_face=np.arange(16),
        seconds=np.full(16, np.nan),
        probabilities=values[:, None],
    )
    (line,) = sentences(kind, compare_kind(compared, kind).comparisons)
    numbers = re.findall(r"-?\d\.\d{3}", line)
    changes = values[8:] - values[:8]  # (8,)
    low, high = t.interval(0.95, 7, changes.mean(), changes.std(ddof=1) / np.sqrt(8))
    expected = [changes.mean(), low, high]
    assert direction in line
    assert [float(number) for number in numbers[:3]] == pytest.approx(expected, abs=5e-4)
    assert "g = -" not in line


def means_test(difference: Difference) -> MeansTest:
    return MeansTest(
        difference,
        t=0.5,
        df=7,
        p=0.5,
        paired=True,
        num_first=8,
        num_second=8,
        p_by_ranks=0.5,
        g=0.1,
    )


@pytest.mark.parametrize("of_head", [True, False])
def test_many_outputs_without_a_clear_difference_are_named_by_area(of_head: bool) -> None:
    names = [f"{area} {number}" for area in ("brow", "mouth") for number in range(MAX_NAMES)]
    kind = MeasureKind(
        title="Movements",
        phrase="",
        subject="the mean intensity of",
        prefix="",
        form=".3f",
        unit="",
        values=dict.fromkeys(names, np.zeros(1)),
        of_head=of_head,
    )
    assert measure_names(kind, names[:2]) == "brow 0, brow 1"
    listed = measure_names(kind, names[:-1])
    numbers = ", ".join(str(number) for number in range(MAX_NAMES))
    assert listed.startswith(f"brow ({numbers}), mouth (") == of_head
    assert ("more" in listed) != of_head

    test = means_test(Difference(mean=0.0, low=-0.1, high=0.1, n=8))
    comparisons = [ContrastTest(name, "rest", "film", test, p_corrected=1.0) for name in names]
    (line,) = sentences(kind, comparisons)
    assert f"any of the {len(names)} measures" in line


def test_a_difference_is_clear_by_the_width_of_its_interval() -> None:
    sizes = {"wide": (0.5, -0.5, 1.5), "narrow": (-0.2, -0.3, -0.1)}
    comparisons = []
    for name, (mean, low, high) in sizes.items():
        test = means_test(Difference(mean, low, high, n=8))
        comparisons.append(ContrastTest(name, "rest", "film", test, p_corrected=0.5))
    assert [clearness(comparison) for comparison in comparisons] == pytest.approx([0.25, 1.0])


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.2345, ".3f", "0.234"),
        (0.00031, "+.3f", "0.0003"),
        (-0.00031, "+.3f", "-0.0003"),
        (0.916667, ".1%", "91.7"),
        (0.0002, ".1%", "0.02"),
    ],
)
def test_a_difference_is_never_rounded_to_zero(value: float, form: str, text: str) -> None:
    assert size_text(value, form) == text


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-17, -1e-17])
@pytest.mark.parametrize(("form", "text"), [(".3f", "0.000"), ("+.3f", "0.000"), (".1%", "0.0")])
def test_no_difference_is_zero_without_a_sign(value: float, form: str, text: str) -> None:
    assert size_text(value, form) == text
