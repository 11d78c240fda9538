"""Labels of users."""

import pytest

from fer_vit.errors import FerVitError
from fer_vit.labels import canonical, check_labels


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Happy", "happiness"),
        (" angry ", "anger"),
        ("fear", "fear"),
        ("Boredom", "boredom"),
        ("Ge\u0301ne", "g\xe9ne"),
    ],
)
def test_canonical(name: str, expected: str) -> None:
    assert canonical(name) == expected


def test_labels_of_every_script() -> None:
    check_labels(
        ["calm", "ruhig \xfc", "\u0628\u06cc\u200c\u062a\u0641\u0627\u0648\u062a", "\u6012"],
        "photos",
    )
    for odd in ("a\nb", "", "a\u202eb", "\u200c", 1, "a" * 101):
        with pytest.raises(FerVitError, match=r"photos: .* 1 to 100 "):
            check_labels(["calm", odd], "photos")


@pytest.mark.parametrize("labels", [[], ["calm", "calm"]])
def test_labels_differ_from_each_other(labels: object) -> None:
    with pytest.raises(FerVitError, match=r"photos: expected 1 to 1,000 labels that differ"):
        check_labels(labels, "photos")
