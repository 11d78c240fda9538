"""The keys of results.json, which programs of users read."""

from fer_vit.comparison.kinds import share_kind
from fer_vit.comparison.results import ContrastTest, ContrastWithoutTest, Outcome
from fer_vit.comparison.results_json import numbers_json, outcome_json
from fer_vit.stats.estimate import plain_estimates
from fer_vit.stats.persons import Difference, MeansTest, PersonMean

DIFFERENCE = Difference(mean=0.2, low=0.1, high=0.3, n=8)
DIFFERENCE_KEYS = {"mean": 0.2, "low": 0.1, "high": 0.3, "persons": 8}


def test_numbers_json_of_a_test_of_means() -> None:
    test = MeansTest(
        DIFFERENCE,
        t=4.0,
        df=13.5,
        p=0.001,
        paired=False,
        num_first=8,
        num_second=9,
        p_by_ranks=0.002,
        g=1.5,
    )
    numbers = numbers_json(ContrastTest("happy", "rest", "film", test, p_corrected=0.004))
    assert plain_estimates(numbers) == {
        "difference": DIFFERENCE_KEYS,
        "t": 4.0,
        "df": 13.5,
        "p": 0.001,
        "p by ranks": 0.002,
        "g": 1.5,
        "persons": [8, 9],
        "p corrected": 0.004,
    }


def test_outcome_json_has_the_reason_of_a_missing_test() -> None:
    mean = PersonMean(0.5, n=2, over="persons", sd=0.1)
    comparison = ContrastWithoutTest("happy", "rest", "film", "few")
    outcome = Outcome(share_kind({}), {"happy": {"rest": mean}}, [comparison])
    cells = {"mean": 0.5, "low": None, "high": None, "persons": 2, "sd": 0.1}
    assert plain_estimates(outcome_json(outcome)) == {
        "means": {"happy": {"rest": cells}},
        "differences": {"happy: film - rest": None},
        "missing": {"happy: film - rest": "few"},
    }
