from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import yaml
from torch import Tensor

from fer_vit.errors import FerVitError
from fer_vit.model.attention import PostNormBlock, class_attention, use_fused_attention
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.embedding import ConvStem, crop_image
from fer_vit.model.region_vit import RegionViT, build_model
from tests.helpers.marks import slow
from tests.helpers.models import shake, small_model

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = ("right_eye", "left_eye", "mouth")


def build(**change: object) -> RegionViT:
    return small_model("abcde", **{"regions": NAMES, **change})


def faces(batch: int = 3, size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.rand(batch, 3, size, size, generator=generator)
    corner = torch.rand(batch, len(NAMES), 2, generator=generator) * size / 2
    boxes = torch.cat([corner, corner + size / 3], dim=-1)
    return image, boxes, torch.ones(batch, len(NAMES), dtype=torch.bool)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "vit_base_patch16_clip_224",
        "vit_small_patch14_reg4_dinov2",
        "vit_small_patch16_18x2_224",  # special blocks
    ],
)
def test_without_regions_the_logits_are_timms_to_the_last_bit(name: str, fused: bool) -> None:
    small = {"img_size": 56, "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 14}
    net = build(backbone=name, tokens="patch", **small)
    reference = timm.create_model(name, num_classes=5, global_pool="token", **small).eval()
    reference.load_state_dict(net.vit.state_dict())
    use_fused_attention(net, fused)
    use_fused_attention(reference, fused)
    image = torch.rand(3, 3, 56, 56)
    pixels = timm.get_pretrained_cfg(name)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (pixels.mean, pixels.std))
    assert torch.equal(net.logits(image), reference((image - mean) / std))


