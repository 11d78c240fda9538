"""The further heads of a model in training."""

import pytest

from fer_vit.errors import FerVitError
from fer_vit.heads import HEADS
from fer_vit.train.outputs import SharedOutputs, plan_heads

DATA = {"movements": ["jawOpen", "mouthSmileLeft"], "pose": ["yaw"]}


def test_a_plan_of_heads_has_the_outputs_of_the_start_and_the_trained_ones() -> None:
    start = {"movements": ["mouthSmileLeft"], "affect": ["valence"]}
    plan = plan_heads(None, DATA, start, {"pose": 0.0})
    assert plan.outputs == {"movements": ["mouthSmileLeft", "jawOpen"], "affect": ["valence"]}
    shared = SharedOutputs(outputs=["mouthSmileLeft", "jawOpen"], of_model=[0, 1], of_data=[1, 0])
    assert plan.shared_outputs == {"movements": shared}
    assert plan.weights == {"movements": HEADS["movements"].weight}


def test_a_plan_of_heads_keeps_outputs_that_are_given() -> None:
    plan = plan_heads({"pose": ["pitch", "yaw"]}, DATA, {"affect": ["valence"]}, {"pose": 2.0})
    assert plan.outputs == {"pose": ["pitch", "yaw"]}
    assert plan.shared_outputs == {
        "pose": SharedOutputs(outputs=["yaw"], of_model=[1], of_data=[0])
    }
    assert plan.weights == {"pose": 2.0}


def test_a_plan_of_heads_needs_data_for_each_weight() -> None:
    with pytest.raises(FerVitError, match="affect"):
        plan_heads(None, DATA, {}, {"affect": 1.0})
