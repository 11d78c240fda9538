from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil
from PIL import ImageOps
from skimage.data import astronaut
from skimage.exposure import adjust_gamma

from benchmarks.agreement import CHANGES, agreement, main, markdown
from fer_vit.geometry import Image

FACE = astronaut()[50:180, 160:290]


def test_changes_are_those_of_other_libraries() -> None:
    for power in (0.7, 1.5):
        expected = adjust_gamma(FACE, power).astype(int)
        assert np.abs(CHANGES[f"gamma {power}"](FACE) - expected).max() <= 1  # it rounds down
    assert (CHANGES["mirrored"](FACE) == np.asarray(ImageOps.mirror(Pil.fromarray(FACE)))).all()
    grey = np.asarray(Pil.fromarray(FACE).convert("L"))
    assert (CHANGES["grey"](FACE) == grey[..., None]).all()
    half = CHANGES["half the contrast"](FACE)
    assert half.std() == pytest.approx(FACE.std() / 2, rel=0.05)
    assert half.mean() == pytest.approx(grey.mean(), abs=3)
    assert CHANGES["40 px"](FACE).shape == (40, 40, 3)
    warm = CHANGES["warm light"](FACE)
    assert warm[..., 0].mean() > FACE[..., 0].mean()
    assert warm[..., 2].mean() < FACE[..., 2].mean()
    for change in CHANGES.values():
        assert change(FACE).dtype == np.uint8


class Leans:
    """A model that says on which side a picture is brighter, and how much."""

    def predict(self, images: list[Image], face: str) -> list[Any]:
        assert face == "crop"
        sides = [np.array_split(image.mean((0, 2)), 2) for image in images]
        shares = [float(left.mean() / (left.mean() + right.mean())) for left, right in sides]
        return [SimpleNamespace(probabilities={"left": share, "right": 1 - share}) for share in shares]


def test_only_what_moves_the_light_changes_the_label() -> None:
    image = np.full((64, 64, 3), 100, np.uint8)
    image[:, 32:] = 150
    found = agreement(Leans(), [image, image[:, ::-1]])  # type: ignore[arg-type]
    assert list(found) == list(CHANGES)
    assert {name for name, kept in found.items() if kept.kept < 2} == {"mirrored"}
    assert found["mirrored"][:2] == (0, 2)
    assert found["mirrored"].change == pytest.approx(0.2)
    assert found["grey"].change == pytest.approx(0)
    assert "| mirrored | 0.0% (0.0% to 65.8%) | 0.200 |" in markdown(found)


@pytest.mark.slow
def test_a_table_from_a_manifest(
    drawn: Path,
    checkpoint: Path,
    yunet_named: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["agreement", str(drawn / "faces.parquet"), str(checkpoint), "--faces", "3"])
    main()
    table = capsys.readouterr().out
    assert all(f"| {name} | " in table for name in CHANGES)
