import torch

from fer_vit.model.mix import cutmix, drop_regions, mixup
from fer_vit.model.tokens import TokenLayout, Tokens

LAYOUT = TokenLayout(num_prefix=1, grid=(4, 4), num_regions=2, region_grid=2)


def batch(size: int = 64) -> tuple[Tokens, torch.Tensor]:
    torch.manual_seed(0)
    # Every token of face i has the value i in its first place, so that it shows where it came from.
    x = torch.rand(size, LAYOUT.num_tokens, 3)
    x[..., 0] = torch.arange(size)[:, None]
    valid = torch.ones(size, LAYOUT.num_tokens, dtype=torch.bool)
    return Tokens(x, valid, 10 * x[..., :2]), torch.eye(size)


def test_mixup_blends_tokens_and_targets_by_the_same_share() -> None:
    tokens, target = batch()
    tokens.valid[3, LAYOUT.regions] = False
    mixed, mixed_target = mixup(tokens, target, alpha=1.0)
    for i in range(64):
        share = mixed_target[i, i].item()
        before = tokens.x[i - 1]
        assert torch.allclose(mixed.x[i], share * tokens.x[i] + (1 - share) * before, atol=1e-4)
        assert torch.allclose(mixed.centres[i], 10 * mixed.x[i, :, :2], atol=1e-3)  # tokens lie where they come from
        assert abs(mixed_target[i].sum().item() - 1) < 1e-6
        assert abs(mixed_target[i, i - 1].item() - (1 - share)) < 1e-6
    gone = (~mixed.valid[:, LAYOUT.regions]).all(1).nonzero().flatten()
    assert gone.tolist() == [3, 4]  # a region counts only where both faces have it


def test_cutmix_takes_whole_tokens_and_shares_the_target_by_them() -> None:
    tokens, target = batch()
    tokens.valid[5, LAYOUT.regions] = False
    boxes = torch.tensor([[0.0, 0.0, 16.0, 16.0], [16.0, 16.0, 32.0, 32.0]]).expand(64, 2, 4)
    mixed, mixed_target = cutmix(tokens, target, boxes, LAYOUT, patch_size=8)
    origin = mixed.x[..., 0].long()  # (B, T)
    assert torch.equal(mixed.centres, 10 * mixed.x[..., :2])  # tokens lie where they come from
    own = torch.arange(64)[:, None]
    assert ((origin == own) | (origin == (own - 1) % 64)).all()
    assert (origin[:, 0] == own[:, 0]).all()  # the class token stays
    there = mixed.valid[:, 1:]  # missing regions have no part in the target
    taken = ((origin != own)[:, 1:] & there).sum(1) / there.sum(1)
    assert 0.15 < taken.mean() < 0.5
    assert (~there).any(1).sum() >= 1
    assert torch.allclose(mixed_target[torch.arange(64), torch.arange(64)], 1 - taken, atol=1e-6)
    # A region comes whole, and with its validity.
    regions = (origin != own)[:, LAYOUT.regions].view(64, 2, 4)
    assert (regions.all(-1) | ~regions.any(-1)).all()
    for i in range(64):
        for r in range(2):
            source = (i - 1) % 64 if regions[i, r, 0] else i
            assert mixed.valid[i, LAYOUT.regions].view(2, 4)[r].all() == (source != 5)
    # The cut is a rectangle of the patch grid, and takes the region whose centre (at patch 1, 1 or 3, 3) lies in it.
    patches = (origin != own)[:, LAYOUT.patches].view(64, 4, 4)
    for i in range(64):
        rows, columns = patches[i].any(1), patches[i].any(0)
        assert torch.equal(patches[i], rows[:, None] & columns[None])


def test_region_dropout_hides_whole_regions_and_nothing_else() -> None:
    tokens, _ = batch(3000)
    dropped = drop_regions(tokens, LAYOUT, 0.6)
    assert torch.equal(dropped.x, tokens.x)
    assert dropped.valid[:, : LAYOUT.regions.start].all()
    regions = dropped.valid[:, LAYOUT.regions].view(3000, 2, 4)
    assert (regions.all(-1) | ~regions.any(-1)).all()
    # Given the share u of a chosen face: one region goes with u, both with u^2; evenly drawn, 1/2 and 1/3 on average.
    assert abs((~regions[..., 0]).float().mean().item() - 0.6 / 2) < 0.03
    assert abs((~regions[..., 0]).all(1).float().mean().item() - 0.6 / 3) < 0.03
    assert tokens.valid.all()  # the batch itself is left alone
    assert drop_regions(tokens, LAYOUT, 0.0).valid.all()
