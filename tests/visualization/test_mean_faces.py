"""Means over faces of a report, of which some lack a region."""

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from fer_vit import load
from fer_vit.engine.torch_engine import to_inputs
from fer_vit.explain.attribution import explain
from fer_vit.explain.trace import attention_views, interactions, trace
from fer_vit.faces import Crops, PhotoInfo, join_crops, no_faces
from fer_vit.geometry import Array
from fer_vit.predict.explanations import average_heat
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.explained_face import FaceView
from fer_vit.visualization.explained_scores import ExplainOptions
from fer_vit.visualization.report import write_report
from fer_vit.visualization.report_parts import Part
from fer_vit.visualization.timelines import Watched
from tests.helpers.faces import make_face
from tests.helpers.models import small_model
from tests.helpers.reports import read_page

REGIONS = ("right_eye", "nose", "mouth")
FACES = 40
SIDE = 144  # of photos, in pixels


class Explained(NamedTuple):
    """Faces, and what explains each; NaN where a region is missing."""

    model: Recognizer
    crops: Crops
    views: list[FaceView]
    boxes: Array  # (B, R, 4)
    shares: Array  # (B, R)
    heat: Array  # (B, rows, columns), absolute values add up to 1
    relations: Array  # (B, V, R, R)
    output: Array  # (B, V, R)
    patches: Array  # (B, V, rows, columns)
    distance: Array  # (B, L)
    interactions: Array  # (B, R, R)

    def write(self, folder: Path, names: Sequence[str], times: int = 1) -> dict[str, Any]:
        """Writes a report with each face `times` times, in photos of these names.

        Returns the data of the page.
        """
        views = []
        for view, name in zip(self.views, names, strict=True):
            (face,) = replace(view.face.alone, infos=[PhotoInfo(name)])
            views.append(replace(view, face=face))
        part = Part(no_faces(), views * times, join_crops([self.crops] * times))
        write_report(folder, self.model, [part], Watched(), ExplainOptions("relevance"), Path())
        return read_page(folder)


