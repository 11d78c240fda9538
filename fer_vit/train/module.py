"""The base class of the tasks `FERTask` and `MaskedPretraining`.

It has their seeds, optimiser, schedule, checks, settings and checkpoints.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from timm.optim import param_groups_layer_decay
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.face.crop import DEFAULT_REGIONS, CropSpec, check_regions
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT
from fer_vit.processes import derived_seed, run_seed
from fer_vit.store.model_folder import differing
from fer_vit.train.log import log_once
from fer_vit.train.resuming import check_resumed, steps_left

DEFAULT_NETWORK = RegionViTConfig(regions=DEFAULT_REGIONS)  # the default network of a task
TRAINING_RANGES = {  # smallest and largest value of each setting
    "lr": (0, math.inf),
    "weight_decay": (0, math.inf),
    "logit_adjust": (0, math.inf),
    "layer_decay": (0, 1),
    "warmup": (0, 1),
    "min_lr": (0, 1),
    "label_smoothing": (0, 1),
    "region_dropout": (0, 1),
    "mask_ratio": (0.05, 0.95),
}
MIN_END_SHARE = 1e-4  # a smaller `min_lr` is logged: it may be meant as a learning rate


class RegionViTModule(L.LightningModule):
    """A RegionViT, `net`, in training. A subclass passes these arguments on, and builds the net.

    Args:
        lr: Peak learning rate of AdamW.
        weight_decay: Decay of weight matrices; biases, norms, positions and learned tokens have
            none.
        layer_decay: Factor on the learning rate from block to block towards the input; 1 is off,
            0.65 to 0.8 suits pretrained backbones.
        warmup: Share of all steps in which the learning rate rises linearly; then it falls along a
            cosine.
        min_lr: The last learning rate as a fraction of `lr`.
        compile: Compile the encoder with `torch.compile`.
    """

    net: RegionViT
    fits = False  # whether a Trainer fits the module

    def __init__(
        self,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        layer_decay: float = 1.0,
        warmup: float = 0.1,
        min_lr: float = 0.01,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()  # also the arguments of the subclass
        for name, (low, high) in TRAINING_RANGES.items():
            if name in self.hparams:
                check_number(f"model.{name}", self.hparams[name], low, high)

    @property
    def spec(self) -> CropSpec:
        """How a face becomes a crop for the network."""
        return self.net.settings.crop

    def setup(self, stage: str) -> None:
        """Chooses the attention kernel for the device; compiles the encoder if requested."""
        self.fits = stage == "fit"
        device = self.trainer.strategy.root_device
        trains_in_bf16 = self.fits and str(self.trainer.precision).startswith("bf16")
        fused = fused_is_faster(device, self.net.layout.num_tokens, trains_in_bf16)
        use_fused_attention(self.net, fused)
        if self.hparams["compile"] and self.fits:
            self.net.encode = torch.compile(self.net.encode)  # type: ignore[method-assign]

    def on_train_start(self) -> None:
        """Makes a resumed optimiser and its schedule follow the settings of this run.

        The schedule ends with the last step that the run really makes. A subclass with its
        optimisers and schedules, and a learning-rate finder, keep theirs.
        """
        schedule: Any = self.lr_schedulers()
        if not self.has_own_optimizers or not isinstance(schedule, LambdaLR):
            return
        made = schedule.last_epoch
        steps = made + int(steps_left(self.trainer))
        factor = self._rate_factor(steps)
        before = max(schedule.get_last_lr())

        wanted = self.parameter_groups()
        for group, new in zip(schedule.optimizer.param_groups, wanted, strict=True):
            group["weight_decay"] = new["weight_decay"]
            group["initial_lr"] = new["lr"]
            group["lr"] = new["lr"] * factor(made)
        schedule.base_lrs = [new["lr"] for new in wanted]
        schedule.lr_lambdas = [factor] * len(wanted)

        if made:
            rate = max(group["lr"] for group in schedule.optimizer.param_groups)
            log_once(
                f"Resumed at step {made:,} of {steps:,}: the learning rate continues at {rate:.2g} "
                f"(in the checkpoint {before:.2g})."
            )

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds each step of each process, so that a resumed run has the same random numbers."""
        seed = derived_seed(run_seed(), self.current_epoch, batch_idx, self.global_rank)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes milliseconds
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @property
    def has_own_optimizers(self) -> bool:
        """Whether the optimiser is the one of this class, and not of a subclass."""
        return type(self).configure_optimizers is RegionViTModule.configure_optimizers

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Returns the optimiser's groups of parameters with their peak learning rates."""
        lr = self.hparams["lr"]
        groups: list[dict[str, Any]] = param_groups_layer_decay(
            self.net,
            self.hparams["weight_decay"],
            tuple(self.net.no_weight_decay()),
            layer_decay=self.hparams["layer_decay"],
        )
        outside = []  # parameters outside the network, such as a decoder
        for name, value in self.named_parameters():
            if value.requires_grad and not name.startswith("net."):
                outside.append(value)
        if outside:
            groups.append({"params": outside, "weight_decay": 0.0, "lr_scale": 1.0})
        for group in groups:  # timm only stores the factor; torch's optimisers ignore it
            group["lr"] = lr * group["lr_scale"]
        return groups

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Returns AdamW with a warm-up and a cosine decay over all steps."""
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise FerVitError(
                "The learning rate falls over all steps: set `--trainer.max_epochs` or "
                "`--trainer.max_steps`."
            )
        lr = self.hparams["lr"]
        optimizer = AdamW(self.parameter_groups(), lr=lr)
        end_share = self.hparams["min_lr"]
        if 0 < end_share < MIN_END_SHARE:
            log_once(
                f"The learning rate ends at {end_share * lr:g}: `--model.min_lr` is a share of "
                f"`--model.lr`, {lr:g}."
            )
        schedule = LambdaLR(optimizer, self._rate_factor(int(steps)))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _rate_factor(self, steps: int) -> Callable[[int], float]:
        """Returns the factor on the learning rate at each of `steps` steps, by the settings."""
        warmup_steps = round(self.hparams["warmup"] * steps)
        return warmup_cosine(steps, warmup_steps, self.hparams["min_lr"])

    def store_settings(self, network: RegionViTConfig, **changed: Any) -> None:
        """Stores settings as plain values.

        With these values, a checkpoint loads without unpickling, and without `pretrained` weights.
        """
        check_regions(network.regions)
        plain = asdict(replace(network, pretrained=False))
        self.save_hyperparameters({"network": plain} | changed)

    def check_and_log(self, loss: Tensor, outputs: Tensor, paths: list[str]) -> Tensor:
        """Logs and returns the loss of a step; raises FerVitError if the loss is not finite."""
        if not loss.isfinite():
            raise self._not_finite(loss, outputs, paths)
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def _not_finite(self, loss: Tensor, outputs: Tensor, paths: list[str]) -> FerVitError:
        """Returns the error for a loss, with the images whose outputs are not finite."""
        bad = []
        for path, row in zip(paths, outputs, strict=True):
            if not row.isfinite().all():
                bad.append(path)
        advice = "Lower `--model.lr`, or use float32"
        if 0 < len(bad) < len(paths):
            advice = "Look at these images"
        return FerVitError(
            f"The loss is {loss.item()} (epoch {self.current_epoch}, step {self.global_step}). "
            f"{advice}, or set `--trainer.gradient_clip_val`; `--ckpt_path` resumes from a "
            f"checkpoint. Images: {', '.join(bad or paths)}"
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Records the names of a user's classes; nothing is imported by a name in a checkpoint."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        for key, used in (("task_class", self), ("data_class", data)):
            name = class_name(type(used))
            if used is not None and name:
                checkpoint[key] = name

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks a checkpoint before it is loaded; its optimiser gets the settings of this run.

        Raises FerVitError for another architecture, a damaged state, or a run that is over.
        """
        for name, expected, actual in differing(self.state_dict(), checkpoint["state_dict"]):
            raise FerVitError(
                f"The checkpoint has a different architecture: `{name}` is {actual} in it, but "
                f"{expected} in this model. Remove the config that changes the network, or "
                "choose another checkpoint."
            )
        if self.fits:
            self.check_resumed(checkpoint, Path(str(self.trainer.ckpt_path)), self.trainer)
            if self.has_own_optimizers:
                # From the checkpoint comes what the optimiser remembers, but not its settings.
                # `on_train_start` sets the learning rates.
                saved = checkpoint["optimizer_states"][0]
                saved["param_groups"] = AdamW(self.parameter_groups()).state_dict()["param_groups"]

    def check_resumed(self, checkpoint: dict[str, Any], path: Path, trainer: L.Trainer) -> None:
        """Raises FerVitError when a run with these settings cannot resume from a checkpoint."""
        optimizer = AdamW(self.parameter_groups()) if self.has_own_optimizers else None
        check_resumed(checkpoint, path, trainer, self.hparams, optimizer)


def class_name(used: type) -> str:
    """Returns a user's class as `--model` and `--data` take it; empty for one of fer-vit."""
    if used.__module__.startswith("fer_vit."):
        return ""
    return f"{used.__module__}.{used.__qualname__}"


def check_loss(loss: Tensor, split: str) -> None:
    """Raises FerVitError when the loss on a split is not finite."""
    if not loss.isfinite():
        raise FerVitError(
            f"The loss on the {split} split is {loss.item()}: the weights are unusable. Lower "
            "`--model.lr` or set `--trainer.gradient_clip_val`; `--ckpt_path` resumes from a "
            "checkpoint."
        )


def warmup_cosine(steps: int, warmup_steps: int, floor: float) -> Callable[[int], float]:
    """Returns a function of the step: a linear warm-up to 1, then a cosine decay to `floor`.

    The decay is from Loshchilov & Hutter (2017).
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return factor
