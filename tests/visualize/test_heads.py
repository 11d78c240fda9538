import csv
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from fer_vit.explain.heads import HeadRoles, head_relations, head_roles
from fer_vit.explain.trace import trace
from fer_vit.model.region_vit import RegionViT
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.draw import FaceView
from fer_vit.visualize.heads import HeadWriter


def test_heads_join_regions_by_means_over_the_faces_that_show_both(
    net: RegionViT, faces: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    image, boxes, valid = faces
    writer = HeadWriter(tmp_path, Recognizer(net))
    seen = trace(net, image, boxes, valid)
    roles = head_roles(seen)
    for row in range(2):
        present = {name: boxes[row, i].numpy() for i, name in enumerate(net.config.regions) if valid[row, i]}
        view = FaceView(np.zeros((32, 32, 3), np.uint8), np.eye(2, 3), 32, present, probabilities={"a": 1.0})
        writer.add(view, image[row], HeadRoles(*(value[row].double() for value in roles)))
    assert len(writer.write()) == 3
    assert sorted(path.name for path in (tmp_path / "heads").iterdir()) == ["000000.jpg", "000001.jpg"]
    each = head_relations(seen)
    with (tmp_path / "heads_relations.csv").open() as file:
        for row in csv.DictReader(file):
            pair = [net.config.regions.index(row[name]) for name in ("region", "takes_from")]
            shown = valid[:, pair].all(1)
            expected = each[shown, int(row["block"]) - 1, int(row["head"]) - 1, pair[0], pair[1]].mean()
            assert float(row["mean"]) == pytest.approx(expected.item(), abs=1e-6)
    with (tmp_path / "heads.csv").open() as file:
        for row in csv.DictReader(file):
            distance = roles.distance[:, int(row["block"]) - 1, int(row["head"]) - 1].mean()
            assert float(row["distance_px"]) == pytest.approx(distance.item(), abs=1e-4)


def test_the_mean_face_has_the_means_of_its_faces(
    net: RegionViT, faces: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    image, boxes, valid = faces
    boxes[1, :2] += 2.0
    writer = HeadWriter(tmp_path, Recognizer(net))
    roles = head_roles(trace(net, image, boxes, valid))
    for row in range(2):
        present = {name: boxes[row, i].numpy() for i, name in enumerate(net.config.regions) if valid[row, i]}
        view = FaceView(np.zeros((32, 32, 3), np.uint8), np.eye(2, 3), 32, present, probabilities={"a": 1.0})
        writer.add(view, image[row], HeadRoles(*(value[row].double() for value in roles)))
    mean = writer._mean_view()
    assert np.abs(mean.photo / 255 - image.mean(0).permute(1, 2, 0).numpy()).max() < 1 / 255
    expected = {"right_eye": boxes[:, 0].mean(0), "nose": boxes[:, 1].mean(0), "mouth": boxes[0, 2]}
    assert mean.regions.keys() == expected.keys()
    assert all(np.allclose(mean.regions[name], box) for name, box in expected.items())