@pytest.fixture(scope="module")
def faces() -> Explained:
    """Faces for the whole encoder and four heads; every fourth lacks the mouth."""
    rng = np.random.default_rng(0)
    model = load(small_model(classifier=("weight",), regions=REGIONS), "cpu")
    corners = rng.uniform(0, 16, (FACES, 3, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(6, 16, (FACES, 3, 2))], axis=-1)
    valid = np.ones((FACES, 3), bool)
    valid[::4, 2] = False
    crops = Crops(
        image=rng.integers(0, 256, (FACES, 32, 32, 3), np.uint8),
        boxes=np.where(valid[..., None], boxes, 0).astype(np.float32),
        valid=valid,
        to_crop=np.tile(np.eye(2, 3), (FACES, 1, 1)),
    )
    views = []
    for number in range(FACES):
        photo = np.full((SIDE, SIDE, 3), 100 + number, np.uint8)
        photo[: SIDE // 2] = 2 * number  # darker above
        face = make_face({"a": 1.0})
        views.append(FaceView(face, photo, to_crop=np.eye(2, 3) * 32 / SIDE, regions={}))

    inputs = to_inputs(crops, "cpu")
    seen = trace(model.net, *inputs)
    direction = torch.eye(4)[seen.logits.argmax(1)]
    explained = explain(model.net, *inputs, "relevance", direction)
    heat = average_heat(explained.heat.detach().double().numpy())
    pairs = valid[:, :, None] & valid[:, None]
    attention = attention_views(seen)
    known = np.where(pairs, interactions(model.net, seen).detach().numpy(), np.nan)
    return Explained(
        model=model,
        crops=crops,
        views=views,
        boxes=np.where(valid[..., None], boxes, np.nan),
        shares=np.where(valid, explained.shares.detach().numpy(), np.nan),
        heat=heat / np.abs(heat).sum((1, 2), keepdims=True),
        relations=np.where(pairs[:, None], attention.relations.detach().numpy(), np.nan),
        output=np.where(valid[:, None], attention.output.detach().numpy(), np.nan),
        patches=attention.patches.detach().numpy(),
        distance=attention.distance.detach().numpy(),
        interactions=known,
    )


def tables(folder: Path) -> dict[str, list[dict[str, str]]]:
    return {path.stem: list(csv.DictReader(path.open())) for path in folder.glob("*.csv")}


def test_the_frames_of_a_video_are_no_independent_faces(faces: Explained, tmp_path: Path) -> None:
    """Several frames of each face are no more evidence than one, and one video is none."""
    names = [f"{number}.png" for number in range(FACES)]
    reports = {"photos": (names, 1), "frames": (names, 3), "clip": (["clip.mp4"] * FACES, 1)}
    found = {}
    for name, (paths, times) in reports.items():
        data = faces.write(tmp_path / name, paths, times)
        assert len(data["averages"][0]["intervals"]) == 3 + 3 + 9
        of_report = tables(tmp_path / name)
        found[name] = [*of_report["shares"], *of_report["relations"]]
    assert {*data["averages"][0]["intervals"]} == {None}
    assert {row["low"] for row in found["clip"]} == {""}
    for photos, frames in zip(found["photos"], found["frames"], strict=True):
        assert int(frames["faces"]) == 3 * int(photos["faces"])
        for column in ("mean", "low", "high"):
            # four significant digits
            assert float(frames[column]) == pytest.approx(float(photos[column]), rel=1.1e-3)


def number_in(cell: str) -> Any:
    """A number of a table, which has four significant digits."""
    return pytest.approx(float(cell), rel=6e-4, abs=1e-6)


def test_tables_hold_means_over_faces(faces: Explained, tmp_path: Path) -> None:
    faces.write(tmp_path / "report", [f"{number}.png" for number in range(FACES)])
    found = tables(tmp_path / "report")
    assert [row["region"] for row in found["shares"]] == list(REGIONS)
    for r, row in enumerate(found["shares"]):
        assert int(row["faces"]) == np.isfinite(faces.shares[:, r]).sum()
        assert np.nanmean(faces.shares[:, r]) == number_in(row["mean"])
        assert float(row["low"]) < float(row["mean"]) < float(row["high"])
    assert len(found["relations"]) == 3 + 9
    for row in found["relations"]:
        b = REGIONS.index(row["takes_from"])
        values = faces.output[:, 0, b]
        if row["region"] != "output":
            values = faces.relations[:, 0, REGIONS.index(row["region"]), b]
        assert int(row["faces"]) == np.isfinite(values).sum()
        assert np.nanmean(values) == number_in(row["mean"])
    heads = [(row["block"], row["head"]) for row in found["heads"]]
    assert heads == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    for head, row in enumerate(found["heads"]):
        assert faces.distance[:, head].mean() == number_in(row["distance_px"])
        assert faces.patches[:, head + 1].sum((1, 2)).mean() == number_in(row["patches"])
        assert np.nanmean(faces.output[:, head + 1, 2]) == number_in(row["mouth"])
    assert len(found["heads_relations"]) == 4 * 9
    for row in found["heads_relations"]:
        view = 1 + heads.index((row["block"], row["head"]))
        a = REGIONS.index(row["region"])
        b = REGIONS.index(row["takes_from"])
        assert np.nanmean(faces.relations[:, view, a, b]) == number_in(row["mean"])


def picture(uri: str) -> Array:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))), float)


def test_the_mean_face_has_the_means_of_its_faces(faces: Explained, tmp_path: Path) -> None:
    data = faces.write(tmp_path / "report", [f"{number}.png" for number in range(FACES)])
    (mean,) = data["averages"]
    assert mean["faces"] == FACES
    photo = np.mean([view.photo.astype(float) for view in faces.views], axis=0)
    assert np.abs(picture(mean["image"]) - photo).max() <= 2  # JPEG
    assert np.allclose(mean["boxes"], np.nanmean(faces.boxes, axis=0), atol=0.006)
    shares = mean["targets"][0]["shares"]
    assert np.allclose(shares, np.nanmean(faces.shares, axis=0), atol=6e-4)

    heat = faces.heat.mean(0)
    enlarged = Image.fromarray(heat.astype(np.float32)).resize((96, 96), Image.Resampling.BICUBIC)
    shade = np.asarray(enlarged) / np.abs(np.asarray(enlarged)).max()  # 128 is 0 in the palette
    assert np.abs(picture(mean["heat"]) - (128 + 127 * shade)).max() <= 0.6

    attention = [
        np.nanmean(values, axis=0).reshape(values.shape[1], -1)
        for values in (faces.relations, faces.output, faces.patches)
    ]
    roots = 255 * np.sqrt(np.hstack(attention)).ravel()
    packed = np.frombuffer(base64.b64decode(mean["attention"]), np.uint8)
    assert np.abs(packed - roots).max() <= 0.51

    logits = np.nanmean(faces.interactions, axis=0)
    for first, second, value in mean["interactions"]:
        assert value == pytest.approx(logits[first, second], abs=6e-4)
    assert len(mean["interactions"]) == np.count_nonzero(np.triu(logits, 1)) > 0
