from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fer_vit import load
from fer_vit.commands import distill
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import write_manifest
from fer_vit.labels import EXPRESSIONS
from fer_vit.sources.drawn import read
from tests.helpers.commands import TINY, fails, main
from tests.helpers.logits import labelled_logits


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teachers predict in float32 on every machine."""
    monkeypatch.setattr(distill, "has_bf16", lambda accelerator: False)


def test_votes_are_mixed_with_predictions(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = tmp_path / "faces.parquet"
    output = tmp_path / "distilled.parquet"
    write_manifest(given, read(tmp_path / "faces", count=24, size=64), "drawn")
    words = [
        "distill",
        str(checkpoint),
        "ferplus-fairface",
        str(given),
        str(output),
        "--weight",
        "0.25",
    ]
    main(words)
    before = Manifest.read(given)
    after = Manifest.read(output)
    assert after.table.drop_columns("votes").equals(before.table.drop_columns("votes"))
    for split in ("val", "test"):
        assert after.split(split).table["votes"].equals(before.split(split).table["votes"])
    votes = after.split("train").targets()
    old = before.split("train").targets()
    row = 5
    predicted = []
    for teacher in (checkpoint, "ferplus-fairface"):
        model = load(teacher)
        model.net.settings.temperature = 1.0
        for mirrored in (False, True):
            logits, _ = labelled_logits(model, given, "train", mirrored)
            predicted.append(model.net.probabilities(logits)[row].numpy())
    assert np.allclose(votes[row], 0.75 * old[row] + 0.25 * np.mean(predicted, axis=0), atol=1e-5)
    assert np.allclose(votes.sum(1), 1, atol=1e-5)
    assert f"{len(before):,} rows" in capsys.readouterr().out
    assert "exists already" in fails(capsys, *words)
    main([*words, "--overwrite"])


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 40 drawn faces, 28 of them to learn."""
    folder = tmp_path_factory.mktemp("faces")
    write_manifest(folder / "faces.parquet", read(folder / "faces", count=40, size=32), "drawn")
    return folder / "faces.parquet"


