import pytest

from fer_vit.store.folder import shipped_configs
from tests.helpers.commands import main


def test_every_config_is_one_line_with_its_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["configs"])
    header, *lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert header.split() == ["name", "accuracy", "what", "it", "is"]
    assert [line.split()[0] for line in lines] == list(shipped_configs())
    assert all(line.endswith(".") for line in lines), "the first line of a config is not a sentence"
    (small,) = [line for line in lines if line.startswith("ferplus_small ")]
    assert small.split()[2] == "validation"
    assert float(small.split()[1].removesuffix("%")) > 80
