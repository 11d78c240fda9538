"""Averages against pandas, and episodes of clips against values counted by hand."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_ind, ttest_rel
from statsmodels.stats.multitest import multipletests

from fer_vit.comparison.compare_study import compare_conditions
from fer_vit.comparison.comparison_page import clearness
from fer_vit.comparison.comparison_results import Comparison
from fer_vit.comparison.comparison_rows import Contrast, find_contrasts
from fer_vit.comparison.episodes import TRANSITIONS
from fer_vit.comparison.measures import SHARES, Kind, Measure
from fer_vit.comparison.read_study import CompareOptions, read_study
from fer_vit.comparison.study import Study, choose_design
from fer_vit.comparison.study_tables import measure_table
from fer_vit.errors import FerVitError
from fer_vit.predict.smoothing import RECORDED
from fer_vit.stats.estimate import size_text
from fer_vit.stats.series import Rest, bin_values
from fer_vit.store.hub import shipped_models


def study(
    table: pd.DataFrame,
    folder: Path,
    baseline: str | None = None,
    rest: Rest | None = None,
    outcomes: Sequence[str] = (),
) -> Study:
    path = folder / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    options = CompareOptions(
        path,
        by="condition",
        person="subject",
        baseline=baseline,
        outcomes=outcomes,
        rest=None if rest is None else str(rest),
    )
    return read_study(options)


def contrasts(comparison: Comparison, kind: Kind) -> dict[str, Contrast]:
    """The contrasts of two conditions by name of the measure."""
    found = find_contrasts(comparison, comparison.study, kind)
    return {contrast.measure.name: contrast for contrast in found}


def measured(compared: Study, column: str) -> Measure:
    """The measure with a column in measures.csv."""
    columns = {}
    for measures in compared.measures.values():
        columns |= {measure.column: measure for measure in measures}
    return columns[column]


def titles(compared: Study) -> list[str]:
    return [kind.title for kind in compared.measures]


def counted(compared: Study, condition: str) -> dict[str, int]:
    """The numbers of persons, photos and faces of a condition."""
    rows = compare_conditions(compared).select(set="conditions", group=condition)
    return {row.measure: row.estimate.n for row in rows}


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
        assert len(study(table, tmp_path, baseline).members) == number
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
    assert [*compared.members] == ["rest", "film"]
    assert titles(compared) == ["Mean probability", "Share of faces with the label"]
    table["named"] = np.where(table["label"].isna(), np.nan, table["label"] == "happy")
    by_photo = table.groupby(["subject", "condition", "path"])[["p_happy", "named"]].mean()
    for column, measure in (("p_happy", "p_happy"), ("named", "share_happy")):
        expected = by_photo[column].groupby(["subject", "condition"]).mean().unstack()
        for condition, means in compared.person_means(measured(compared, measure)).items():
            assert means == pytest.approx(expected[condition].to_numpy(), abs=1e-6, nan_ok=True)
    expected = {"persons": 9, "photos or clips": 18, "faces": 36, "without a face": 0}
    assert counted(compared, "film") == expected
    (line,) = [note for note in compared.notes if "averaged" in note]
    assert " 37 photos " in line, "every photo has two faces"


def test_measures_of_photos_have_the_means_that_are_compared(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    compared = study(photos(rng), tmp_path, baseline="rest")
    table = measure_table(compared)
    rows = pd.DataFrame(table.rows, columns=[*table.columns])
    assert len(rows) == len(compared.observations.paths)
    means = rows.groupby(["condition", "person"]).mean(numeric_only=True)
    numbers = compare_conditions(compared).select(set="means")
    assert {row.part for row in numbers} == {"p_calm", "p_happy", "share_calm", "share_happy"}
    for row in numbers:
        persons = means.loc[row.group, row.part]
        expected = persons.mean() if row.measure == "mean" else persons.std()
        assert row.estimate.mean == pytest.approx(expected)


@pytest.mark.parametrize(("rest", "missing"), [(None, 3), (Rest(0, 1), 1)])
def test_frames_without_a_face_are_counted_by_condition(
    rest: Rest | None, missing: int, tmp_path: Path
) -> None:
    clips = pd.concat([clip("a.mp4", "h--hh-h", "film"), clip("b.mp4", "cchhcch", "rest")])
    compared = study(clips, tmp_path, rest=rest)
    assert counted(compared, "film")["without a face"] == missing
    assert counted(compared, "rest")["without a face"] == 0
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
    assert counted(study(table, tmp_path), "film")["without a face"] == 1
    table["condition"] = ["film", "dark", "film", "rest"]
    compared = study(table, tmp_path)
    assert [*compared.members] == ["film", "rest"]
    (line,) = [line for line in compare_conditions(compared).methods if "dark" in line]
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
    kinds = {kind.title: measures for kind, measures in compared.measures.items()}

    def of_a(title: str) -> list[list[float]]:
        """The values of the first person: a list for each condition,
        with a number for each measure.
        """
        numbers = []
        for measure in kinds[title]:
            by_condition = compared.person_means(measure)
            numbers.append([of_persons[0] for of_persons in by_condition.values()])
        return np.transpose(numbers).tolist()

    assert [*compared.members] == ["film", "rest"]
    # The frame without a face, and the ends of the clips, cut all episodes of the first person,
    # whose face is followed for 2.25 s of the rest.
    assert np.isnan(of_a("Seconds per episode")).all()
    assert of_a("Episodes per minute") == [[80, 0], pytest.approx([60 / 2.25, 60 / 2.25])]
    transitions = [measure.name for measure in kinds["Transitions per minute"]]
    assert transitions == ["calm to happy", "happy to calm"]
    assert of_a("Transitions per minute") == [[0, 80], pytest.approx([60 / 2.25, 60 / 2.25])]


def test_frames_below_the_least_confidence_count_in_no_duration(tmp_path: Path) -> None:
    """`predict --min_confidence` leaves their smoothed label empty; `--intervals` omits them."""
    rest = clip("a1.mp4", "cccchhhh", "rest")
    low = [2, 3, 6]
    rest.loc[low, ["smoothed_calm", "smoothed_happy"]] = (0.55, 0.45)
    rest.loc[low, "label_smoothed"] = None
    compared = study(pd.concat([rest, clip("a2.mp4", "hhcc", "film")]), tmp_path)
    assert measured(compared, "seconds_happy").values == pytest.approx(
        [np.nan, 0.5], nan_ok=True
    )  # film, rest
    assert measured(compared, "episodes_happy").values == pytest.approx([0, 2 * 60 / 1.75])
    (transition,) = compared.measures[TRANSITIONS]
    assert transition.name == "happy to calm"  # in the film
    assert measured(compared, "share_calm").values == pytest.approx([0.5, 2 / 5])


def test_a_clip_of_one_frame_has_no_rate(tmp_path: Path) -> None:
    table = pd.concat([clip("a1.mp4", "c", "rest"), clip("a2.mp4", "hhcc", "film")])
    compared = study(table, tmp_path)
    film, rest = measured(compared, "episodes_calm").values
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
    (design,) = compared.designs.values()
    assert not design.paired
    assert compared.names_of(design.excluded) == ["s1"]
    test = compare_conditions(compared).to_dict()["Mean probability"]["differences"]
    assert test["happy: rest - film"]["persons"] == [19, 20]
    groups = table[table["subject"] != "s1"].groupby("condition")["p_happy"]
    expected = ttest_ind(groups.get_group("rest"), groups.get_group("film"), equal_var=False)
    assert test["happy: rest - film"]["p"] == pytest.approx(expected.pvalue, abs=1e-6)


def test_the_order_of_rows_has_no_effect(tmp_path: Path) -> None:
    clips = [
        clip(f"{person}{part}.mp4", "cchhcchhhc", "ab"[part]) for person in "pqr" for part in (0, 1)
    ]
    table = pd.concat(clips)
    expected = study(table, tmp_path)
    for changed in (table.sort_values("label"), table[::-1], table.sample(frac=1, random_state=0)):
        compared = study(changed, tmp_path)
        assert titles(compared) == titles(expected)
        for kind, measures in compared.measures.items():
            for measure, in_order in zip(measures, expected.measures[kind], strict=True):
                assert measure.name == in_order.name
                assert measure.values == pytest.approx(in_order.values, nan_ok=True)


def test_missing_words_are_no_persons_and_no_conditions(tmp_path: Path) -> None:
    table = pd.concat(
        [clip(f"{person}{part}.mp4", "cchh", "ab"[part]) for person in "pqr" for part in (0, 1)]
    )
    table = table.reset_index(drop=True)
    for row, word in ((0, "NA"), (5, "#N/A"), (9, " ")):
        table.loc[row, "subject"] = word
    table.loc[13, "condition"] = "n/a"
    compared = study(table, tmp_path)
    assert compared.observations.persons == ["p", "q", "r"]
    assert compared.unassigned_faces == 4
    assert [*compared.members] == ["a", "b"]
    notes = "\n".join(compared.notes)
    for words in ("1 #N/A", "1 NA", "1 n/a", "3 of 24", "1 of 24"):
        assert words in notes
    for cell, message in (("-", "got `-` for "), ("B", "`B` and `b`|`b` and `B`")):
        table.loc[13, "condition"] = cell
        with pytest.raises(FerVitError, match=message):
            study(table, tmp_path)


def test_planned_outcomes_are_compared_alone_and_corrected_together(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    names = ["move_mouthSmileLeft", "move_mouthSmileRight", "valence", "arousal"]
    first = {name: rng.normal(0.4, 0.1, 8) for name in names}
    second = {name: first[name] + rng.normal(0.08, 0.1, 8) for name in names}
    everything = compare_columns(tmp_path, first, second)
    outcomes = ["smile, arousal,", "p_happy"]
    planned = compare_columns(tmp_path, first, second, outcomes).to_dict()
    assert planned["outcomes"] == ["smile", "arousal", "p_happy"]
    assert "Movements" not in planned

    p_values = []
    for measure in ("smile", "arousal"):
        sides = names[:2] if measure == "smile" else [measure]
        low, high = (np.mean([part[side] for side in sides], axis=0) for part in (first, second))
        p_values.append(ttest_rel(high, low).pvalue)
    corrected = multipletests(p_values, method="holm")[1]  # all of p_happy are equal: no test
    for title, measure, p in (
        ("Movements of both sides", "smile", corrected[0]),
        ("Valence and arousal", "arousal", corrected[1]),
    ):
        contrast = f"{measure}: film - rest"
        test = planned[title]["differences"]
        assert [*test] == [contrast]
        assert test[contrast]["p corrected"] == pytest.approx(p, abs=1e-6)
        alone = everything.to_dict()[title]["differences"][contrast]
        assert alone["p"] == test[contrast]["p"]

    with pytest.raises(FerVitError, match=r"smiles\. Did you mean `?smile"):
        compare_columns(tmp_path, first, second, ["smiles"])


def test_weak_outputs_are_marked_and_not_corrected_unless_planned(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """In the default model, jawRight (r 0.225) is weak, and jawOpen (0.791) is not."""
    first = {f"move_{name}": rng.normal(0.4, 0.1, 8) for name in ("jawOpen", "jawRight")}
    first |= {name: rng.normal(0.4, 0.1, 8) for name in ("valence", "yaw")}
    second = {name: values + rng.normal(0.3, 0.1, 8) for name, values in first.items()}
    model = {"model": "ferplus-fairface"}
    comparison = compare_columns(tmp_path, first | model, second | model)
    results = comparison.to_dict()
    tests = results["Movements"]["differences"]
    assert results["Movements"]["weak"] == ["jawRight"]
    assert tests["jawRight: film - rest"]["p corrected"] is None
    assert tests["jawOpen: film - rest"]["p corrected"] == tests["jawOpen: film - rest"]["p"]
    (sentence,) = comparison.sentences["Movements"]
    assert "jaw open" in sentence
    assert "1 measure whose output" in comparison.methods[0]
    assert "FairFace" in comparison.methods[0], "the training data"
    comparison.write(tmp_path / "c")
    page = (tmp_path / "c" / "results.md").read_text()
    assert "jaw right (weak)" in page
    assert "1 measure is weak" in page

    planned = compare_columns(tmp_path, first | model, second | model, ["move_jawRight"])
    (sentence,) = planned.sentences["Movements"]
    assert "jaw right (weak)" in sentence
    copied = tmp_path / "copied"
    shutil.copytree(shipped_models()["ferplus-fairface"], copied)
    for name in ("elsewhere/model", str(copied)):  # a table names no path
        unknown = {"model": name}
        results = compare_columns(tmp_path, first | unknown, second | unknown).to_dict()
        assert "weak" not in results["Movements"], "not measured"


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [([","], "but got none"), (["change_p_happy"], "but got change_p_happy")],
)
def test_outcomes_that_name_no_measure_are_one_line(
    outcomes: list[str], message: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    table = photos(rng)
    table["confidence"] = table[["p_calm", "p_happy"]].max(axis=1)
    table.to_csv(tmp_path / "faces.csv", index=False)
    with pytest.raises(FerVitError, match=message):
        read_study(
            CompareOptions(
                tmp_path / "faces.csv", by="condition", person="subject", outcomes=outcomes
            )
        )


def test_a_movement_is_preferred_where_labels_are_compared(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    table = photos(rng).rename(columns={"p_calm": "p_neutral", "p_happy": "p_happiness"})
    table["label"] = table["label"].replace({"calm": "neutral", "happy": "happiness"})
    table["confidence"] = table[["p_neutral", "p_happiness"]].max(axis=1)
    table["yaw"] = rng.normal(size=len(table))
    for side in ("Left", "Right"):
        table[f"move_mouthSmile{side}"] = rng.random(len(table))
    table.to_csv(tmp_path / "faces.csv", index=False)
    for outcomes, hinted in (([], True), (["yaw"], False)):
        options = CompareOptions(
            tmp_path / "faces.csv", by="condition", person="subject", outcomes=outcomes
        )
        comparison = compare_conditions(read_study(options))
        comparison.write(tmp_path / "c")
        page = (tmp_path / "c" / "results.md").read_text()
        assert ("prefer the movement" in page) == hinted
        assert ("ICC(1)" in page) == hinted


def test_two_pairs_of_conditions_with_one_name_are_refused(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    table = photos(rng)
    names = ["a", "b - a", "c", "c - b"]  # c - b - a would be two differences
    table["condition"] = [names[row // 2 % 4] for row in range(len(table))]
    with pytest.raises(FerVitError, match="c - b - a stands for several"):
        study(table, tmp_path)


def test_differences_below_the_last_digit_are_negligible(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    first = {"arousal": rng.normal(0.1, 0.1, 8)}
    second = {"arousal": first["arousal"] + rng.normal(2e-4, 1e-5, 8)}
    comparison = compare_columns(tmp_path, first, second)
    (line,) = comparison.sentences["Valence and arousal"]
    assert line == "Any difference between film and rest in the mean arousal is below 0.001."
    test = comparison.to_dict()["Valence and arousal"]["differences"]["arousal: film - rest"]
    assert test["p"] < 0.001
    comparison.write(tmp_path / "c")
    page = (tmp_path / "c" / "results.md").read_text()
    assert "| arousal | < 0.001 | < 0.001 |" in page
    assert "0.0002" not in (tmp_path / "c" / "index.html").read_text()


def test_outputs_of_heads_are_compared_by_person(tmp_path: Path, rng: np.random.Generator) -> None:
    table = photos(rng)
    table["move_jawOpen"] = rng.uniform(size=len(table)) + 0.3 * (table["condition"] == "film")
    table["yaw"] = np.where(
        rng.uniform(size=len(table)) < 0.3, np.nan, rng.normal(0, 20, len(table))
    )
    table["valence"] = np.nan
    compared = study(table, tmp_path, baseline="rest")
    assert titles(compared)[2:] == ["Movements", "Head pose"]
    for column in ("move_jawOpen", "yaw"):
        by_photo = table.groupby(["subject", "condition", "path"])[column].mean()
        expected = by_photo.groupby(["subject", "condition"]).mean().unstack()
        for condition, means in compared.person_means(measured(compared, column)).items():
            assert means == pytest.approx(expected[condition].to_numpy(), abs=1e-6, nan_ok=True)
    differences = compare_conditions(compared).to_dict()["Movements"]["differences"]
    assert differences["jawOpen: film - rest"]["persons"] == [9, 9]


def test_no_difference_of_shares_is_above_one(tmp_path: Path) -> None:
    """Six of seven persons differ: the t interval alone would end at 121 percentage points."""
    table = photos(np.random.default_rng(0))
    table = table[table["subject"] < 7].copy()
    happy = (table["condition"] == "film") & (table["subject"] != 3)
    table["label"] = np.where(happy, "happy", "calm")
    table["p_happy"] = np.where(happy, 0.75, 0.25)
    table["p_calm"] = 1 - table["p_happy"]
    compared = study(table, tmp_path, baseline="rest")
    tests = contrasts(compare_conditions(compared), SHARES)
    for label, sign in (("happy", 1), ("calm", -1)):
        difference = tests[label].difference.estimate
        assert difference.mean == pytest.approx(sign * 6 / 7)
        bounds = sorted([abs(difference.low), abs(difference.high)])
        assert bounds == pytest.approx([0.5075, 1], abs=1e-3)


@pytest.mark.parametrize(("rest", "turned"), [(5.0, 12.0), (178.0, -175.0)])
def test_outputs_of_clips_change_from_rest(tmp_path: Path, rest: float, turned: float) -> None:
    """Angles change the shorter way, also across half a turn."""
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["roll"] = np.where(table["seconds"] < 1, rest, turned)
    compared = study(table, tmp_path, rest=Rest(0, 0.25))
    roll = measured(compared, "change_roll")
    # Four frames of the seven after the first are turned by 7 degrees more.
    assert roll.values == pytest.approx([4, 4])
    assert roll.kind.form == "+.1f"


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
    roll = measured(compared, "roll")
    found = contrasts(compare_conditions(compared), roll.kind)["roll"].difference.estimate.mean
    difference = expected["film"] - expected["rest"]
    assert found == pytest.approx(difference.mean(), abs=1e-4)
    for condition, means in compared.person_means(roll).items():
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
    roll = measured(compared, "roll")
    values = dict(zip(compared.observations.paths, roll.values, strict=True))
    assert np.isnan(values["a1.mp4"])
    assert abs(values["a2.mp4"]) == pytest.approx(90)
    means = compared.person_means(roll)
    assert np.isnan(means["y"][0])
    assert abs(means["y"][1]) == pytest.approx(180)
    assert means["x"] == pytest.approx([np.nan, 15], nan_ok=True)

    rested = study(pd.concat(clips), tmp_path, rest=Rest(0, 0.5))
    rolls = measured(rested, "change_roll").values
    changes = dict(zip(rested.observations.paths, rolls, strict=True))
    assert np.isnan(changes["a1.mp4"])
    assert changes["b2.mp4"] == pytest.approx(0, abs=1e-9)


def test_frames_before_0_belong_to_the_start_of_a_clip(tmp_path: Path) -> None:
    """The times of some videos begin below 0: these frames are rest, and in the first bin."""
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["seconds"] -= 0.25
    table["valence"] = np.where(table["seconds"] < 0.2, 0.0, 0.5)  # two frames
    compared = study(table, tmp_path, rest=Rest(0, 0.2))
    assert compared.observations.face_counts.tolist() == [6, 6]
    assert measured(compared, "change_valence").values == pytest.approx([0.5, 0.5])

    whole = study(table, tmp_path)
    faces = whole.faces
    series = bin_values(faces.probabilities, faces.seconds, faces.observation, 0.5)
    expected = table["p_happy"].to_numpy()[:3].mean()
    assert series[0, 0, whole.labels.index("happy")] == pytest.approx(expected)


def test_means_and_changes_from_rest_are_of_values_before_smoothing(tmp_path: Path) -> None:
    table = pd.concat([clip("a.mp4", "cccchhhh", "x"), clip("b.mp4", "cccchhhh", "y")])
    table["smoothed_happy"] = np.where(table["seconds"] < 1, 0.2, 0.6)
    table["smoothed_calm"] = 1 - table["smoothed_happy"]
    means = measured(study(table, tmp_path), "p_happy").values
    assert means == pytest.approx([0.5, 0.5])  # the mean of 0.1 and 0.9

    changed = study(table, tmp_path, rest=Rest(0, 1))
    assert measured(changed, "change_p_happy").values == pytest.approx(
        [0.8, 0.8]
    )  # from 0.1 to 0.9
    happy = changed.labels.index("happy")
    assert changed.faces.probabilities[:, happy] == pytest.approx(
        np.full(8, 0.4)
    )  # from 0.2 to 0.6


def test_methods_describe_the_smoothing_of_clips(tmp_path: Path) -> None:
    table = pd.concat([clip("a.mp4", "cchh", "x"), clip("b.mp4", "cchh", "y")])
    compared = study(table, tmp_path)
    recorded = replace(compared, facts={"version": "0.1", "smooth": "0.4"})
    assert RECORDED.describe("0.4") in compare_conditions(recorded).methods[0]


def compare_columns(
    folder: Path,
    first: dict[str, Any],
    second: dict[str, Any],
    outcomes: Sequence[str] = (),
) -> Comparison:
    """Compares columns of predictions of eight persons in two conditions, rest and film."""
    parts = []
    for condition, columns in {"rest": first, "film": second}.items():
        part = pd.DataFrame(columns).assign(condition=condition, subject=[*"abcdefgh"])
        part["p_calm"] = [0.6] * 4 + [0.4] * 4
        part["p_happy"] = 1 - part["p_calm"]
        part["label"] = ["calm"] * 4 + ["happy"] * 4
        part["path"] = part["subject"] + condition
        parts.append(part)
    return compare_conditions(study(pd.concat(parts), folder, "rest", outcomes=outcomes))


@pytest.mark.parametrize("rises", [True, False])
def test_a_sentence_has_size_and_interval_of_its_direction(rises: bool, tmp_path: Path) -> None:
    low, high = np.linspace(0.1, 0.2, 8), np.linspace(0.5, 0.8, 8)
    first, second = (low, high) if rises else (high, low)
    comparison = compare_columns(tmp_path, {"valence": first}, {"valence": second})
    (line,) = comparison.sentences["Valence and arousal"]
    numbers = re.findall(r"-?\d\.\d{3}", line)
    changes = high - low  # (8,)
    bounds = t.interval(0.95, 7, changes.mean(), changes.std(ddof=1) / np.sqrt(8))
    expected = [changes.mean(), *bounds]
    assert ("higher in film" if rises else "lower in film") in line
    assert [float(number) for number in numbers[:3]] == pytest.approx(expected, abs=5e-4)
    assert "g = -" not in line


def test_the_largest_effects_have_sentences(tmp_path: Path, rng: np.random.Generator) -> None:
    names = [f"move_{name}" for name in "abcdefghijklm"]
    first = {name: rng.normal(0.4, 0.02, 8) for name in names}
    second = {}
    for place, name in enumerate(names):
        second[name] = first[name] + 0.1 + 0.01 * place + rng.normal(0, 0.005, 8)
    comparison = compare_columns(tmp_path, first, second)
    *lines, last = comparison.sentences["Movements"]
    effects = [float(re.search(r"g = (\d+\.\d+)", line)[1]) for line in lines]
    assert len(effects) == 10
    assert effects == sorted(effects, reverse=True)
    tests = comparison.to_dict()["Movements"]["differences"].values()
    assert effects[0] == pytest.approx(max(test["g"] for test in tests), abs=0.005)
    assert last.startswith("3 more")


@pytest.mark.parametrize(("number", "named"), [(2, True), (12, True), (13, False)])
def test_outputs_without_a_clear_difference_are_named(
    number: int, named: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Many are named by area; if no output differs, and there are many, none is named."""
    areas = ["brow", "mouth"] * 7
    names = [f"move_{area}{place}" for place, area in enumerate(areas)][:13]
    first = {name: rng.normal(0.4, 0.1, 8) for name in names}
    second = {name: first[name] + rng.normal(0, 0.1, 8) for name in names}
    for name in names[number:]:
        second[name] = first[name] + 0.3 + rng.normal(0, 0.01, 8)
    *_, line = compare_columns(tmp_path, first, second).sentences["Movements"]
    assert ("any of the 13 measures" in line) != named
    if number == 2:
        assert "brow0, mouth1" in line
    if number == 12:
        assert "brow0, brow2" not in line


def test_a_difference_is_clear_by_the_width_of_its_interval(tmp_path: Path) -> None:
    noise = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    first = {"move_wide": np.full(8, 0.2), "move_narrow": np.full(8, 0.5)}
    second = {"move_wide": 0.6 + 0.4 * noise, "move_narrow": 0.3 + 0.01 * noise}
    comparison = compare_columns(tmp_path, first, second)
    tests = contrasts(comparison, measured(comparison.study, "move_wide").kind)
    assert clearness(tests["narrow"]) > 1 > clearness(tests["wide"])


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


def test_equal_probabilities_of_a_rounded_table_are_named(tmp_path: Path) -> None:
    columns = {"valence": np.arange(8.0)}
    compared = compare_columns(tmp_path, columns, columns)
    lines = [line for line in compared.missing if "(mean probability)" in line]
    assert len(lines) == 1
    suffix = Path(compared.study.facts["data"]).suffix
    assert suffix != ".parquet"
    assert "rounds probabilities to 4 significant digits" in lines[0]
