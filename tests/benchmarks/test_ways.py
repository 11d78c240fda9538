from argparse import Namespace

from benchmarks import ablation, regions, ways
from tests.helpers.commands import parse_fit


def test_every_run_is_a_configuration_of_its_own() -> None:
    named = Namespace(votes="votes.parquet", more="more.parquet", pretrained=None, teacher="big.ckpt")
    rows = regions.rows(ways.ways(named))
    settings = {str(parse_fit(f"--config={ablation.CONFIG}", *words)) for words in rows.values()}
    assert len(settings) == len(rows) == 11 * len(regions.SEEDS)
    assert len({ablation.slug(name) for name in rows}) == len(rows)
    assert len(ways.ways(Namespace(votes=None, more=None, pretrained=None, teacher=None))) == 7
