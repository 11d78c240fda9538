"""The command `predict` for photos: one table, or a folder of tables that processes share."""

from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
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
from fer_vit.store.hub import DEFAULT
from tests.helpers.commands import CROPS, assert_same, fails, predict, run


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


def test_columns_of_confidence(drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*CROPS, "--workers=0", "--min-confidence=0.5")
    rows = predict(drawn / "faces" / "val", DEFAULT, tmp_path / "t.parquet", *words)
    least, ambiguous = load(DEFAULT, "cpu").net.settings.thresholds["90"][0], 0
    for row in rows:
        probabilities = {name: row[f"p_{name}"] for name in EXPRESSIONS}
        below = max(probabilities.values()) < 0.5
        expected = [name for name, value in probabilities.items() if value >= least]
        assert row["label"] == (None if below else max(probabilities, key=probabilities.__getitem__))
        assert row["prediction_set"] == "; ".join(expected)
        assert row["ambiguous"] == (below or len(expected) != 1)
        assert row["outside"] == ""
        assert row["entropy"] == pytest.approx(entropy(list(probabilities.values())), abs=1e-6)
        assert row["size"] == pytest.approx(64)
        assert 0.5 < row["blur"] < 5
        ambiguous += row["ambiguous"]
    assert 0 < ambiguous < len(rows)
    out = capsys.readouterr().out
    assert f"{ambiguous:,} of {len(rows):,} faces are ambiguous ({ambiguous / len(rows):.1%})" in out
    assert " without a label" in out


def test_wrong_arguments(drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.csv"
    out.write_text("mine")
    good = ["--checkpoint", checkpoint, *CROPS, "--output"]
    for args, words in (
        ([drawn, *good, out], "exists already"),
        ([tmp_path / "gone", *good, tmp_path / "u.csv"], "there is no"),
        ([drawn, *good, tmp_path / "u.csv", "--checkpoint", tmp_path / "no.ckpt"], "No checkpoint"),
    ):
        assert words in fails(capsys, "predict", *args)
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_text() == "mine"
    rows = predict(drawn / "faces" / "val", checkpoint, out, *CROPS, "--overwrite")
    assert rows[0]["status"] == "ok"


def test_processes_share_a_folder_and_a_rerun_resumes(
    photos: Path,
    checkpoint: Path,
    tmp_path: Path,
    yunet_named: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, output = predict(photos, checkpoint, tmp_path / "one.parquet"), tmp_path / "faces"
    assert [(Path(row["path"]).name, row["status"], row["face"]) for row in expected] == [
        ("both.png", "ok", 0),
        ("both.png", "ok", 1),
        ("empty.jpg", "the file is empty", None),
        ("man.png", "ok", 0),
        ("noise.png", "no face", None),
        ("truncated.jpg", "not an image that can be decoded", None),
        ("woman.png", "ok", 0),
    ]
    for rank, workers, report in (
        (0, 2, "2 of 3 tables exist"),
        (1, 0, "all 3 tables, all 6 files exactly"),
    ):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))
        rows = predict(photos, checkpoint, output, "--part_size=2", "--batch_size=1", f"--workers={workers}")
        assert report in capsys.readouterr().out
        assert (len(rows) == len(expected)) == rank
    assert_same(rows, expected)
    assert "2 processes (WORLD_SIZE" in fails(capsys, "predict", photos, "--output", tmp_path / "two.csv")
    monkeypatch.delenv("WORLD_SIZE")
    times = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    predict(photos, checkpoint, output, "--part_size=2")
    assert capsys.readouterr().out.startswith("Nothing to do: all tables of this process exist.")
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == times
    (output / "part-00001-of-00003.parquet").unlink()  # as if the process had been killed
    (output / ".part-00001-of-00003.parquet.0123abcd.part").mkdir()
    assert_same(predict(photos, checkpoint, output, "--part_size=2"), expected)
    changed = {path.name for path in output.iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {"part-00001-of-00003.parquet"}


def test_a_folder_belongs_to_one_prediction(
    photos: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ["--checkpoint", checkpoint, "--output", tmp_path / "faces", *CROPS]
    run("predict", photos / "noise.png", *good)
    table = "part-00000-of-00001.parquet"
    for words, expected in (
        (["--detector", "landmarks"], f"{table} was written with detector none, but now it is landmarks"),
        (["--checkpoint", DEFAULT], "was written with model"),
        (["--min_confidence", 0.5], "was written with min_confidence None, but now it is 0.5"),
        (["--overwrite"], "Finished tables in a folder are kept"),
        (["--features"], "was written with features None, but now it is True"),
        (["--every", 3], "was written with every None, but now it is 3"),
    ):
        assert expected in fails(capsys, "predict", photos / "noise.png", *good, *words)
    good[3] = tmp_path / "relative"
    monkeypatch.chdir(photos)
    run("predict", "noise.png", *good)
    monkeypatch.chdir(tmp_path)  # where the name is of another file
    (tmp_path / "noise.png").write_bytes((photos / "man.png").read_bytes())
    assert f"was written with directory {photos}" in fails(capsys, "predict", "noise.png", *good)


def test_each_process_has_its_gpu(monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path) -> None:
    loading = Mock(side_effect=FerVitError("seen enough"))
    monkeypatch.setattr(verb, "load", loading)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    for rank, device in ((1, "cuda:1"), (6, "cuda:2")):
        for name, value in (("RANK", 9), ("WORLD_SIZE", 16), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", 8)):
            monkeypatch.setenv(name, str(value))
        with pytest.raises(FerVitError, match="seen enough"):
            verb.predict([photos], output=tmp_path / "faces")
        assert loading.call_args.args[1] == device


def test_fingerprints_differ_by_model() -> None:
    model = load(device="cpu")
    settings, prints = model.net.settings, [fingerprint(model), fingerprint(load(device="cpu"))]
    for name, value in (("temperature", 2.0), ("align", "crop"), ("labels", settings.labels[::-1]), ("thresholds", {})):
        setattr(settings, name, value)
        prints.append(fingerprint(model))
    next(model.parameters()).data.add_(1e-3)
    assert prints[0] == prints[1]
    assert len({*prints, fingerprint(model)}) == 6
