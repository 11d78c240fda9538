"""FER2013: the challenge's table and the folders, both drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.face.image import decode_image
from fer_vit.sources import fer2013

FACES = np.random.default_rng(0).integers(0, 256, (3, 48, 48))


def pixels(face: np.ndarray) -> str:
    """A face as the table writes it."""
    return " ".join(str(value) for value in face.ravel())


def table(*lines: str) -> str:
    """A table in the challenge's form."""
    return "\n".join(("emotion,pixels,Usage", *lines)) + "\n"


GOOD = f"3,{pixels(FACES[0])},Training"


def test_table(tmp_path: Path) -> None:
    lines = (GOOD, f"0,{pixels(FACES[1])},PublicTest", f"6,{pixels(FACES[2])},PrivateTest")
    path = tmp_path / "fer2013.csv"
    path.write_text(table(*lines))
    found = fer2013.read(tmp_path)
    assert found.names == ("anger", "disgust", "fear", "happiness", "sadness", "surprise", "neutral")
    assert [(row.name, row.split, row.label) for row in found.rows] == [
        ("fer2013.csv:2", "train", "happiness"),
        ("fer2013.csv:3", "val", "anger"),
        ("fer2013.csv:4", "test", "neutral"),
    ]
    for row, face in zip(found.rows, FACES, strict=True):
        assert isinstance(row.image, bytes)
        assert (decode_image(row.image) == face[..., None]).all()
    assert not found.notes
    assert fer2013.read(path).rows == found.rows, "a root may be the table"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("3,", "7,", 1), "line 3: expected an emotion from 0 to 6, but got `7`"),
        (GOOD.replace("Training", "Train"), "line 3: expected a Usage from Training, .*, but got `Train`"),
        (f"3,{pixels(FACES[0][1:])},Training", "line 3: expected 2304 pixels from 0 to 255, but got `2256 values: "),
        (f"3,{pixels(FACES[0] + 1000)},Training", "line 3: expected 2304 pixels from 0 to 255"),
        (f"3,{pixels(FACES[0])} x,Training", "line 3: expected 2304 pixels from 0 to 255"),
    ],
)
def test_malformed_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "fer2013.csv").write_text(table(GOOD, line))
    with pytest.raises(FerVitError, match=message) as error:
        fer2013.read(tmp_path)
    assert len(str(error.value)) < 500, "the message shows few of the pixels"


def draw(root: Path, *classes: str) -> None:
    """Touches ten training images and one test image of every class."""
    for name in classes:
        for split, count in (("train", 10), ("test", 1)):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                (root / split / name / f"{i}.jpg").touch()


def test_folders(tmp_path: Path) -> None:
    draw(tmp_path, "angry", "happy", "neutral")
    found = fer2013.read(tmp_path)
    assert found.names == fer2013.NAMES, "all seven in FER2013's order, always"
    assert Counter(row.split for row in found.rows) == {"train": 27, "val": 3, "test": 3}
    assert {row.label for row in found.rows} == {"anger", "happiness", "neutral"}
    assert any("held out as val" in note for note in found.notes)
