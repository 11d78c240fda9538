"""The Python API: names, tables, notebooks, and training without the command line."""

import inspect
import io
import logging
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import fer_vit
from fer_vit import FaceDataModule, FERTask, FerVitError, load
from fer_vit.errors import for_reader
from fer_vit.face.crop import CropSpec
from fer_vit.predict.face_results import FaceResults
from fer_vit.predict.photos import PhotoOptions
from tests.helpers.commands import CROPS, fails, run
from tests.helpers.crops import as_tensors
from tests.helpers.models import small_model

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "accelerator": "cpu",
}


def test_no_package_has_the_name_of_a_public_function() -> None:
    folder = Path(fer_vit.__file__).parent
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert not packages & set(fer_vit.__all__)


def test_public_names_are_listed_and_imported_lazily() -> None:
    assert {"load", "table", "models", "evaluate", "visualize", "export", "finetune"} < set(
        dir(fer_vit)
    )
    assert dir(fer_vit) == sorted(fer_vit.__all__)
    assert all(getattr(fer_vit, name).__doc__ for name in fer_vit.__all__ if name != "__version__")
    assert (Path(fer_vit.__file__).parent / "py.typed").exists()
    assert all(
        inspect.isfunction(getattr(fer_vit, name))
        for name in ("evaluate", "visualize", "export", "finetune")
    )
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fer_vit.nothing
    heavy = {"torch", "numpy", "pyarrow", "PIL", "jsonargparse"}
    code = f"import sys, fer_vit; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_commands_return_their_results(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = fer_vit.export(str(tmp_path / "model"), checkpoint=str(checkpoint))
    results = fer_vit.evaluate(
        str(drawn / "faces.parquet"), checkpoint=str(model), output=str(tmp_path / "e")
    )
    confusion = np.array(results.to_dict()["confusion"])
    accuracy = results.estimate("accuracy").mean
    assert accuracy == pytest.approx(confusion.trace() / confusion.sum())
    photos = str(drawn / "faces" / "test" / "anger")
    page = fer_vit.visualize(
        photos, checkpoint=str(model), output=str(tmp_path / "r"), face="crop", detector="none"
    )
    assert page.name == "index.html"
    assert "ferplus-fairface-small" in [model["name"] for model in fer_vit.models()]


def test_a_table_has_the_columns_and_cells_of_predict(
    drawn: Path, checkpoint: Path, tmp_path: Path
) -> None:
    photos = drawn / "faces" / "test" / "anger"
    file = tmp_path / "t.parquet"
    run("predict", photos, *CROPS, "--checkpoint", checkpoint, "--output", file)
    faces = load(checkpoint, "cpu").predict(photos, face="crop", detector="none")
    table = fer_vit.table(faces)
    expected = pq.read_table(file)
    assert table.schema.remove_metadata() == expected.schema.remove_metadata()
    for column in table.column_names:
        cells = [faces[column].to_pylist() for faces in (table, expected)]
        assert cells[0] == (
            pytest.approx(cells[1], abs=1e-5) if isinstance(cells[0][0], float) else cells[1]
        )
    assert fer_vit.table([]).num_rows == 0


def test_a_notebook_shows_photos_with_their_faces(checkpoint: Path) -> None:
    photos = [np.full((80, 100, 3), grey, np.uint8) for grey in (60, 120)]
    faces = load(checkpoint, "cpu").predict(photos, face="crop", detector="none")
    assert isinstance(faces, FaceResults)
    html = faces._repr_html_()
    pictures = [
        Image.open(io.BytesIO(b64decode(data))) for data in re.findall('base64,([^"]+)"', html)
    ]
    assert [picture.size for picture in pictures] == [(100, 80)] * 2
    for photo, picture in zip(photos, pictures, strict=True):
        difference = np.asarray(picture, int) - photo
        # the photo, away from the coloured box, at which JPEG blurs colours
        assert np.abs(difference[40:65, 20:80]).max() < 10
        assert np.abs(difference[:20]).max() > 50  # and the name of its expression
    with Image.open(io.BytesIO(faces[0]._repr_png_())) as figure:
        assert figure.size == faces[0].plot().size


