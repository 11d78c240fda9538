from argparse import Namespace

import pytest

from benchmarks import ablation, regions, ways
from tests.helpers.commands import parse_fit

NAMED = Namespace(votes="votes.parquet", more="more.parquet", pretrained=None, teacher="big.ckpt")
RUNS = {
    "ablation": (ablation.ROWS, len(ablation.ROWS)),
    "regions": (regions.rows(regions.TOKENS), len(regions.TOKENS) * len(regions.SEEDS)),
    "ways": (regions.rows(ways.ways(NAMED)), 11 * len(regions.SEEDS)),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_a_configuration_of_its_own(name: str) -> None:
    rows, number = RUNS[name]
    settings = {str(parse_fit(f"--config={ablation.CONFIG}", *words)) for words in rows.values()}
    assert len(settings) == len(rows) == number
    assert len({ablation.slug(name) for name in rows}) == len(rows)


def test_rows_are_left_out_without_what_they_need() -> None:
    assert len(ways.ways(Namespace(votes=None, more=None, pretrained=None, teacher=None))) == 7
