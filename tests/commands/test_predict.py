import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib import cbook
from scipy.stats import entropy
from skimage.data import astronaut

from fer_vit import load
from fer_vit.commands import predict as verb
from fer_vit.errors import FerVitError
from fer_vit.face.image import encode_png, read_image
from fer_vit.labels import EXPRESSIONS
from fer_vit.predict.tables import fingerprint
from fer_vit.report.table import TableWriter
from fer_vit.store.hub import DEFAULT
from tests.helpers.commands import assert_same, fails, main


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real faces, both in one photo, a photo without a face, and two files that are no images."""
    folder = tmp_path_factory.mktemp("photos")
    woman = astronaut()
    man = read_image(Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    (folder / "woman.png").write_bytes(encode_png(woman))
    (folder / "man.png").write_bytes(encode_png(man))
    both = np.zeros((700, 1100, 3), np.uint8)
    both[:512, :512], both[: man.shape[0], 550 : 550 + man.shape[1]] = woman, man
    (folder / "both.png").write_bytes(encode_png(both))
    (folder / "noise.png").write_bytes(encode_png(np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)))
    (folder / "empty.jpg").touch()
    (folder / "truncated.jpg").write_bytes(cv2.imencode(".jpg", man)[1].tobytes()[:200])
    return folder


def predict(images: Path, checkpoint: Path, output: Path, *more: object) -> list[dict[str, object]]:
    main(["predict", str(images), "--checkpoint", str(checkpoint), "--output", str(output), *map(str, more)])
    if output.suffix == ".parquet":
        return pq.read_table(output).to_pylist()
    lines = output.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines)) if output.suffix == ".csv" else [json.loads(line) for line in lines]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_confidence(suffix: str, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--face=crop", "--detector=none", "--workers=0", "--min-confidence=0.5"]
    rows = predict(drawn / "faces" / "val", Path(DEFAULT), tmp_path / f"t.{suffix}", *words)
    least, ambiguous = load(DEFAULT, "cpu").net.settings.thresholds["90"][0], 0
    for row in rows:
        shares = {name: float(str(row[f"p_{name}"])) for name in EXPRESSIONS}
        below = max(shares.values()) < 0.5
        expected = [name for name, share in shares.items() if share >= least]
        assert (row["label"] or None) == (None if below else max(shares, key=shares.__getitem__))
        assert row["prediction_set"] == "; ".join(expected)
        assert row["ambiguous"] in (below or len(expected) != 1, str(below or len(expected) != 1))
        assert row["outside"] == ""
        assert float(str(row["entropy"])) == pytest.approx(entropy(list(shares.values())), abs=1e-6)
        assert float(str(row["size"])) == pytest.approx(64)
        assert 0.5 < float(str(row["blur"])) < 5
        ambiguous += below or len(expected) != 1
    assert 0 < ambiguous < len(rows)
    printed = capsys.readouterr().out
    assert f"{ambiguous:,} of {len(rows):,} faces are ambiguous ({ambiguous / len(rows):.1%})" in printed
    assert " without a label" in printed


def test_without_a_calibration_only_a_least_confidence_makes_a_face_ambiguous(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--face=crop", "--detector=none", "--workers=0"]
    rows = predict(drawn / "faces" / "val", checkpoint, tmp_path / "a.parquet", *words)
    assert {(row["prediction_set"], row["ambiguous"]) for row in rows} == {(None, None)}
    assert "ambiguous" not in capsys.readouterr().out
    least = sorted(row["confidence"] for row in rows)[2]
    rows = predict(drawn / "faces" / "val", checkpoint, tmp_path / "b.parquet", *words, f"--min_confidence={least}")
    assert sorted(row["ambiguous"] for row in rows) == [False] * (len(rows) - 2) + [True] * 2
    assert f"2 of {len(rows)} faces are ambiguous" in capsys.readouterr().out
    assert "min_confidence to be from 0 to 1" in fails(capsys, "predict", drawn, "--min_confidence=2")


def test_every_photo_has_its_rows(photos: Path, checkpoint: Path, tmp_path: Path, yunet_named: None) -> None:
    rows = predict(photos, checkpoint, tmp_path / "t.jsonl")
    seen = [(Path(str(row["path"])).name, row["status"], row["face"]) for row in rows]
    assert seen == [
        ("both.png", "ok", 0),
        ("both.png", "ok", 1),
        ("empty.jpg", "the file is empty", None),
        ("man.png", "ok", 0),
        ("noise.png", "no face", None),
        ("truncated.jpg", "not an image that can be decoded", None),
        ("woman.png", "ok", 0),
    ]
    for row in rows:
        shares = [row[f"p_{name}"] for name in EXPRESSIONS]
        if row["status"] == "ok":
            assert sum(shares) == pytest.approx(1, abs=1e-5)
            assert row["confidence"] == max(shares) == row[f"p_{row['label']}"]
            assert row["box_left"] < row["nose_x"] < row["box_right"]
        else:
            assert shares == [None] * 8
            assert row["label"] is row["score"] is None
    woman = rows[-1]
    assert abs(woman["right_eye_x"] - 203) < 8  # read off the picture
    assert abs(woman["left_eye_x"] - 247) < 8
    assert abs(woman["right_eye_y"] - 103) < 8


@pytest.mark.slow
def test_photos_need_no_network(photos: Path, tmp_path: Path) -> None:
    alone = ("unshare", "-rn")
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here")
    env = {name: value for name, value in os.environ.items() if name != "FER_VIT_YUNET"}
    env |= {"FER_VIT_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    words = ["-m", "fer_vit", "predict", str(photos / "both.png"), f"--output={tmp_path / 'faces.csv'}"]
    subprocess.run([*alone, sys.executable, *words], check=True, env=env, cwd=Path(__file__).parents[2])
    assert len((tmp_path / "faces.csv").read_text().splitlines()) == 3
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("detector", ["builtin", "landmarks"])
def test_photos_taken_as_crops_are_reported(
    detector: str, photos: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict(photos / "both.png", checkpoint, tmp_path / "t.csv", "--face=crop", f"--detector={detector}")
    assert "1 taken as a single face (leave out `--face crop`)" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="1 of 1 images are photos, but each was taken as one face"):
        load(str(checkpoint)).predict(photos / "both.png", face="crop", detector=detector)


def test_crops_with_a_detector(drawn: Path, checkpoint: Path, tmp_path: Path, yunet_named: None) -> None:
    rows = predict(drawn / "faces" / "val", checkpoint, tmp_path / "t.jsonl", "--face", "crop")
    assert len(rows) == len(list((drawn / "faces" / "val").rglob("*.png")))
    assert sum(row["score"] is not None for row in rows) > 0.9 * len(rows)


def test_wrong_words(drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.csv"
    out.write_text("mine")
    good = ["--checkpoint", checkpoint, "--face", "crop", "--detector", "none", "--output"]
    for args, words in (
        ([drawn, *good, out], "exists already"),
        ([drawn, *good, tmp_path / "t.txt"], "ends in .csv"),
        ([drawn, *good, out / "t.csv"], "Cannot write"),
        ([tmp_path / "gone", *good, tmp_path / "u.csv"], "there is no"),
        ([drawn, *good, tmp_path / "u.csv", "--face", "detect"], "finds no faces in photos"),
        ([drawn, *good, tmp_path / "u.csv", "--batch_size", "0"], "batch_size to be 1 or more"),
        ([drawn, *good, tmp_path / "u.csv", "--checkpoint", tmp_path / "no.ckpt"], "No checkpoint"),
        ([drawn, "--checkpoint", "no-such-model", "--output", tmp_path / "u.csv"], "ferplus-small"),
    ):
        assert words in fails(capsys, "predict", *args)
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_text() == "mine"
    rows = predict(drawn / "faces" / "val", checkpoint, out, *good[2:-1], "--overwrite")
    assert rows[0]["status"] == "ok"


def test_one_short_command_after_the_install(
    photos: Path, tmp_path: Path, yunet_named: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["predict", str(photos / "woman.png")])
    assert "Table: faces.csv" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "faces.csv").read_text().splitlines())
    assert row["label"] == "happiness"
    assert "faces.csv exists already" in fails(capsys, "predict", photos / "woman.png")


def in_parts(photos: Path, checkpoint: Path, output: Path, *more: object) -> list[dict[str, object]]:
    words = [photos, "--checkpoint", checkpoint, "--output", output, "--part_size", 2, *more]
    main(["predict", *map(str, words)])
    return pq.read_table(output).to_pylist()


def test_processes_share_a_folder(
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
    yunet_named: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = predict(photos, checkpoint, tmp_path / "one.parquet")
    output = tmp_path / "faces"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    first = in_parts(photos, checkpoint, output, "--batch_size", 1, "--workers", 2)
    assert sorted(path.name for path in output.iterdir()) == [
        "_plan.parquet",
        "part-00000.parquet",
        "part-00002.parquet",
    ]
    assert "2 of 3 tables exist" in capsys.readouterr().out
    monkeypatch.setenv("RANK", "1")
    rows = in_parts(photos, checkpoint, output, "--batch_size", 2, "--workers", 0)
    out = capsys.readouterr().out
    assert "all 3 tables, all 6 files of the plan exactly once (3 ok, " in out
    assert ", 4 faces" in out
    assert len(first) < len(rows) == len(expected)
    assert_same(rows, expected)


def test_a_rerun_does_what_is_left(
    photos: Path, checkpoint: Path, tmp_path: Path, yunet_named: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "faces"
    rows = in_parts(photos, checkpoint, output)
    kept, lost = output / "part-00000.parquet", output / "part-00001.parquet"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    capsys.readouterr()
    assert_same(in_parts(photos, checkpoint, output), rows)
    assert "2 photos: " in capsys.readouterr().out
    in_parts(photos, checkpoint, output)
    done, whole = capsys.readouterr().out.splitlines()
    assert done.startswith("Nothing to do: all tables exist. For photos that were added later, use another `--output`")
    assert "all 3 tables, all 6 files of the plan exactly once" in whole
    assert kept.stat().st_mtime_ns == before
    lost.write_bytes(kept.read_bytes())
    with pytest.raises(SystemExit):
        in_parts(photos, checkpoint, output)
    assert "part-00001.parquet, each once and in the plan's order" in capsys.readouterr().err


def test_a_folder_belongs_to_one_prediction(
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
    yunet_named: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "faces"
    in_parts(photos, checkpoint, output)
    for words, expected in (
        (["--face", "crop"], "was started with face detect, but now it is crop"),
        (["--checkpoint", "ferplus-small"], "was started with model"),
        (["--detector", "none", "--face", "crop"], "was started with face detect"),
        (["--part_size", "3"], "was started with part_size 2, but now it is 3"),
        (["--min_confidence", "0.5"], "was started with min_confidence 0.0, but now it is 0.5"),
        (["--part_size", "0"], "part_size"),
        (["--overwrite"], "Remove"),
    ):
        with pytest.raises(SystemExit):
            in_parts(photos, checkpoint, output, *words)
        assert expected in capsys.readouterr().err
    with pytest.raises(SystemExit):
        in_parts(photos / "woman.png", checkpoint, output)
    assert f"was started with images ['{photos}'], but now it is ['{photos}/woman.png']" in capsys.readouterr().err
    monkeypatch.chdir(photos.parent)
    in_parts(Path(photos.name), checkpoint, tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):  # another folder of that name, for all that is known
        in_parts(Path(photos.name), checkpoint, tmp_path / "here")
    assert "was started with images" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        predict(photos, checkpoint, tmp_path / "faces.csv")
    assert "2 processes (WORLD_SIZE, or SLURM's) cannot write one table" in capsys.readouterr().err


def test_each_process_has_its_gpu_and_cores(monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path) -> None:
    calls: list[object] = []

    def stop(*args: object, **_: object) -> None:
        calls.extend(args)
        raise FerVitError("seen enough")

    monkeypatch.setattr(verb, "load", stop)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    for rank, device in ((1, "cuda:1"), (6, "cuda:2")):
        for name, value in (("RANK", 9), ("WORLD_SIZE", 16), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", 8)):
            monkeypatch.setenv(name, str(value))
        with pytest.raises(FerVitError, match="seen enough"):
            verb.predict([photos], output=tmp_path / "faces")
        assert calls[-1] == device
    monkeypatch.setattr(verb, "cores", lambda: 24)
    model = load(device="cpu")
    monkeypatch.setattr(verb, "load", lambda *_, **options: model)
    monkeypatch.setattr(model, "recognize", stop)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(FerVitError, match="seen enough"):
        verb.predict([photos], output=tmp_path / "faces")
    assert calls[-1].workers == 3


def test_a_fingerprint_tells_models_apart() -> None:
    prints = set()
    for change in (
        lambda net: None,
        lambda net: setattr(net.settings, "temperature", 2.0),
        lambda net: setattr(net.settings, "align", "crop"),
        lambda net: net.settings.labels.reverse(),
        lambda net: next(net.parameters()).data.add_(1e-3),
        lambda net: setattr(net.settings, "thresholds", {}),
    ):
        model = load(device="cpu")
        change(model.net)
        prints.add(fingerprint(model))
    assert len(prints) == 6
    assert fingerprint(load(device="cpu")) in prints


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    refused = pytest.raises(FerVitError, match=r"t\.csv \(No space left on device\).*has room")
    with refused, TableWriter(tmp_path / "t.csv", {"path": str}) as table, open("/dev/full", "w") as full:
        table._text = full
        table.write([{"path": "x" * 100_000}])
