"""The command `predict`: tables of photos and videos, folders that processes share,
and marked copies.
"""

import csv
import os
import re
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib import cbook
from scipy.stats import entropy
from skimage.data import astronaut

from fer_vit import load
from fer_vit.errors import FerVitError
from fer_vit.face.image import UNREADABLE, UNREADABLE_VIDEO, encode_png, read_image
from fer_vit.fields import table_columns
from fer_vit.geometry import LANDMARKS
from fer_vit.heads import MEANS
from fer_vit.labels import EXPRESSIONS
from fer_vit.predict.frames import read_frames
from fer_vit.sources.cartoon import draw_face
from fer_vit.store.hub import DEFAULT_MODEL
from fer_vit.store.model_folder import load_network
from fer_vit.version import __version__
from tests.helpers.commands import CROPS, FOUR_DIGITS, assert_same, fails, predict, read, run
from tests.helpers.killed import leave_remains
from tests.helpers.videos import write_video


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real faces, both in one photo, a photo without a face,
    and two files that are no images.
    """
    folder = tmp_path_factory.mktemp("photos")
    woman = astronaut()
    man = read_image(Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    (folder / "woman.png").write_bytes(encode_png(woman))
    (folder / "man.png").write_bytes(encode_png(man))
    both = np.zeros((700, 1100, 3), np.uint8)
    both[:512, :512] = woman
    both[: man.shape[0], 550 : 550 + man.shape[1]] = man
    (folder / "both.png").write_bytes(encode_png(both))
    (folder / "noise.png").write_bytes(
        encode_png(np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8))
    )
    (folder / "empty.jpg").touch()
    (folder / "truncated.jpg").write_bytes(cv2.imencode(".jpg", man)[1].tobytes()[:200])
    return folder


def test_predict_writes_columns_of_confidence(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = (*CROPS, "--workers=0", "--min-confidence=0.5")
    rows = predict(drawn / "faces" / "val", DEFAULT_MODEL, tmp_path / "t.parquet", *words)
    least = load(DEFAULT_MODEL, "cpu").net.settings.thresholds["90"][0]
    ambiguous = 0
    for row in rows:
        probabilities = {name: row[f"p_{name}"] for name in EXPRESSIONS}
        below = max(probabilities.values()) < 0.5
        expected = [name for name, value in probabilities.items() if value >= least]
        assert row["label"] == (
            None if below else max(probabilities, key=probabilities.__getitem__)
        )
        assert row["prediction_set"] == "; ".join(expected)
        assert row["ambiguous"] == (below or len(expected) != 1)
        assert row["outside"] == ""
        assert row["entropy"] == pytest.approx(entropy(list(probabilities.values())), abs=1e-6)
        assert row["size"] == pytest.approx(64)
        assert 0.5 < row["blur"] < 5
        ambiguous += row["ambiguous"]
    assert 0 < ambiguous < len(rows)
    out = capsys.readouterr().out
    assert (
        f"{ambiguous:,} of {len(rows):,} faces are ambiguous ({ambiguous / len(rows):.1%})" in out
    )
    assert " without a label" in out


def test_the_order_of_columns_and_the_origin_of_rows(photos: Path, tmp_path: Path) -> None:
    rows = {}
    (tmp_path / "two").mkdir()
    for name in ("noise.png", "woman.png"):
        shutil.copy(photos / name, tmp_path / "two")
    for suffix in (".csv", ".jsonl", ".parquet"):
        words = ("--workers=0", "--detector=yunet")
        rows[suffix] = predict(tmp_path / "two", DEFAULT_MODEL, tmp_path / f"t{suffix}", *words)
        assert len(rows[suffix]) == 2
        for row in rows[suffix]:  # also photos without a face
            origin = {"model": DEFAULT_MODEL, "detector": "yunet", "fer_vit_version": __version__}
            assert {name: row[name] for name in origin} == origin
            assert date.fromisoformat(row["predicted_on"])
    assert [*rows[".csv"][0]] == [
        *("path", "status", "face", "label", "confidence", "ambiguous", "warning"),
        *(f"p_{label}" for label in load(DEFAULT_MODEL, "cpu").labels),
        *("yaw", "pitch", "roll"),
        *(f"move_{name}" for name in load(DEFAULT_MODEL, "cpu").outputs.of_head("movements").names),
        *("valence", "arousal"),
        *MEANS,
        *("prediction_set", "entropy", "size", "blur", "outside", "score"),
        *(f"box_{side}" for side in ("left", "top", "right", "bottom")),
        *(f"{name}_{axis}" for name in LANDMARKS for axis in "xy"),
        *("model", "detector", "fer_vit_version", "predicted_on", "pose_from"),
    ]
    assert [*rows[".csv"][0]] == [*rows[".jsonl"][0]] == [*rows[".parquet"][0]]
    videos = [*table_columns(["a", "b"], videos=True)]
    assert videos[:6] == ["path", "status", "frame", "seconds", "track", "face"]
    assert videos.index("roll") < videos.index("label_smoothed") < videos.index("smoothed_a")
    assert videos.index("smoothed_b") < videos.index("size")
    for text, exact in zip(rows[".jsonl"], rows[".parquet"], strict=True):
        for name, digits in (("p_fear", 4), ("confidence", 4), ("score", 4)):
            if exact[name] is not None:
                assert text[name] == float(f"{exact[name]:.{digits}g}")
        for name in ("box_left", "nose_x", "size", "yaw"):
            if exact[name] is not None:
                assert text[name] == round(text[name], 1) == pytest.approx(exact[name], abs=0.051)
    assert {row["ambiguous"] for row in rows[".csv"]} <= {"TRUE", "FALSE", ""}


def test_processes_share_a_folder_and_a_rerun_resumes(
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    expected = predict(photos, checkpoint, tmp_path / "one.parquet")
    output = tmp_path / "faces"
    assert [(Path(row["path"]).name, row["status"], row["face"]) for row in expected] == [
        ("both.png", "ok", 0),
        ("both.png", "ok", 1),
        ("empty.jpg", "the file is empty", None),
        ("man.png", "ok", 0),
        ("noise.png", "no face", None),
        ("truncated.jpg", UNREADABLE, None),
        ("woman.png", "ok", 0),
    ]
    for rank, workers, report in (
        (0, 2, "2 of 3 tables exist"),
        (1, 0, "all 3 tables, all 6 files exactly"),
    ):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))
        rows = predict(
            photos, checkpoint, output, "--part_size=2", "--batch_size=1", f"--workers={workers}"
        )
        assert report in capsys.readouterr().out
        assert (len(rows) == len(expected)) == rank
    assert_same(rows, expected)
    assert "2 processes (WORLD_SIZE" in fails(
        capsys, "predict", photos, "--output", tmp_path / "two.csv"
    )
    monkeypatch.delenv("WORLD_SIZE")
    times = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    predict(photos, checkpoint, output, "--part_size=2")
    assert capsys.readouterr().out.startswith("Nothing to do")
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == times
    (output / "part-00001-of-00003.parquet").unlink()  # as if the process had been killed
    for table in (1, 2):  # the second process was killed after it had renamed its table
        leave_remains(output / f"part-0000{table}-of-00003.parquet")
    assert_same(predict(photos, checkpoint, output, "--part_size=2"), expected)
    changed = {
        path.name for path in output.iterdir() if path.stat().st_mtime_ns != times[path.name]
    }
    assert changed == {"part-00001-of-00003.parquet"}
    assert len(list(output.iterdir())) == 3


def test_a_folder_belongs_to_one_prediction(
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = ["--checkpoint", checkpoint, "--output", tmp_path / "faces", *CROPS]
    run("predict", photos / "noise.png", *good)
    table = "part-00000-of-00001.parquet"
    for words, expected in (
        (
            ["--detector", "landmarks"],
            f"{table} was written with detector none (now landmarks)",
        ),
        (["--checkpoint", DEFAULT_MODEL], f"(now {DEFAULT_MODEL})"),
        (["--min_confidence", 0.5], "min_confidence None (now 0.5)"),
        (["--overwrite"], "kept"),
        (["--features"], "features None (now True)"),
        (["--every", 3], "every None (now 3)"),
    ):
        assert expected in fails(capsys, "predict", photos / "noise.png", *good, *words)
    good[3] = tmp_path / "relative"
    monkeypatch.chdir(photos)
    run("predict", "noise.png", *good)
    monkeypatch.chdir(tmp_path)  # here, the name belongs to another file
    (tmp_path / "noise.png").write_bytes((photos / "man.png").read_bytes())
    assert "noise.png has changed since " in fails(capsys, "predict", "noise.png", *good)
    (tmp_path / "noise.png").write_bytes((photos / "noise.png").read_bytes())  # the same content
    run("predict", "noise.png", *good)


def test_a_dash_prints_the_rows_and_nothing_else(
    photos: Path, checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    odd = tmp_path / "odd\x9b.png"  # a control character, which a terminal would obey
    odd.write_text("no image")
    words = ["predict", photos, odd, "--checkpoint", checkpoint, *CROPS]
    run(*words, "--output", tmp_path / "faces.jsonl")
    capfd.readouterr()
    run(*words, "--output", "no.csv", "--output", "-")
    printed, messages = capfd.readouterr()
    assert printed == (tmp_path / "faces.jsonl").read_text("utf-8")
    assert "`--output` was given more than once" in messages
    assert "Detector: none" in messages
    assert not Path("-").exists()


def test_replaced_files_are_noticed_by_their_content(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A name and a size do not identify a photo or clip; a new time alone does not change it."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for name, seed in (("a.png", 1), ("b.png", 2)):
        (inputs / name).write_bytes(encode_png(faces(seed)[0]))
    (inputs / "c.png").write_text("no image")
    write_video(inputs / "d.mp4", faces(1), TIMES)
    write_video(inputs / "e.mp4", [np.zeros((64, 64, 3), np.uint8)] * 6, TIMES)
    words = ["predict", inputs, "--output", tmp_path / "out", "--part_size=1", "--workers=0"]
    words += ["--checkpoint", checkpoint, *CROPS]
    run(*words)
    original = {path: path.read_bytes() for path in sorted(inputs.iterdir())}

    # The same content at another time is the same file, for example on the disk of a node.
    for path, content in original.items():
        path.write_bytes(content)
        os.utime(path, (1, 1))
    capsys.readouterr()
    run(*words)
    assert capsys.readouterr().out.startswith("Nothing to do")

    other_face = original[inputs / "b.png"]
    clip_with_a_face = original[inputs / "d.mp4"]
    retouched = bytearray(original[inputs / "a.png"])
    retouched[-30] ^= 1
    for table, name, replacement in (
        (0, "a.png", other_face),
        (0, "a.png", bytes(retouched)),  # of equal size
        (2, "c.png", other_face),  # a repeated upload of an unreadable photo
        (4, "e.mp4", clip_with_a_face),
    ):
        path = inputs / name
        path.write_bytes(replacement)
        changed = f"{path} has changed since {tmp_path}/out/part-0000{table}-of-00005.parquet"
        assert changed in fails(capsys, *words)
        path.write_bytes(original[path])

    # the remedy of the error
    (inputs / "a.png").write_bytes(other_face)
    (tmp_path / "out/part-00000-of-00005.parquet").unlink()
    run(*words)
    tables = [pq.read_table(tmp_path / f"out/part-0000{n}-of-00005.parquet") for n in (0, 1)]
    ((first,), (second,)) = (table["p_happiness"].to_pylist() for table in tables)
    assert first == pytest.approx(second, abs=1e-5)  # computed in batches of other sizes


def test_each_process_has_its_gpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the one that is not here."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    for rank, device in ((1, "cuda:1"), (6, "cuda:2")):
        for name, value in (
            ("RANK", 9),
            ("WORLD_SIZE", 16),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", 8),
        ):
            monkeypatch.setenv(name, str(value))
        with pytest.raises(FerVitError, match=rf"{device}\b"):
            load(checkpoint)


def test_fingerprints_differ_by_model() -> None:
    model = load(device="cpu")
    in_torch = load(load_network(), "cpu")
    assert model.fingerprint == load(device="cpu").fingerprint == in_torch.fingerprint
    prints = {model.fingerprint}
    for name, value in (
        ("temperature", 2.0),
        ("crop", replace(model.crop_spec, align="crop")),
        ("labels", model.labels[::-1]),
        ("thresholds", {}),
    ):
        setattr(in_torch.settings, name, value)
        prints.add(in_torch.fingerprint)
    next(in_torch.net.parameters()).data.add_(1e-3)
    assert len({*prints, in_torch.fingerprint}) == 6


TIMES = [0.0, 0.04, 0.08, 0.3, 0.34, 0.5]


def faces(seed: int) -> list[np.ndarray]:
    return [draw_face(name, seed, 64, colour=True)[0] for name in EXPRESSIONS[:6]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and videos of drawn faces; one video breaks off."""
    path = tmp_path_factory.mktemp("mixed")
    (path / "a.png").write_bytes(encode_png(faces(1)[0]))
    write_video(path / "b.mp4", faces(1), TIMES)
    data = write_video(path / "c.mkv", faces(2) * 10, [n / 25 for n in range(60)]).read_bytes()
    (path / "c.mkv").write_bytes(data[: len(data) // 2])
    (path / "d.png").write_bytes(encode_png(faces(2)[0]))
    (path / "e.mp4").write_text("no video")
    (path / "f.mov").write_bytes((path / "b.mp4").read_bytes())
    return path


@pytest.fixture(scope="module")
def mixed_rows(
    folder: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """The rows of `folder`, by the name of their file."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in predict(folder, checkpoint, tmp_path_factory.mktemp("t") / "t.jsonl", *CROPS):
        by_name.setdefault(Path(row["path"]).name, []).append(row)
    return by_name


def test_photos_and_videos_are_rows_of_one_table(
    mixed_rows: dict[str, list[dict[str, Any]]],
) -> None:
    assert [*mixed_rows] == ["a.png", "b.mp4", "c.mkv", "d.png", "e.mp4", "f.mov"]
    for name in ("a.png", "d.png"):
        (row,) = mixed_rows[name]
        assert row["frame"] is row["seconds"] is row["track"] is row["smoothed_happiness"] is None
        assert row["status"] == "ok"
    assert_same(
        [row | {"path": ""} for row in mixed_rows["b.mp4"]],
        [row | {"path": ""} for row in mixed_rows["f.mov"]],
    )


def test_each_frame_of_a_video_is_a_row(mixed_rows: dict[str, list[dict[str, Any]]]) -> None:
    rows = mixed_rows["b.mp4"]
    assert [row["frame"] for row in rows] == [*range(len(TIMES))]
    assert [row["seconds"] for row in rows] == pytest.approx(TIMES, abs=1e-4)
    assert {(row["track"], row["face"]) for row in rows} == {(1, 0)}
    for row in rows:
        for prefix, suffix in (("p_", ""), ("smoothed_", "_smoothed")):
            probabilities = {name: row[prefix + name] for name in EXPRESSIONS}
            assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
            assert row["label" + suffix] == max(probabilities, key=probabilities.__getitem__)


def test_a_damaged_video_has_the_rows_before_the_damage(
    mixed_rows: dict[str, list[dict[str, Any]]],
) -> None:
    *good, end = mixed_rows["c.mkv"]
    assert 5 < len(good) < 55
    assert [row["frame"] for row in good] == [*range(len(good))]
    assert {row["status"] for row in good} == {"ok"}
    assert str(end["status"]).startswith("damaged: ")
    assert end["frame"] is end["face"] is end["label"] is None
    assert [row["status"] for row in mixed_rows["e.mp4"]] == [UNREADABLE_VIDEO]


def test_a_rerun_resumes_videos(
    folder: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    expected = predict(
        folder,
        checkpoint,
        tmp_path / "t.parquet",
        *CROPS,
        *("--summary", tmp_path / "p.jsonl", "--intervals", tmp_path / "i.jsonl"),
    )
    output = tmp_path / "parts"
    more = (*CROPS, "--part_size", 2)
    tables = ("--summary", tmp_path / "q.jsonl", "--intervals", tmp_path / "j.jsonl")
    assert_same(predict(folder, checkpoint, output, *more, *tables), expected)
    for resumed, complete in ("pq", "ij"):
        tables_of_people = [read(tmp_path / f"{name}.jsonl") for name in (resumed, complete)]
        assert_same(*tables_of_people, rel=FOUR_DIGITS)
    people = [
        (Path(row["path"]).name, row["track"], row["last_seen"])
        for row in read(tmp_path / "p.jsonl")
    ]
    assert people[0] == ("b.mp4", 1, 0.5)
    assert [name for name, *_ in people] == ["b.mp4", "c.mkv", "f.mov"]
    parts = sorted(output.glob("part-*"))
    names = [
        {Path(path).name for path in pq.read_table(part)["path"].to_pylist()} for part in parts
    ]
    assert names == [{"a.png"}, {"b.mp4"}, {"c.mkv"}, {"d.png"}, {"e.mp4"}, {"f.mov"}]
    before = parts[2].stat().st_mtime_ns
    parts[1].unlink()
    capsys.readouterr()
    assert_same(predict(folder, checkpoint, output, *more), expected)
    out = capsys.readouterr().out
    assert "6 frames: 6 ok" in out
    assert re.search(r"\b6 tables.*\b6 files", out)
    assert parts[2].stat().st_mtime_ns == before


def test_predict_refuses_wrong_arguments(
    folder: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("mine")
    copy = tmp_path / "mine.marked.mp4"
    copy.touch()
    options = ["--checkpoint", checkpoint, *CROPS, "--output", tmp_path / "t.csv"]
    for images, words, expected in (
        ("b.mp4", ["--output", mine], "already exists"),
        ("gone", [], "gone"),
        ("b.mp4", ["--checkpoint", tmp_path / "no.ckpt"], "no.ckpt"),
        ("b.mp4", ["--fps", 0], "fps"),
        ("b.mp4", ["--fps", ".nan"], "fps"),
        ("b.mp4", ["--start", ".nan"], "start"),
        ("b.mp4", ["--end", "1m"], "`--end` in seconds, such as 90 or 1.5, or [h:]m:s"),
        ("b.mp4", ["--summary", tmp_path / "people.txt"], "people.txt"),
        ("b.mp4", ["--summary", tmp_path / "t.csv"], "t.csv"),
        ("b.mp4", ["--annotate", tmp_path / "marked.avi"], "marked.avi"),
        ("b.mp4", ["--annotate", folder / "b.mp4", "--overwrite"], "b.marked.mp4"),
        ("b.mp4", ["--annotate", copy], "already exists"),
        (
            "b.mp4",
            ["--output", tmp_path / "new", "--annotate", tmp_path / "marked.mp4"],
            "marked.mp4",
        ),
        ("a.png", ["--summary", tmp_path / "people.csv"], "people.csv"),
        (
            ".",
            ["--intervals", tmp_path / "i.TextGrid"],
            "there are 4",
        ),
        (".", ["--annotate", tmp_path / "marked.mp4"], "t.csv` and 4 videos"),
    ):
        assert expected in fails(capsys, "predict", folder / images, *options, *words)
    assert sorted(tmp_path.iterdir()) == [mine, copy]
    assert mine.read_text() == "mine"
    assert predict(folder / "a.png", checkpoint, mine, *CROPS, "--overwrite")[0]["status"] == "ok"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo of a face that moves to the right by 4 pixels a frame,
    and is away in the last two.
    """
    photo = astronaut()
    images = []
    for number in range(10):
        image = np.full((300, 400, 3), 90, np.uint8)
        if number < 8:
            image[20:280, 20 + 4 * number : 260 + 4 * number] = photo[0:260, 100:340]
        images.append(image)
    return write_video(
        tmp_path_factory.mktemp("walk") / "walk.mp4", images, [n / 25 for n in range(10)]
    )


@pytest.mark.slow
def test_a_marked_copy_of_a_moving_face(
    walk: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    rows = predict(walk, checkpoint, tmp_path / "t.jsonl", "--annotate", tmp_path / "marked.mp4")
    assert [(row["frame"], row["status"], row["track"]) for row in rows] == [
        *((n, "ok", 1) for n in range(8)),
        (8, "no face", None),
        (9, "no face", None),
    ]
    noses = np.array([[row["nose_x"], row["nose_y"]] for row in rows[:8]])
    assert np.polyfit(range(8), noses[:, 0], 1)[0] == pytest.approx(4, abs=0.5)
    assert np.abs(noses[:, 1] - noses[0, 1]).max() < 3
    frames = list(zip(read_frames(walk), read_frames(tmp_path / "marked.mp4"), strict=True))
    for (before, after), row in zip(frames, rows, strict=True):
        assert after.seconds == pytest.approx(before.seconds, abs=1e-4)
        change = np.abs(after.image.astype(float) - before.image).max(-1) > 80
        assert change.any() == (row["status"] == "ok")
    good = ["predict", walk, "--checkpoint", checkpoint, "--output", tmp_path / "u.csv"]
    (tmp_path / "new.marked.mp4").mkdir()
    line = fails(capsys, *good, "--annotate", tmp_path / "new.marked.mp4")
    assert "new.marked.mp4" in line


def test_a_sheet_that_is_too_short_ends_no_run(
    walk: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fer_vit.report.table.MAX_SHEET_ROWS", 6)
    summary = tmp_path / "people.csv"
    words = ["--checkpoint", checkpoint, "--output", tmp_path / "t.xlsx", "--summary", summary]
    run("predict", walk, *words)
    assert len(summary.read_text().splitlines()) == 2
    rows = list(csv.DictReader((tmp_path / "t.all-rows.csv").open()))
    assert [int(row["frame"]) for row in rows] == [*range(10)]
    assert "t.all-rows.csv has all 10" in "".join(capsys.readouterr())


def test_predict_in_python(walk: Path, folder: Path) -> None:
    model = load(device="cpu")
    faces = model.predict(str(walk), every=2)
    assert [(face.frame, face.track, face.face) for face in faces] == [
        (0, 1, 0),
        (2, 1, 0),
        (4, 1, 0),
        (6, 1, 0),
    ]
    assert [face.seconds for face in faces] == pytest.approx([0, 0.08, 0.16, 0.24])
    assert faces[0].label_smoothed in EXPRESSIONS
    assert np.asarray(faces[-1].plot().convert("RGB")).std() > 20
    with pytest.raises(FerVitError, match="shorter"):
        replace(faces[-1:], infos=(replace(faces[-1].info, frame=99),))[0].plot()
    with pytest.raises(FerVitError, match="not a video"):
        model.predict(folder / "e.mp4")
    with pytest.warns(UserWarning, match=r"1 of 1 images .*c.mkv: "):
        assert model.predict(folder / "c.mkv", face="crop", detector="none", workers=0)
    (photo,) = model.stream(folder / "a.png", face="crop", detector="none")
    assert photo.faces[0].frame is photo.faces[0].label_smoothed is None


@pytest.mark.slow
def test_a_real_clip_goes_from_tears_to_laughter(clips: Path) -> None:
    faces = load(device="cpu").predict(clips / "sad_to_happy.mp4", fps=1)
    assert {face.track for face in faces} == {1}
    assert {face.label for face in faces[:5]} <= {"sadness", "neutral"}
    assert {face.label_smoothed for face in faces[-5:]} == {"happiness"}


@pytest.mark.slow
def test_real_people_keep_their_numbers(clips: Path) -> None:
    model = load(device="cpu")
    for name, people in (
        ("sad_to_happy", 1),
        ("head-pose-face-detection-female-and-male", 2),
        ("classroom", 4),
    ):
        frames = list(model.stream(clips / f"{name}.mp4", detect_every=10))
        assert {tuple(sorted(face.track for face in frame.faces)) for frame in frames} == {
            tuple(range(1, people + 1))
        }


def test_strict_ends_with_status_1_after_the_table_is_written(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = tmp_path / "faces.csv"
    words = [*CROPS, "--strict", "--workers=0"]
    with pytest.raises(SystemExit) as end:
        run("predict", photos, f"--output={table}", *words)
    assert end.value.code == 1
    assert "`--strict`: 2 images cannot be read." in capsys.readouterr().out
    statuses = {Path(row["path"]).name: row["status"] for row in read(table)}
    assert len(statuses) == 6
    run("predict", photos / "noise.png", f"--output={table}", "--overwrite", *words)

    folder = tmp_path / "tables"
    for _ in range(2):  # a run, and a run that finds all tables complete
        with pytest.raises(SystemExit) as end:
            run("predict", photos, f"--output={folder}", *words)
        assert end.value.code == 1
        assert "2 images cannot be read" in capsys.readouterr().out
