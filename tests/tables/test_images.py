"""Tables of users with one row for each image."""

from pathlib import Path

import numpy as np
import pytest

from fer_vit.errors import FerVitError
from fer_vit.tables.images import read_truth_table

LABELS = ["happiness", "anger"]


def test_truth_of_labels_and_outputs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "path,label,yaw,age,confidence\na,angry,-3,30,1\nb,Happy,,NA,2\n"
    )
    truth = read_truth_table(tmp_path / "t.csv", LABELS)
    assert truth.paths.tolist() == ["a", "b"]
    assert truth.votes is not None
    assert truth.votes.tolist() == [[0, 1], [1, 0]]
    assert truth.outputs["yaw"].tolist() == pytest.approx([-3, float("nan")], nan_ok=True)
    assert truth.columns["age"].tolist() == ["30", None]
    assert sum("confidence" in note for note in truth.notes) == 1  # a column of `predict`


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\na,bored\n", "`bored`"),
        ("path,label\na,\n", "row 1 .*label"),
        ("path,yaw\na,3\nb,181\n", "row 2 .*`yaw`.*`181`"),
        ("path,yaw\na,x\n", "row 1 .*`yaw`.*`x`"),
        ("path,age\na,3\n", "got path, age"),
    ],
)
def test_truth_that_does_not_fit(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FerVitError, match=rf"t\.csv.*{words}"):
        read_truth_table(tmp_path / "t.csv", LABELS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,yaw\n,1\n", "row 1 .*path"),
        ("path,yaw\n./a,1\na,1\n", "row 2 .*row 1"),
        ("path,yaw\n", "rows"),
    ],
)
def test_images_have_a_path_and_one_row(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FerVitError, match=words):
        read_truth_table(tmp_path / "t.csv", LABELS)


def test_angles_that_may_be_radians_are_one_line_with_both_remedies(tmp_path: Path) -> None:
    path = tmp_path / "rad.csv"
    path.write_text("path,yaw,pitch,valence\na.png,-0.6,,1\nb.png,0.25,0.125,0\n")
    with pytest.raises(FerVitError, match=r"yaw, pitch .*0.6.*radians.*degrees"):
        read_truth_table(path, LABELS)
    assert read_truth_table(path, LABELS, "degrees").outputs["yaw"].tolist() == [-0.6, 0.25]
    outputs = read_truth_table(path, LABELS, "radians").outputs
    np.testing.assert_allclose(outputs["yaw"], np.degrees([-0.6, 0.25]))
    assert outputs["valence"].tolist() == [1, 0]


def test_angles_of_zero_are_degrees(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,yaw,roll\na.png,0,\nb.png,,\n")
    outputs = read_truth_table(tmp_path / "t.csv", LABELS).outputs
    np.testing.assert_array_equal(outputs["yaw"], [0, np.nan])
