"""Callbacks of training, for `trainer.callbacks` of a config and for `lightning.Trainer`.

Configs use these names, such as `fer_vit.callbacks.EMA`. The modules that define the callbacks may
change.
"""

from fer_vit.train.averaging import EMA as EMA
from fer_vit.train.checkpoints import LastCheckpoint as LastCheckpoint
from fer_vit.train.symmetry import Symmetry as Symmetry

__all__ = ["EMA", "LastCheckpoint", "Symmetry"]
