"""Averages against pandas, and episodes of clips against values counted by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fer_vit.compare.study import Study, make_study
from fer_vit.errors import FerVitError
from fer_vit.evaluate.tables import read_predictions
from fer_vit.geometry import Array


def study(table: pd.DataFrame, folder: Path, baseline: str | None = None) -> Study:
    path = folder / "faces.csv"
    table.assign(confidence=table[["p_calm", "p_happy"]].max(axis=1)).to_csv(path, index=False)
    return make_study(read_predictions(path, videos=True), "condition", "subject", baseline)


def photos(rng: np.random.Generator) -> pd.DataFrame:
    """Photos with two faces each, of ten persons; the last one is in one condition only."""
    rows = [
        {"path": f"{person}{condition}{photo}.png", "subject": person, "condition": condition, "face": face}
        for person in range(10)
        for condition in ("rest", "film")[: 1 if person == 9 else 2]
        for photo in range(1 + person % 3)
        for face in (0, 1)
    ]
    happy = rng.uniform(size=len(rows))
    table = pd.DataFrame(rows).assign(p_calm=1 - happy, p_happy=happy, label=np.where(happy > 0.5, "happy", "calm"))
    table.loc[3, "label"] = None  # below `--min_confidence`
    return table


def test_photos_are_averaged_by_person_and_condition(tmp_path: Path, rng: np.random.Generator) -> None:
    table = photos(rng)
    found = study(table, tmp_path, baseline="rest")
    assert found.conditions == ["rest", "film"]
    assert [kind.title for kind in found.kinds] == ["Mean probability", "Share of faces with the label"]
    table["named"] = np.where(table["label"].isna(), np.nan, table["label"] == "happy")
    by_photo = table.groupby(["subject", "condition", "path"])[["p_happy", "named"]].mean()
    for kind, column in zip(found.kinds, ("p_happy", "named"), strict=True):
        expected = by_photo[column].groupby(["subject", "condition"]).mean().unstack()[["rest", "film"]]
        assert found.cells(kind.values)[..., 1] == pytest.approx(expected.to_numpy(), abs=1e-6, nan_ok=True)
    assert found.counts()["film"] == {"persons": 9, "photos or clips": 18, "faces": 36}


def test_faces_without_condition_or_person_are_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    table = photos(rng).astype({"subject": object})
    table.loc[[0, 5], "condition"] = None
    table.loc[[5, 7], "subject"] = None
    found = study(table, tmp_path)
    assert found.left_out == 3
    assert found.faces.sum() == len(table) - 3


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        ("Rest", "the baseline Rest and others in `condition`, but got film, rest. Did you mean `rest`?"),
        (None, "two or more conditions in `condition`, but got film."),
    ],
)
def test_conditions_that_cannot_be_compared(
    baseline: str | None, words: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    table = photos(rng)
    with pytest.raises(FerVitError, match=words.replace("?", r"\?")):
        study(table if baseline else table[table["condition"] == "film"], tmp_path, baseline)


def clip(path: str, labels: str, condition: str) -> pd.DataFrame:
    """A clip at 4 frames per second; "-" is a frame without a face."""
    rows = []
    for frame, letter in enumerate(labels):
        happy = 0.9 if letter == "h" else 0.1
        label = None if letter == "-" else "happy" if letter == "h" else "calm"
        face = {"path": path, "frame": frame, "seconds": frame / 4, "condition": condition, "subject": path[0]}
        cells = {"face": 0, "track": 1, "p_calm": 1 - happy, "p_happy": happy, "label": label}
        cells |= {"label_smoothed": label, "smoothed_calm": 1 - happy, "smoothed_happy": happy}
        rows.append(face | (dict.fromkeys(cells) if letter == "-" else cells))
    return pd.DataFrame(rows)


def test_episodes_and_transitions_of_clips(tmp_path: Path) -> None:
    others = [clip(f"{person}2.mp4", "cchc", "film") for person in "bcdef"]
    table = pd.concat([clip("a1.mp4", "cchh-hcccccc", "rest"), clip("a2.mp4", "hhcc", "film"), *others])
    found = study(table, tmp_path)
    kinds = {kind.title: kind for kind in found.kinds}

    def of_a(title: str) -> Array:
        return found.cells(kinds[title].values)[0]

    assert found.conditions == ["film", "rest"]
    assert of_a("Seconds per episode") == pytest.approx(np.array([[0.5, 0.5], [1.0, 0.375]]))
    assert of_a("Episodes per minute") == pytest.approx(np.array([[60.0, 60], [120 / 2.75, 120 / 2.75]]))
    assert list(kinds["Transitions per minute"].names) == ["calm to happy", "happy to calm"]
    # The frame without a face ends an episode, and is no transition.
    assert of_a("Transitions per minute") == pytest.approx(np.array([[0.0, 60], [60 / 2.75, 60 / 2.75]]))
    assert found.cells(kinds["Seconds per episode"].values)[1, 1].tolist() == pytest.approx([np.nan] * 2, nan_ok=True)


def test_an_episode_ends_where_the_condition_changes(tmp_path: Path) -> None:
    table = clip("a1.mp4", "cccchhhhcccc", "rest")
    table.loc[6:9, "condition"] = "film"
    found = study(table, tmp_path)
    seconds, rates, *_ = (found.cells(kind.values)[0] for kind in found.kinds[2:])
    assert seconds == pytest.approx(np.array([[0.5, 0.5], [0.75, 0.5]]))
    assert rates == pytest.approx(np.array([[60.0, 60], [60, 30]]))
