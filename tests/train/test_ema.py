from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fer_vit.train.module import EMA, moving_average


class Tiny(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))


def test_counters_are_not_averaged() -> None:
    assert moving_average(torch.tensor(3), torch.tensor(8), torch.tensor(5), decay=0.9) == 8


def test_the_average_is_made_on_the_device_to_which_the_model_goes() -> None:
    model, ema = Tiny(), EMA()
    assert model.device.type == "cpu"
    ema.setup(SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("meta"))), model, "fit")
    assert {value.device.type for value in ema._average_model.parameters()} == {"meta"}


def test_the_decay_reaches_the_average() -> None:
    model, ema = Tiny(), EMA(decay=0.2)
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")), global_step=0)
    ema.setup(trainer, model, "fit")
    for step in (1, 2, 3):
        with torch.no_grad():
            model.weight += 1
        trainer.global_step = step
        ema.on_train_batch_end(trainer, model, None, None, 0)
    # The first value is taken whole; then 2/11 of it is kept, and then 1/5, which is less than 3/12.
    second = 1 * 2 / 11 + 2 * 9 / 11
    assert ema._average_model.module.weight.tolist() == pytest.approx([0.2 * second + 0.8 * 3] * 2)


@pytest.mark.parametrize("validating", [True, False])
@pytest.mark.parametrize("error", [SIGTERMException(), ValueError()])
def test_the_newest_weights_come_back_when_a_signal_ends_a_validation(error: Exception, validating: bool) -> None:
    model, ema = Tiny(), EMA()
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")), validating=validating)
    ema.setup(trainer, model, "fit")
    with torch.no_grad():
        model.weight += 1
    ema.on_validation_epoch_start(trainer, model)
    ema.on_exception(trainer, model, error)
    back = validating and isinstance(error, SIGTERMException)
    assert model.weight.tolist() == ([1, 1] if back else [0, 0])
