import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from skimage.data import astronaut

from fer_vit.data.sample import Batch
from fer_vit.explain.methods import Method, explain
from fer_vit.explain.relations import head_relations, relations
from fer_vit.explain.trace import trace
from fer_vit.face.image import encode_png
from fer_vit.face.regions import DEFAULT_REGIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence
from fer_vit.store.folder import save_network
from fer_vit.visualize.evidence import evidence_of
from fer_vit.visualize.heads import HeadWriter
from fer_vit.visualize.relations import RelationWriter
from tests.helpers.commands import main


def visualize(images: Path, checkpoint: Path, output: Path, *more: str) -> str:
    main(["visualize", str(images), "--checkpoint", str(checkpoint), "--output", str(output), *more])
    return (output / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["relevance", "ablation", "rollout"])
def test_a_report_of_crops(method: str, drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    images = drawn / "faces" / "test"
    page = visualize(images, checkpoint, tmp_path / "r", "--method", method, "--face", "crop", "--detector", "none")
    count = len(list(images.rglob("*.png")))
    pictures = sorted((tmp_path / "r" / "faces").iterdir())
    assert len(pictures) == count
    assert all(Image.open(path).width > 640 for path in pictures)
    assert page.count('{"name":"') - len(DEFAULT_REGIONS) == count
    assert len(list((tmp_path / "r" / "photos").iterdir())) == count
    assert f"<dt>Method</dt><dd>{method}</dd>" in page
    assert re.search(r"""(src|href)=["'](?!data:|#)""", page.split("<script")[0]) is None  # nothing from elsewhere
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r"]


def test_a_report_of_a_photo(checkpoint: Path, tmp_path: Path, yunet_named: None) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "woman.png").write_bytes(encode_png(astronaut()))
    (tmp_path / "photos" / "broken.png").write_bytes(b"no")
    page = visualize(tmp_path / "photos", checkpoint, tmp_path / "r")
    assert page.count('"image":"photos/') == 1
    assert "1 not an image that can be decoded, 1 ok" in page


