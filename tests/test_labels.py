import pytest

from fer_vit.labels import canonical


@pytest.mark.parametrize(
    ("name", "expected"), [("Happy", "happiness"), (" angry ", "anger"), ("fear", "fear"), ("Boredom", "boredom")]
)
def test_canonical(name: str, expected: str) -> None:
    assert canonical(name) == expected
