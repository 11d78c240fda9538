import pytest

from fer_vit.labels import canonical


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Happy", "happiness"), (" angry ", "anger"), ("fear", "fear"), ("Boredom", "boredom"), ("Ge\u0301ne", "g\xe9ne")],
)
def test_canonical(name: str, expected: str) -> None:
    assert canonical(name) == expected
