"""The further heads of a model in training."""

import pytest

from fer_vit.errors import FerVitError
from fer_vit.heads import HEADS, NO_OUTPUTS, HeadOutputs
from fer_vit.train.outputs import SharedOutputs, plan_heads

DATA = HeadOutputs.of_names({"movements": ["jawOpen", "mouthSmileLeft"], "pose": ["yaw"]}, "data")


def test_a_plan_of_heads_has_the_outputs_of_the_start_and_the_trained_ones() -> None:
    start = HeadOutputs.among(["move_mouthSmileLeft", "valence"])
    plan = plan_heads(None, DATA, start, {"pose": 0.0})
    assert plan.outputs.plain == {"movements": ["mouthSmileLeft", "jawOpen"], "affect": ["valence"]}
    shared = SharedOutputs(plan.outputs.of_head("movements"), of_model=[0, 1], of_data=[1, 0])
    assert plan.shared_outputs == {"movements": shared}
    assert plan.weights == {"movements": HEADS["movements"].weight}


def test_a_plan_of_heads_keeps_outputs_that_are_given() -> None:
    outputs = HeadOutputs.of_names({"pose": ["pitch", "yaw"]}, "model")
    plan = plan_heads(outputs, DATA, HeadOutputs.among(["valence"]), {"pose": 2.0})
    assert plan.outputs.plain == {"pose": ["pitch", "yaw"]}
    assert plan.shared_outputs == {
        "pose": SharedOutputs(HeadOutputs.among(["yaw"]), of_model=[1], of_data=[0])
    }
    assert plan.weights == {"pose": 2.0}


def test_a_plan_of_heads_needs_data_for_each_weight() -> None:
    with pytest.raises(FerVitError, match="affect"):
        plan_heads(None, DATA, NO_OUTPUTS, {"affect": 1.0})
