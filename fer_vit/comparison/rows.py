"""The rows of a comparison: the names of their sets and measures, and the rows of a test as one.

The part of a row is a column of measures.csv; rows about a condition as a whole have none. The
group is a condition, or a pair of conditions as `film - rest`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fer_vit.comparison.study import Pair
from fer_vit.stats.estimate import Estimate
from fer_vit.stats.persons import Difference
from fer_vit.stats.results import Row

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


def count_row(set: str, group: str, measure: str, count: int) -> Row:
    """Returns the row of a number of a condition."""
    return Row("", set, group, measure, Estimate(float(count), n=count))


@dataclass(frozen=True, eq=False)
class Contrast:
    """A measure in two conditions, the second minus the first: the rows of its test.

    Attributes:
        measure: The name of the measure: in results.json, or on pages.
        pair: The conditions.
        rows: The rows by their measures.
    """

    measure: str
    pair: Pair
    rows: Mapping[str, Row]

    @property
    def name(self) -> str:
        """The name in tables and JSON."""
        return f"{self.measure}: {self.pair.name}"

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

    def is_negligible(self, step: float) -> bool:
        """Whether the interval of the difference lies within a step from 0."""
        difference = self.directed
        return -step < difference.low and difference.high < step

    @property
    def is_higher(self) -> bool:
        """Whether the measure is higher in the second condition."""
        return self.number(DIFFERENCE) > 0

    @property
    def directed(self) -> Difference:
        """The size of the difference, whose signs follow its direction: 3 lower, from 1 to 5."""
        difference = self.difference.estimate
        assert isinstance(difference, Difference)
        if self.is_higher:
            return difference
        return Difference(-difference.mean, -difference.high, -difference.low, difference.n)

    def number(self, measure: str) -> float:
        """Returns a number of the test, such as `T` or the number of persons `FIRST`."""
        mean = self.rows[measure].estimate.mean
        assert mean is not None
        return mean