def test_features_are_what_the_classifier_takes(
    drawn: Path, checkpoint: Path, tmp_path: Path
) -> None:
    photos = drawn / "faces" / "test" / "anger"
    model = load(checkpoint, "cpu")
    features = model.features(photos, face="crop", detector="none")
    faces = model.predict(photos, face="crop", detector="none")
    assert features.shape == (len(faces), 32)
    logits = model.net.vit.head(torch.from_numpy(features))
    expected = [[*face.probabilities.values()] for face in faces]
    assert np.allclose(model.net.probabilities(logits).detach(), expected, atol=1e-5)
    words = ("predict", photos, *CROPS, "--checkpoint", checkpoint, "--features")
    for output in (tmp_path / "t.csv", tmp_path / "folder"):
        run(*words, "--output", output)
        file = output if output.is_file() else output / "part-00000-of-00001.parquet"
        table = pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
        written = table[[f"feature_{index}" for index in range(32)]].to_numpy()
        assert np.allclose(written, features, atol=1e-5)
    assert model.features(np.zeros((60, 60, 3), np.uint8), detector="yunet").shape == (0, 32)


def test_features_per_expression_are_averaged() -> None:
    model = load(small_model(pool="query", regions=("mouth",)), "cpu")
    face = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    found = next(model.find([face], PhotoOptions(face="crop", detector="none")))
    pooled = model.net.pool_features(*as_tensors(found.crops))
    assert pooled.shape == (1, len(model.labels), 32)
    averaged = model.features(face, face="crop", detector="none")
    assert np.allclose(
        averaged[0], [sum(column) / len(column) for column in pooled[0].T.tolist()], atol=1e-6
    )


def test_training_from_python_crops_as_the_task_expects(drawn: Path, tmp_path: Path) -> None:
    data = FaceDataModule(drawn / "faces.parquet", batch_size=4, num_workers=0)
    task = FERTask(labels=data.labels, init="ferplus-fairface-small")
    L.Trainer(max_steps=1, limit_val_batches=1, default_root_dir=tmp_path, **QUIET).fit(task, data)
    assert data.spec == load("ferplus-fairface-small").crop_spec


def test_data_that_does_not_fit_the_task_is_one_line(
    drawn: Path, seven: Path, tmp_path: Path
) -> None:
    faces = drawn / "faces.parquet"
    task = FERTask(labels=FaceDataModule(faces).labels)
    for data, message in (
        (
            FaceDataModule(seven),
            r"neutral, .* surprise, .*labels=data.labels",
        ),
        (
            FaceDataModule(faces, spec=CropSpec(64)),
            r"The task expects CropSpec\(size=224.*Remove `spec`\.",
        ),
    ):
        with pytest.raises(FerVitError, match=message) as error:
            L.Trainer(max_steps=1, default_root_dir=tmp_path, **QUIET).fit(task, data)
        assert "\n" not in str(error.value)


def test_messages_name_arguments_in_python_and_options_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(FerVitError, match=r'`detector="none"`|`detector=\'none\'`') as error:
        PhotoOptions(detector="none")
    assert "--" not in str(error.value)
    assert for_reader("`--face crop --workers 2` or `--x FILE`, not `fer-vit a --b`") == (
        "`face='crop', workers=2` or `x=FILE`, not `fer-vit a --b`"
    )
    (tmp_path / "a.png").touch()
    line = fails(capsys, "predict", tmp_path / "a.png", "--detector", "none")
    assert "`--detector none`" in line
    assert "`--face crop`" in line
    assert "--" not in str(error.value)  # the block of the command has ended


def test_functions_are_quiet_and_commands_print(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    manifest = drawn / "faces.parquet"
    capsys.readouterr()
    results = fer_vit.evaluate(manifest, checkpoint=str(checkpoint), output=tmp_path / "a")
    assert capsys.readouterr().out == ""
    run("evaluate", manifest, "--checkpoint", checkpoint, "--output", tmp_path / "b")
    assert f"{results.estimate('accuracy').mean:.1%}"[:3] in capsys.readouterr().out
    assert not logging.getLogger("fer_vit").handlers
