"""The command `compare`."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import fer_vit
from fer_vit.report.table import TableWriter
from fer_vit.version import __version__
from tests.helpers.commands import fails, run

HOSTILE = """<img src=x onerror="document.title='owned'">"""
LABELS = ["calm", HOSTILE]


def write_study(
    folder: Path,
    persons: int,
    paired: bool,
    facts: dict[str, str] | None = None,
    rise: float = 2,
) -> Path:
    """Predictions of three photos of each person in each condition, or in one of them;
    the second column is higher.
    """
    rng = np.random.default_rng(0)
    path = folder / "faces.parquet"
    columns = {"path": str, "label": str, "confidence": float, "subject": str, "condition": str}
    columns |= {f"p_{label}": float for label in LABELS}
    rows = []
    for person in range(persons):
        for index, condition in enumerate(("rest", "film <b>")):
            for photo in range(3 * (paired or person % 2 == index)):
                high = rng.beta(4 + rise * index, 6)
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


class Comparison(NamedTuple):
    """What `compare` prints and writes."""

    table: Path
    words: list[str]
    printed: str
    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / "results.json").read_text())


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Eight persons in two conditions."""
    folder = tmp_path_factory.mktemp("comparison")
    table = write_study(
        folder,
        8,
        paired=True,
        facts={"version": "0.0", "model": "best.ckpt", "detector": "yunet"},
    )
    output = folder / "c"
    words = ["--by=condition", "--person=subject", "--baseline=rest", f"--output={output}"]
    printed = io.StringIO()
    with redirect_stdout(printed):
        run("compare", table, *words)
    return Comparison(table, words, printed.getvalue(), output)


def test_compare_prints_what_made_the_faces_and_the_comparison(comparison: Comparison) -> None:
    for fact in ("version of fer-vit: 0.0", "best.ckpt", "yunet", __version__):
        assert fact in comparison.printed
    assert "Too few" not in comparison.printed


def test_compare_measures_differences_between_conditions(comparison: Comparison) -> None:
    results = comparison.results
    assert results["conditions"]["rest"] == {
        "persons": 8,
        "photos or clips": 24,
        "faces": 24,
        "without a face": 0,
    }
    assert results["designs"]["film <b> - rest"] == {"paired": True, "persons": 8, "left out": []}
    mean = results["Mean probability"]["means"][HOSTILE]["rest"]
    assert mean["low"] < mean["mean"] < mean["high"]
    assert mean["persons"] == 8
    test = results["Mean probability"]["differences"][f"{HOSTILE}: film <b> - rest"]
    assert test["p"] <= test["p corrected"] <= 2 * test["p"]
    assert test["df"] == 7


def test_compare_writes_its_text_and_its_page(comparison: Comparison) -> None:
    test = comparison.results["Mean probability"]["differences"][f"{HOSTILE}: film <b> - rest"]
    text = (comparison.folder / "results.md").read_text()
    assert f"{test['difference']['mean']:+.3f} (" in text
    assert comparison.printed.splitlines()[0] in text
    page = (comparison.folder / "index.html").read_text("utf-8")
    assert "<h1>Expressions by condition</h1>" in page
    assert "<img src=x" not in page


def test_python_returns_what_the_command_writes(comparison: Comparison, tmp_path: Path) -> None:
    output = tmp_path / "c"
    results = fer_vit.compare(
        comparison.table, by="condition", person="subject", baseline="rest", output=output
    )
    assert json.loads(json.dumps(results.to_dict())) == comparison.results
    results.write(tmp_path / "again")
    for name in ("results.md", "measures.csv", "index.html"):
        assert (tmp_path / "again" / name).read_text() == (output / name).read_text()
    rows = pd.DataFrame(results.table()).set_index(["part", "group", "measure"])
    row = rows.loc[("p_calm", "film <b> - rest", "difference")]
    test = comparison.results["Mean probability"]["differences"]["calm: film <b> - rest"]
    assert row[["mean", "low", "high", "p"]].tolist() == [
        *(test["difference"][key] for key in ("mean", "low", "high")),
        test["p corrected"],
    ]


