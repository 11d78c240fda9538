"""Heads beside the expression: their layer, losses and mirroring."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fer_vit.angles import join_directions
from fer_vit.errors import FerVitError
from fer_vit.heads import (
    HEADS,
    MEANS,
    NO_OUTPUTS,
    HeadOutputs,
    Output,
    find_output,
    one_sided,
    output_titles,
)
from fer_vit.losses import decode, head_loss
from fer_vit.model.additive import AdditiveHead
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.model.tokens import TokenLayout, Tokens
from fer_vit.tables.labelled import pair_outputs
from tests.helpers.models import ROUNDING

REGIONS = ("right_eye", "left_eye", "mouth")
OUTPUTS = {"movements": ["jawOpen", "mouthSmileLeft"], "pose": ["yaw", "pitch", "roll"]}
NAN = float("nan")


def encoded(layout: TokenLayout, faces: int = 2, dim: int = 8) -> Tokens:
    """Random tokens of which the second face lacks the first region."""
    valid = torch.ones(faces, layout.num_tokens, dtype=torch.bool)
    first = layout.regions.start
    valid[1, first : first + layout.tokens_per_region] = False
    x = torch.randn(faces, layout.num_tokens, dim)
    return Tokens(x, valid, torch.zeros(faces, layout.num_tokens, 2))


@pytest.mark.parametrize("grid", [1, 2])
def test_additive_head_is_a_bias_a_term_of_the_face_and_a_term_of_each_region(grid: int) -> None:
    layout = TokenLayout(1, (2, 3), len(REGIONS), grid)
    head = AdditiveHead(4, REGIONS, layout, 8).double()
    tokens = encoded(layout)
    tokens = tokens._replace(x=tokens.x.double())
    raw = head(tokens)
    for face in range(2):
        present = [
            index for index in range(1, layout.num_tokens) if bool(tokens.valid[face, index])
        ]
        mean = sum(tokens.x[face, index] for index in present) / len(present)
        for output in range(4):
            expected = head.bias[output] + mean @ head.by_face[:, output]
            for index in present:
                if index >= layout.regions.start:
                    region, part = divmod(index - layout.regions.start, grid**2)
                    weights = head.by_region[REGIONS[region]][part, :, output]
                    expected = expected + tokens.x[face, index] @ weights
            assert raw[face, output].item() == pytest.approx(expected.item(), abs=1e-12)


def test_terms_of_an_additive_head_add_up_and_are_0_for_a_missing_region() -> None:
    layout = TokenLayout(0, (2, 2), len(REGIONS), 1)
    head = AdditiveHead(3, REGIONS, layout, 8)
    tokens = encoded(layout)
    terms = head.terms(tokens)
    assert torch.allclose(
        terms.bias + terms.face + terms.regions.sum(1), head(tokens), atol=1e-5, rtol=0
    )
    assert terms.regions.shape == (2, 3, 3)
    assert torch.equal(terms.regions[1, 0], torch.zeros(3))
    assert (terms.regions[0] != 0).all()


def test_an_additive_head_reads_the_regions_of_tokens_whose_patches_were_dropped() -> None:
    layout = TokenLayout(1, (2, 2), len(REGIONS), 1)
    head = AdditiveHead(3, REGIONS, layout, 8)
    tokens = encoded(layout)
    kept = [0, 2, *range(5, 8)]
    fewer = Tokens(tokens.x[:, kept], tokens.valid[:, kept], tokens.centres[:, kept])
    assert torch.allclose(head.terms(fewer).regions, head.terms(tokens).regions, atol=ROUNDING)


@pytest.mark.parametrize("tokens", ["patch", "region", "both"])
def test_a_model_has_raw_outputs_for_every_head(tokens: str) -> None:
    config = RegionViTConfig(
        img_size=16,
        patch_size=8,
        embed_dim=16,
        depth=1,
        num_heads=2,
        tokens=tokens,
        regions=REGIONS,
    )
    net = build_model(config, ["a", "b"], outputs=OUTPUTS).eval()
    image = torch.rand(3, 3, 16, 16)
    boxes = torch.tensor([2.0, 2, 9, 9]).expand(3, 3, 4)
    outputs = net(image, boxes)
    assert [*outputs] == ["expression", "movements", "pose"]
    assert torch.equal(outputs["expression"], net.logits(image, boxes))
    assert [tuple(values.shape) for values in outputs.values()] == [(3, 2), (3, 2), (3, 3)]


def test_the_output_of_each_column_of_a_head_is_found() -> None:
    for name, head in HEADS.items():
        for output_name in [*head.outputs] or ["anything"]:
            output = find_output(head.prefix + output_name)
            assert output == Output(name, output_name)
            assert output.column == head.prefix + output_name
    assert find_output("expression") is None
    assert find_output("move_") is None
    mixed = HeadOutputs.among(["yaw", "path", "valence", "move_x", "roll"])
    assert mixed.plain == {"movements": ["x"], "pose": ["yaw", "roll"], "affect": ["valence"]}
    assert mixed.columns == ("move_x", "yaw", "roll", "valence")


@pytest.mark.parametrize("head", [*HEADS])
def test_targets_of_a_head_are_in_its_range(head: str) -> None:
    (name, *_) = [*HEADS[head].outputs, "jawOpen"]
    output = Output(head, name)
    low = HEADS[head].low
    high = HEADS[head].high
    targets = np.array([low, high, np.nan, low - 1e-3, high + 1e-3])
    wrong = [False, False, False, True, True]
    assert output.out_of_range(targets).tolist() == wrong
    assert output.out_of_range(5 * targets, scale=5).tolist() == wrong
    assert output.range_in_words(scale=5) == f"a number from {5 * low:g} to {5 * high:g}"


def test_each_head_is_the_same_after_two_mirrors() -> None:
    for head in HEADS.values():
        names = [*head.outputs] or ["smile_left", "smile_right", "jaw"]
        source, sign = head.mirror(names)
        for index, partner in enumerate(source):
            assert source[partner] == index
            assert sign[partner] * sign[index] == 1


def test_movement_loss_is_the_cross_entropy_of_known_targets() -> None:
    raw = torch.randn(4, 3, requires_grad=True)
    target = torch.tensor([[0.2, 1, 0], [NAN, 0.5, NAN], [NAN] * 3, [0, 0, 0.9]])
    known = target.isfinite()
    expected = F.binary_cross_entropy(raw[known].sigmoid(), target[known])
    loss = head_loss("movements", raw, target)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    loss.backward()
    assert torch.equal(raw.grad == 0, ~known)


def test_pose_loss_is_the_huber_loss_of_known_angles() -> None:
    raw = torch.randn(5, 3)
    target = 90 * torch.rand(5, 3) - 45  # less than half a turn away from the predicted angles
    target[2] = NAN
    known = target.isfinite()
    expected = F.huber_loss(20 * raw[known], target[known], delta=5.0) / 5 / 20
    assert head_loss("pose", raw, target).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_pose_that_is_not_finite_has_no_finite_loss(value: float) -> None:
    preds = torch.tensor([[value, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert not head_loss("pose", preds, torch.zeros(2, 3)).isfinite()


def test_pose_loss_is_of_the_shortest_turn() -> None:
    angles = np.array([-179.0, 170.0, -90.0, 0.0, 179.5, 100.0, -160.0])
    for prediction in angles:
        for target in angles:
            turns = [abs(prediction - target + turn) / 20 for turn in (-360.0, 0.0, 360.0)]
            error = min(turns)  # in units of the raw outputs
            expected = 2 * error**2 if error < 0.25 else error - 0.125  # Girshick 2015
            raw = torch.tensor([[prediction / 20]], dtype=torch.float32, requires_grad=True)
            loss = head_loss("pose", raw, torch.tensor([[target]]))
            assert loss.item() == pytest.approx(expected, abs=1e-4)
            loss.backward()
            towards = np.sign((prediction - target + 180) % 360 - 180)
            assert np.sign(raw.grad.item()) == towards


def test_angles_of_a_pose_are_from_minus_180_to_180() -> None:
    values = np.array([[190.0, -200.0, 170.0], [-180.0, 30.0, 180.0]])
    outputs = HeadOutputs.among(["yaw", "pitch", "roll"])
    turned = outputs.in_photo(values, np.array([-30.0, 0.0]))
    np.testing.assert_allclose(turned, [[-170.0, 160.0, -160.0], [-180.0, 30.0, 180.0]])


def test_affect_loss_is_one_less_concordance_and_the_squared_error() -> None:
    raw = torch.randn(30, 2)
    target = torch.rand(30, 2) * 2 - 1
    target[:4, 0] = NAN
    expected = []
    for output in (0, 1):
        known = target[:, output].isfinite().numpy()
        x = np.tanh(raw[:, output].double().numpy()[known])
        y = target[:, output].double().numpy()[known]
        covariance = np.cov(x, y, bias=True)
        shift = (x.mean() - y.mean()) ** 2
        ccc = 2 * covariance[0, 1] / (covariance[0, 0] + covariance[1, 1] + shift)
        expected.append(1 - ccc + ((x - y) ** 2).mean())
    assert head_loss("affect", raw, target).item() == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.parametrize("faces", [1, 6, 7])
@pytest.mark.parametrize("value", [0.5, 0.1, -0.3])
def test_affect_loss_of_a_batch_without_variance_is_the_squared_error(
    faces: int, value: float
) -> None:
    """The mean of seven times 0.1 is not 0.1 in binary, so that their variance is above 0."""
    raw = torch.randn(faces, 1)
    target = torch.full((faces, 1), value)
    expected = (raw.tanh() - value).square().mean()
    assert head_loss("affect", raw, target).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("head", [*HEADS])
def test_losses_without_a_known_target_are_0_and_have_a_gradient_of_0(head: str) -> None:
    raw = torch.randn(2, 3, requires_grad=True)
    loss = head_loss(head, raw, torch.full((2, 3), NAN))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(raw.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("head", [*HEADS])
def test_mirroring_twice_changes_nothing(head: str) -> None:
    names = [*HEADS[head].outputs] or ["jawOpen", "mouthSmileLeft", "mouthSmileRight"]
    source, sign = HEADS[head].mirror(names)
    values = torch.randn(5, len(names))

    def mirrored(x: Tensor) -> Tensor:
        return x[:, source] * torch.tensor(sign)

    assert torch.equal(mirrored(mirrored(values)), values)


@pytest.mark.parametrize("head", [*HEADS])
def test_raw_outputs_reach_the_values_of_a_head_and_no_others_on_a_bounded_scale(head: str) -> None:
    low = HEADS[head].low
    high = HEADS[head].high
    extremes = torch.tensor([[-1000.0, 1000.0]])
    lowest, highest = decode(head, extremes)[0].tolist()
    assert lowest <= low
    assert highest >= high
    if HEADS[head].scale != "number":  # a number may lie beyond the targets
        assert (lowest, highest) == (low, high)


@pytest.mark.parametrize(
    ("roll", "degrees", "expected"),
    [
        (10.0, -175.0, -165.0),
        (10.0, 175.0, -175.0),  # not 185
        (-175.0, -170.0, 15.0),
        (170.0, 10.0, 180.0),
        (np.nan, 10.0, np.nan),
    ],
)
def test_a_roll_in_the_photo_stays_within_half_a_turn(
    roll: float, degrees: float, expected: float
) -> None:
    values = np.array([[175.0, roll]])
    turned = HeadOutputs.among(["yaw", "roll"]).in_photo(values, np.array([-degrees]))
    np.testing.assert_array_equal(turned, [[175.0, expected]])


@pytest.mark.parametrize("turn", [0.0, 90.0, 180.0, -179.0])
def test_joined_directions_differ_as_upright_angles_do(turn: float) -> None:
    upright = np.array([[-20.0, 5.0], [np.nan, 3.0], [30.0, -4.0], [8.0, np.nan]])
    joined = join_directions((upright + turn + 180) % 360 - 180, 360)
    np.testing.assert_allclose(joined - joined[:1], upright - upright[:1])
    assert (np.abs(joined[np.isfinite(joined)]) <= 360).all()


def test_values_are_near_targets_across_half_a_turn() -> None:
    values = np.array([[-179.0, 10.0, np.nan, 5.0]])
    targets = np.array([[179.0, 12.0, 3.0, np.nan]])
    near = HEADS["pose"].near(values, targets)
    np.testing.assert_array_equal(near, [[181.0, 10.0, np.nan, 5.0]])
    assert HEADS["affect"].near(values, targets) is values
    paired = pair_outputs({"roll": values[0]}, {"roll": targets[0]})[Output("pose", "roll")]
    assert abs(paired.values - paired.targets)[:2].tolist() == [2, 2]


def test_mirroring_swaps_sides_and_negates_yaw_and_roll() -> None:
    names = ["mouthSmileLeft", "jawOpen", "mouthSmileRight"]
    assert HEADS["movements"].mirror(names) == ([2, 1, 0], [1.0, 1.0, 1.0])
    assert HEADS["pose"].mirror(["yaw", "pitch", "roll"]).sign == [-1.0, 1.0, -1.0]
    both = ["left_brow", "right_brow", "eyeBlink_L", "eyeBlink_R", "AU12_r", "AU12_l"]
    assert HEADS["movements"].mirror(both).source == [1, 0, 3, 2, 5, 4]
    without = ["jaw_up", "brightness", "upright", "frightened", "BRIGHT", "FOREHEAD_UPRIGHT"]
    assert HEADS["movements"].mirror(without).source == [*range(6)]


@pytest.mark.parametrize(
    ("names", "mirrored"),
    [
        # each eye looks to each side, as headsets write it
        (["Eye_Left_Left", "Eye_Left_Right"], ["Eye_Right_Right", "Eye_Right_Left"]),
        (["lookLeft_L", "lookLeft_R"], ["lookRight_R", "lookRight_L"]),
        (["EYE_LEFT", "MOUTH_SMILE_RIGHT"], ["EYE_RIGHT", "MOUTH_SMILE_LEFT"]),
        (["left_AU12_r", "left_AU06_r"], ["right_AU12_r", "right_AU06_r"]),  # intensities
    ],
)
def test_mirroring_swaps_each_side_in_a_name(names: list[str], mirrored: list[str]) -> None:
    outputs = [*names, *mirrored]
    assert one_sided(outputs) == []
    source, sign = HEADS["movements"].mirror(outputs)
    assert [outputs[index] for index in source] == [*mirrored, *names]
    assert sign == [1.0] * 4
    assert one_sided(names) == names  # their partners are missing


def test_mirroring_makes_an_output_of_one_side_alone_unknown() -> None:
    names = ["mouthSmileLeft", "jawOpen", "AU12_L", "AU12_R"]
    assert one_sided(names) == ["mouthSmileLeft"]
    source, sign = HEADS["movements"].mirror(names)
    mirrored = np.array([0.9, 0.5, 0.2, 0.4])[source] * sign
    np.testing.assert_array_equal(mirrored, [NAN, 0.5, 0.4, 0.2])
    assert one_sided(["mouthSmile_L", "cheekPuff"]) == ["mouthSmile_L"]
    assert one_sided(["brightness", "AU01_r", "AU12_r"]) == []  # intensities of OpenFace


def test_only_measured_outputs_and_means_of_them_are_weak() -> None:
    r = {
        "movements": {"mouthSmileLeft": 0.95, "mouthSmileRight": 0.6, "mouthFrownLeft": 0.59},
        "pose": {"yaw": 0.1, "pitch": None},
    }
    names = {head: [*of_head] for head, of_head in r.items()}
    names["movements"].append("mouthFrownRight")
    outputs = HeadOutputs.of_names(names, "model")
    measured = outputs.with_r(r)
    assert measured.weak_columns == {"move_mouthFrownLeft", "mouth_frown", "yaw"}
    assert [mean.name for mean in measured.means] == ["smile", "mouth_frown"]
    assert measured.means[0].of({"move_mouthSmileLeft": 1, "move_mouthSmileRight": 0.5}) == 0.75
    assert measured == outputs  # the same outputs, measured or not
    assert outputs.weak_columns == set()
    for sides in MEANS.values():  # each is a mean of both sides of the face
        every = [name for pair in MEANS.values() for name in pair]
        source, _ = HEADS["movements"].mirror(every)
        partner = {name: every[index] for name, index in zip(every, source, strict=True)}
        assert {partner[name] for name in sides} in map(set, MEANS.values())


def test_outputs_are_merged_in_the_order_of_heads_with_one_spelling() -> None:
    first = {"affect": ["valence"], "movements": ["a", "b"]}
    second = {"movements": ["c", "b"], "pose": ["roll"]}
    merged = HeadOutputs.of_names(first, "a").merged(HeadOutputs.of_names(second, "b"))
    assert list(merged.plain.items()) == [
        ("movements", ["a", "b", "c"]),
        ("pose", ["roll"]),
        ("affect", ["valence"]),
    ]
    with pytest.raises(FerVitError, match="a and A"):
        merged.merged(HeadOutputs((Output("movements", "A"),)))


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ({"gaze": ["x"]}, "gaze"),
        ({"pose": ["yaw", "tilt"]}, "tilt"),
        ({"movements": []}, "movements"),
        ({"movements": ["a", "a"]}, "a, a"),
        ({"movements": ["a", "b", "A"]}, "model: .*a and A"),
        ({"movements": [""]}, "printable"),
        ({"movements": ["a\x1b[31m\n"]}, r"a\\x1b\[31m\\n"),
        ({"movements": ["x" * 101]}, "100"),
    ],
)
def test_unknown_heads_and_outputs_are_refused(outputs: dict[str, list[str]], named: str) -> None:
    with pytest.raises(FerVitError, match=named):
        HeadOutputs.of_names(outputs, "model")


@pytest.mark.parametrize("columns", [["move_A", "move_a"], ["yaw", "valence", "yaw"]])
def test_an_output_of_columns_has_one_spelling(columns: list[str]) -> None:
    with pytest.raises(FerVitError, match="one spelling"):
        HeadOutputs.among(columns)


def test_outputs_of_a_head_follow_each_other() -> None:
    yaw, valence = HeadOutputs.among(["yaw", "valence"])
    with pytest.raises(ValueError, match="one after the other"):
        HeadOutputs((yaw, valence, Output("pose", "roll")))


def test_values_of_several_heads_are_converted_to_the_photo_in_order() -> None:
    outputs = HeadOutputs.of_names({"pose": ["roll", "yaw"], "movements": ["jawOpen"]}, "model")
    values = np.array([[10.0, 20.0, 0.5], [-170.0, 0.0, 1.0]])
    in_photo = outputs.in_photo(values, np.array([30.0, 20.0]))
    np.testing.assert_allclose(in_photo, [[-20.0, 20.0, 0.5], [170.0, 0.0, 1.0]])
    assert NO_OUTPUTS.in_photo(values[:, :0], np.zeros(2)).shape == (2, 0)


def test_pages_name_outputs_in_words_that_stay_different() -> None:
    assert output_titles(["mouthSmileLeft", "yaw", "cheek_puff"]) == {
        "mouthSmileLeft": "mouth smile left",
        "yaw": "yaw",
        "cheek_puff": "cheek puff",
    }
    assert output_titles(["AU12Left", "AU01", "AU12_L", "jawOpen2"]) == {
        "AU12Left": "AU12 left",
        "AU01": "AU01",
        "AU12_L": "AU12 L",
        "jawOpen2": "jaw open2",
    }
    assert output_titles(["jawOpen", "jaw_open"]) == {"jawOpen": "jawOpen", "jaw_open": "jaw_open"}