@pytest.mark.parametrize("pool", ["token", "avg", "query"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_missing_region_cannot_change_the_logits(pool: str, fused: bool) -> None:
    net = build(tokens="region", pool=pool)
    use_fused_attention(net, fused)
    image, boxes, valid = faces()
    boxes[:, 2] = torch.tensor([16.0, 16.0, 32.0, 32.0])
    boxes[:, :2, :2] = 0.0
    boxes[:, :2, 2:] = 15.0  # they do not touch the pixels of the third
    valid[:, 2] = False
    before = net.logits(image, boxes, valid)
    for value in (0.0, 7.0, -1e6, torch.nan, torch.inf):
        boxes[:, 2] = value
        image[:, :, 17:, 17:] = 0.5 if value != value else value
        assert torch.equal(net.logits(image, boxes, valid), before)
    valid[:, 2] = True
    boxes[:, 2] = torch.tensor([16.0, 16.0, 32.0, 32.0])
    image[:, :, 17:, 17:] = torch.rand(3, 3, 15, 15)
    assert not torch.allclose(net.logits(image, boxes, valid), before)


def test_a_missing_region_has_no_part_in_the_batch_norm() -> None:
    """In training, tokens and running statistics equal a batch
    whose missing regions were never embedded.
    """
    nets = [build(tokens="region", stem="conv", pool="avg").train() for _ in range(2)]
    image, boxes, valid = faces()
    valid[1, 2] = False
    crops = crop_image(nets[1].normalize(image), boxes, 16)
    tokens = nets[1].region_embed.patch_embed(crops[valid.flatten()])
    assert torch.equal(nets[0].region_embed.embed(crops, valid)[valid.flatten()], tokens)
    without_region, expected = (net.region_embed.patch_embed.state_dict() for net in nets)
    assert len(without_region) > 10
    assert all(torch.equal(without_region[name], expected[name]) for name in without_region)


@pytest.mark.parametrize("stem", ["patch", "conv"])
@pytest.mark.parametrize("tokens", ["region", "both"])
@pytest.mark.parametrize("pool", ["token", "avg", "query"])
def test_all_regions_missing_still_works(tokens: str, pool: str, stem: str) -> None:
    net = build(tokens=tokens, pool=pool, stem=stem).train()
    image, boxes, valid = faces()
    logits = net.logits(image, boxes * torch.nan, valid & False)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    assert torch.equal(net.eval().logits(image), net.logits(image, boxes, valid & False))


def test_the_order_of_regions_means_nothing() -> None:
    net = build()
    order = [2, 0, 1]
    reordered = build(regions=tuple(NAMES[i] for i in order))
    shake(reordered)
    reordered.load_state_dict(net.state_dict())
    image, boxes, valid = faces()
    valid[0, 1] = False
    assert torch.allclose(
        reordered.logits(image, boxes[:, order], valid[:, order]),
        net.logits(image, boxes, valid),
        atol=1e-6,
    )
    assert not torch.allclose(
        reordered.logits(image, boxes, valid), net.logits(image, boxes, valid), atol=1e-4
    )


@pytest.mark.parametrize("position", ["none", "learn", "sincos_2d", "sincos_1d"])
def test_positions_distinguish_patches(position: str) -> None:
    net = build(tokens="patch", pos_embed=position)
    image = torch.rand(2, 3, 32, 32)
    swapped = image.roll(8, 3)  # by one patch
    assert torch.allclose(net.logits(image), net.logits(swapped), atol=1e-6) is (position == "none")


@pytest.mark.parametrize(
    "change",
    [
        {"stem": "conv", "tokens": "region", "in_chans": 1},
        {"stem": "conv", "region_source": "stem", "tokens": "region", "region_grid": 1},
        {"stem": "conv", "region_source": "stem", "tokens": "patch"},
        {"region_grid": 3, "pool": "avg"},
        {"reg_tokens": 3},
        {"pos_embed": "sincos_2d", "tokens": "region"},
        {"pos_embed": "sincos_1d", "stem": "conv", "pool": "additive"},
        {"attention": "gaussian", "tokens": "region"},
        {"block": "post_norm", "dropout": 0.1, "pos_embed": "none"},
        {"pool": "query", "causal": True, "attention": "additive"},
        {"keep_rate": (1.0, 0.5), "tokens": "patch"},
        {"keep_rate": (0.9, 0.5), "attention": "gaussian", "block": "post_norm", "pool": "query"},
        {"patch_size": None, "img_size": 32},
    ],
)
def test_every_choice_trains(change: dict[str, object]) -> None:
    net = build(**change).train()
    image, boxes, valid = faces()
    net.logits(image, boxes, valid).square().sum().backward()
    unused = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []  # DDP would stop at a parameter without a gradient
    tokens = net.tokenize(image, boxes, valid)
    assert net.layout.num_tokens == tokens.x.shape[1] == tokens.centres.shape[1]
    again = build(**change)
    expected = net.eval().logits(image, boxes, valid)
    shake(again)
    assert not torch.equal(again.logits(image, boxes, valid), expected)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.logits(image, boxes, valid), expected)


@pytest.mark.parametrize(
    "change",
    [
        *slow(
            {},
            {"keep_rate": (1.0, 0.5)},
            {"keep_rate": (0.5, 1.0), "tokens": "patch", "attention": "additive"},
        ),
        *slow({"attention": "gaussian", "pool": "query", "block": "post_norm"}),
        *slow({"pool": "additive", "stem": "conv"}, {"stem": "conv", "region_source": "stem"}),
    ],
)
def test_mechanisms_compile_export_and_run_in_bfloat16(change: dict[str, object]) -> None:
    net = build(**change)
    use_fused_attention(net, fused=False)
    image, boxes, valid = faces(4)
    valid[0, 1] = False
    expected = net.logits(image, boxes, valid)
    compiled = torch.compile(net, backend="eager")
    assert torch.allclose(compiled(image, boxes, valid)["expression"], expected, atol=1e-6)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        net, (image, boxes, valid), dynamic_shapes=({0: batch},) * 3
    ).module()
    few = (image[:3], boxes[:3], valid[:3])
    assert torch.allclose(program(*few)["expression"], expected[:3], atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rough = net.logits(image, boxes, valid)
    assert rough.isfinite().all()
    if not net.config.keep_rate:  # rounding may choose other patches
        assert torch.allclose(rough.float(), expected, atol=0.05)


@pytest.mark.parametrize(
    "change", [{}, {"patch_size": 16, "img_size": 64}, {"pos_embed": "sincos_1d"}]
)
def test_a_region_on_a_patch_has_the_patchs_position(change: dict[str, object]) -> None:
    net = build(**({"pos_embed": "sincos_2d", "region_grid": 1} | change))
    side = net.patch_size
    boxes = torch.tensor(
        [[[side, 2 * side, 2 * side, 3 * side]] * 3]
    ).float()  # column 1, row 2 of 4
    image = torch.rand(1, 3, net.config.img_size, net.config.img_size)
    valid = torch.ones(1, 3, dtype=torch.bool)
    patches, regions = net.embed(image, boxes, valid)
    tokens = net.place(torch.zeros_like(patches), torch.zeros_like(regions), boxes, valid)
    code = tokens.x[0, net.layout.regions] - torch.cat(
        [net.region_embed.name_embed[name] for name in NAMES]
    )
    patch = tokens.x[0, net.layout.patches][2 * 4 + 1]
    assert torch.allclose(code, patch.expand(3, -1), atol=1e-5)
    assert (net.vit.pos_embed[0, 0] == 0).all()  # the class token has none
    assert not net.vit.pos_embed.requires_grad


def test_causal_queries_see_only_earlier_ones() -> None:
    for causal in (False, True):
        net = build(pool="query", causal=causal)
        before = net.logits(*faces())
        with torch.no_grad():
            net.pool.query[3:] = torch.randn(2, 32)
        changed = (net.logits(*faces()) - before).abs().amax(0) > 1e-6
        assert changed.tolist() == [not causal] * 3 + [True] * 2


def test_regions_of_the_stem_lie_where_its_cells_look() -> None:
    """A box that the image is mirrored about keeps its token, but for the order of its cells."""
    torch.manual_seed(0)
    stem = ConvStem(96, 8, 1, 16).eval().early
    image = torch.zeros(1, 1, 96, 96, requires_grad=True)
    reach = torch.autograd.grad(
        stem(image)[0, :, 12, 12].square().sum() + stem(image)[0, :, 12, 12].sum(), image
    )[0]
    rows, columns = reach[0, 0].abs().nonzero().T.double()
    middle = torch.stack(
        [(columns.min() + columns.max() + 1) / 2, (rows.min() + rows.max() + 1) / 2]
    )
    embed = build(stem="conv", region_source="stem", region_grid=1, regions=("nose",)).region_embed
    embed.patch_embed = torch.nn.Identity()
    embed.side = 1
    spike = torch.zeros(1, 1, 24, 24)
    spike[0, 0, 12, 12] = 1
    box = torch.cat([middle - 2, middle + 2]).float().view(1, 1, 4)
    here, *beside = (embed(spike, box + shift).item() for shift in (0.0, -1.5, 1.5))
    assert here > max(beside)
    assert beside[0] == pytest.approx(beside[1], abs=1e-6)


def test_pretrained_weights_load_and_positions_are_resampled(tmp_path: Path) -> None:
    pretrained = timm.create_model("vit_tiny_patch16_224", depth=2)
    torch.save(pretrained.state_dict(), tmp_path / "weights.pth")
    config = RegionViTConfig(pretrained=str(tmp_path / "weights.pth"), depth=2, regions=NAMES)
    net = build_model(config, "abcde")
    state = net.vit.state_dict()
    assert all(
        torch.equal(state[name], value)
        for name, value in pretrained.state_dict().items()
        if "head" not in name
    )
    assert torch.equal(net.region_embed.patch_embed.proj.weight, pretrained.patch_embed.proj.weight)
    smaller = build_model(replace(config, img_size=96, patch_size=8), "abcde")
    assert smaller.vit.pos_embed.shape == (1, 1 + 12 * 12, 192)
    assert torch.equal(smaller.vit.blocks[0].attn.qkv.weight, pretrained.blocks[0].attn.qkv.weight)


def test_a_file_that_lacks_a_little_is_a_warning_and_a_lot_an_error(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224", depth=2).state_dict()
    config = RegionViTConfig(pretrained=str(tmp_path / "weights.pth"), depth=2, tokens="patch")
    torch.save(
        {name: value for name, value in state.items() if name != "norm.bias"},
        tmp_path / "weights.pth",
    )
    with pytest.warns(UserWarning, match=r"weights.pth.* norm.bias$"):
        build_model(config, ["a", "b"])
    torch.save(build().state_dict(), tmp_path / "weights.pth")
    words = r"vit_tiny_patch16_224 .*weights.pth .* 0 of 30 tensors"
    with pytest.raises(FerVitError, match=words):
        build_model(config, ["a", "b"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {
                "backbone": "resnet18",
                "patch_size": None,
                "embed_dim": None,
                "depth": None,
                "num_heads": None,
            },
            "resnet18",
        ),
        ({"tokens": "region", "regions": ()}, "at least one region"),
        ({"stem": "conv", "pretrained": True}, "no convolutional stem"),
        ({"stem": "conv", "patch_size": 12}, "power of two"),
        ({"region_source": "stem"}, "needs .stem='conv'"),
        ({"img_size": 30}, "patch size 8"),
        ({"pretrained": True, "attention": "gaussian"}, "are for .attention='dot'"),
        ({"causal": True}, "causal"),
        ({"keep_rate": (0.5,)}, "2 numbers"),
        ({"keep_rate": (0.5, 1.5)}, "1.5"),
        ({"keep_rate": (0.5, 1.0), "tokens": "region"}, "drops patches"),
        (
            {"backbone": "vit_base_patch16_siglip_224", "pool": "avg", "tokens": "region"},
            "add .reg_tokens=1",
        ),
        ({"backbone": "vit_base_patch16_siglip_224", "pool": "token"}, "no class token"),
        (
            {"backbone": "vit_base_patch16_rpn_224", "pool": "avg", "attention": "additive"},
            "special blocks",
        ),
        (
            {"keep_rate": (0.5, 1.0), "backbone": "vit_base_patch16_siglip_224", "pool": "avg"},
            "has none",
        ),
    ],
)
def test_contradictions_are_errors_of_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(FerVitError, match=words) as error:
        build(**change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"attention": "additive"},
        {"attention": "gaussian", "pool": "query"},
        {"tokens": "patch", "pool": "avg"},
    ],
)
def test_hard_attention_is_soft_attention_restricted_to_kept_patches(
    change: dict[str, object],
) -> None:
    net = build(depth=3, keep_rate=(1.0, 0.5, 0.7), **change)
    image, boxes, valid = faces()
    valid[0, 1] = False
    tokens = net.tokenize(image, boxes, valid)
    assert net.num_kept == [16, 16, 8, 6]  # 5.6 is rounded up
    widths = []
    for block in net.vit.blocks:
        block.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    encoded = net.encode(tokens)
    others = net.layout.num_tokens - 16
    assert widths == [others + 16, others + 8, others + 6]  # fewer tokens from there on
    net.drop_by_mask = True
    restricted = net.encode(tokens)
    assert restricted.x.shape[1] == net.layout.num_tokens
    assert restricted.valid[:, net.layout.patches].sum(1).tolist() == [6, 6, 6]
    kept = restricted.valid.clone()
    kept[:, net.layout.regions] = True  # a missing region stays, masked
    assert torch.allclose(encoded.x, restricted.x[kept].view_as(encoded.x), atol=1e-5)
    assert torch.allclose(net.forward_head(encoded), net.forward_head(restricted), atol=1e-5)


