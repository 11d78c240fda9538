"""Averages against pandas, episodes of clips against values counted by hand, and the command."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pingouin as pg
import pytest
from statsmodels.formula.api import mixedlm
from statsmodels.stats.weightstats import DescrStatsW

from fer_vit.compare import (
    Study,
    compare_pair,
    intraclass_correlation,
    make_study,
    mixed_model,
    person_mean,
)
from fer_vit.evaluate.scores import Interval
from fer_vit.evaluate.tables import read_predictions
from fer_vit.report.table import TableWriter
from fer_vit.version import __version__
from tests.helpers.commands import fails, run

NAN = np.nan


def bounds(one: Interval) -> list[float | None]:
    return [one["low"], one["high"]]


def test_means_equal_statsmodels(rng: np.random.Generator) -> None:
    values = np.append(rng.uniform(0.2, 0.6, 12), NAN)
    found = person_mean(values)
    assert found["mean"] == pytest.approx(values[:12].mean())
    assert bounds(found) == pytest.approx(DescrStatsW(values[:12]).tconfint_mean(), abs=1e-9)
    assert dict(found)["persons"] == 12
    assert person_mean(np.eye(8)[0], 1)["low"] == 0  # no share is lower
    assert person_mean(1 - np.eye(8)[0], 1)["high"] == 1


def test_without_spread_or_persons_there_is_no_interval_and_no_test(
    rng: np.random.Generator,
) -> None:
    few, many = rng.uniform(size=5), rng.uniform(size=9)
    assert bounds(person_mean(few)) == bounds(person_mean(np.zeros(9))) == [None, None]
    assert person_mean(np.array([NAN]))["mean"] is None
    assert compare_pair(few, few + rng.uniform(size=5), paired=True) is None
    assert compare_pair(few, many, paired=False) is None
    assert compare_pair(many, many, paired=True) is None
    assert intraclass_correlation(np.tile(few, 2), np.tile(np.arange(5), 2))["mean"] is None
    assert intraclass_correlation(many, np.arange(9))["mean"] is None
    assert mixed_model(np.tile(few, 2), np.tile(np.arange(5), 2), np.repeat([0, 1], 5)) == []
    assert mixed_model(np.zeros(18), np.tile(np.arange(9), 2), np.repeat([0, 1], 9)) == []
    # No person is in the second condition and in another: a singular matrix
    person = np.repeat(np.arange(12), 3)
    assert (
        mixed_model(rng.uniform(size=36), person, np.where(person < 6, 1, np.tile([0, 2, 2], 12)))
        == []
    )


@pytest.mark.parametrize("paired", [True, False])
def test_tests_equal_pingouin_and_intervals_statsmodels(
    paired: bool, rng: np.random.Generator
) -> None:
    first, second = rng.gamma(2, size=15), rng.gamma(3, size=15 if paired else 22)
    apart = (
        [np.append(first, [NAN, 0.5]), np.append(second, [0.5, NAN])] if paired else [first, second]
    )
    found = compare_pair(*apart, paired=paired)
    expected = pg.ttest(second, first, paired=paired, correction=True).iloc[0]
    ranks = (pg.wilcoxon if paired else pg.mwu)(second, first).iloc[0]
    assert found is not None
    assert found["difference"]["mean"] == pytest.approx(second.mean() - first.mean())
    if paired:
        interval = DescrStatsW(second - first).tconfint_mean()
    else:
        interval = (
            DescrStatsW(second).get_compare(DescrStatsW(first)).tconfint_diff(usevar="unequal")
        )
    assert bounds(found["difference"]) == pytest.approx(interval, abs=1e-9)
    names = {name.lower().replace("-", "_"): value for name, value in expected.items()}
    for name, value in (("t", names["t"]), ("df", names["dof"]), ("p", names["p_val"])):
        assert found[name] == pytest.approx(value, abs=1e-6)
    assert found["p by ranks"] == pytest.approx(
        next(v for k, v in ranks.items() if k.startswith("p")), abs=1e-6
    )
    assert found["g"] == pytest.approx(
        pg.compute_effsize(second, first, paired, "hedges"), abs=1e-6
    )
    assert found["persons"] == [len(first), len(second)]


def test_intraclass_correlation_equals_pingouin(rng: np.random.Generator) -> None:
    person = np.repeat(np.arange(12), 4)
    values = rng.normal(size=12)[person] + rng.normal(size=48)
    found = intraclass_correlation(values, person)
    table = pd.DataFrame({"person": person, "time": np.tile(np.arange(4), 12), "value": values})
    expected = pg.intraclass_corr(table, "person", "time", "value").iloc[0]
    assert found["mean"] == pytest.approx(expected["ICC"], abs=1e-6)
    low_high = next(value for name, value in expected.items() if name.upper().startswith("CI95"))
    assert bounds(found) == pytest.approx(low_high, abs=0.0051)


def test_intraclass_correlation_of_unequal_numbers(rng: np.random.Generator) -> None:
    """The mean over studies is the true value."""
    person = np.repeat(np.arange(20), np.tile([2, 3, 4, 9], 5))
    studies = [rng.normal(size=20)[person] + rng.normal(0, 1.5, len(person)) for _ in range(300)]
    found = np.array([intraclass_correlation(values, person)["mean"] for values in studies], float)
    assert found.mean() == pytest.approx(1 / (1 + 1.5**2), abs=0.03)


@pytest.mark.parametrize("photos", [1, 3])
def test_mixed_model_equals_statsmodels(photos: int, rng: np.random.Generator) -> None:
    person, condition = np.repeat(np.arange(15), 2 * photos), np.tile(np.repeat([0, 1], photos), 15)
    values = rng.normal(size=15)[person] + 0.7 * rng.normal(size=(15, 2))[person, condition]
    values += 0.4 * condition + rng.normal(0, 0.5, len(person))
    (found,) = mixed_model(values, person, condition)
    table = pd.DataFrame({"person": person, "condition": condition, "value": values})
    slopes = "condition" if photos > 1 else None
    expected = mixedlm("value ~ condition", table, groups="person", re_formula=slopes).fit(
        reml=True
    )
    assert found["difference"]["mean"] == pytest.approx(expected.params["condition"], abs=1e-6)
    assert bounds(found["difference"]) == pytest.approx(
        [*expected.conf_int().loc["condition"]], abs=1e-6
    )
    assert found["p"] == pytest.approx(expected.pvalues["condition"], abs=1e-6)


@pytest.mark.slow
def test_coverage_of_intervals(rng: np.random.Generator) -> None:
    """In 1,000 studies of 24 persons, 95 % intervals contain the true mean (1/3, 2/5), difference and correlation."""
    person, hits = np.repeat(np.arange(24), 4), []
    for _ in range(1000):
        first, second = rng.beta(2, 4, 24), rng.beta(4, 6, 24)
        paired, apart = (
            compare_pair(first, second, paired=True),
            compare_pair(first[:16], second, paired=False),
        )
        assert paired is not None
        assert apart is not None
        correlation = intraclass_correlation(
            rng.normal(size=24)[person] + rng.normal(size=96), person
        )
        truth = [(person_mean(first), 1 / 3), (paired["difference"], 2 / 5 - 1 / 3)]
        truth += [(apart["difference"], 2 / 5 - 1 / 3), (correlation, 0.5)]
        hits.append([one["low"] <= true <= one["high"] for one, true in truth])
    coverage = np.mean(hits, axis=0)
    print(coverage)
    assert (coverage >= 0.93).all(), coverage
    assert (coverage <= 0.97).all(), coverage


@pytest.mark.slow
def test_coverage_of_the_mixed_model(rng: np.random.Generator) -> None:
    """In 1,000 studies of 30 persons who differ in their response to the condition."""
    person, condition = np.repeat(np.arange(30), 6), np.tile(np.repeat([0, 1], 3), 30)
    hits = []
    for _ in range(1000):
        values = rng.normal(size=30)[person] + 0.5 * rng.normal(size=(30, 2))[person, condition]
        found = mixed_model(values + 0.3 * condition + rng.normal(size=180), person, condition)
        hits += [one["difference"]["low"] <= 0.3 <= one["difference"]["high"] for one in found]
    assert len(hits) >= 950  # the others do not converge
    print(len(hits), np.mean(hits))
    assert 0.93 <= np.mean(hits) <= 0.97


def study(table: pd.DataFrame, folder: Path, baseline: str | None = None) -> Study:
    path = folder / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    return make_study(read_predictions(path, videos=True), "condition", "subject", baseline)


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
    found = study(table, tmp_path, baseline="rest")
    assert [*found.conditions] == ["rest", "film"]
    assert [kind.title for kind in found.kinds] == [
        "Mean probability",
        "Share of faces with the label",
    ]
    table["named"] = np.where(table["label"].isna(), np.nan, table["label"] == "happy")
    by_photo = table.groupby(["subject", "condition", "path"])[["p_happy", "named"]].mean()
    for kind, column in zip(found.kinds, ("p_happy", "named"), strict=True):
        expected = by_photo[column].groupby(["subject", "condition"]).mean().unstack()
        for condition, means in found.cells(kind.values["happy"]).items():
            assert means == pytest.approx(expected[condition].to_numpy(), abs=1e-6, nan_ok=True)
    assert found.counts()["film"] == {"persons": 9, "photos or clips": 18, "faces": 36}


def clip(path: str, labels: str, condition: str) -> pd.DataFrame:
    """A clip at 4 frames per second; "-" is a frame without a face."""
    rows = []
    for frame, letter in enumerate(labels):
        happy = 0.9 if letter == "h" else 0.1
        label = None if letter == "-" else "happy" if letter == "h" else "calm"
        face = {
            "path": path,
            "frame": frame,
            "seconds": frame / 4,
            "condition": condition,
            "subject": path[0],
        }
        cells = {"face": 0, "track": 1, "p_calm": 1 - happy, "p_happy": happy, "label": label}
        cells |= {"label_smoothed": label, "smoothed_calm": 1 - happy, "smoothed_happy": happy}
        rows.append(face | (dict.fromkeys(cells) if letter == "-" else cells))
    return pd.DataFrame(rows)


def test_episodes_and_transitions_of_clips(tmp_path: Path) -> None:
    others = [clip(f"{person}2.mp4", "cchc", "film") for person in "bcdef"]
    table = pd.concat(
        [clip("a1.mp4", "cchh-hcccccc", "rest"), clip("a2.mp4", "hhcc", "film"), *others]
    )
    found = study(table, tmp_path)
    kinds = {kind.title: kind.values for kind in found.kinds}

    def of_a(title: str) -> list[list[float]]:
        """The values of the first person: a list for each condition, with a number for each measure."""
        return np.transpose(
            [[row[0] for row in found.cells(one).values()] for one in kinds[title].values()]
        ).tolist()

    assert [*found.conditions] == ["film", "rest"]
    assert of_a("Seconds per episode") == [[0.5, 0.5], [1.0, 0.375]]
    assert of_a("Episodes per minute") == [[60, 60], pytest.approx([120 / 2.75, 120 / 2.75])]
    assert list(kinds["Transitions per minute"]) == ["calm to happy", "happy to calm"]
    # The frame without a face ends an episode, and is no transition.
    assert of_a("Transitions per minute") == [[0, 60], pytest.approx([60 / 2.75, 60 / 2.75])]
    assert np.isnan(found.cells(kinds["Seconds per episode"]["calm"])["rest"][1])


def test_an_episode_ends_where_the_condition_changes(tmp_path: Path) -> None:
    table = clip("a1.mp4", "cccchhhhcccc", "rest")
    table.loc[6:9, "condition"] = "film"
    found = study(table, tmp_path)
    seconds, rates = (kind.values for kind in found.kinds[2:4])
    for label, expected in (("calm", (0.5, 0.75, 60, 60)), ("happy", (0.5, 0.5, 60, 30))):
        cells = [
            values[0] for kind in (seconds, rates) for values in found.cells(kind[label]).values()
        ]
        assert cells == pytest.approx(expected)


HOSTILE = """<img src=x onerror="document.title='owned'">"""
LABELS = ["calm", HOSTILE]


def write_study(
    folder: Path, persons: int, paired: bool, facts: dict[str, str] | None = None
) -> Path:
    """Predictions of three photos of each person in each condition, or in one of them; the second column is higher."""
    rng, path = np.random.default_rng(0), folder / "faces.parquet"
    columns = {"path": str, "label": str, "confidence": float, "subject": str, "condition": str}
    columns |= {f"p_{label}": float for label in LABELS}
    rows = []
    for person in range(persons):
        for index, condition in enumerate(("rest", "film <b>")):
            for photo in range(3 * (paired or person % 2 == index)):
                high = rng.beta(4 + 2 * index, 6)
                cells = {
                    "path": f"{person}-{index}-{photo}.png",
                    "subject": f"s{person}",
                    "condition": condition,
                }
                cells |= {"label": LABELS[high > 0.5], "confidence": max(high, 1 - high)}
                rows.append(cells | {f"p_{LABELS[0]}": 1 - high, f"p_{LABELS[1]}": high})
    with TableWriter(path, columns, facts=facts or {}) as table:
        table.write(rows)
    return path


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = write_study(
        tmp_path,
        8,
        paired=True,
        facts={"version": "0.0", "model": "best.ckpt", "detector": "yunet"},
    )
    words = ["--by=condition", "--person=subject", "--baseline=rest", f"--output={tmp_path / 'c'}"]
    run("compare", table, *words)
    out = capsys.readouterr().out
    assert "classified with fer-vit (version 0.0, model best.ckpt, detector yunet)" in out
    assert f"compared with fer-vit {__version__}" in out
    assert "Too few" not in out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["conditions"]["rest"] == {"persons": 8, "photos or clips": 24, "faces": 24}
    mean = results["Mean probability"]["means"][HOSTILE]["rest"]
    assert mean["low"] < mean["mean"] < mean["high"]
    assert mean["persons"] == 8
    name = f"{HOSTILE}: film <b> - rest"
    test, mixed = results["Mean probability"]["differences"][name], results["mixed model"][name]
    assert test["difference"]["mean"] == pytest.approx(mixed["difference"]["mean"], abs=1e-3)
    assert test["p"] <= test["p corrected"] <= 2 * test["p"]
    assert test["df"] == 7
    assert results["ICC(1)"][HOSTILE]["rest"]["high"] < 1
    text = (tmp_path / "c" / "results.md").read_text()
    assert f"{test['difference']['mean']:+.3f} (" in text
    assert out.splitlines()[0] in text
    page = (tmp_path / "c" / "index.html").read_text("utf-8")
    assert "<h1>Expressions by condition</h1>" in page
    assert "<img src=x" not in page
    assert "exists" in fails(capsys, "compare", table, *words)
    error = fails(
        capsys, "compare", table, *words[:2], "--baseline=calm", f"--output={tmp_path / 'd'}"
    )
    assert "Expected the baseline calm and others in `condition`, but got film <b>, rest." in error


def test_columns_of_another_table_different_persons_and_few(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_study(tmp_path, 14, paired=False)
    paths = [
        f"{person}-{person % 2}-{photo}.png,{person % 2},{person}"
        for person in range(13)
        for photo in range(3)
    ]
    (tmp_path / "sessions.csv").write_text("\n".join(["path,group,who", *paths]))
    words = [table, "--columns", tmp_path / "sessions.csv", "--by=group", "--person=who"]
    run("compare", *words, f"--output={tmp_path / 'c'}")
    out = capsys.readouterr().out
    assert "Left out without condition or person: 3 faces." in out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["Mean probability"]["differences"]["calm: 1 - 0"]["persons"] == [7, 6]
    (tmp_path / "sessions.csv").write_text("\n".join(["path,group,who", *paths[:33]]))
    run("compare", *words, f"--output={tmp_path / 'd'}")
    assert "Too few persons for intervals and tests, under 6: 1 (5)." in capsys.readouterr().out
    results = json.loads((tmp_path / "d" / "results.json").read_text())
    assert results["Mean probability"]["differences"]["calm: 1 - 0"] is None
    assert "no column `persn`" in fails(
        capsys, "compare", *words[:-1], "--person=persn", f"--output={tmp_path / 'e'}"
    )
