"""What a report shows of faces, and of people over time: curves from every frame,
and a fair choice of pictures.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fer_vit import load
from fer_vit.app.jobs import MAX_TASK_MEMORY
from fer_vit.app.tasks import EXPLAIN_MEMORY
from fer_vit.engine.torch_engine import to_inputs
from fer_vit.errors import FerVitError
from fer_vit.explain.attribution import explain
from fer_vit.explain.methods import METHODS
from fer_vit.explain.trace import interactions, trace
from fer_vit.face.image import encode_png, read_image
from fer_vit.faces import Crops, Face, Faces as FoundFaces, PhotoInfo, Pose, no_faces
from fer_vit.heads import HEADS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.predict.frames import read_frames
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.explained_face import FaceView
from fer_vit.sources.cartoon import draw_face
from fer_vit.visualization.explained_scores import (
    ExplainOptions,
    LabelChoice,
    find_targets,
)
from fer_vit.visualization.network_evidence import faces_at_once
from fer_vit.visualization.report import estimate_effort, write_report
from fer_vit.visualization.report_parts import Part, photo_parts, video_parts
from fer_vit.visualization.timelines import Watched, limit_pictures, watch_people
from tests.helpers.faces import make_faces
from tests.helpers.marks import slow
from tests.helpers.models import noise_faces, small_model
from tests.helpers.reports import read_page
from tests.helpers.videos import write_video

Faces = tuple[Tensor, Tensor, Tensor]
BICUBIC = Image.Resampling.BICUBIC
REGIONS = ("right_eye", "nose", "mouth")
PICTURES = 120
"""The most pictures of a person whom no other person joins."""


@pytest.fixture
def net() -> RegionViT:
    return small_model(classifier=("weight",), regions=("right_eye", "nose", "mouth"))


@pytest.fixture
def faces() -> tuple[Tensor, Tensor, Tensor]:
    """Crops, boxes and which regions are there: the second face has no mouth."""
    boxes = torch.tensor([[2.0, 2, 14, 14], [10, 10, 20, 20], [8, 18, 24, 30]])
    return noise_faces(boxes, torch.tensor([[True, True, True], [True, True, False]]))


def part_of(faces: Faces) -> Part:
    """The same faces as a report gets them, each in a photo of its own."""
    image, boxes, valid = (values.numpy() for values in faces)
    crops = Crops(
        image=(255 * image.transpose(0, 2, 3, 1)).round().astype(np.uint8),
        boxes=boxes,
        valid=valid,
        to_crop=np.tile(np.eye(2, 3), (len(image), 1, 1)),
    )
    views = [
        FaceView(make_face_with_pose(), photo, np.eye(2, 3), regions={}) for photo in crops.image
    ]
    return Part(no_faces(), views, crops)


def make_face_with_pose() -> Face:
    outputs = {name: [0.0] for name in ("move_mouthSmileLeft", "move_browInnerUp", *Pose._fields)}
    faces = make_faces(["a", "b", "c", "d"], [[1.0, 0, 0, 0]], outputs=outputs)
    return replace(faces, angles=np.zeros((1, 3)))[0]


def report_data(
    model: Recognizer, part: Part, options: ExplainOptions, folder: Path
) -> dict[str, Any]:
    """Writes a report; returns the data of its page."""
    write_report(folder / "report", model, [part], Watched(), options, folder)
    return read_page(folder / "report")


@pytest.mark.parametrize(
    ("labels", "method", "bf16"),
    [
        *(("all", method, False) for method in METHODS),
        *slow(("all", "pixels", True)),
        ("predicted", "relevance", False),
    ],
)
def test_the_predicted_label_or_all_are_explained_and_the_first_rather_than_the_second(
    method: str,
    bf16: bool,
    labels: LabelChoice,
    net: RegionViT,
    faces: Faces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": bf16})
    error = 0.02 if bf16 else 1e-3  # of numbers with three digits
    model = load(net, "cpu")
    part = part_of(faces)
    data = report_data(model, part, ExplainOptions(method, labels), tmp_path)
    inputs = to_inputs(part.crops, "cpu")
    pairs = interactions(net, trace(net, *inputs)).detach().numpy()
    eye = torch.eye(4)
    order = net.logits(*inputs).argsort(1, descending=True)
    for row, face in enumerate(data["faces"]):
        assert face["order"] == order[row].tolist()
        for first, second, value in face["interactions"]:
            assert value == pytest.approx(pairs[row, first, second], abs=1e-3)
        assert len(face["interactions"]) == np.count_nonzero(np.triu(pairs[row], 1))
        number = 4 if labels == "all" else 1
        names = [model.labels[label] for label in order[row]]
        first, second, *_ = names
        why = f"{first} rather than {second}"
        assert [target["name"] for target in face["targets"]] == [*names[:number], why]
        directions = [eye[label] for label in order[row, :number]]
        directions.append(eye[order[row, 0]] - eye[order[row, 1]])
        with Image.open(tmp_path / "report" / "photos" / f"00000{row}.png") as picture:
            maps = np.split(np.asarray(picture, float), len(directions))
        for target, direction, shown in zip(face["targets"], directions, maps, strict=True):
            expected = explain(net, *inputs, method, direction.expand(2, 4))
            assert np.allclose(target["shares"], expected.shares[row], atol=error)
            # 24 x 24 means over areas: each pixel is split into 24 x 24 parts
            fine = np.kron(expected.heat[row], np.ones((24, 24)))  # (24 S, 24 S)
            size = len(expected.heat[row])
            cells = fine.reshape(24, size, 24, size).mean((1, 3))
            scaled = Image.fromarray(cells.astype(np.float32)).resize((96, 96), BICUBIC)
            heat = np.asarray(scaled) / np.abs(np.asarray(scaled)).max()
            assert np.abs(shown - (128 + 127 * heat)).max() <= 127 * error + 0.6


OUTPUTS = {"movements": ["mouthSmileLeft", "browInnerUp"], "pose": ["yaw", "pitch", "roll"]}


@pytest.fixture
def model_with_heads() -> Recognizer:
    torch.manual_seed(0)
    config = RegionViTConfig(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=2,
        regions=("right_eye", "nose", "mouth"),
    )
    net = build_model(config, "abcd", outputs=OUTPUTS).eval()
    torch.nn.init.normal_(net.vit.head.weight)
    return load(net, "cpu")


@pytest.mark.parametrize("method", ["pixels", "ablation"])
def test_an_output_of_a_head_is_explained_like_an_expression(
    method: str,
    model_with_heads: Recognizer,
    faces: Faces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    net = model_with_heads.net
    part = part_of(faces)
    inputs = to_inputs(part.crops, "cpu")
    label = model_with_heads.labels[int(net.logits(*inputs)[0].argmax())]
    options = ExplainOptions(method, targets=("yaw", label, "move_mouthSmileLeft"))
    data = report_data(model_with_heads, part, options, tmp_path)
    for row, face in enumerate(data["faces"]):
        shares = {target["name"]: target["shares"] for target in face["targets"]}
        assert len(shares) == len(face["targets"])  # the prediction is not explained twice
        for name, output in (("move_mouthSmileLeft", 4), ("yaw", 6)):
            expected = explain(net, *inputs, method, torch.eye(9)[output].expand(2, 9))
            assert np.allclose(shares[name], expected.shares[row], atol=1e-3)
            assert np.abs(shares[name]).sum() == pytest.approx(1, abs=2e-3)


def test_targets_have_names_of_the_model(
    model_with_heads: Recognizer, faces: Faces, tmp_path: Path
) -> None:
    with pytest.raises(FerVitError, match="move_mouthSmileLeft"):
        find_targets(model_with_heads, ["move_mouthSmileleft"])
    options = ExplainOptions("relevance", targets=["yaw"])
    with pytest.raises(FerVitError, match="relevance"):
        report_data(model_with_heads, part_of(faces), options, tmp_path)


def test_terms_add_up_to_the_raw_outputs(
    model_with_heads: Recognizer, faces: Faces, tmp_path: Path
) -> None:
    part = part_of(faces)
    data = report_data(model_with_heads, part, ExplainOptions("ablation"), tmp_path)
    raw = model_with_heads.net(*to_inputs(part.crops, "cpu"))
    pose = HEADS["pose"]
    for row, face in enumerate(data["faces"]):
        expected = {
            "movements": raw["movements"][row].detach(),
            "pose": pose.middle + pose.step * raw["pose"][row].detach(),  # in degrees
        }
        for head, values in expected.items():
            terms = face["charts"][head]
            total = np.add(data["fixed"][head]["bias"], terms["face"])
            total += np.sum(terms["regions"], axis=1)
            assert np.allclose(total, values, atol=5 * 5e-4 + 1e-4)  # five rounded numbers
    assert not np.any(np.array(data["faces"][1]["charts"]["pose"]["regions"])[:, 2])  # no mouth


@pytest.mark.parametrize("gone", [False, True])
def test_a_face_is_shown_in_its_photo_as_predicted(
    gone: bool, net: RegionViT, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{label}.png" for label in ("happiness", "anger", "fear")]
    for seed, path in enumerate(paths):
        path.write_bytes(encode_png(draw_face(path.stem, seed, 48)[0]))
    model = load(net, "cpu")
    options = PhotoOptions(face="crop", detector="none", workers=0)
    results = model.predict(paths, face="crop", detector="none", workers=0)
    (part,) = photo_parts(model, paths, options)
    pixels = [read_image(path) for path in paths]
    if gone:
        for path in paths:
            path.unlink()
    views = list(part.views)
    data = report_data(model, part._replace(views=views), ExplainOptions("relevance"), tmp_path)
    assert [view.face.path for view in views] == [str(path) for path in paths]
    for row, (view, result) in enumerate(zip(views, results, strict=True)):
        face = view.face
        assert face.face == 0
        assert view.box is None
        assert face.crop_size == 32
        assert face.probabilities == pytest.approx(result.probabilities, abs=1e-6)
        for name, box in zip(REGIONS, data["faces"][row]["boxes"], strict=True):
            assert box == pytest.approx(result.regions[name], abs=0.006)
        if gone:  # as the model saw it
            assert np.array_equal(view.photo, part.crops.image[row])
            assert np.array_equal(view.to_crop, np.eye(2, 3))
        else:
            assert np.array_equal(view.photo, pixels[row])
            assert np.array_equal(view.to_crop, result.to_crop)


def frames(
    path: str, tracks: Sequence[Sequence[int]], step: float = 0.04, period: int = 1000
) -> Iterator[FoundFaces]:
    """Frames in which these people are; the share
    of the first expression is the frame's number in thousandths.
    """
    for number, seen in enumerate(tracks):
        share = number % period / 1000
        yield make_faces(
            ["a", "b"],
            [[share, 1 - share]] * len(seen),
            path=path,
            frame=number,
            seconds=number * step,
            track=seen,
            smoothed=True,
        )


def test_every_frame_counts_and_absences_are_known() -> None:
    tracks = [[0]] * 5 + [[0, 1]] * 3 + [[]] * 2 + [[1]] + [[0, 1]] * 2
    watched = watch_people(
        [*frames("a.mp4", tracks), no_faces([PhotoInfo("a.mp4", "damaged: 3 packets")])]
    )
    videos = watched.videos
    assert watched.status == {"ok": 11, "no face": 2, "damaged": 1}
    assert watched.last_status == {"a.mp4": "damaged: 3 packets"}
    first, second = videos["a.mp4"].curves("a.mp4")
    assert first["track"] == 0
    assert first["frames"] == 10
    assert first["start"] == 0
    assert first["end"] == 0.48
    assert first["times"] == pytest.approx([0.04 * n for n in (*range(8), 11, 12)], abs=1e-3)
    assert first["gaps"] == [[0.28, 0.44]]
    assert first["shares"] == [[*range(8), 11, 12], [1000 - n for n in (*range(8), 11, 12)]]
    assert second["times"] == pytest.approx([0.04 * n for n in (5, 6, 7, 10, 11, 12)], abs=1e-3)
    assert second["gaps"] == [[0.28, 0.4]]


def test_a_curve_of_swapped_times_is_in_order() -> None:
    watched = Watched()
    for number, seconds in enumerate((0.0, 0.3, 0.2, 0.4)):
        watched.add(
            make_faces(
                ["a", "b"],
                [[seconds, 1 - seconds]],
                frame=number,
                seconds=seconds,
                track=[0],
                smoothed=True,
            )
        )
    (line,) = watched.videos["a.mp4"].curves("a.mp4")
    assert line["start"] == 0
    assert line["end"] == 0.4
    assert line["times"] == [0, 0.2, 0.3, 0.4]
    assert line["shares"] == [[0, 200, 300, 400], [1000, 800, 700, 600]]


def test_the_curve_of_an_output_has_means_and_of_an_angle_mean_directions() -> None:
    turns = [178.0, -179.0, 10.0, np.nan]
    moves = [0.1, np.nan, 0.2, 0.3]  # an unknown value leaves its point with the known one
    watched = Watched()
    for number, turn in enumerate(turns):
        faces = make_faces(
            ["a"],
            [[1.0]],
            outputs={"yaw": [turn], "move_x": [moves[number]]},
            frame=number,
            seconds=(0.0, 0.0, 1.0, 2.0)[number],  # the first two are one point
            track=[0],
            smoothed=True,
        )
        watched.add(replace(faces, smoothed_outputs=faces.outputs))
    (line,) = watched.videos["a.mp4"].curves("a.mp4", faces.scheme.outputs)
    assert line["outputs"] == {"movements": [[0.1, 0.2, 0.3]], "pose": [[179.5, 10.0, None]]}


def test_a_long_curve_has_means_of_equal_spans() -> None:
    (line,) = watch_people(frames("a.mp4", [[3]] * 5001)).videos["a.mp4"].curves("a.mp4")
    times = np.arange(5001) * 0.04
    shares = np.arange(5001) % 1000 / 1000
    span = (times * 1000 / times[-1]).astype(int).clip(max=999)
    expected = [shares[span == n].mean() * 1000 for n in range(1000)]
    assert len(line["times"]) == 1000
    assert np.allclose(line["shares"][0], expected, atol=0.51)
    assert np.allclose(line["times"], [times[span == n].mean() for n in range(1000)], atol=1e-3)


@pytest.mark.parametrize("count", [1, 50, 119, 240, 5000])
def test_pictures_are_spread_evenly(count: int) -> None:
    numbers = [
        face.frame
        for face in watch_people(frames("a.mp4", [[0]] * count, period=400))
        .videos["a.mp4"]
        .faces_to_show()
    ]
    assert len(numbers) == min(count, PICTURES)
    steps = np.diff(np.array(numbers, float))
    assert len(steps) == 0 or steps.max() <= 3 * max(steps.min(), count / PICTURES / 2)
    assert numbers[0] == 0
    assert count - 1 - numbers[-1] <= max(1, count / PICTURES)


def test_every_change_of_the_smoothed_expression_has_a_picture() -> None:
    numbers = [
        face.frame
        for face in watch_people(frames("a.mp4", [[0]] * 5000)).videos["a.mp4"].faces_to_show()
    ]
    assert len(numbers) == PICTURES
    assert numbers == sorted(numbers)
    assert {number + half for number in range(0, 5000, 1000) for half in (0, 500)} - {0} <= set(
        numbers
    )


def test_a_face_that_no_detector_scored_is_the_same_face(tmp_path: Path) -> None:
    model = load("ferplus-fairface-small", "cpu")
    options = PhotoOptions(face="crop", detector="landmarks", workers=0)
    moved = [
        np.roll(draw_face("happiness", 0, 160)[0], (4 * number, 9), (0, 1)) for number in range(5)
    ]
    recognized = [
        *model.recognize([write_video(tmp_path / "a.mp4", moved, np.arange(5) / 30)], options)
    ]
    assert {face.score for faces in recognized for face in faces} == {None}
    again = [
        row
        for part in video_parts(model, watch_people(recognized).videos, options)
        for row in part.crops.to_crop
    ]
    assert np.allclose(
        np.stack(again), [face.to_crop for faces in recognized for face in faces], atol=1e-4
    )


def test_frames_of_any_size_do_not_wait_for_their_faces(tmp_path: Path) -> None:
    """A frame of 8K has 100 MB: only close-ups of its faces are kept, so several are explained."""
    model = load("ferplus-fairface-small", "cpu")
    options = PhotoOptions(workers=0)
    scene = np.full((480, 640, 3), 128, np.uint8)
    scene[200:400, 300:500] = draw_face("happiness", 0, 200)[0]
    clip = write_video(tmp_path / "a.mp4", [scene] * 10, np.arange(10) / 30)
    watched = watch_people(model.recognize([clip], options))
    parts = list(video_parts(model, watched.videos, options))
    assert [len(part.crops) for part in parts] == [8, 2]
    for part in parts:
        assert len(part.crops) == len(part.views)
        for view in part.views:
            assert view.photo.size < scene.size / 2
            (frame,) = read_frames(clip, only={view.face.frame})
            matrix = view.face.to_crop  # from the frame
            corner = np.linalg.solve(matrix[:, :2], view.to_crop[:, 2] - matrix[:, 2])
            left, top = corner.round().astype(int)
            height, width = view.photo.shape[:2]
            np.testing.assert_allclose(corner, (left, top), atol=1e-6)
            cut = frame.image[top : top + height, left : left + width]
            np.testing.assert_array_equal(view.photo, cut)


def test_in_a_crowd_everyone_has_a_picture() -> None:
    tracks = [[*range(40)]] * 30 + [[*range(700)]]
    (video,) = watch_people(frames("a.mp4", tracks)).videos.values()
    shown = [face.track for face in video.faces_to_show()]
    assert sorted(shown) == [*range(700)]
    (few,) = watch_people(frames("a.mp4", tracks[:30])).videos.values()
    assert len(list(few.faces_to_show())) == 4 * PICTURES


def test_fewer_pictures_are_spread_evenly_and_everyone_shown_has_one() -> None:
    both = [*frames("a.mp4", [[0]] * 20 + [[0, 1]] * 21), *frames("b.mp4", [[0]] * 41)]
    videos = watch_people(both).videos
    assert [line["gaps"] for video in videos.values() for line in video.curves("")] == [[], [], []]
    fewer = limit_pictures(videos, 15)
    assert [video.left_out for video in fewer.values()] == [[], []]
    assert fewer["a.mp4"].not_shown() == {0: 36, 1: 16}  # the people have 41 and 21 faces
    shown = {
        path: [(face.track, face.frame) for face in video.faces_to_show()]
        for path, video in fewer.items()
    }
    alone = [(0, frame) for frame in (0, 10, 20, 30, 40)]
    assert shown == {
        "a.mp4": alone + [(1, frame) for frame in (20, 25, 30, 35, 40)],
        "b.mp4": alone,
    }
    few = limit_pictures(videos, 2)
    assert [video.left_out for video in few.values()] == [[1], []]
    shown = {path: [face.track for face in video.faces_to_show()] for path, video in few.items()}
    assert shown == {"a.mp4": [0], "b.mp4": [0]}
    curves = [curve for path, video in few.items() for curve in video.curves(path)]
    assert [curve["frames"] for curve in curves] == [41, 41]
    assert len(videos["a.mp4"].people) == 2
    every = limit_pictures(videos, 1000)
    assert [video.left_out for video in every.values()] == [[], []]
    assert every["b.mp4"].not_shown() == {}
    assert [len(video.people) for video in every.values()] == [2, 1]


def test_a_person_alone_has_no_more_pictures_without_a_limit() -> None:
    videos = watch_people(frames("a.mp4", [[0]] * 600)).videos
    for most in (sys.maxsize, 10_000):
        limited = limit_pictures(videos, most)
        assert len(list(limited["a.mp4"].faces_to_show())) == PICTURES
        assert limited["a.mp4"].not_shown() == {0: 600 - PICTURES}
        assert limited["a.mp4"].left_out == []


def test_additive_attention_is_explained_in_small_batches() -> None:
    memory = ExplainOptions().memory
    many = small_model(regions=("mouth",))
    few = small_model(regions=("mouth",), attention="additive")
    assert faces_at_once(many, memory) > faces_at_once(few, memory) > 1
    large = RegionViTConfig(attention="additive", regions=("mouth",))
    assert faces_at_once(build_model(large, ["a", "b"]), memory) == 1


def test_faces_are_explained_in_batches_that_fit_into_the_memory() -> None:
    net = small_model(regions=("mouth",))
    most = faces_at_once(net, ExplainOptions().memory)
    assert faces_at_once(net, ExplainOptions().memory // 4) == pytest.approx(most / 4, abs=1)
    # The default model, in the app: the job may take more for photos and results.
    shipped = load("ferplus-fairface", "cpu").net
    assert 1 < faces_at_once(shipped, EXPLAIN_MEMORY) <= 10
    assert EXPLAIN_MEMORY <= MAX_TASK_MEMORY / 4


@pytest.mark.parametrize(
    ("photos", "seconds", "expected"),
    [(1, [0, 5], "Less than a minute"), (1_000_000, [0, 100, 100, 100.8], "About 15,000 min")],
)
def test_an_estimate_is_measured_twice_only_where_it_is_more_than_a_minute(
    photos: int,
    seconds: list[float],
    expected: str,
    net: RegionViT,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first explanation is slow; a face takes a tenth of a second more for its pictures."""
    monkeypatch.setattr(time, "perf_counter", Mock(side_effect=seconds))
    assert expected in estimate_effort(load(net, "cpu"), ExplainOptions(), photos, 0)
