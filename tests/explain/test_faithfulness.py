import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from fer_vit.explain.attribution import explain, explain_each
from fer_vit.explain.faithfulness_measures import (
    BETTER,
    measure_methods,
    randomised,
)
from fer_vit.explain.trace import trace
from fer_vit.model.region_vit import RegionViT
from tests.helpers.models import blurred, noise_faces, small_model


def build(depth: int = 1, **change: object) -> RegionViT:
    regions = ("right_eye", "left_eye", "nose", "mouth")
    return small_model(classifier=("weight",), regions=regions, depth=depth, **change)


def faces(number: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    boxes = torch.tensor([[2.0, 2, 14, 14], [16, 2, 28, 14], [10, 10, 20, 20], [8, 18, 24, 30]])
    image, boxes, valid = noise_faces(boxes, torch.ones(number, 4, dtype=torch.bool))
    valid[-1, 1] = False
    return image, boxes, valid


def measured(
    net: RegionViT, image: Tensor, boxes: Tensor, valid: Tensor, method: str
) -> dict[str, Tensor]:
    return measure_methods(net, image, boxes, valid, ["random", method])[method]


@pytest.mark.parametrize("method", ["relevance", "random"])
def test_deletion_and_insertion_of_regions_one_by_one(method: str) -> None:
    """Measures of the control are means of several draws."""
    net = build(tokens="region", region_grid=1)
    image, boxes, valid = faces()
    measures = measured(net, image, boxes, valid, method)
    assert set(measures) == set(BETTER)
    ablation = explain(net, image, boxes, valid, "ablation")
    label = ablation.probabilities.argmax(-1)
    directions = torch.eye(4)[label].expand(3 if method == "random" else 1, 3, 4)
    draws = explain_each(net, trace(net, image, boxes, valid), method, directions)
    for face in range(3):
        expected: dict[str, list[float]] = {"deletion": [], "insertion": [], "region agreement": []}
        present = valid[face]
        for draw in draws:
            shares = draw.shares[face]
            agreement = spearmanr(shares[present], ablation.shares[face, present]).statistic
            expected["region agreement"].append(agreement)
            order = [r for r in shares.argsort(descending=True).tolist() if present[r]]
            curves: dict[str, list[float]] = {"deletion": [], "insertion": []}
            for step in range(11):
                number = math.ceil(step / 10 * len(order) - 1e-9)
                for kind, hidden in (("deletion", order[:number]), ("insertion", order[number:])):
                    left = valid[face : face + 1].clone()
                    left[0, hidden] = False
                    logits = net.logits(image[face : face + 1], boxes[face : face + 1], left)
                    curves[kind].append(logits.softmax(-1)[0, label[face]].item())
            for kind, curve in curves.items():
                expected[kind].append(np.trapezoid(curve, dx=0.1))
        for name, values in expected.items():
            assert measures[name][face].item() == pytest.approx(np.mean(values), abs=1e-5)


@pytest.mark.parametrize(("tokens", "method"), [("patch", "relevance"), ("region", "pixels")])
def test_covered_pixels_are_replaced_by_their_scores(tokens: str, method: str) -> None:
    net = build(2, tokens=tokens)
    image, boxes, valid = faces(1)
    valid[0, 1] = False
    with torch.no_grad():  # uncertain for the blurred face, certain for this one
        net.vit.head.weight *= 50
        net.vit.head.bias -= net.logits(blurred(image), boxes, valid)[0]
    measures = measured(net, image, boxes, valid, method)
    explained = explain(net, image, boxes, valid, method)
    label = int(explained.probabilities.argmax())
    inside = np.ones((32, 32), bool) if tokens == "patch" else np.zeros((32, 32), bool)
    for left, top, right, bottom in boxes[0, [0, 2, 3]].int().tolist():  # the second is missing
        inside[top:bottom, left:right] = True
    mixed = torch.randperm(
        32 * 32, generator=torch.Generator().manual_seed(0)
    ).tolist()  # the order of equal pixels
    mixed = [pixel for pixel in mixed if inside.flat[pixel]]
    order = sorted(mixed, key=lambda pixel: -explained.heat.flatten()[pixel].item())
    mean = image.mean((2, 3))[..., None, None].expand_as(image)
    for name, replacement in (("blurred", blurred(image)), ("mean colour", mean)):
        curves: dict[str, list[float]] = {"deletion": [], "insertion": []}
        for step in range(11):
            number = math.ceil(step / 10 * len(order) - 1e-9)
            for kind, gone in (("deletion", order[:number]), ("insertion", order[number:])):
                face = image.clone()
                rows, columns = np.divmod(np.array(gone, int), 32)
                face[0, :, rows, columns] = replacement[0, :, rows, columns]
                curves[kind].append(net.logits(face, boxes, valid).softmax(-1)[0, label].item())
        whole = curves["deletion"][0]
        empty = curves["deletion"][-1]
        assert (curves["insertion"][-1], curves["insertion"][0]) == pytest.approx(
            (whole, empty), abs=1e-6
        )
        for kind, curve in curves.items():
            assert empty < whole / 2
            expected = np.trapezoid([(value - empty) / (whole - empty) for value in curve], dx=0.1)
            assert measures[f"pixel {kind}, {name}"].item() == pytest.approx(expected, abs=1e-4)


def test_faces_whose_prediction_needs_no_pixels_are_left_out() -> None:
    net = build(tokens="patch")
    torch.nn.init.zeros_(net.vit.head.weight)
    net.vit.head.bias.data.copy_(torch.tensor([5.0, 0.0, 0.0, 0.0]))
    measures = measured(net, *faces(), "pixels")
    assert all(
        values.isnan().all() for name, values in measures.items() if name.startswith("pixel")
    )
    assert not measures["deletion"].isnan().any()


def test_ablation_agrees_with_itself_and_a_constant_with_no_method() -> None:
    net = build()
    batch = faces()
    assert torch.allclose(
        measured(net, *batch, "ablation")["region agreement"], torch.ones(3, dtype=torch.float64)
    )
    torch.nn.init.zeros_(net.vit.head.weight)
    assert measured(net, *batch, "ablation")["region agreement"].isnan().all()


def test_saco_is_the_change_of_each_group_by_its_mean_score() -> None:
    net = build(tokens="region", region_grid=2)
    image, boxes, valid = faces(1)
    valid[:] = True
    explained = explain(net, image, boxes, valid, "relevance")
    label = int(explained.probabilities.argmax())
    tokens = net.tokenize(image, boxes, valid)
    scores = explained.scores[0, 1:]
    order = scores.argsort(descending=True).tolist()
    salience = []
    effect = []
    for group in np.split(np.array(order), [4, 7, 10, 13]):  # 16 tokens in five groups
        hidden = tokens._replace(valid=tokens.valid.clone())
        hidden.valid[0, 1 + group] = False
        probability = net.forward_head(net.encode(hidden)).softmax(-1)[0, label]
        salience.append(scores[group].mean().item())
        effect.append((explained.probabilities[0, label] - probability).item())
    measured_saco = measured(net, image, boxes, valid, "relevance")["saco"].item()
    agreed = 0.0
    total = 0.0
    for first, second in combinations(range(5), 2):
        difference = salience[first] - salience[second]  # not negative
        total += difference
        agreed += difference if effect[first] >= effect[second] else -difference
    assert measured_saco == pytest.approx(agreed / total, abs=1e-4)
    valid[:, 1:] = False
    of_one_region = build(tokens="region", region_grid=1)
    assert measured(of_one_region, image, boxes, valid, "relevance")[
        "saco"
    ].isnan()  # fewer tokens than groups


def test_randomising_leaves_the_model_and_changes_what_depends_on_it() -> None:
    net = build(2, pool="query")
    state = {name: value.clone() for name, value in net.state_dict().items()}
    names, agreement = zip(*randomised(net, *faces(), "relevance"), strict=True)
    assert names == ("classifier", "pooling", "block 1", "block 0", "embeddings")
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert max(value.mean() for value in agreement) < 0.9
    assert agreement[-1].mean() < 0.5
    for _, same in randomised(build(2), *faces(), "centre"):  # a pooling without weights
        assert torch.allclose(same, torch.ones(3, dtype=same.dtype))
