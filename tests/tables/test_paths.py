"""Which rows of a table name the same image."""

import pytest

from fer_vit.errors import FerVitError
from fer_vit.tables.paths import match_paths


@pytest.mark.parametrize(
    ("paths", "known", "rows"),
    [
        (["a/x.png", "b/x.png"], ["b/x.png", "a/x.png"], [1, 0]),
        (["val/x.png", "val/y.png"], ["/data/val/y.png", "/data/val/x.png"], [1, 0]),
        (["/data/val/x.png", "/data/val/y.png"], ["y.png", "x.png"], [1, 0]),
        (["../val/x.png", "./val/y.png"], ["/data/val/y.png", "/data/val/x.png"], [1, 0]),
        (["/data/val/y.png", "/data/val/x.png"], ["../val/x.png", "./val/y.png"], [1, 0]),
        (["photos\\x.png"], ["C:/photos/x.png"], [0]),
        (["g\xe9ne/x.png"], ["/data/ge\u0301ne/x.png"], [0]),  # as typed, and as macOS names files
        (["x.png"], ["x.png", "x.png"], [0]),  # the surest of several faces comes first
        (["x.png", "x.png"], ["a/x.png"], [0, 0]),
        (["val/x.png"], ["x.png", "val/x.png"], [1]),
    ],
)
def test_paths_match_when_one_ends_in_the_other(
    paths: list[str], known: list[str], rows: list[int]
) -> None:
    assert match_paths(paths, known, "t").tolist() == rows


@pytest.mark.parametrize(
    ("paths", "known", "subset", "words"),
    [
        (["x.png", "y.png"], ["x.png"], False, "1 of 2 .*y.png"),
        (
            ["val/x.png"],
            ["test/x.png"],
            True,
            "1 of 1 ",
        ),  # only the file's name is the same
        (["a/x.png", "b/x.png"], ["x.png"], True, "Two images .* t"),
        (["/data/a/x.png"], ["../a/x.png", "../../a/x.png"], True, "1 of 1 "),
        (["xx.png"], ["x.png"], True, "1 of 1 "),
    ],
)
def test_paths_that_do_not_match(
    paths: list[str], known: list[str], subset: bool, words: str
) -> None:
    with pytest.raises(FerVitError, match=words):
        match_paths(paths, known, "t", subset)
