"""Masked pretraining: hidden pixels stay hidden, only they are predicted,
and a classifier starts from it.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from fer_vit.data.dataset import Batch
from fer_vit.data.schema import write_manifest
from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec
from fer_vit.model.config import RegionViTConfig
from fer_vit.sources.drawn import read
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.model_folder import load_network
from fer_vit.train.datamodule import FaceDataModule
from fer_vit.train.pretraining import MaskedPretraining
from tests.helpers.commands import TINY, fails, fit, main
from tests.helpers.training import parts_of

CONFIG = RegionViTConfig(
    img_size=32,
    patch_size=8,
    embed_dim=32,
    depth=2,
    num_heads=2,
    regions=("mouth", "nose"),
    region_grid=1,
)
MODELS = {
    "patch": {"tokens": "patch"},
    "region": {"tokens": "region"},
    "both": {},
    "grey": {"in_chans": 1},
    "grid": {"region_grid": 2},
    "standardised": {"standardize": True, "stem": "conv"},
    "conv, regions of the image": {"stem": "conv", "tokens": "region"},
    "conv, regions of the stem": {"stem": "conv", "region_source": "stem"},
    "conv, regions of the stem alone": {
        "stem": "conv",
        "region_source": "stem",
        "tokens": "region",
        "in_chans": 1,
    },
    "no class token": {"backbone": "vit_medium_patch16_gap_256", "pool": "avg"},
    "computed positions": {"pos_embed": "sincos_2d", "pool": "query", "causal": True},
    "symmetric grid": {"stem": "conv", "img_size": 33, "pos_embed": "mirror", "pool": "avg"},
}
BOXES = torch.tensor([[8.0, 8.0, 24.0, 24.0], [3.3, 1.2, 17.9, 15.8]])


def build(mask_ratio: float = 0.6, **change: object) -> MaskedPretraining:
    torch.manual_seed(0)
    task = MaskedPretraining(replace(CONFIG, **change), mask_ratio=mask_ratio)
    torch.nn.init.normal_(task.mask_token)
    return task


def faces(number: int = 3, side: int = 32) -> tuple[Batch, Tensor]:
    """Faces, one without its second region, and the noise that hides patches."""
    torch.manual_seed(1)
    valid = torch.ones(number, 2, dtype=torch.bool)
    valid[-1, 1] = False
    batch = Batch(
        image=torch.rand(number, 3, side, side),
        boxes=BOXES.repeat(number, 1, 1).masked_fill(~valid[..., None], 0),
        valid=valid,
        target=None,
        row=torch.arange(number),
        path=[""] * number,
        to_crop=torch.eye(3)[:2].expand(number, 2, 3),
        targets={},
    )
    return batch, torch.rand(number, math.ceil(side / 8) ** 2)


def covered(seen: Tensor, image: Tensor) -> Tensor:
    """Which pixels of faces (B, 3, S, S) are hidden (B, 1, S, S)."""
    return (seen != image).any(1, keepdim=True)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_hidden_reaches_the_encoder(name: str, training: bool) -> None:
    task = build(**MODELS[name]).train(training)
    batch, noise = faces(side=task.net.config.img_size)
    image = batch.image
    before, hidden = task.predict_hidden(batch, noise)
    pixels = covered(hidden.seen, image)
    others = torch.where(pixels, torch.rand(image.shape) * 9 - 4, image)
    same, _ = task.predict_hidden(batch._replace(image=others), noise)
    assert torch.equal(same, before)
    visible = torch.where(pixels, image, 1 - image**2)
    changed, _ = task.predict_hidden(batch._replace(image=visible), noise)
    assert not torch.equal(changed, before)


@pytest.mark.parametrize("name", MODELS)
def test_hidden_tokens_are_one_token_at_their_positions(name: str) -> None:
    task = build(mask_ratio=0.95, **MODELS[name]).eval()
    batch, noise = faces(2, task.net.config.img_size)
    preds, hidden = task.predict_hidden(batch, noise)
    first, *_, last = preds[0, hidden.tokens[0]]
    assert not torch.allclose(first, last)
    with torch.no_grad():
        task.mask_token.neg_()
    assert not torch.allclose(task.predict_hidden(batch, noise)[0], preds)


@pytest.mark.parametrize(("ratio", "number"), [(0.6, 10), (0.05, 1), (0.95, 15)])
def test_the_patches_with_the_least_noise_get_the_mean_of_the_others(
    ratio: float, number: int
) -> None:
    batch, noise = faces()
    image = batch.image
    _, hidden = build(ratio).predict_hidden(batch, noise)
    expected = image.clone()
    for face in range(3):
        chosen = np.argsort(noise[face].numpy())[:number]
        assert hidden.tokens[face, :16].nonzero().flatten().tolist() == sorted(chosen)
        gone = torch.zeros(4, 4, dtype=torch.bool)
        gone.view(-1)[chosen] = True
        gone = gone.repeat_interleave(8, 0).repeat_interleave(8, 1)
        for channel in range(3):
            expected[face, channel][gone] = image[face, channel][~gone].mean()
    assert torch.allclose(hidden.seen, expected, atol=1e-6)
    assert torch.equal(covered(hidden.seen, image), covered(expected, image))


def test_patches_of_a_symmetric_grid_are_hidden_and_predicted_around_their_centres() -> None:
    task = build(**MODELS["symmetric grid"])
    net = task.net
    batch, noise = faces(side=33)
    image = batch.image
    _, hidden = task.predict_hidden(batch, noise)
    assert hidden.tokens[:, :25].sum(1).tolist() == [15] * 3
    gone = covered(hidden.seen, image)[:, 0].numpy()  # (3, 33, 33)
    centres = net.centres[net.layout.patches].numpy()  # (25, 2), as the model places them
    for face in range(3):
        expected = np.zeros((33, 33), bool)
        for patch in noise[face].argsort()[:15].tolist():
            x, y = centres[patch] - 0.5  # the index of the pixel with this centre
            rows = range(max(0, int(y) - 4), min(33, int(y) + 4))
            columns = range(max(0, int(x) - 4), min(33, int(x) + 4))
            expected[np.ix_(rows, columns)] = True
            assert hidden.tokens[face, patch]

            # beyond the edge, the pixels at the edge are repeated
            rows = np.arange(int(y) - 4, int(y) + 4).clip(0, 32)
            columns = np.arange(int(x) - 4, int(x) + 4).clip(0, 32)
            pixels = image[face].double().numpy()[:, rows][:, :, columns].ravel()
            normal = (pixels - pixels.mean()) / np.sqrt(pixels.var() + 1e-6)
            np.testing.assert_allclose(hidden.target[face, patch], normal, atol=1e-4)
        np.testing.assert_array_equal(gone[face], expected)


def test_a_region_is_hidden_when_more_than_half_of_it_is() -> None:
    batch, _ = faces(1)
    # the four patches in the middle: 5, 6, 9, 10
    batch = batch._replace(
        boxes=BOXES[:1].repeat(1, 2, 1), valid=torch.ones(1, 2, dtype=torch.bool)
    )
    for first, expected in (
        ((5,), False),
        ((5, 6), False),
        ((5, 6, 9), True),
        ((0, 1, 2, 3), False),
    ):
        noise = torch.ones(1, 16)
        noise[0, list(first)] = 0
        _, hidden = build(len(first) / 16, tokens="region").predict_hidden(batch, noise)
        assert hidden.tokens.tolist() == [[expected] * 2]
        # The 16 x 16 pixels of the box become 8 x 8.
        assert hidden.weights.sum() == len({5, 6, 9, 10} & set(first)) * 16 * 3 * 2


def test_a_pixel_of_a_region_is_predicted_if_all_of_it_is_hidden() -> None:
    batch, noise = faces()
    box = torch.tensor([9.0, 8.0, 25.0, 24.0])  # across the edges of patches
    batch = batch._replace(boxes=box.expand(3, 2, 4), valid=torch.ones(3, 2, dtype=torch.bool))
    _, hidden = build(tokens="region").predict_hidden(batch, noise)
    part = covered(hidden.seen, batch.image)[:, 0, 8:24, 9:25].reshape(3, 8, 2, 8, 2)
    whole = part.all(4).all(2)
    assert whole.sum() < part.any(4).any(2).sum()
    assert torch.equal(hidden.weights[:, 0].sum(1), 3.0 * whole.sum((1, 2)))


@pytest.mark.parametrize(
    "name", ["both", "grid", "grey", "patch", "conv, regions of the stem alone"]
)
def test_targets_and_loss_by_a_loop_in_float64(name: str) -> None:
    task = build(**MODELS[name])
    net = task.net
    batch, _ = faces()
    boxes = torch.tensor([[8.0, 4.0, 24.0, 20.0], [0.0, 12.0, 16.0, 28.0]]).repeat(3, 1, 1)
    if net.config.region_grid == 2:
        boxes[:] = torch.tensor([0.0, 0.0, 32.0, 32.0])  # two pixels become one: a mean of four
    batch = batch._replace(boxes=boxes)
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    torch.manual_seed(2)
    loss = task.training_step(batch, 0)
    torch.manual_seed(2)
    preds, hidden = task.predict_hidden(batch, torch.rand(3, 16))
    preds = preds.detach()
    image = batch.image
    pixels = image.double().numpy()
    seen = ~covered(hidden.seen, image)[:, 0].numpy()
    if net.config.in_chans == 1:  # luma, which the network reads
        pixels = (0.299 * pixels[:, 0] + 0.587 * pixels[:, 1] + 0.114 * pixels[:, 2])[:, None]
    total, count = 0.0, 0
    for face in range(3):
        token = 0
        for patch in range(net.layout.num_patches):
            row = 8 * (patch // 4)
            column = 8 * (patch % 4)
            part = pixels[face][:, row : row + 8, column : column + 8]
            off = seen[face][row : row + 8, column : column + 8]
            total, count = add_errors(total, count, part, ~off, preds[face, token])
            token += 1
        for region in range(net.layout.num_regions):
            left, top = (int(value) for value in boxes[face, region, :2])
            for cell in range(net.config.region_grid**2):
                row = top + 16 * (cell // net.config.region_grid)
                column = left + 16 * (cell % net.config.region_grid)
                part = pixels[face][:, row : row + 16, column : column + 16]
                part = part.reshape(len(part), 8, 2, 8, 2).mean((2, 4))
                off = (
                    seen[face][row : row + 16, column : column + 16].reshape(8, 2, 8, 2).any((1, 3))
                )
                if batch.valid[face, region]:
                    total, count = add_errors(total, count, part, ~off, preds[face, token])
                token += 1
    assert hidden.weights.sum() == count
    assert loss.item() == pytest.approx(total / count, rel=1e-4)


def add_errors(
    total: float, count: int, part: np.ndarray, gone: np.ndarray, preds: Tensor
) -> tuple[float, int]:
    """Adds the squared errors of a token's hidden pixels: its pixels (C, 8, 8),
    which are hidden (8, 8).
    """
    normal = (part - part.mean()) / np.sqrt(part.var() + 1e-6)
    errors = (preds.double().numpy().reshape(part.shape) - normal) ** 2
    return total + float(errors[:, gone].sum()), count + int(gone.sum()) * len(part)


def test_patches_at_the_edges_may_be_cut_off() -> None:
    name = "conv, regions of the stem alone"
    batch, noise = faces()
    _, whole = build(**MODELS[name]).predict_hidden(batch, noise)
    small = batch._replace(image=batch.image[..., :29, :29])
    _, cut = build(**MODELS[name], img_size=29).predict_hidden(small, noise)
    expected = covered(whole.seen, batch.image)[..., :29, :29]
    assert torch.equal(covered(cut.seen, small.image), expected)


PRETRAIN = ["--task=pretraining", "--model.network.stem=conv", "--trainer.limit_val_batches=1"]


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest of 77 training faces and some to validate on,
    a third without a label.
    """
    folder = tmp_path_factory.mktemp("unlabelled")
    reading = read(folder / "faces", count=110, size=32)
    for row in reading.rows[::3]:
        row.label = None
    write_manifest(folder / "faces.parquet", reading, "drawn")
    return folder


