"""Landmarks of the images of a data set."""

from collections import Counter

import numpy as np
import pytest

from fer_vit.data.schema import Reading, Row
from fer_vit.face.detectors import find_detector
from fer_vit.face.image import UNREADABLE, decode_image, encode_png
from fer_vit.geometry import Image
from fer_vit.sources.add_landmarks import add_landmarks


@pytest.mark.slow
def test_worker_processes_keep_the_order_and_count_what_they_drop(
    astronaut: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fer_vit.sources.add_landmarks.IMAGES_PER_WORKER", 4)
    crop = astronaut[58:176, 166:284]
    rows = []
    for index in range(22):
        data = encode_png(np.roll(crop, index, axis=1)) if index % 5 else b"broken"
        rows.append(Row(data, f"{index}.png", "train", "fear"))
    given = Reading(("fear",), rows, Counter({"earlier": 1}))
    detector = find_detector("yunet").load(0.5)
    reading = add_landmarks(given, detector, workers=2)
    assert [row.name for row in reading.rows] == [
        f"{index}.png" for index in range(22) if index % 5
    ]
    assert reading.dropped == {"earlier": 1, UNREADABLE: 5}
    here = add_landmarks(given, detector, workers=0)  # this process
    assert here.dropped == reading.dropped
    assert [row.name for row in here.rows] == [row.name for row in reading.rows]
    for row in reading.rows:
        assert isinstance(row.image, bytes)
        expected = detector.find_in_crop(decode_image(row.image)).landmarks
        np.testing.assert_allclose(row.landmarks, expected, atol=1e-3)
