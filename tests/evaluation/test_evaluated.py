from pathlib import Path

import numpy as np
import pytest

from fer_vit import load
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.face.image import ImageError, encode_png
from fer_vit.labels import EXPRESSIONS
from fer_vit.report.table import TableWriter
from fer_vit.sources.cartoon import draw_face
from fer_vit.tables.labelled import Labelled
from fer_vit.tables.predicted import read_predictions

MERGE = dict.fromkeys(EXPRESSIONS, "other") | {"happiness": "good", "neutral": None}
HEAD = (
    "path,status,face,box_left,box_top,box_right,box_bottom,"
    "score,label,confidence,p_sadness,p_anger\n"
)


def table(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


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
    assert faces.predicted.tolist() == faces.detected.tolist() == [True, True, False]
    assert faces.probabilities[:2].tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert (faces.picture(0) == image[34:86, 17:43]).all()
    assert (faces.picture(1) == image).all()
    with pytest.raises(ImageError):
        faces.picture(2)
    row = f"{tmp_path}/a.png,ok,0,500,40,600,80,0.9,anger,0.75,0.25,0.75"
    with pytest.raises(ImageError, match="outside"):  # the photo is smaller than it was
        read_predictions(table(tmp_path / "q.csv", row)).picture(0)
    assert faces.units.tolist() == [0, 0, 1]
    assert set(faces.columns) >= {"status", "face", "label"}
    assert faces.take(np.array([2, 0])).rows.tolist() == [2, 0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_crop_that_was_taken_whole_is_not_found(suffix: str, tmp_path: Path) -> None:
    columns = {
        "path": str,
        "score": float,
        "confidence": float,
        "p_sadness": float,
        "p_anger": float,
    }
    with TableWriter(tmp_path / f"t{suffix}", columns) as writer:
        for score in (0.8, 0.0, None):
            writer.write(
                [
                    {
                        "path": f"{score}.png",
                        "score": score,
                        "confidence": 1,
                        "p_sadness": 1,
                        "p_anger": 0,
                    }
                ]
            )
    faces = read_predictions(tmp_path / f"t{suffix}")
    assert dict(zip(faces.paths, faces.detected.tolist(), strict=True)) == {
        "0.8.png": True,
        "0.0.png": False,
        "None.png": True,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "path,confidence,p_anger,p_fear\na.png,0.5,0.5,much\n",
            "row 1 .*`p_fear`.*much",
        ),
        (
            "path,confidence,p_anger,p_fear\na.png,0.5,0.5,0.5\nb.png,1,1,\n",
            r"row 2 \(.*\): .*anger, fear",
        ),
        ("path,confidence,p_anger,p_fear\na.png,0.5,0.5,0.9\n", "expected probabilities"),
        ("path,frame,confidence,p_anger,p_fear\na.mp4,0,0.5,0.5,0.5\n", "has frames of videos"),
    ],
)
def test_tables_that_are_no_predictions(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(FerVitError, match=words):
        read_predictions(tmp_path / "p.csv")


def test_a_manifest_is_predicted_like_its_photos(drawn: Path, checkpoint: Path) -> None:
    model = load(checkpoint, "cpu")
    rows = Manifest.read(drawn / "faces.parquet").split("val")
    faces = predict_manifest(model, rows, "val")
    assert faces.paths.tolist() == [rows.name(row) for row in range(len(rows))]
    assert np.allclose(faces.probabilities.sum(1), 1)
    assert faces.detected.all()
    assert faces.targets is not None
    assert (faces.targets == rows.targets()).all()  # the model's labels are the manifest's
    assert faces.picture(0).shape == (64, 64, 3)
    assert set(faces.columns["source"]) == {"drawn"}


def test_merged_probabilities_add_up_without_a_prediction_set(
    drawn: Path, checkpoint: Path
) -> None:
    model = load(checkpoint, "cpu")
    rows = Manifest.read(drawn / "faces.parquet").split("val")
    kept = rows.merge_labels(MERGE)
    faces = predict_manifest(model, kept, "val", MERGE)
    plain = predict_manifest(model, rows, "val")
    shares = plain.probabilities[np.isin(plain.paths, faces.paths)]  # (N, C)
    good = shares[:, model.labels.index("happiness")]
    expected = good / (1 - shares[:, model.labels.index("neutral")])
    assert faces.labels == ["good", "other"]
    assert 0 < len(faces.paths) < len(plain.paths)
    assert np.allclose(faces.probabilities, np.column_stack([expected, 1 - expected]))
    assert "ambiguous" not in faces.columns


def test_manifests_that_cannot_be_evaluated(
    drawn: Path, seven: Path, checkpoint: Path, tmp_path: Path
) -> None:
    model = load(checkpoint, "cpu")
    data = encode_png(draw_face("anger", 0, 32)[0])

    def predicted(names: tuple[str, ...], *rows: Row) -> Labelled:
        write_manifest(tmp_path / "m.parquet", Reading(names, list(rows)), "drawn")
        return predict_manifest(model, Manifest.read(tmp_path / "m.parquet").split("val"), "val")

    # Fewer labels in another order are valid, and so is a label that no face has.
    faces = predict_manifest(model, Manifest.read(seven).split("val"), "val")
    assert faces.targets is not None
    assert [model.labels[k] for k in faces.targets.argmax(1)] == [
        path.rpartition("-")[0] for path in faces.paths
    ]
    assert predicted(("bored", "anger"), Row(data, "a.png", "val", "anger")).targets is not None
    assert predicted(("anger",), Row(data, "a.png", "val")).targets is None
    labelled_rows = [Row(data, "a.png", "val", "anger"), Row(data, "b.png", "val")]
    assert predicted(("bored", "anger"), *labelled_rows).labelled.tolist() == [True, False]
    for words, names, *rows in (
        ("has the label `bored`", ("bored", "anger"), Row(data, "a.png", "val", "bored")),
        ("Expected faces in the val split", ("anger",), Row(data, "a.png", "train", "anger")),
    ):
        with pytest.raises(FerVitError, match=words):
            predicted(names, *rows)