def test_compare_refuses_an_existing_folder_and_an_unknown_baseline(
    comparison: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert "exists" in fails(capsys, "compare", comparison.table, *comparison.words)
    others = ("--baseline=calm", f"--output={tmp_path / 'd'}")
    error = fails(capsys, "compare", comparison.table, *comparison.words[:2], *others)
    assert "calm" in error
    assert "film <b>, rest" in error


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
    assert "person: 3 faces" in out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["Mean probability"]["differences"]["calm: 1 - 0"]["persons"] == [7, 6]
    (tmp_path / "sessions.csv").write_text("\n".join(["path,group,who", *paths[:33]]))
    run("compare", *words, f"--output={tmp_path / 'd'}")
    assert "under 6: 1 (5)" in capsys.readouterr().out
    results = json.loads((tmp_path / "d" / "results.json").read_text())["Mean probability"]
    assert results["differences"]["calm: 1 - 0"] is None
    assert "(6 and 5)" in results["missing"]["calm: 1 - 0"]
    error = fails(capsys, "compare", *words[:-1], "--person=whoo", f"--output={tmp_path / 'e'}")
    assert "no column `whoo`" in error
    assert "`who`" in error
    assert "group, who." in error, "the added columns, without the columns of predict"
    assert "p_calm" not in error


def test_methods_claim_no_interval_that_few_persons_do_not_have(tmp_path: Path) -> None:
    table = write_study(tmp_path, 3, paired=True)
    results = fer_vit.compare(table, by="condition", person="subject", output=tmp_path / "c")
    methods = results.to_dict()["methods"]
    assert "Means have standard deviations over persons. No test was done." in methods


def test_each_result_is_a_sentence_before_differences_and_means(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_study(tmp_path, 8, paired=True, rise=20)
    output = tmp_path / "c"
    run("compare", table, "--by=condition", "--person=subject", f"--output={output}")
    results = json.loads((output / "results.json").read_text())
    kind = results["Mean probability"]
    sentences = results["sentences"]["Mean probability"]
    assert len(sentences) == len(kind["differences"]) == 2
    for sentence, test in zip(sentences, kind["differences"].values(), strict=True):
        difference = test["difference"]
        assert test["p corrected"] < 0.05
        assert f"{abs(difference['mean']):.3f}" in sentence
        low, high = sorted((abs(difference["low"]), abs(difference["high"])))
        assert f"{low:.3f} to {high:.3f}" in sentence
        assert f"g = {abs(test['g']):.2f}" in sentence
        assert f"t(7) = {abs(test['t']):.2f}" in sentence
        assert "n = 8 pairs" in sentence
        assert sentence.startswith("The mean probability of ")
        assert ("higher" in sentence) == (difference["mean"] > 0)

    # The signed difference stands in the chart and in the table of tests.
    signed = f"{kind['differences']['calm: rest - film <b>']['difference']['mean']:+.3f} ("
    mean = f"{kind['means']['calm']['rest']['mean']:.3f} ("
    start = "The mean probability of calm is"
    for name, text in (("results.md", f"- {start}"), ("index.html", f"<li>{start}")):
        written = (output / name).read_text()
        places = [written.index(part) for part in (text, signed, mean, "photos or clips")]
        assert places == sorted(places)


def test_measures_without_a_clear_difference_and_without_a_test_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_study(tmp_path, 8, paired=True)
    faces = pd.read_parquet(table)
    faces["valence"] = np.tile([0.1, 0.2, 0.3], len(faces) // 3)  # equal values in all conditions
    faces["arousal"] = np.random.default_rng(5).uniform(0, 1, len(faces))
    faces.to_parquet(table)
    output = tmp_path / "c"
    run("compare", table, "--by=condition", "--person=subject", f"--output={output}")
    results = json.loads((output / "results.json").read_text())
    unclear, missing = results["sentences"]["Valence and arousal"]
    assert results["Valence and arousal"]["differences"]["arousal: rest - film <b>"]["p"] > 0.05
    assert "arousal" in unclear
    assert "rest and film <b>" in unclear
    assert "valence" in missing
    assert "equal" in missing
    assert missing in capsys.readouterr().out


def test_figures_show_differences_and_means(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_study(tmp_path, 8, paired=True)
    words = ("compare", table, "--by=condition", "--person=subject", "--overwrite")
    output = f"--output={tmp_path / 'c'}"
    run(*words, output, "--figures=svg")
    folder = tmp_path / "c" / "figures"
    names = ["mean_probability", "share_of_faces_with_the_label"]
    expected = [f"{name}-{part}.svg" for name in names for part in ("differences", "means")]
    assert sorted(path.name for path in folder.iterdir()) == expected
    drawn = (folder / "mean_probability-differences.svg").read_text()
    assert "rest - film" in drawn
    assert ">calm<" in drawn
    assert ">rest<" in (folder / "mean_probability-means.svg").read_text()
    run(*words, output)
    assert not folder.exists(), "the results are replaced with all that belongs to them"

    monkeypatch.setattr("fer_vit.extras.find_spec", lambda module: None)
    assert "[figures]" in fails(capsys, *words, output, "--figures=pdf")


def write_clips(folder: Path, persons: int = 8, seconds: float = 12) -> Path:
    """A clip at 5 frames per second of each person in two conditions, with a gap;
    the first 2 s are calmer.
    """
    rng = np.random.default_rng(1)
    rows = []
    common = rng.uniform(0.2, 0.8, int(seconds * 5))
    for person in range(persons):
        for condition in ("a", "b"):
            for frame in range(len(common)):
                time = frame / 5
                if 6 <= time < 7:
                    continue
                happy = 0.1 if time < 2 else 0.5 * common[frame] + 0.5 * rng.uniform(0.2, 0.8)
                label = "happy" if happy > 0.5 else "calm"
                cells = {"path": f"{person}{condition}.mp4", "frame": frame, "seconds": time}
                cells |= {
                    "track": 0,
                    "face": 0,
                    "label": label,
                    "confidence": max(happy, 1 - happy),
                }
                cells |= {"condition": condition, "subject": f"s{person}", "label_smoothed": label}
                cells |= {"p_calm": 1 - happy, "p_happy": happy}
                smooth = 0.2 + 0.6 * happy
                rows.append(cells | {"smoothed_calm": 1 - smooth, "smoothed_happy": smooth})
    path = folder / "clips.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_rest_and_grid_equal_pandas(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = write_clips(tmp_path)
    output = tmp_path / "c"
    words = ("compare", table, "--by=condition", "--person=subject", f"--output={output}")
    run(*words, "--rest=0-2", "--grid=0.5")
    results = json.loads((output / "results.json").read_text(), parse_constant=pytest.fail)
    read = pd.read_csv(table)
    clip = ["subject", "condition"]
    rest = read[read["seconds"] < 2].groupby(clip)["smoothed_happy"].mean()
    after = read[read["seconds"] >= 2]
    raw = read[read["seconds"] < 2].groupby(clip)["p_happy"].mean()
    changes = (after.groupby(clip)["p_happy"].mean() - raw).unstack()
    kind = results["Change of the probability from rest"]
    assert kind["means"]["happy"]["b"]["mean"] == pytest.approx(changes["b"].mean())
    difference = kind["differences"]["happy: b - a"]["difference"]["mean"]
    assert difference == pytest.approx((changes["b"] - changes["a"]).mean())

    grid = pd.read_csv(output / "grid.csv").set_index([*["person", "condition"], "seconds"])
    binned = after.assign(bin=(after["seconds"] * 10).round().astype(int) // 5 / 2)
    means = binned.groupby([*clip, "bin"])["smoothed_happy"].mean()
    expected = means - rest.reindex(means.index.droplevel("bin")).to_numpy()
    written = grid["p_happy"].dropna()
    assert written.to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-7)
    assert grid["p_happy"].isna().groupby(level="seconds").all()[[0.0, 6.0, 6.5]].all()

    wide = written.xs("a", level="condition").unstack("person")
    courses = pd.read_csv(output / "grid_means.csv")
    row = courses.query("condition == 'a' and expression == 'happy' and seconds == 3").iloc[0]
    assert row["mean"] == pytest.approx(wide.loc[3.0].mean(), abs=1e-6)
    assert row["persons"] == 8
    page = (output / "index.html").read_text()
    assert "Over time" in page


def test_clips_without_rest_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    table = write_clips(tmp_path)
    read = pd.read_csv(table)
    read[(read["path"] != "3b.mp4") | (read["seconds"] >= 2)].to_csv(table, index=False)
    words = ("compare", table, "--by=condition", "--person=subject", f"--output={tmp_path / 'c'}")
    run(*words, "--rest=0-2")
    out = capsys.readouterr().out
    assert re.search(r" 1 .*: 3b\.mp4", out)
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert results["without rest"] == ["3b.mp4"]
    assert results["conditions"]["b"]["persons"] == 7
    design = results["designs"]["b - a"]
    assert design == {"paired": True, "persons": 7, "left out": ["s3"]}
    assert re.search("b - a: paired, 7 persons.* 1: s3", out)


WRONG = [
    *(("--rest", text) for text in ("5-0", "abc", "0:5", "1-1", "0-nan", "50-60", "0-1m")),
    *(("--grid", text) for text in ("0", "-1", "nan", "inf", "abc", "13", "1e-9", "1e-300")),
]


@pytest.mark.parametrize("words", WRONG, ids="=".join)
def test_wrong_options_are_one_line(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_clips(tmp_path, 2)
    command = ("compare", table, "--by=condition", "--person=subject")
    error = fails(capsys, *command, f"--output={tmp_path / 'c'}", "=".join(words))
    assert words[0].strip("-") in error
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("words", [("--rest=0-5",), ("--grid=1",)])
def test_photos_have_no_times(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = write_study(tmp_path, 2, paired=True)
    command = ("compare", table, "--by=condition", "--person=subject")
    assert "clip" in fails(capsys, *command, f"--output={tmp_path / 'c'}", *words)
