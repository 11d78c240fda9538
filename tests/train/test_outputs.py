"""The further heads of a model in training."""

import pytest

from fer_vit.errors import FerVitError
from fer_vit.heads import HEADS, NO_OUTPUTS, HeadOutputs
from fer_vit.train.trained_heads import TrainedHead, plan_heads

DATA = HeadOutputs.of_names({"movements": ["jawOpen", "mouthSmileLeft"], "pose": ["yaw"]}, "data")


def test_a_plan_of_heads_has_the_outputs_of_the_start_and_the_trained_ones() -> None:
    start = HeadOutputs.among(["move_mouthSmileLeft", "valence"])
    outputs, trained = plan_heads(None, DATA, start, {"pose": 0.0})
    assert outputs.plain == {"movements": ["mouthSmileLeft", "jawOpen"], "affect": ["valence"]}
    movements = outputs.of_head("movements")
    weight = HEADS["movements"].weight
    assert trained == {"movements": TrainedHead(movements, [0, 1], [1, 0], weight)}


def test_a_plan_of_heads_keeps_outputs_that_are_given() -> None:
    given = HeadOutputs.of_names({"pose": ["pitch", "yaw"]}, "model")
    outputs, trained = plan_heads(given, DATA, HeadOutputs.among(["valence"]), {"pose": 2.0})
    assert outputs == given
    assert trained == {"pose": TrainedHead(HeadOutputs.among(["yaw"]), [1], [0], 2.0)}


def test_a_plan_of_heads_needs_data_for_each_weight() -> None:
    with pytest.raises(FerVitError, match="affect"):
        plan_heads(None, DATA, NO_OUTPUTS, {"affect": 1.0})
