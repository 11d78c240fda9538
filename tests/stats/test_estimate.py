from fer_vit.stats.estimate import NO_RESULT, Estimate, estimate_text, plain_estimates


def test_a_number_that_is_rounded_to_0_is_not_negative() -> None:
    result = Estimate(mean=-0.0001, low=-0.0004, high=0.0001)
    assert estimate_text(result, ".3f") == "0.000 (0.000 to 0.000)"


def test_a_bound_of_a_difference_shows_its_side_of_0() -> None:
    result = Estimate(mean=0.0003, low=-0.0002, high=0.0008)
    assert estimate_text(result, "+.3f") == "+0.0003 (-0.0002 to +0.001)"
    result = Estimate(mean=0.0, low=-0.00002, high=0.00002)
    assert estimate_text(result, "+.3f") == "0.000 (-0.00002 to +0.00002)"


def test_differences_of_shares_are_in_points() -> None:
    result = Estimate(mean=-0.292, low=-0.504, high=-0.0791)
    assert estimate_text(result, "+.1%") == "-29.2 points (-50.4 to -7.9)"
    assert estimate_text(result, ".1%") == "-29.2% (-50.4% to -7.9%)"


def test_an_estimate_without_an_interval_is_a_number_and_without_a_mean_a_dash() -> None:
    assert estimate_text(Estimate(mean=0.5, low=None, high=None), ".2f") == "0.50"
    assert estimate_text(Estimate(mean=None, low=None, high=None), ".2f") == NO_RESULT


def test_plain_estimates_have_their_fields_as_keys() -> None:
    estimate = Estimate(mean=0.5, low=0.25, high=None, n=9)
    plain = plain_estimates({"all": {"accuracy": estimate}, "faces": 9})
    assert plain == {
        "all": {"accuracy": {"mean": 0.5, "low": 0.25, "high": None, "faces": 9}},
        "faces": 9,
    }
    assert list(plain["all"]["accuracy"]) == ["mean", "low", "high", "faces"]
