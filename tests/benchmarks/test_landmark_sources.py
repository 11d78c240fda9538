from functools import partial

import cv2
import numpy as np
import pytest

from benchmarks.landmark_sources import moved
from fer_vit.evaluate.hard import Change, blur, shrink, turn


@pytest.mark.parametrize(
    "change", [partial(turn, degrees=15), partial(turn, degrees=-30), partial(shrink, side=60), partial(blur, sigma=1)]
)
def test_true_landmarks_go_where_the_change_takes_them(change: Change) -> None:
    points = np.array([[50, 60], [90, 55], [70, 80], [55, 100], [88, 98]]) + 0.5
    for row in range(5):
        image = np.zeros((140, 140, 3), np.uint8)
        cv2.circle(image, tuple(points[row].astype(int).tolist()), 4, (255, 255, 255), -1)
        after = change(image, points)
        seen = cv2.moments(after[..., 0])
        middle = np.array([seen["m10"], seen["m01"]]) / seen["m00"] + 0.5
        np.testing.assert_allclose(moved(points, change, image, after)[row], middle, atol=0.15)