@pytest.fixture(scope="module")
def teachers(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three checkpoints of different models,
    each with another held-out third of the training faces.
    """
    saved = torch.load(checkpoint, weights_only=True)
    paths = []
    folder = tmp_path_factory.mktemp("teachers")
    for index in range(3):
        torch.manual_seed(index)
        saved["FaceDataModule"]["fold"] = f"{index}/3"
        saved["state_dict"]["net.vit.head.weight"] = torch.randn(8, 32)
        paths.append(str(folder / f"fold{index}.ckpt"))
        torch.save(saved, paths[-1])
    return paths


def mean_of_views(teacher: str, manifest: Path) -> np.ndarray:
    """A teacher's mean probabilities of each training face and its mirror image."""
    model = load(teacher)
    views = [
        labelled_logits(model, manifest, "train", mirrored)[0].double()
        for mirrored in (False, True)
    ]
    return torch.stack([view.softmax(-1) for view in views]).mean(0).numpy()


def test_folds_of_the_teachers(
    faces: Path, teachers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    main(["distill", *teachers, str(faces), str(tmp_path / "out.parquet"), "--weight=1"])
    train = Manifest.read(faces).split("train")
    of_each = [mean_of_views(teacher, faces) for teacher in teachers]
    votes = Manifest.read(tmp_path / "out.parquet").split("train").targets()
    folds = [in_fold(train, f"{index}/3") for index in range(3)]
    for row in range(len(train)):
        (right,) = (index for index in range(3) if folds[index][row])
        assert np.allclose(votes[row], of_each[right][row], atol=1e-6)
    out = capsys.readouterr().out
    true = train.targets().argmax(1)
    for index, teacher in enumerate(teachers):
        rows = folds[index]
        agrees = np.mean(of_each[index][rows].argmax(1) == true[rows])
        lines = [line for line in out.splitlines() if line.startswith(teacher)]
        figures = f"{agrees:.1%} of {rows.sum()} faces"
        assert any(figures in line and f"{index}/3" in line for line in lines)
    assert f"Together they agree with {np.mean(votes.argmax(1) == true):.1%} of 28 faces" in out

    main(
        [
            "distill",
            teachers[0],
            "ferplus-fairface",
            str(faces),
            str(tmp_path / "two.parquet"),
            "--weight=1",
        ]
    )
    votes = Manifest.read(tmp_path / "two.parquet").split("train").targets()
    whole = mean_of_views("ferplus-fairface", faces)
    assert np.allclose(
        votes, np.where(folds[0][:, None], (of_each[0] + whole) / 2, whole), atol=1e-6
    )
    assert "28 faces" in capsys.readouterr().out

    error = fails(capsys, "distill", *teachers[:2], faces, tmp_path / "gone.parquet")
    assert f"{folds[2].sum()} faces" in error


def test_a_run_records_its_held_out_fold(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [
        *TINY,
        f"--data.manifest={drawn / 'faces.parquet'}",
        f"--trainer.logger.init_args.save_dir={tmp_path}",
    ]
    main(["fit", *words, "--data.fold=1/3"])
    (last,) = tmp_path.rglob("last.ckpt")
    assert torch.load(last, weights_only=True)["FaceDataModule"]["fold"] == "1/3"
    main(["fit", *words, "--data.fold=0/3", f"--model.init={last}"])
    (second,) = tmp_path.rglob("version_1/**/last.ckpt")
    error = fails(capsys, "distill", second, drawn / "faces.parquet", tmp_path / "x.parquet")
    assert f"{second} started from {str(last)[:70]}" in error


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 40 drawn faces without labels and with another column: 30 faces to learn, 3 of
    these without landmarks.
    """
    folder = tmp_path_factory.mktemp("photos")
    reading = read(folder / "photos", count=40, size=32, seed=9)
    for number, row in enumerate(reading.rows):
        row.label = None
        row.split = "train" if number < 30 else "val"
        row.landmarks = None if number < 3 else row.landmarks
    path = folder / "photos.parquet"
    write_manifest(path, reading, "photos")
    table = pq.read_table(path)
    pq.write_table(table.append_column("age", pa.array(["3-9"] * len(table))), path)
    return path


def test_distill_adds_unlabelled_faces(
    faces: Path, photos: Path, teachers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [
        "distill",
        *teachers,
        str(faces),
        str(tmp_path / "all.parquet"),
        f"--unlabelled={photos}",
    ]
    main(words)
    out = capsys.readouterr().out
    both = Manifest.read(tmp_path / "all.parquet")
    given = Manifest.read(faces)
    table = both.table.slice(len(given))
    new = Manifest(both.path, table, both.labels)
    assert [new.name(row) for row in range(len(new))] == [
        Manifest.read(photos).name(row) for row in range(3, 30)
    ]
    labelled = tmp_path / "labelled.parquet"  # the same faces, so that `mean_of_views` reads them
    Manifest(both.path, table, both.labels).write(labelled)
    expected = np.mean([mean_of_views(teacher, labelled) for teacher in teachers], axis=0)
    assert np.allclose(new.targets(), expected, atol=1e-6)
    assert table["label"].to_pylist() == [EXPRESSIONS[best] for best in expected.argmax(1)]
    assert set(table["age"].to_pylist()) == {"3-9"}
    assert set(both.table["age"].to_pylist()[:40]) == {None}
    assert "27 training faces; 3 more" in out
    for label, name in enumerate(EXPRESSIONS):
        mine = expected.argmax(1) == label
        sure = f", mean confidence {expected[mine, label].mean():.2f}" if mine.any() else ""
        assert f"  {name}: {mine.sum()} of {mine.sum()} faces{sure}\n" in out
    main(["distill", *teachers, str(faces), str(tmp_path / "alone.parquet")])
    alone = pq.read_table(tmp_path / "alone.parquet")
    assert both.table.slice(0, len(given)).select(alone.column_names).equals(alone)


def test_the_most_common_are_cut(
    checkpoint: Path, faces: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name, more in (("all", []), ("few", ["--per-class=2"]), ("again", ["--per_class=2"])):
        output = str(tmp_path / f"{name}.parquet")
        main(["distill", str(checkpoint), str(faces), output, f"--unlabelled={photos}", *more])
    every, few, again = (
        pq.read_table(tmp_path / f"{name}.parquet").slice(40) for name in ("all", "few", "again")
    )
    assert few.equals(again)
    rows = {row["image"]["path"]: row for row in every.to_pylist()}
    assert all(row == rows[row["image"]["path"]] for row in few.to_pylist())
    labels = every["label"].to_pylist()
    kept = few["label"].to_pylist()
    assert max(map(labels.count, labels)) > 2
    assert all(kept.count(name) == min(2, labels.count(name)) for name in EXPRESSIONS)
    common = max(EXPRESSIONS, key=labels.count)
    assert f"  {common}: 2 of {labels.count(common)} faces" in capsys.readouterr().out


def test_distill_refuses_wrong_arguments(
    faces: Path, photos: Path, seven: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out.parquet"
    words = ["distill", "ferplus-fairface", faces, out]
    assert str(seven) in fails(capsys, *words[:2], seven, seven, "--overwrite")
    assert "Expected labels neutral, " in fails(capsys, *words, f"--unlabelled={seven}")
    error = fails(capsys, *words[:2], photos, out)
    assert str(photos) in error
    assert "have none" in error
    assert "would replace" in fails(
        capsys, *words[:3], photos, f"--unlabelled={photos}", "--overwrite"
    )
    assert not out.exists()
