"""The rows of a comparison: the names of their sets and measures, and the rows of a test as one.

The part of a row is a column of measures.csv; rows about a condition as a whole have none. The
group is a condition, or a pair of conditions as `film - rest`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fer_vit.comparison.measures import Kind, Measure
from fer_vit.comparison.study import Pair, Study
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.persons import Difference
from fer_vit.stats.results import Results, Row

ALPHA = 0.05  # a difference with a corrected p below `ALPHA` is clear

# Sets of rows.
CONDITIONS = "conditions"  # the numbers of persons, photos and faces
EPISODES = "episodes"  # the numbers of episodes
MEANS = "means"  # over persons
DIFFERENCES = "differences"  # between two conditions, with tests
INTRACLASS = "ICC(1)"

# Measures of `CONDITIONS`.
PERSONS = "persons"
PHOTOS = "photos or clips"
FACES = "faces"
WITHOUT_FACE = "without a face"  # photos and frames in which no face was found

ROOM = "seconds in sight for a duration"  # in `EPISODES`, of a label; see `find_least_room`

# Measures of `MEANS`.
MEAN = "mean"
SD = "sd"  # over persons

# Measures of `DIFFERENCES`. The p of the difference is that of t, corrected for the number of
# tests; a difference without a test has its reason as the note.
# A weak measure that was not planned has no corrected p.
DIFFERENCE = "difference"
T = "t"
DF = "df"
RANKS = "rank test"
G = "g"
FIRST = "persons in the first condition"
SECOND = "persons in the second condition"
PAIRED = "paired"  # the note of a t test of the same persons
WELCH = "Welch"  # the note of a t test of different persons


def count_row(counted: str, condition: str, measure: str, count: int) -> Row:
    """Returns the row of a number of a condition; `counted` is `CONDITIONS` or `EPISODES`."""
    return Row("", counted, condition, measure, Estimate(float(count), n=count))


@dataclass(frozen=True, eq=False)
class Contrast:
    """A measure in two conditions, the second minus the first: the rows of its test.

    Attributes:
        measure: The measure.
        pair: The conditions.
        rows: The rows by their measures.
    """

    measure: Measure
    pair: Pair
    rows: Mapping[str, Row]

    @property
    def name(self) -> str:
        """The name in JSON."""
        return f"{self.measure.name}: {self.pair.name}"

    @property
    def title(self) -> str:
        """The name on pages."""
        return f"{self.measure.title}: {self.pair.name}"

    @property
    def difference(self) -> Row:
        """The difference, with the corrected p."""
        return self.rows[DIFFERENCE]

    @property
    def is_tested(self) -> bool:
        """Whether there is a test."""
        return T in self.rows

    @property
    def is_clear(self) -> bool:
        """Whether the difference is clear: its corrected p is below `ALPHA`."""
        return self.difference.p is not None and self.difference.p < ALPHA

    @property
    def is_paired(self) -> bool:
        """Whether the same persons are compared."""
        return self.rows[T].note == PAIRED

    @property
    def is_negligible(self) -> bool:
        """Whether the interval of the difference lies within the last digit from 0."""
        step = self.measure.kind.step
        return -step < self.directed.low and self.directed.high < step

    @property
    def is_higher(self) -> bool:
        """Whether the measure is higher in the second condition."""
        return self._number(DIFFERENCE) > 0

    @property
    def directed(self) -> Difference:
        """The size of the difference, whose signs follow its direction: 3 lower, from 1 to 5."""
        difference = self.difference.estimate
        assert isinstance(difference, Difference)
        if self.is_higher:
            return difference
        return Difference(-difference.mean, -difference.high, -difference.low, difference.n)

    @property
    def t(self) -> float:
        """The statistic of the t test."""
        return self._number(T)

    @property
    def df(self) -> float:
        """The degrees of freedom of t."""
        return self._number(DF)

    @property
    def g(self) -> float:
        """Hedges' g."""
        return self._number(G)

    @property
    def p(self) -> float | None:
        """The p of t without correction."""
        return self.rows[T].p

    @property
    def p_by_ranks(self) -> float | None:
        """The p of the rank test."""
        return self.rows[RANKS].p

    @property
    def num_first(self) -> int:
        """The number of persons in the first condition."""
        return int(self._number(FIRST))

    @property
    def num_second(self) -> int:
        """The number of persons in the second condition."""
        return int(self._number(SECOND))

    def _number(self, measure: str) -> float:
        mean = self.rows[measure].estimate.mean
        assert mean is not None
        return mean


def find_contrasts(results: Results, study: Study, kind: Kind) -> list[Contrast]:
    """Returns the contrasts of a kind of measures."""
    contrasts = []
    for measure in study.measures[kind]:
        for pair in study.pairs:
            rows = results.by_measure[measure.column, DIFFERENCES, pair.name]
            contrasts.append(Contrast(measure, pair, rows))
    return contrasts


def main_contrasts(results: Results, study: Study, kind: Kind) -> list[Contrast]:
    """Returns the contrasts of a kind without weak measures that were not planned."""
    contrasts = find_contrasts(results, study, kind)
    return [contrast for contrast in contrasts if not study.is_aside(contrast.measure)]


def drawn_contrasts(results: Results, study: Study, kind: Kind) -> list[Contrast]:
    """Returns the main contrasts with a test, without differences below the last digit."""
    main = main_contrasts(results, study, kind)
    return [contrast for contrast in main if contrast.is_tested and not contrast.is_negligible]
