from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import fisher_exact

from fer_vit.evaluate import scores
from fer_vit.evaluate.faces import Faces, as_objects
from fer_vit.evaluate.scores import (
    FEW,
    accuracy_by_votes,
    compare_groups,
    compare_models,
    describe,
    evaluate_faces,
    group_tests,
    holm,
)


def faces(right: np.ndarray, labelled: bool = True, **columns: Sequence[object]) -> Faces:
    """Faces of two classes that a model is right about or not, all of class 0."""
    count = len(right)
    return Faces(
        labels=["a", "b"],
        paths=as_objects([f"{row}.png" for row in range(count)]),
        probabilities=np.where(right[:, None], [0.8, 0.2], [0.3, 0.7]),
        detected=np.ones(count, bool),
        targets=np.tile([1.0, 0.0], (count, 1)) if labelled else None,
        columns={name: as_objects(list(values)) for name, values in columns.items()},
        rows=np.arange(count),
        picture=lambda row: np.zeros((4, 4, 3), np.uint8),
    )


def test_groups_are_compared_with_all_others() -> None:
    rng = np.random.default_rng(0)
    age = np.repeat(["old", "young", "middle"], [100, 200, 150])
    right = rng.random(450) < np.where(age == "old", 0.6, 0.9)
    found = compare_groups(faces(right, age=[*age[:-3], None, "baby", ""]), "age")
    assert list(found["groups"]) == ["middle", "old", "young"]
    assert found["few"] == {"baby": 1}
    assert found["unknown"] == 2
    old = right[:100]
    assert found["groups"]["old"]["faces"] == 100
    assert found["groups"]["old"]["accuracy"]["mean"] == pytest.approx(old.mean())
    others = np.append(right[100:447], right[448])
    assert found["groups"]["old"]["difference"]["mean"] == pytest.approx(old.mean() - others.mean())
    p = []
    for name in ("middle", "old", "young"):
        inside = np.append(age[:447] == name, False)
        part = np.append(right[:447], right[448])
        cells = [[(part & side).sum(), (~part & side).sum()] for side in (inside, ~inside)]
        p.append(fisher_exact(cells).pvalue)
    assert [found["groups"][name]["p"] for name in ("middle", "old", "young")] == pytest.approx(holm(p))
    assert found["worst"] == "old"
    means = {name: one["accuracy"]["mean"] for name, one in found["groups"].items()}
    assert found["best"] == max(means, key=means.__getitem__)
    assert found["gap"]["mean"] == pytest.approx(max(means.values()) - min(means.values()))
    assert (found["gap"]["low"], found["gap"]["high"]) == (None, None)


@pytest.mark.parametrize("labelled", [True, False])
def test_abstentions_by_group(labelled: bool) -> None:
    rng = np.random.default_rng(0)
    right, ambiguous, age = rng.random(200) < 0.8, rng.random(200) < 0.3, np.repeat(["old", "young"], 100)
    known = [None, *ambiguous[1:].tolist()]
    groups = compare_groups(faces(right, labelled, ambiguous=known, age=age), "age")["groups"]
    for name, part in (("old", slice(1, 100)), ("young", slice(100, 200))):
        assert groups[name]["ambiguous"]["mean"] == pytest.approx(ambiguous[part].mean())
        if labelled:
            assert groups[name]["accuracy where unambiguous"]["mean"] == pytest.approx(
                right[part][~ambiguous[part]].mean()
            )
        else:
            assert "accuracy where unambiguous" not in groups[name]
    assert "ambiguous" not in describe(faces(right, labelled))


def test_two_groups_are_one_test() -> None:
    right = np.random.default_rng(0).random(200) < np.repeat([0.8, 0.7], 100)
    found = compare_groups(faces(right, side=["left"] * 100 + ["right"] * 100), "side")
    cells = [[part.sum(), (~part).sum()] for part in (right[:100], right[100:])]
    assert found["groups"]["left"]["p"] == found["groups"]["right"]["p"] == pytest.approx(fisher_exact(cells).pvalue)


def test_small_and_single_groups() -> None:
    right = np.ones(FEW + 1, bool)
    found = compare_groups(faces(right, who=["a"] * FEW + ["b"]), "who")
    assert (list(found["groups"]), found["few"]) == (["a"], {"b": 1})
    assert "gap" not in found
    assert "p" not in found["groups"]["a"]
    alone = compare_groups(faces(right, who=["a"] * (FEW + 1)), "who")
    assert "gap" not in alone
    none = compare_groups(faces(right, who=[None] * (FEW + 1)), "who")
    assert (none["groups"], none["few"], none["unknown"]) == ({}, {}, FEW + 1)
    # As many faces, but of too few persons.
    persons = compare_groups(faces(right, who=["a"] * FEW + ["b"], person=[row % 5 for row in range(FEW + 1)]), "who")
    assert persons["groups"] == {}