def test_an_older_report_stays_unless_asked(
    drawn: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r" / "faces").mkdir(parents=True)
    (tmp_path / "r" / "mine.txt").write_text("mine")
    (tmp_path / "r" / "faces" / "old.jpg").write_text("old")
    (tmp_path / "r" / "index.html").write_text('<meta name="generator" content="fer-vit visualize">')
    words = (drawn / "faces" / "test" / "anger", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none")
    with pytest.raises(SystemExit) as end:
        visualize(*words)
    assert end.value.code == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "r" / "faces" / "old.jpg").exists()
    visualize(*words, "--overwrite")
    assert not (tmp_path / "r" / "faces" / "old.jpg").exists()
    assert (tmp_path / "r" / "mine.txt").read_text() == "mine"
    with pytest.raises(SystemExit):
        visualize(drawn / "gone", *words[1:], "--overwrite")
    assert (tmp_path / "r" / "index.html").exists()


def test_a_report_among_the_photos_is_refused(
    drawn: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        visualize(drawn / "faces", checkpoint, drawn / "faces" / "report")
    assert end.value.code == 2
    assert "lies among the photos" in capsys.readouterr().err
    assert not (drawn / "faces" / "report").exists()


@pytest.mark.parametrize("photos", ["faces/test", "elsewhere"])
def test_photos_are_never_replaced_by_a_report(
    photos: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "faces" / "test" / "mine.png"
    for path in (mine, tmp_path / "elsewhere" / "other.png"):
        path.parent.mkdir(parents=True)
        path.write_bytes(encode_png(astronaut()[:64, :64]))
    with pytest.raises(SystemExit) as end:
        visualize(tmp_path / photos, checkpoint, tmp_path, "--face", "crop", "--detector", "none", "--overwrite")
    assert end.value.code == 2
    assert "would be replaced. Choose another folder." in capsys.readouterr().err
    assert mine.exists()


def test_attention_heads_are_shown_when_asked(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    words = (drawn / "faces" / "test" / "anger", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none")
    page = visualize(*words, "--heads")
    faces = len(list((tmp_path / "r" / "faces").iterdir()))
    assert len(list((tmp_path / "r" / "heads").iterdir())) == faces
    assert "<h2>Attention heads</h2>" in page
    with (tmp_path / "r" / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["block"], row["head"]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    for row in rows:
        assert 0 < float(row["distance_px"]) < 32 * 2**0.5
        shares = [float(value) for name, value in row.items() if name not in ("block", "head", "distance_px")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert Image.open(tmp_path / "r" / "heads.png").width > 300
    with (tmp_path / "r" / "heads_relations.csv").open() as file:
        sums: Counter[tuple[str, str, str]] = Counter()
        for row in csv.DictReader(file):
            sums[row["block"], row["head"], row["region"]] += float(row["mean"])
    assert list(sums.values()) == pytest.approx([1] * 4 * len(DEFAULT_REGIONS), abs=1e-5)
    assert Image.open(tmp_path / "r" / "heads_relations.png").width > 300
    page = visualize(*words, "--overwrite")  # a report without them leaves none behind
    assert "Attention heads" not in page
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        "faces",
        "faces.parquet",
        "index.html",
        "photos",
        "relations.csv",
        "relations.png",
        "shares.csv",
    ]


def test_mean_shares_are_written_by_expression(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    visualize(drawn / "faces" / "test", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none")
    with (tmp_path / "r" / "shares.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["region"] for row in rows} == set(DEFAULT_REGIONS)
    for row in rows:
        assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])


def test_every_face_has_a_row(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    visualize(drawn / "faces" / "test", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none")
    table = pq.read_table(tmp_path / "r" / "faces.parquet").to_pydict()
    assert len(table["path"]) == len(list((tmp_path / "r" / "faces").iterdir()))
    assert all(Path(path).is_file() for path in table["path"])
    shares = np.stack([table[region] for region in DEFAULT_REGIONS], axis=1)
    assert np.allclose(np.abs(shares).sum(1), 1)
    with (tmp_path / "r" / "shares.csv").open() as file:
        for row in csv.DictReader(file):
            those = np.array(table["predicted"]) == row["predicted"]
            expected = shares[those, DEFAULT_REGIONS.index(row["region"])].mean()
            assert (float(row["mean"]), int(row["faces"])) == (pytest.approx(expected), those.sum())


def test_relations_between_regions_are_shown_by_expression(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    words = (drawn / "faces" / "test", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none")
    page = visualize(*words)
    assert "<h2>Relations between regions</h2>" in page
    with (tmp_path / "r" / "relations.csv").open() as file:
        rows = list(csv.DictReader(file))
    predicted = Counter(pq.read_table(tmp_path / "r" / "faces.parquet")["predicted"].to_pylist())
    assert len(rows) == len(predicted) * len(DEFAULT_REGIONS) ** 2
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        assert int(row["faces"]) == predicted[row["predicted"]]
        assert float(row["low"] or 0) <= float(row["mean"]) <= float(row["high"] or 1)
        sums[row["predicted"], row["region"]] += float(row["mean"])
        if row["region"] == row["takes_from"]:
            assert float(row["mean"]) > 1 / len(DEFAULT_REGIONS)  # by the residual paths
    assert list(sums.values()) == pytest.approx([1] * len(sums), abs=1e-5)
    assert Image.open(tmp_path / "r" / "relations.png").width > 200


def test_heads_without_any_face(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no")
    page = visualize(
        tmp_path / "broken.png", checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none", "--heads"
    )
    assert "No face was found" in page


THREE = ("right_eye", "nose", "mouth")


def tiny(regions: tuple[str, ...] = THREE, labels: str = "abcd", **change: object) -> RegionViT:
    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    net = RegionViT(RegionViTConfig(**size, regions=regions, **change), labels).eval()
    torch.nn.init.normal_(net.vit.head.weight)
    return net


def make_view(boxes: dict[str, np.ndarray]) -> FaceView:
    photo = np.zeros((32, 32, 3), np.uint8)
    return FaceView("", 0, photo, None, np.eye(2, 3), 32, np.zeros((0, 0)), boxes, {}, {"a": 1.0})


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    boxes = torch.tensor([[2.0, 2, 14, 14], [10, 10, 20, 20], [8, 18, 24, 30]]).expand(2, 3, 4).clone()
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return image, boxes, torch.tensor([[True, True, True], [True, True, False]])  # the second face has no mouth


@pytest.mark.parametrize("method", ["relevance", "ablation", "rollout"])
def test_evidence_is_that_of_each_label_and_of_the_first_rather_than_the_second(method: Method) -> None:
    net, faces = tiny(), batch()
    seen = trace(net, *faces)
    found = list(evidence_of(net, seen, method))
    flow, eye = relations(seen), torch.eye(4)
    order = net(*faces).argsort(1, descending=True)
    for row in range(2):
        assert found[row].order == order[row].tolist()
        assert np.allclose(found[row].relations, flow[row], atol=1e-6)
        for label, (shares, heat) in found[row].labels.items():
            expected = explain(net, *faces, method, eye[label].expand(2, 4))
            assert np.allclose(shares, expected.shares[row], atol=1e-5)
            assert np.allclose(heat, expected.heat[row], atol=1e-5)
        if method == "rollout":
            assert list(found[row].labels) == [order[row, 0]]
            assert found[row].contrast is None
        else:
            assert list(found[row].labels) == [0, 1, 2, 3]
            why = (eye[order[row, 0]] - eye[order[row, 1]]).expand(2, 4)
            assert np.allclose(found[row].contrast[0], explain(net, *faces, method, why).shares[row], atol=1e-5)


def test_relations_are_means_over_the_faces_that_show_both(tmp_path: Path) -> None:
    writer = RelationWriter(tmp_path, ["a", "b"], THREE)
    whole = np.array([[0.2, 0.4, 0.4], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]])
    without = np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 0.0]])
    for matrix, present in ((whole, THREE), (without, THREE[:2])):
        writer.add(make_view({name: np.zeros(4) for name in present}), Evidence([0], {}, None, matrix))
    writer.write()
    with (tmp_path / "relations.csv").open() as file:
        rows = {(row["region"], row["takes_from"]): row for row in csv.DictReader(file)}
    found = {pair: (int(row["faces"]), round(float(row["mean"]), 5)) for pair, row in rows.items()}
    assert found["right_eye", "nose"] == (2, 0.45)
    assert found["nose", "right_eye"] == (2, 0.5)
    assert found["right_eye", "mouth"] == (1, 0.4)
    assert found["mouth", "nose"] == (1, 0.3)


def test_heads_join_regions_by_means_over_the_faces_that_show_both(tmp_path: Path) -> None:
    net, (image, boxes, valid) = tiny(), batch()
    writer = HeadWriter(tmp_path, Recognizer(net))
    seen = trace(net, image, boxes, valid)
    views = []
    for row in range(2):
        present = {name: boxes[row, i].numpy() for i, name in enumerate(net.config.regions) if valid[row, i]}
        views.append(make_view(present))
    part = Batch(image, boxes, valid, None, torch.arange(2), ["", ""], torch.eye(2, 3).expand(2, 2, 3))
    writer.add(part, seen, views)
    writer.write()
    each = head_relations(seen)
    with (tmp_path / "heads_relations.csv").open() as file:
        for row in csv.DictReader(file):
            pair = [net.config.regions.index(row[name]) for name in ("region", "takes_from")]
            shown = valid[:, pair].all(1)
            expected = each[shown, int(row["block"]) - 1, int(row["head"]) - 1, pair[0], pair[1]].mean()
            assert float(row["mean"]) == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("change", [{"regions": (), "tokens": "patch"}, {"labels": "a"}, {"regions": ("mouth",)}])
@pytest.mark.parametrize("method", ["relevance", "raw"])
def test_models_with_little_to_say(change: dict[str, object], method: str, drawn: Path, tmp_path: Path) -> None:
    save_network(tiny(**change), tmp_path / "model")
    photo = next((drawn / "faces" / "test").rglob("*.png"))
    words = ("--method", method, "--face", "crop", "--detector", "none", "--heads")
    assert "<dt>Faces</dt><dd>1</dd>" in visualize(photo, tmp_path / "model", tmp_path / "r", *words)


def test_nothing_but_a_report_is_replaced(drawn: Path, checkpoint: Path, tmp_path: Path) -> None:
    photo = next((drawn / "faces" / "test").rglob("*.png"))
    words = (photo, checkpoint, tmp_path / "r", "--face", "crop", "--detector", "none", "--overwrite")
    (tmp_path / "r" / "photos").mkdir(parents=True)
    (tmp_path / "r" / "photos" / "holiday.jpg").touch()
    (tmp_path / "r" / "index.html").write_text("<title>My holidays</title>")
    with pytest.raises(SystemExit):
        visualize(*words)
    assert (tmp_path / "r" / "photos" / "holiday.jpg").is_file()
    (tmp_path / "r" / "index.html").unlink()
    (tmp_path / "r" / "photos" / "holiday.jpg").unlink()
    (tmp_path / "r" / "photos").rmdir()
    visualize(*words)
    (tmp_path / "r" / "relations.png").unlink()
    (tmp_path / "r" / "relations.png").mkdir()  # of another kind than what comes
    visualize(*words)
    assert (tmp_path / "r" / "relations.png").is_file()
