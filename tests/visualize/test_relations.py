import csv
from pathlib import Path

import numpy as np

from fer_vit.report.draw import FaceView
from fer_vit.report.html import Evidence
from fer_vit.visualize.writer import RelationWriter

REGIONS = ("right_eye", "nose", "mouth")


def test_relations_are_means_over_the_faces_that_show_both(tmp_path: Path) -> None:
    writer = RelationWriter(tmp_path, ["a", "b"], REGIONS)
    whole = np.array([[0.2, 0.4, 0.4], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]])
    without = np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 0.0]])
    for matrix, present in ((whole, REGIONS), (without, REGIONS[:2])):
        boxes = {name: np.zeros(4) for name in present}
        view = FaceView(np.zeros((32, 32, 3), np.uint8), np.eye(2, 3), 32, boxes, probabilities={"a": 1.0})
        writer.add(view, Evidence([0], {}, (matrix, matrix), matrix))
    writer.write()
    with (tmp_path / "relations.csv").open() as file:
        rows = {(row["region"], row["takes_from"]): row for row in csv.DictReader(file)}
    found = {pair: (int(row["faces"]), round(float(row["mean"]), 5)) for pair, row in rows.items()}
    assert found["right_eye", "nose"] == (2, 0.45)
    assert found["nose", "right_eye"] == (2, 0.5)
    assert found["right_eye", "mouth"] == (1, 0.4)
    assert found["mouth", "nose"] == (1, 0.3)
