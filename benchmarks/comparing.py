"""Simulates studies without a difference between two conditions: how often the mixed model of
`compare` has p < 0.05.

python -m benchmarks.comparing

Persons differ in their mean (standard deviation 1) and in their response to the conditions (0.5 in
each); photos of a person in a condition differ as well (1). The rate is right if its interval
(Wilson) overlaps 4.5 to 5.5%.

The fits of statsmodels take most of the time, so two faster equivalents are used, and every 100th
study is checked. For equal numbers of photos: the paired t test of the means of persons, which must
equal the model of `compare`. For unequal numbers: the same restricted likelihood (REML) for arrays
of persons, where the fit of statsmodels must not be better.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.optimize import minimize

from benchmarks.machine import machine, run_main
from fer_vit.comparison.mixed_model import (
    CellMeans,
    Variances,
    average_cells,
    fit_variances,
    mixed_model,
    robust_tests,
)
from fer_vit.comparison.statistics import NoTest
from fer_vit.geometry import Array, IntArray
from fer_vit.report.table import markdown

PERSON = 1.0  # standard deviation of the means of persons
RESPONSE = 0.5  # of the responses of a person to each condition
PHOTO = 1.0  # of the photos of a person in a condition
MOST = 5  # photos of a person in a condition where their numbers differ
EQUAL = 3  # photos of a person in a condition where their numbers are equal
ALPHA = 0.05
CHECKED = 100  # one of so many studies is checked
EFFECTS = np.array([[1.0, 0.0], [1.0, 1.0]])  # intercept and slope in the two cells of a person


def study(counts: IntArray, rng: np.random.Generator) -> tuple[Array, IntArray, IntArray]:
    """Draws values (O,) with their person and condition,
    for the number of photos in each cell (persons, 2).
    """
    persons = len(counts)
    cells = rng.normal(0, PERSON, (persons, 1)) + rng.normal(0, RESPONSE, (persons, 2))
    person, condition = np.indices(counts.shape).reshape(2, -1).repeat(counts.ravel(), axis=1)
    values = cells[person, condition] + rng.normal(0, PHOTO, len(person))
    return values, person, condition


def unequal_p(persons: int, studies: int) -> list[float]:
    """Returns the p-values of studies with one to `MOST` photos in a cell."""
    rng = np.random.default_rng([persons, 0])
    p_values = []
    for index in range(studies):
        values, person, condition = study(rng.integers(1, MOST + 1, (persons, 2)), rng)
        cells = average_cells(values, person, condition)
        within = values - cells.mean.reshape(persons, 2)[person, condition]
        squares = float((within**2).sum())
        covariance = fast_variances(cells, squares)
        (test,) = robust_tests(cells, Variances(covariance, residual=1.0))
        assert not isinstance(test, NoTest)
        p_values.append(test.p)
        if index % CHECKED == 0:
            reference = fit_variances(values, person, condition)
            relative = reference.random_effects / reference.residual
            expected = deviance(relative, cells, squares)
            assert deviance(covariance, cells, squares) < expected + 1e-3
    return p_values


def fast_variances(cells: CellMeans, within: float) -> Array:
    """Returns the covariance of intercepts and slopes (2, 2) relative to the residual variance, by
    REML.

    `within` is the sum of squares of the photos around their cell. Every person has both cells.
    """

    def loss(parameters: Array) -> float:
        return deviance(_covariance(parameters), cells, within)

    return _covariance(minimize(loss, [1.0, 0.0, 0.5], method="L-BFGS-B").x)


def _covariance(parameters: Array) -> Array:
    """Returns the covariance (2, 2) whose Cholesky root has three parameters."""
    root = np.array([[parameters[0], 0.0], [parameters[1], parameters[2]]])
    return np.asarray(root @ root.T)


def deviance(covariance: Array, cells: CellMeans, within: float) -> float:
    """Returns -2 times the restricted log-likelihood, but for a constant,
    of a relative covariance (2, 2).
    """
    means = cells.mean.reshape(-1, 2)  # (P, 2)
    noise = np.eye(2) / cells.observations.reshape(-1, 2, 1)  # (P, 2, 2)
    variance = EFFECTS @ covariance @ EFFECTS.T + noise
    inverse = np.linalg.inv(variance)
    weighted = EFFECTS.T @ inverse  # (P, 2, 2)
    information = (weighted @ EFFECTS).sum(0)
    estimate = np.linalg.solve(information, (weighted @ means[:, :, None]).sum(0))[:, 0]
    rest = means - EFFECTS @ estimate
    squares = within + np.einsum("pi,pij,pj->", rest, inverse, rest)
    logs = np.log(np.linalg.det(variance)).sum() + np.log(np.linalg.det(information))
    return float(logs + (cells.observations.sum() - 2) * np.log(squares))


def equal_p(persons: int, studies: int) -> list[float]:
    """Returns the p-values of studies with `EQUAL` photos in a cell by the paired t test."""
    rng = np.random.default_rng([persons, 1])
    p_values = []
    for index in range(studies):
        values, person, condition = study(np.full((persons, 2), EQUAL), rng)
        means = values.reshape(persons, 2, EQUAL).mean(2)
        p_values.append(float(stats.ttest_rel(means[:, 1], means[:, 0]).pvalue))
        if index % CHECKED == 0:
            (test,) = mixed_model(values, person, condition)
            assert not isinstance(test, NoTest)
            assert abs(test.p - p_values[-1]) < 1e-9
    return p_values


def rate(p: Sequence[float]) -> str:
    """Formats the share of p-values below `ALPHA` with its 95% interval."""
    hits = int((np.array(p) < ALPHA).sum())
    result = stats.binomtest(hits, len(p)).proportion_ci(method="wilson")
    return f"{hits / len(p):.2%} ({result.low:.2%} to {result.high:.2%})"


def main(studies: int = 5000, persons: Sequence[int] = (6, 8, 12, 20, 30)) -> None:
    """Runs the simulation."""
    print(machine(), flush=True)
    rows = [["persons", f"{EQUAL} photos", f"1 to {MOST} photos"]]
    for number in persons:
        rows.append([str(number), rate(equal_p(number, studies)), rate(unequal_p(number, studies))])
        print(" | ".join(rows[-1]), flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    run_main(main)
