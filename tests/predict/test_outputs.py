"""Outputs of heads beside the expression, as predictions and in tables."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fer_vit import load, table
from fer_vit.errors import FerVitError
from fer_vit.face.crop import DEFAULT_REGIONS, crop_face, mirror, region_boxes
from fer_vit.face.image import encode_png
from fer_vit.fields import is_owned
from fer_vit.geometry import rotation
from fer_vit.heads import HEADS
from fer_vit.losses import decode
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.outputs import Outputs, check_outputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.sources.cartoon import draw_face
from fer_vit.store.model_folder import save_network
from fer_vit.tables.predicted import read_predictions
from tests.helpers.commands import CROPS, fails, predict, run
from tests.helpers.crops import as_tensors
from tests.helpers.faces import tiny_recognizer
from tests.helpers.videos import write_video

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
    found = next(model.find([photo], PhotoOptions(face="crop", detector="landmarks")))
    raw = model.net(*as_tensors(found.crops))
    for head, names in OUTPUTS.items():
        decoded = decode(head, raw[head])[0].tolist()
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


@pytest.mark.parametrize("label", ["contempt", "anger"])
def test_shipped_model_mirrors_the_outputs_of_a_mirrored_crop(label: str) -> None:
    """The network is exactly symmetric: rounding to half precision keeps equal weights equal."""
    shipped = load("ferplus-fairface", "cpu")
    spec = shipped.crop_spec
    photo, landmarks = draw_face(label, 3, 96)
    crop, points, *_ = crop_face(photo, landmarks, spec, framed=False)
    views = [(crop, points), mirror(crop, points)]
    pixels = np.stack([image for image, _ in views])  # (2, S, S, 3)
    boxes = np.stack([region_boxes(places, spec.regions) for _, places in views])  # (2, R, 4)
    image = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        raw = shipped.net(image, torch.from_numpy(boxes).float())

    probabilities = shipped.net.probabilities(raw["expression"])
    assert (probabilities[0] - probabilities[1]).abs().max() < 1e-5
    assert len(shipped.outputs.of_head("movements")) == 45
    for head, names in shipped.outputs.plain.items():
        source, sign = HEADS[head].mirror(names)
        plain, mirrored = decode(head, raw[head])
        expected = plain[list(source)] * plain.new_tensor(sign)
        assert plain.abs().max() > 0.1, head
        assert (mirrored - expected).abs().max() < 1e-4, head  # the unit of a pose is a degree


@pytest.mark.parametrize(
    ("chosen", "columns"),
    [
        (("pose", "affect"), {"yaw", "pitch", "roll", "valence"}),
        (("expression",), {"label", "confidence", "p_anger", "entropy", "ambiguous"}),
    ],
)
def test_outputs_choose_columns(
    chosen: tuple[str, ...], columns: set[str], folder: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(encode_png(draw_face("anger", 0, 64)[0]))
    run("predict", photos, *CROPS, "--checkpoint", folder, "--output", tmp_path / "all.parquet")
    words = ("--output", tmp_path / "some.parquet", "--outputs", *chosen)
    run("predict", photos, *CROPS, "--checkpoint", folder, *words)
    full = pq.read_table(tmp_path / "all.parquet")
    chosen_table = pq.read_table(tmp_path / "some.parquet")
    every = {"label", "p_anger", "yaw", "move_jawOpen", "valence", "ambiguous", "entropy"}
    assert columns <= {*chosen_table.column_names}
    assert not (every - columns) & {*chosen_table.column_names}
    assert chosen_table.equals(full.select(chosen_table.column_names))
    assert {"path", "status", "size", "box_left", "pose_from"} < {*chosen_table.column_names}


def test_a_head_that_the_model_lacks_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(draw_face("anger", 0, 64)[0]))
    words = ("--checkpoint", checkpoint, "--output", tmp_path / "t.csv", "--outputs", "affect")
    line = fails(capsys, "predict", tmp_path / "a.png", *CROPS, *words)
    assert "expression, pose" in line
    assert "affect" in line
    line = fails(capsys, "predict", tmp_path / "a.png", *CROPS, *words, "pose", "pose")
    assert "affect" in line
    words = (*words[:-1], "pose", "expression", "pose")
    assert "once" in fails(capsys, "predict", tmp_path / "a.png", *CROPS, *words)
    assert not (tmp_path / "t.csv").exists()


def test_a_threshold_needs_movements_and_a_table_of_intervals(
    folder: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write_video(tmp_path / "a.mp4", [draw_face("happiness", 3, 96)[0]] * 2, [0.0, 0.1])
    words = [tmp_path / "a.mp4", *CROPS, "--output", tmp_path / "t.csv", "--threshold"]
    intervals = ("--intervals", tmp_path / "i.csv")
    for value in ("-0.1", "1.1", "nan", "half"):
        line = fails(capsys, "predict", *words, value, *intervals, "--checkpoint", folder)
        assert "threshold" in line
        assert value in line
    line = fails(capsys, "predict", *words, "0.5", "--checkpoint", folder)
    assert "--intervals" in line
    line = fails(capsys, "predict", *words, "0.5", *intervals, "--checkpoint", checkpoint)
    assert "movements" in line
    assert not (tmp_path / "t.csv").exists()


def test_the_origin_records_what_the_pose_is_from(model: Recognizer, checkpoint: Path) -> None:
    photo, _ = draw_face("happiness", 3, 96)
    options = {"face": "crop", "detector": "landmarks", "workers": 0}
    assert model.predict(photo, **options).origin.pose_from == "head"
    assert load(checkpoint, "cpu").predict(photo, **options).origin.pose_from == "landmarks"
    some = tiny_recognizer(("a", "b"), ("yaw", "valence", "roll"))
    assert some.origin().pose_from == "head: yaw, roll; landmarks: pitch"


def test_videos_have_smoothed_outputs(model: Recognizer, tmp_path: Path) -> None:
    images = [draw_face("happiness", 3, 96)[0]] * 3
    write_video(tmp_path / "a.mp4", images, [0.0, 0.1, 0.2])
    faces = model.predict(tmp_path / "a.mp4", face="crop", detector="landmarks", workers=0)
    rows = table(faces).to_pylist()
    for row, face in zip(rows, faces, strict=True):
        assert [*face.smoothed_outputs] == COLUMNS
        for column in COLUMNS:
            assert row[f"smoothed_{column}"] == face.smoothed_outputs[column]
            assert row[f"smoothed_{column}"] == pytest.approx(face.outputs[column], abs=0.5)
    assert is_owned("smoothed_move_jawOpen", model.labels)


def test_check_outputs_names_the_table_that_is_requested_twice(tmp_path: Path) -> None:
    faces = tmp_path / "faces.csv"
    outputs = Outputs(faces, people=faces, intervals=tmp_path / "intervals.csv")
    with pytest.raises(FerVitError, match=r"two are .*faces\.csv"):
        check_outputs(outputs, [], [])


@pytest.mark.parametrize("second", ["people", "intervals"])
def test_chosen_columns_of_a_folder_exclude_the_tables_that_are_made_from_it(
    second: str, tmp_path: Path
) -> None:
    clip = tmp_path / "clip.mp4"
    chosen = Outputs(tmp_path / "tables", overwrite=False, heads=("expression",))
    check_outputs(chosen, [clip], [clip])
    beside = {second: tmp_path / "second.csv"}
    check_outputs(chosen._replace(table=tmp_path / "table.csv", **beside), [clip], [clip])
    check_outputs(chosen._replace(heads=(), **beside), [clip], [clip])
    with pytest.raises(FerVitError, match="`outputs`"):
        check_outputs(chosen._replace(**beside), [clip], [clip])
    assert [*tmp_path.iterdir()] == []
