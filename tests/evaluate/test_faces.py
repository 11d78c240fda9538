from pathlib import Path

import numpy as np
import pytest

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row
from fer_vit.data.writing import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluate.faces import Faces, aligned, match, predict_manifest, read_predictions, with_columns, with_labels
from fer_vit.face.image import ImageError, encode_png
from fer_vit.sources.drawing import draw_face

HEAD = "path,status,face,box_left,box_top,box_right,box_bottom,score,label,confidence,sadness,anger\n"


def table(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def predictions(folder: Path, *names: str) -> Faces:
    """What a table says that is sure of sadness in some photos."""
    rows = [f"{name},ok,0,,,,,,sadness,0.75,0.75,0.25" for name in names]
    return read_predictions(table(folder / "p.csv", *rows))


@pytest.mark.parametrize(
    ("ours", "theirs", "rows"),
    [
        (["a/x.png", "b/x.png"], ["b/x.png", "a/x.png"], [1, 0]),
        (["val/x.png", "val/y.png"], ["/data/val/y.png", "/data/val/x.png"], [1, 0]),
        (["/data/val/x.png", "/data/val/y.png"], ["y.png", "x.png"], [1, 0]),
        (["C:\\photos\\x.png"], ["photos/x.png"], [0]),
        (["x.png"], ["x.png", "x.png"], [0]),  # the surest of several faces comes first
        (["x.png", "x.png"], ["a/x.png"], [0, 0]),
        (["val/x.png"], ["x.png", "val/x.png"], [1]),
    ],
)
def test_paths_match_when_one_ends_in_the_other(ours: list[str], theirs: list[str], rows: list[int]) -> None:
    assert match(ours, theirs, "t").tolist() == rows


@pytest.mark.parametrize(
    ("ours", "theirs", "some", "words"),
    [
        (["x.png", "y.png"], ["x.png"], False, "1 of 2 are not there, for example y.png"),
        (["val/x.png"], ["test/x.png"], True, "1 of 1 are not there"),  # only the file's name is the same
        (["a/x.png", "b/x.png"], ["x.png"], True, "Two images match one row of t"),
        (["x.png"], ["a/x.png", "b/x.png"], True, "1 of 1 are not there"),  # either
        (["xx.png"], ["x.png"], True, "1 of 1 are not there"),
    ],
)
def test_paths_that_do_not_match(ours: list[str], theirs: list[str], some: bool, words: str) -> None:
    with pytest.raises(FerVitError, match=words):
        match(ours, theirs, "t", some)


def test_a_table_of_photos(tmp_path: Path) -> None:
    image = np.arange(100 * 100 * 3).reshape(100, 100, 3).astype(np.uint8)
    (tmp_path / "a.png").write_bytes(encode_png(image))
    faces = read_predictions(
        table(
            tmp_path / "p.csv",
            f"{tmp_path}/a.png,ok,0,20,40,40,80,0.9,anger,0.75,0.25,0.75",
            f"{tmp_path}/a.png,ok,1,,,,,0.8,sadness,0.5,0.5,0.5",
            "'=gone.png,no face,,,,,,,,,,",
        )
    )
    assert faces.labels == ["sadness", "anger"]
    assert faces.paths[2] == "=gone.png"
    assert faces.predicted.tolist() == faces.found.tolist() == [True, True, False]
    assert faces.probabilities[:2].tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert (faces.picture(0) == image[34:86, 17:43]).all()
    assert (faces.picture(1) == image).all()
    with pytest.raises(ImageError):
        faces.picture(2)
    assert faces.units.tolist() == [0, 0, 1]
    assert set(faces.columns) >= {"status", "face", "label"}
    assert faces.take(np.array([2, 0])).rows.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\na.png,anger\n", "Expected a table of `fer-vit predict`"),
        ("path,confidence,a,b\na.png,0.5,0.5,much\n", "expected numbers in a, b"),
        ("path,confidence,a,b\na.png,0.5,0.5,0.5\nb.png,0.5,0.5,\n", "row 1: expected probabilities of a, b"),
        ("path,confidence,a,b\na.png,0.5,0.5,0.9\n", "row 0: expected probabilities"),
        ("path,confidence,a,b\n,0.5,0.5,0.5\n", "Expected a table of"),
        ("path,confidence,a,b\na.png,0.5\n", "cannot be read"),
        ("", "Expected a table of"),
    ],
)
def test_tables_that_are_no_predictions(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(FerVitError, match=words):
        read_predictions(tmp_path / "p.csv")


def test_labels_out_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label,age\nb/x.png,Angry,30\na/x.png,sad,40\n")
    faces = with_labels(predictions(tmp_path, "a/x.png", "b/x.png", "c/x.png"), tmp_path / "t.csv", "val")
    assert faces.paths.tolist() == ["b/x.png", "a/x.png"]
    assert faces.shares is not None
    assert faces.shares.tolist() == [[0, 1], [1, 0]]
    assert faces.right.tolist() == [False, True]
    assert faces.columns["age"].tolist() == ["30", "40"]
    assert faces.columns["label"].tolist() == ["sadness", "sadness"]  # the prediction


def test_labels_out_of_a_manifest_in_another_order(tmp_path: Path) -> None:
    data = encode_png(draw_face("anger", 0, 32)[0])
    rows = [Row(data, f"{label}.png", split, label) for label in ("anger", "sadness") for split in ("train", "val")]
    rows.append(Row(data, "both.png", "val", "anger", (3.0, 1.0, 0.0)))
    write_manifest(tmp_path / "m.parquet", Reading(("anger", "sadness", "fear"), rows), "drawn")
    table = predictions(tmp_path, "/x/sadness.png", "/x/anger.png", "/x/both.png")
    faces = with_labels(table, tmp_path / "m.parquet", "val")
    assert faces.paths.tolist() == ["/x/anger.png", "/x/sadness.png", "/x/both.png"]
    assert faces.shares is not None
    assert faces.shares.tolist() == [[0, 1], [1, 0], [0.25, 0.75]]
    assert faces.columns["source"].tolist() == ["drawn"] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\na.png,bored\n", "has the label `bored`, but the model knows sadness, anger"),
        ("path,label\na.png,anger\nb.png,\n", "t.csv, row 1: expected a path and a label, but one is empty"),
        ("path,label\n,anger\n", "row 0: expected a path and a label"),
        ("path,age\na.png,3\n", "Expected columns path and label .* has path, age"),
        ("path,label\n", "it has no row"),
        ("path,label\na.png,anger\nb.png,anger\n", "1 of 2 are not there, for example b.png"),
        ("path,label\nz.png,anger\n", "1 of 1 are not there"),
    ],
)
def test_labels_that_do_not_fit(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FerVitError, match=words):
        with_labels(predictions(tmp_path, "a.png"), tmp_path / "t.csv", "val")


