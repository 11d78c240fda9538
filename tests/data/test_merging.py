"""Merged labels: of rows, of votes, and of a model's probabilities."""

from pathlib import Path

import numpy as np
import pytest

from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png
from fer_vit.labels import merge_names

IMAGE = encode_png(np.zeros((8, 8), np.uint8))
MERGE = {"happiness": "positive", "neutral": "neutral", "sadness": "negative", "anger": "negative", "fear": None}
ROWS = [
    Row(IMAGE, "a", "train", "happiness", (1.0, 3.0, 0.0, 0.0, 4.0)),
    Row(IMAGE, "b", "train", "sadness", (0.0, 0.0, 1.0, 2.0, 0.0)),
    Row(IMAGE, "c", "train", "anger"),
    Row(IMAGE, "d", "train", "fear", (0.0, 1.0, 0.0, 0.0, 2.0)),
    Row(IMAGE, "e", "val", "neutral", (0.0, 0.0, 0.0, 0.0, 1.0)),
    Row(IMAGE, "f", "test"),
]
NAMES = ("neutral", "happiness", "sadness", "anger", "fear")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "m.parquet", Reading(NAMES, ROWS), "made")
    return tmp_path / "m.parquet"


def test_votes_add_up_and_faces_are_left_out(manifest: Path) -> None:
    rows = Manifest.read(manifest).merge_labels(MERGE)
    assert rows.names == ("positive", "neutral", "negative")
    assert [rows.name(row) for row in range(len(rows))] == ["a", "b", "c", "e", "f"]
    assert rows.column("label") == ["positive", "negative", "negative", "neutral", None]
    assert rows.split("train").targets() == pytest.approx(np.array([[0.75, 0.25, 0], [0, 0, 1], [0, 0, 1]]))
    assert rows.split("val").targets() == pytest.approx(np.array([[0, 1, 0]]))  # no vote is left: by its label


def test_what_the_merge_does_not_name(manifest: Path) -> None:
    with pytest.raises(FerVitError, match=r"Expected neutral, anger in the merge\. Give each a new label, or null"):
        Manifest.read(manifest).merge_labels({k: v for k, v in MERGE.items() if k not in ("neutral", "anger")})
    assert merge_names(("positive", "fear"), MERGE)[0] == ("positive",)  # new labels stay, absent ones do not matter
    with pytest.raises(FerVitError, match="expected 1 to 1,000 labels"):
        merge_names(("fear",), MERGE)


def test_names_that_yaml_reads_as_other_types() -> None:
    with pytest.raises(FerVitError, match=r"The merge has True for a label: .* Put such names in quotes"):
        merge_names(("yes", "no", "0"), {True: "good"})  # type: ignore[dict-item]
