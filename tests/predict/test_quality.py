import numpy as np
import pytest
import torch
from skimage.data import astronaut

from fer_vit.geometry import compose
from fer_vit.predict.stages import measure_blur, regions_in_photo


def by_loops(grey: np.ndarray) -> float:
    """The fourth root of the variance of grey levels over the variance of their Laplacian."""
    edges = [
        grey[y, x - 1] + grey[y, x + 1] + grey[y - 1, x] + grey[y + 1, x] - 4 * grey[y, x]
        for y in range(1, 47)
        for x in range(1, 47)
    ]
    return (np.var(grey, ddof=1) / np.var(edges, ddof=1)) ** 0.25


def crop(side: int) -> torch.Tensor:
    face = torch.from_numpy(astronaut()[64:208, 160:304]).permute(2, 0, 1)[None] / 255
    return torch.nn.functional.interpolate(face, (side, side), mode="bilinear", antialias=True)


def test_blur_equals_loops_at_any_contrast() -> None:
    face = crop(48)
    assert measure_blur(face).item() == pytest.approx(by_loops(face[0].double().mean(0).numpy()), rel=1e-4)
    assert measure_blur(0.3 + 0.2 * face).item() == pytest.approx(measure_blur(face).item(), rel=1e-3)
    assert measure_blur(torch.full((1, 3, 48, 48), 0.5)).isnan().all()


def test_blur_does_not_depend_on_the_size_of_crops_that_show_the_same() -> None:
    small, large = measure_blur(crop(48)), measure_blur(crop(112))
    assert large.item() == pytest.approx(small.item(), rel=0.1)


def test_regions_outside_the_photo() -> None:
    angle = np.deg2rad(30)
    turn = np.array([[np.cos(angle), -np.sin(angle), 5.0], [np.sin(angle), np.cos(angle), -3.0]])
    to_crop = compose([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]], turn)
    photo = {
        "in": (50.0, 30.0),
        "left": (-2.0, 30.0),
        "below": (50.0, 61.0),
        "right": (101.0, 5.0),
        "edge": (99.0, 59.0),
    }
    boxes = {}
    for name, point in photo.items():
        x, y = to_crop @ np.array([*point, 1.0])
        boxes[name] = np.array([x - 8, y - 8, x + 8, y + 8])
    assert regions_in_photo(boxes, to_crop, (100, 60)) == ["in", "edge"]
    assert regions_in_photo({}, to_crop, (100, 60)) == []