def test_columns_are_joined_by_path(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,age,person\na.png,30,p\nb.png,,p\n")
    faces = with_columns(predictions(tmp_path, "x/a.png", "x/b.png", "x/c.png"), tmp_path / "c.csv")
    assert faces.columns["age"].tolist() == ["30", None, None]
    first, second, third = faces.units.tolist()
    assert first == second != third
    (tmp_path / "c.csv").write_text("image,age\na.png,30\n")
    with pytest.raises(FerVitError, match="Expected a column `path`"):
        with_columns(faces, tmp_path / "c.csv")


def test_another_model_has_its_own_order(tmp_path: Path) -> None:
    ours = predictions(tmp_path, "a.png", "b.png")
    text = "path,confidence,anger,sadness,fear\nb.png,0.7,0.7,0.2,0.1\na.png,,,,\n"
    (tmp_path / "o.csv").write_text(text)
    other = read_predictions(tmp_path / "o.csv")
    theirs = aligned(ours, other, "o.csv")
    assert np.isnan(theirs[0]).all()
    assert theirs[1].tolist() == [0.2, 0.7]
    with pytest.raises(FerVitError, match="has the label `fear`, but the model knows sadness, anger"):
        aligned(other, ours, "p.csv")
    with pytest.raises(FerVitError, match="no face that both"):
        aligned(ours.take(np.array([0])), other, "o.csv")


def test_a_manifest_is_predicted_like_its_photos(drawn: Path, checkpoint: Path) -> None:
    model, rows = load(checkpoint, "cpu"), Manifest.read(drawn / "faces.parquet").split("val")
    faces = predict_manifest(model, rows, "val")
    assert faces.paths.tolist() == [rows.name(row) for row in range(len(rows))]
    assert np.allclose(faces.probabilities.sum(1), 1)
    assert faces.found.all()
    assert faces.shares is not None
    assert (faces.shares == rows.targets()).all()  # the model's labels are the manifest's
    assert faces.picture(0).shape == (64, 64, 3)
    assert set(faces.columns["source"]) == {"drawn"}


def test_manifests_that_cannot_be_judged(drawn: Path, seven: Path, checkpoint: Path, tmp_path: Path) -> None:
    model, data = load(checkpoint, "cpu"), encode_png(draw_face("anger", 0, 32)[0])

    def predicted(names: tuple[str, ...], *rows: Row) -> Faces:
        write_manifest(tmp_path / "m.parquet", Reading(names, list(rows)), "drawn")
        return predict_manifest(model, Manifest.read(tmp_path / "m.parquet").split("val"), "val")

    # Fewer labels in another order are no obstacle, nor is a label that no face has.
    faces = predict_manifest(model, Manifest.read(seven).split("val"), "val")
    assert faces.shares is not None
    assert [model.labels[k] for k in faces.shares.argmax(1)] == [path.rpartition("-")[0] for path in faces.paths]
    assert predicted(("bored", "anger"), Row(data, "a.png", "val", "anger")).shares is not None
    assert predicted(("anger",), Row(data, "a.png", "val")).shares is None
    with pytest.raises(FerVitError, match="has the label `bored`"):
        predicted(("bored", "anger"), Row(data, "a.png", "val", "bored"))
    with pytest.raises(FerVitError, match="has val rows without a label"):
        predicted(("anger",), Row(data, "a.png", "val", "anger"), Row(data, "b.png", "val"))
    with pytest.raises(FerVitError, match="Expected faces in the val split"):
        predicted(("anger",), Row(data, "a.png", "train", "anger"))
