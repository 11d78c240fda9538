"""Outputs of heads beside the expression, as predictions and in tables."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fer_vit import load, table
from fer_vit.errors import FerVitError
from fer_vit.evaluation.join import add_columns
from fer_vit.evaluation.predictions import is_owned, read_predictions
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.face.image import encode_png
from fer_vit.geometry import rotation
from fer_vit.heads import HEADS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.sources.drawn import draw_face
from fer_vit.store.folder import save_network
from tests.helpers.commands import CROPS, predict

OUTPUTS = {"movements": ["jawOpen"], "pose": ["yaw", "pitch", "roll"], "affect": ["valence"]}
COLUMNS = ["move_jawOpen", "yaw", "pitch", "roll", "valence"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with all heads, and random weights."""
    torch.manual_seed(0)
    config = RegionViTConfig(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, regions=DEFAULT_REGIONS
    )
    net = build_model(config, ["happiness", "anger"], outputs=OUTPUTS)
    path = tmp_path_factory.mktemp("model") / "heads"
    save_network(net, path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Recognizer:
    return load(folder, "cpu")


def test_predicted_outputs_are_the_decoded_heads_and_roll_is_that_of_the_photo(
    model: Recognizer,
) -> None:
    photo, _ = draw_face("happiness", 3, 96)
    face = model.predict(photo, face="crop", detector="landmarks")[0]
    assert [*face.outputs] == COLUMNS
    _, chunks = next(model.find([photo], PhotoOptions("crop", "landmarks")))
    batch = chunks[0]
    raw = model.net(batch.image, batch.boxes, batch.valid)
    for head, names in OUTPUTS.items():
        decoded = HEADS[head].decode(raw[head])[0].tolist()
        for name, value in zip(names, decoded, strict=True):
            if name == "roll":
                value -= rotation(face.to_crop)
            column = HEADS[head].prefix + name
            assert face.outputs[column] == pytest.approx(value, abs=1e-4), column
    assert face.pose is not None
    assert face.pose.roll == face.outputs["roll"]


def test_tables_have_the_outputs_after_the_pose(folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(3):
        (photos / f"{seed}.png").write_bytes(encode_png(draw_face("anger", seed, 64)[0]))
    rows = predict(photos, folder, tmp_path / "faces.csv", *CROPS[:1], "--detector=landmarks")
    names = [*rows[0]]
    start = names.index("yaw")
    assert names[start : start + 5] == ["yaw", "pitch", "roll", "move_jawOpen", "valence"]
    assert all(0 <= row["move_jawOpen"] <= 1 and -1 <= row["valence"] <= 1 for row in rows)

    faces = read_predictions(tmp_path / "faces.csv")
    np.testing.assert_allclose(
        np.array(faces.columns["move_jawOpen"], float), [row["move_jawOpen"] for row in rows]
    )


def test_a_model_without_heads_has_no_further_columns(checkpoint: Path) -> None:
    photo, _ = draw_face("happiness", 3, 64)
    faces = load(checkpoint, "cpu").predict(photo, face="crop", detector="landmarks")
    assert faces[0].outputs == {}
    assert not {"move_jawOpen", "valence"} & {*table(faces).column_names}


@pytest.mark.parametrize("name", ["move_smile", "valence", "arousal", "yaw"])
def test_columns_of_heads_are_owned(name: str) -> None:
    assert is_owned(name, ["happiness"])


def test_user_columns_do_not_replace_outputs(folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(encode_png(draw_face("anger", 0, 64)[0]))
    predict(photos, folder, tmp_path / "faces.csv", *CROPS)
    faces = read_predictions(tmp_path / "faces.csv")
    (tmp_path / "more.csv").write_text("path,valence\na.png,0.5\n")
    with pytest.raises(FerVitError, match="valence"):
        add_columns(faces, tmp_path / "more.csv")


def test_included_model_mirrors_movements_and_pose_of_a_mirrored_face() -> None:
    included = load("ferplus-fairface", "cpu")
    photo, _ = draw_face("contempt", 3, 96)
    views = included.predict([photo, photo[:, ::-1].copy()], face="crop", detector="landmarks")
    plain, mirrored = (face.outputs for face in views)
    outputs = included.net.settings.outputs
    assert len(outputs["movements"]) == 45
    for head, names in outputs.items():
        source, sign = HEADS[head].mirror(names)
        columns = [HEADS[head].prefix + name for name in names]
        for index, column in enumerate(columns):
            expected = sign[index] * plain[columns[source[index]]]
            # The weights have half precision; the unit of a pose is a degree.
            tolerance = 0.1 if head == "pose" else 0.005
            assert mirrored[column] == pytest.approx(expected, abs=tolerance), column
    for label, probability in views[0].probabilities.items():
        assert views[1].probabilities[label] == pytest.approx(probability, abs=0.01)
