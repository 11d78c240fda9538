from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch

from fer_vit.data.dataset import Draw, EvalSampler, FaceDataset, Position, TrainSampler, collate
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Reading, Row, write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, region_boxes
from fer_vit.face.image import UNREADABLE, encode_png
from fer_vit.geometry import TEMPLATE, apply
from fer_vit.sources.cartoon import draw_face


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    rows = []
    for seed in range(6):
        image, landmarks = draw_face("anger", seed, 80)
        known = None if seed == 2 else landmarks
        rows.append(Row(encode_png(image), f"{seed}.png", "train", "anger", None, known))
    write_manifest(tmp_path / "m.parquet", Reading(("anger", "fear"), rows), "drawn")
    return Manifest.read(tmp_path / "m.parquet")


def test_faces_are_aligned_and_regions_lie_on_them(manifest: Manifest) -> None:
    dataset = FaceDataset(manifest, CropSpec(64))
    for row in (0, 1, 3, 4, 5):
        sample = dataset[row]
        points = apply(sample.to_crop, dataset.landmarks[row])
        assert np.abs(points / 64 - TEMPLATE).max() < 0.06
        assert np.allclose(sample.boxes, region_boxes(points), atol=1e-4)
        assert sample.valid.all()
        assert sample.image.shape == (64, 64, 3)
        assert sample.target.tolist() == [1, 0]


def test_collate(manifest: Manifest) -> None:
    dataset = FaceDataset(manifest, CropSpec(48, regions=("mouth", "nose")))
    batch = collate([dataset[0], dataset[Draw(1, repeat=True)]])
    assert batch.image.shape == (2, 3, 48, 48)
    assert (batch.image[0].permute(1, 2, 0).numpy() == dataset[0].image).all()
    assert batch.boxes.shape == (2, 2, 4)
    assert batch.row.tolist() == [0, -1]
    assert batch.path == ["0.png", "1.png"]
    assert torch.equal(batch.image[1], collate([dataset[1]]).image[0])


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    rows = [Row(b"not an image", "bad.png", "train", "anger")]
    write_manifest(tmp_path / "m.parquet", Reading(("anger",), rows), "made")
    with pytest.raises(FerVitError, match=rf"m\.parquet.*bad\.png.*{UNREADABLE}"):
        FaceDataset(Manifest.read(tmp_path / "m.parquet"), CropSpec(48))[0]


@pytest.mark.parametrize("processes", [1, 4, 7])
def test_every_row_is_dealt_out_once_and_repeats_are_marked(
    manifest: Manifest, processes: int
) -> None:
    dataset = FaceDataset(manifest, CropSpec(48))
    dealt = [list(EvalSampler(dataset, processes, rank)) for rank in range(processes)]
    assert len({len(draws) for draws in dealt}) == 1  # every process takes as many steps
    draws = [draw for of_process in dealt for draw in of_process]
    assert sorted(draw.row for draw in draws if not draw.repeat) == [*range(6)]


@pytest.mark.parametrize("processes", [1, 3, 4, 7])
@pytest.mark.parametrize("start", [Position(0, 0), Position(2, 0), Position(2, 3)])
def test_processes_share_the_order_of_one(
    manifest: Manifest, processes: int, start: Position
) -> None:
    dataset = FaceDataset(manifest, CropSpec(48))
    for epoch in (0, 2, 3):
        whole = TrainSampler(dataset)
        whole.set_epoch(max(epoch, start.epoch))
        order = list(whole)
        assert sorted(draw.row for draw in order) == list(range(6))
        shares = [TrainSampler(dataset, None, processes, rank, start) for rank in range(processes)]
        for sampler in shares:
            sampler.set_epoch(epoch)
        assert {len(sampler) for sampler in shares} == {max(1, 6 // processes)}
        dealt = [list(sampler) for sampler in shares]
        together = []
        for turn in zip_longest(*dealt):
            together += [draw for draw in turn if draw]
        done = start.done if max(epoch, start.epoch) == start.epoch else 0
        wanted = (order * 2)[: max(1, 6 // processes) * processes]
        assert together == wanted[done:]


def test_order_and_seeds_differ_by_epoch_and_seed(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = FaceDataset(manifest, CropSpec(48))
    draws = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
        sampler = TrainSampler(dataset)
        sampler.set_epoch(epoch)
        draws.append(list(sampler))
    assert len({draw.seed for run in draws for draw in run}) == 18
    assert len({tuple(draw.row for draw in run) for run in draws}) == 3