def test_hard_attention_keeps_patches_with_the_most_class_attention() -> None:
    net = build(keep_rate=(0.25, 1.0), tokens="patch")
    tokens = net.tokenize(faces()[0])
    scores = class_attention(net.vit.blocks[0], tokens.x, None)[:, 1:]
    best = scores.argsort(descending=True)[:, :4].sort().values + 1
    kept = torch.cat([torch.zeros(3, 1, dtype=torch.long), best], 1)
    expected = tokens.x.take_along_dim(kept[..., None], 1)
    for block in net.vit.blocks:
        expected = block(expected)
    assert torch.allclose(net.encode(tokens).x, net.vit.norm(expected), atol=1e-6)


def test_the_encoder_of_attention_is_all_you_need() -> None:
    """Its sizes, blocks (see test_attention.py) and dropout: after the positions,
    and in both sub-layers.
    """
    words = yaml.safe_load((CONFIGS / "attention_is_all_you_need.yaml").read_text())["model"][
        "network"
    ]
    net = build(**words)
    block = net.vit.blocks[0]
    assert type(block) is PostNormBlock
    assert len(net.vit.blocks) == 6
    assert type(net.vit.norm) is torch.nn.Identity
    assert net.vit.embed_dim == 512
    assert block.attn.num_heads == 8
    assert block.mlp.fc1.out_features == 2048
    assert {
        d.p for d in (net.vit.pos_drop, block.attn.attn_drop, block.attn.proj_drop, block.mlp.drop2)
    } == {0.1}