@pytest.fixture(scope="module")
def pretrained(unlabelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit(
        unlabelled / "faces.parquet", tmp_path_factory.mktemp("pretrained"), *TINY, *PRETRAIN
    )


def drawn_batch(drawn: Path, side: int = 32) -> Batch:
    data = FaceDataModule(drawn / "faces.parquet", 16, 0, spec=CropSpec(side, CONFIG.regions))
    return next(iter(data.val_dataloader())).ready(torch.device("cpu"))


QUICK = "conv, regions of the stem"


@pytest.mark.slow
@pytest.mark.parametrize("name", [QUICK, "standardised", "computed positions"])
def test_it_learns_a_batch(name: str, drawn: Path) -> None:
    torch.manual_seed(0)
    task = MaskedPretraining(replace(CONFIG, **MODELS[name])).train()
    data = drawn_batch(drawn, task.net.config.img_size)
    optimiser = torch.optim.AdamW(task.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        losses.append(loss := task.training_step(data, 0))
        loss.backward()
        optimiser.step()
    assert all(value.grad is not None for value in task.parameters() if value.requires_grad)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_validation_depends_on_the_faces_alone(drawn: Path) -> None:
    torch.manual_seed(0)
    task = MaskedPretraining(replace(CONFIG, tokens="patch")).eval()
    data = drawn_batch(drawn)
    logged: dict[str, float] = {}
    task.log = lambda name, value, **_: logged.update({name: float(value)})  # type: ignore[method-assign, assignment]
    results = []
    repeated = data._replace(row=torch.where(torch.arange(16) < 8, data.row, -1))
    for batches in ([data], parts_of(data, 5), [repeated, parts_of(data, 8)[1]]):
        for index, part in enumerate(batches):
            torch.manual_seed(index)
            task.validation_step(part, index)
        task.on_validation_epoch_end()
        results.append(logged.pop("val/loss"))
    assert results[1:] == pytest.approx([results[0]] * 2, rel=1e-5)
    task.validation_step(parts_of(data, 1)[0], 0)
    task.on_validation_epoch_end()  # raises if row 0 does not count


def test_by_the_command_line(
    pretrained: Path, unlabelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    saved = load_checkpoint(pretrained)
    assert "labels" not in saved["hyper_parameters"]
    assert not any("head" in name or "pool" in name for name in saved["state_dict"])
    best = {state.get("best_model_path") for state in saved["callbacks"].values()}
    assert str(pretrained.parent / "best.ckpt") in best  # recorded before last.ckpt is saved
    assert "val/loss" in EventAccumulator(str(pretrained.parents[1])).Reload().Tags()["scalars"]
    manifest = f"--data.manifest={unlabelled / 'faces.parquet'}"
    logs = f"--trainer.logger.init_args.save_dir={tmp_path}"
    main(["validate", f"--ckpt_path={pretrained}", manifest, logs, "--data.num_workers=0"])
    assert "val/loss" in capsys.readouterr().out


def test_it_is_no_classifier(
    pretrained: Path, drawn: Path, unlabelled: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(FerVitError, match=r"--model\.init"):
        load_network(pretrained)
    manifest = f"--data.manifest={drawn / 'faces.parquet'}"
    line = fails(capsys, "fit", "--task=classification", f"--ckpt_path={pretrained}", manifest)
    assert "classification" in line
    assert "--model.init" in line
    assert "test_step" in fails(capsys, "test", f"--ckpt_path={pretrained}", manifest)
    line = fails(capsys, "fit", *TINY, f"--data.manifest={unlabelled / 'faces.parquet'}")
    assert "rows without a label" in line
    assert "task" in fails(capsys, "fit", "--task=dreaming", manifest)


def test_a_classifier_uses_it(
    pretrained: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = [f"--model.init={pretrained}", "--model.lr=0", "--model.freeze=encoder"]
    last = fit(drawn / "faces.parquet", tmp_path, *TINY[5:], *words)
    out = capsys.readouterr().out
    assert re.search(rf"{pretrained}: 148 of 148 .*neutral, happiness, surprise", out)
    net = load_network(last)
    before = load_checkpoint(pretrained)
    assert net.config.stem == "conv"
    state = net.state_dict()
    taken = {
        name.removeprefix("net."): value
        for name, value in before["state_dict"].items()
        if "net." in name
    }
    assert len(taken) == 148
    assert all(torch.equal(state[name], value) for name, value in taken.items())


def test_a_loss_that_is_not_finite_ends_the_run(drawn: Path) -> None:
    task = MaskedPretraining(CONFIG)
    data = drawn_batch(drawn)
    torch.nn.init.constant_(task.decoder.weight, torch.nan)
    with pytest.raises(FerVitError, match=r"nan \(epoch 0, step 0\)"):
        task.training_step(data, 0)
    task.eval().validation_step(data, 0)
    with pytest.raises(FerVitError, match=r"val.* nan"):
        task.on_validation_epoch_end()


def test_faces_are_held_out_when_there_is_no_val_split(tmp_path: Path) -> None:
    reading = read(tmp_path / "faces", count=110, size=32)
    for row in reading.rows:
        row.split = "train"
        row.label = None
    write_manifest(tmp_path / "faces.parquet", reading, "drawn")
    data = FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32), unlabelled=True)
    assert len(data.dataset("train")) == 107
    assert len(data.dataset("val")) == 3
    again = FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32), unlabelled=True)
    assert [sample.path for sample in data.dataset("val")] == [
        sample.path for sample in again.dataset("val")
    ]
    with pytest.raises(FerVitError, match=r"faces\.parquet.* val"):
        FaceDataModule(tmp_path / "faces.parquet", 16, 0, spec=CropSpec(32)).dataset("val")
