"""Callbacks of training, for `trainer.callbacks` of a config and for `lightning.Trainer`.

Configs name them here, as `fer_vit.callbacks.EMA`; where they are defined may change.
"""

from fer_vit.train.averaging import EMA as EMA
from fer_vit.train.checkpoints import LastCheckpoint as LastCheckpoint
from fer_vit.train.symmetry import Symmetry as Symmetry

__all__ = ["EMA", "LastCheckpoint", "Symmetry"]