def test_faces_of_one_person_are_no_independent_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "RESAMPLES", 200)
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(80), 10)
    member = np.column_stack([person < 40, person >= 40]).astype(float)
    first, exact = [], []
    for _ in range(60):  # no group is better, but the model is right about most faces of a person or about few
        right = rng.random(800) < np.repeat(rng.choice([0.4, 0.95], 80), 10)
        first.append(group_tests(faces(right, person=person), member)[1][0])
        exact.append(group_tests(faces(right), member)[1][0])
    assert np.mean(np.array(exact) < 0.05) > 0.15
    assert np.mean(np.array(first) < 0.05) < 0.12


def test_holm_against_its_definition() -> None:
    p = np.random.default_rng(0).random(12) ** 3
    for level in (0.01, 0.05, 0.2):
        rejected = np.zeros(12, bool)
        for step, index in enumerate(np.argsort(p)):
            if p[index] > level / (12 - step):
                break
            rejected[index] = True
        assert ((np.array(holm(p.tolist())) <= level) == rejected).all()
    assert holm([0.04]) == [0.04]


def test_without_labels_there_are_shares_of_expressions() -> None:
    right = np.arange(100) < 70
    some = faces(right, labelled=False, who=["x"] * 50 + ["y"] * 50)
    some.probabilities[0] = np.nan
    some.detected[0] = False
    found = compare_groups(some, "who")["groups"]["x"]
    assert found["face found"]["mean"] == pytest.approx(0.98)
    assert (found["a"]["mean"], found["b"]["mean"]) == (1, 0)
    assert found["confidence"]["mean"] == pytest.approx(0.8)
    assert found["confidence"]["faces"] == 49
    assert "p" not in found


def test_a_photo_counts_once_however_many_its_faces() -> None:
    some = faces(np.ones(4, bool), labelled=False)
    some.paths[:3] = "crowd.png"
    some.detected[3], some.probabilities[3] = False, np.nan
    assert describe(some)["face found"]["mean"] == 0.5


@pytest.mark.parametrize("near_duplicate", [[True, False, None, False], ["True", "False", None, "false"]])
def test_faces_without_near_duplicates_are_judged_apart(near_duplicate: list[object]) -> None:
    found = evaluate_faces(faces(np.array([True, True, False, False]), near_duplicate=near_duplicate))
    assert found["all"]["accuracy"]["mean"] == 0.5
    assert found["without near-duplicates"]["accuracy"]["mean"] == pytest.approx(1 / 3)
    assert "without near-duplicates" not in evaluate_faces(faces(np.ones(3, bool)))


def test_results_have_a_part_for_each_request() -> None:
    some = faces(np.array([True, False] * 2), who=["a"] * 4, label_votes=["10"] * 4)
    assert list(evaluate_faces(some, ["who"], other=some.probabilities)) == ["all", "by", "comparison", "by votes"]
    assert list(evaluate_faces(faces(np.ones(4, bool), labelled=False))) == ["all"]


def test_accuracy_by_votes() -> None:
    rng = np.random.default_rng(0)
    votes = rng.choice([4, 5, 6, 7, 8, 9, 10], 500)
    right = rng.random(500) < votes / 11
    found = accuracy_by_votes(faces(right, label_votes=[*map(str, votes[:-1]), None]))
    right, votes = right[:-1], votes[:-1]
    parts = {"10": votes == 10, "9": votes == 9, "8": votes == 8, "7": votes == 7, "6 or fewer": votes <= 6}
    assert list(found) == [*parts]
    for name, part in parts.items():
        assert found[name]["faces"] == part.sum()
        assert found[name]["accuracy"]["mean"] == pytest.approx(right[part].mean())
    assert accuracy_by_votes(faces(right)) == {}


def compare_correct(first: np.ndarray, second: np.ndarray, people: np.ndarray) -> float:
    """The p-value of two models that are right about some faces of these people."""
    other = faces(second).probabilities
    return float(compare_models(faces(first, person=people.tolist()), other)["McNemar"]["p"])


def test_models_are_compared_by_person() -> None:
    rng, people = np.random.default_rng(0), np.repeat(np.arange(40), 25)  # 25 equal faces each: all right or all wrong
    correct = [[rng.random(40)[people] < 0.7 for _ in range(2)] for _ in range(60)]
    p = np.array([compare_correct(first, second, people) for first, second in correct])
    assert np.mean(p < 0.05) < 0.12
    assert np.mean(p < 0.5) > 0.3
    first, second = np.tile([True, True, False, False], 2), np.tile([True, False, False, False], 2)
    assert compare_correct(first, second, np.repeat([0, 1], 4)) == 0.5  # two of two faces
