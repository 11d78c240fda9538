"""Common parts of trainings: copied weights, seeds, optimiser, schedule, averaged and symmetric weights, checks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from timm.optim import param_groups_layer_decay
from torch import Tensor
from torch.nn import Module
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fer_vit.data.dataset import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.face.crop import CropSpec, check_regions, mirror, region_boxes
from fer_vit.geometry import TEMPLATE
from fer_vit.heads import HEADS
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_model
from fer_vit.model.tokens import TokenLayout
from fer_vit.processes import derived_seed, run_seed
from fer_vit.store.folder import differing

RANGES = {
    **dict.fromkeys(("lr", "weight_decay", "logit_adjust"), (0, math.inf)),
    **dict.fromkeys(
        ("layer_decay", "warmup", "min_lr", "label_smoothing", "region_dropout"), (0, 1)
    ),
    "mask_ratio": (0.05, 0.95),
}
"""Smallest and largest values of settings."""


class RegionViTModule(L.LightningModule):
    """A RegionViT, `net`, in training; subclasses have the settings lr, weight_decay, warmup, min_lr and compile."""

    net: RegionViT

    @property
    def spec(self) -> CropSpec:
        """How a face becomes a crop for the network."""
        config, settings = self.net.config, self.net.settings
        return CropSpec(
            config.img_size, tuple(config.regions), settings.align, settings.template or TEMPLATE
        )

    def setup(self, stage: str) -> None:
        """Chooses the attention kernel for the device; compiles the encoder if requested."""
        device, in_bf16 = (
            self.trainer.strategy.root_device,
            str(self.trainer.precision).startswith("bf16"),
        )
        use_fused_attention(
            self.net,
            fused_is_faster(device, self.net.layout.num_tokens, stage == "fit" and in_bf16),
        )
        if self.hparams["compile"] and stage == "fit":
            self.net.forward_features = torch.compile(self.net.forward_features)  # type: ignore[method-assign]

    def on_train_start(self) -> None:
        """Replaces the learning rate and weight decay of a resumed checkpoint by the user's.

        A subclass with other optimisers or schedules resumes as in the checkpoint.
        """
        if type(self).configure_optimizers is not RegionViTModule.configure_optimizers:
            return
        wanted = self.configure_optimizers()["optimizer"].param_groups
        schedule: Any = self.lr_schedulers()
        for group, new, factor in zip(
            schedule.optimizer.param_groups, wanted, schedule.lr_lambdas, strict=True
        ):
            group["weight_decay"], group["initial_lr"] = new["weight_decay"], new["initial_lr"]
            group["lr"] = new["initial_lr"] * factor(schedule.last_epoch)
        schedule.base_lrs = [new["initial_lr"] for new in wanted]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds each step of each process, so that a resumed run draws the same numbers."""
        seed = derived_seed(run_seed(), self.current_epoch, batch_idx, self.global_rank)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes milliseconds
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a warm-up and a cosine over all steps."""
        h = self.hparams
        without, layer_decay = tuple(self.net.no_weight_decay()), h.get("layer_decay", 1.0)
        groups = param_groups_layer_decay(
            self.net, h["weight_decay"], without, layer_decay=layer_decay
        )
        named = self.named_parameters()
        if others := [
            value for name, value in named if value.requires_grad and not name.startswith("net.")
        ]:
            groups.append({"params": others, "weight_decay": 0.0, "lr_scale": 1.0})
        for group in groups:  # timm only stores the factor; torch's optimisers ignore it
            group["lr"] = h["lr"] * group["lr_scale"]
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise FerVitError(
                "The learning rate falls over all steps: set trainer.max_epochs or max_steps."
            )
        schedule = warmup_cosine(
            AdamW(groups, lr=h["lr"]), int(steps), round(h["warmup"] * steps), h["min_lr"]
        )
        return {
            "optimizer": schedule.optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def store_settings(self, network: RegionViTConfig, **changed: Any) -> None:
        """Checks and stores settings as plain values: a checkpoint loads without unpickling or `pretrained` weights."""
        check_regions(network.regions)
        self.save_hyperparameters(
            {"network": asdict(replace(network, pretrained=False)), **changed}
        )
        for name, (least, most) in RANGES.items():
            if name in self.hparams:
                check_number(f"model.{name}", self.hparams[name], least, most)

    def log_loss(self, loss: Tensor, outputs: Tensor, paths: list[str]) -> Tensor:
        """Logs and returns the loss of a step; raises FerVitError with the images when it is not finite."""
        if not loss.isfinite():
            bad = [
                path for path, row in zip(paths, outputs, strict=True) if not row.isfinite().all()
            ]
            advice = (
                "Look at these images"
                if 0 < len(bad) < len(paths)
                else "Lower model.lr, or use float32"
            )
            came = (
                f"The loss is {loss.item()} (epoch {self.current_epoch}, step {self.global_step})."
            )
            advice += ", or set trainer.gradient_clip_val; `--ckpt_path` resumes from a checkpoint."
            raise FerVitError(f"{came} {advice} Images: {', '.join(bad or paths)}")
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Records the name of a user's class, which a resumed run must name again; never imported."""
        name = class_name(type(self))
        if name:
            checkpoint["task_class"] = name

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises FerVitError when a checkpoint, not yet loaded, has another architecture."""
        for name, here, there in differing(self.state_dict(), checkpoint["state_dict"]):
            change = f"`{name}` is {there} in it, but {here} in this model"
            advice = "Leave out the config that changes the network, or choose another checkpoint."
            raise FerVitError(f"The checkpoint is of another architecture: {change}. {advice}")


def class_name(kind: type[RegionViTModule]) -> str:
    """Returns the name of a user's task as `--model` takes it; empty for a task of fer-vit."""
    own = kind.__module__.startswith("fer_vit.")
    return "" if own else f"{kind.__module__}.{kind.__qualname__}"


def check_loss(loss: Tensor, split: str) -> None:
    """Raises FerVitError when the loss on a split is not finite."""
    if not loss.isfinite():
        advice = "Lower model.lr or set trainer.gradient_clip_val; `--ckpt_path` resumes from a checkpoint."
        raise FerVitError(
            f"The loss on the {split} split is {loss.item()}: the weights are unusable. {advice}"
        )


def warmup_cosine(optimizer: Optimizer, steps: int, warmup_steps: int, floor: float) -> LambdaLR:
    """Learning rate by step: linear to its peak, then half a cosine to `floor` of it (Loshchilov & Hutter 2017)."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)


class EMA(WeightAveraging):
    """Lightning's averaging of weights, as an exponential moving average on the model's device.

    The average keeps min(decay, (1 + n) / (10 + n)) of itself at step n, so that the first steps soon lose weight: with
    a decay of 0.998 from the start, it was 15 points behind the newest weights after six epochs on FERPlus.

    Args:
        decay: The largest share of the average that is kept at a step.
    """

    def __init__(self, decay: float = 0.999) -> None:
        super().__init__(avg_fn=partial(moving_average, decay=decay))

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Creates the average on the model's device, to which Lightning would move the model only later."""
        pl_module.to(trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)


def moving_average(average: Tensor, newest: Tensor, count: Tensor, decay: float) -> Tensor:
    """Moves an average towards the newest value, after `count` moves. Counters are not averaged."""
    if not average.is_floating_point():
        return newest
    kept = ((1 + count) / (10 + count)).clamp(max=decay)  # stays on the device
    return torch.lerp(newest, average, kept.to(average.dtype))


Freeze = Literal["none", "stem", "encoder"]
CLASSIFIER = ("pool", "vit.head")
HEAD = (*CLASSIFIER, "heads.")
ROWS = ("vit.head.weight", "vit.head.bias", "pool.query")
"""Tensors with a row for each label."""


def model_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of another model that are defaults of `FERTask`."""
    template = settings.get("template") or TEMPLATE
    return {
        "network": settings["config"],
        "align": settings.get("align", "landmarks"),
        "template": template,
    }


@torch.no_grad()
def take_weights(
    net: RegionViT, settings: dict[str, Any], state: dict[str, Tensor], name: str | Path
) -> str:
    """Copies the tensors of another network that fit, and the rows of the head for labels that both have.

    Computed positions and heads of another kind are not copied. `settings` has config and labels of the other network,
    which without labels has no head; `state` is its state dict, and `name` its name in messages. Returns a line for the
    user: copied and other tensors, different settings. Raises FerVitError when less than nine tenths of the encoder's
    tensors fit, or some are not finite.
    """
    labels, known = net.settings.labels, list(settings["labels"])
    kept = [
        label for label in labels if label in known and settings["config"].pool == net.config.pool
    ]
    new = [label for label in labels if label not in kept]
    computed = [key for key, value in net.named_parameters() if not value.requires_grad]
    here, there = (
        {key: part[key] for key in part if key not in computed}
        for part in (net.state_dict(), state)
    )
    encoder = [key for key in here if _in_encoder(key)]
    other = {
        key: f"{key} ({old} there, {own} here)"
        for key, own, old in differing(here, there)
        if _in_encoder(key)
    }
    fitting = [key for key in encoder if key not in other]
    why = _describe_differences([*other.values()], asdict(settings["config"]), asdict(net.config))
    if len(fitting) < 0.9 * len(encoder):
        came = f"only {len(fitting)} of {len(encoder)} tensors do{why}"
        advice = "Leave out the options of the network, or choose another model."
        raise FerVitError(
            f"Expected nine tenths of the encoder to fit {name}, but {came}. {advice}"
        )
    _copy_tensors(
        here, there, fitting, {labels.index(label): known.index(label) for label in kept}, name
    )
    for head, outputs in net.settings.outputs.items():
        _copy_outputs(net.heads[head], head, outputs, settings, state)
    classes = [f"kept {', '.join(kept)}"] * bool(kept) + [f"new {', '.join(new)}"] * bool(new)
    return f"Started from {name}: {len(fitting)} of {len(encoder)} tensors of the encoder; {'; '.join(classes)}{why}."


def _copy_tensors(
    here: dict[str, Tensor],
    there: dict[str, Tensor],
    encoder: list[str],
    rows: dict[int, int],
    name: str | Path,
) -> None:
    """Copies tensors of the encoder; and the head, if `rows` gives rows for labels and where they come from."""
    classifier = [key for key in here if key.startswith(CLASSIFIER) and key in there]
    copied = encoder + classifier if rows else encoder
    if bad := [key for key in copied if not there[key].isfinite().all()]:
        raise FerVitError(
            f"{name} holds weights that are not finite (`{bad[0]}`), as after training that diverged."
        )
    for key in copied:
        if key in ROWS:
            here[key][[*rows]] = there[key][[*rows.values()]].to(here[key])
        else:
            here[key].copy_(there[key])


def _copy_outputs(
    layer: Module,
    head: str,
    outputs: Sequence[str],
    settings: dict[str, Any],
    state: dict[str, Tensor],
) -> None:
    """Copies the outputs of a head that another network has, too, if its regions and width are the same."""
    others = settings.get("outputs", {}).get(head, [])
    kept = [name for name in outputs if name in others]
    rows = [outputs.index(name) for name in kept]
    sources = [others.index(name) for name in kept]
    for name, value in layer.state_dict().items():
        other = state.get(f"heads.{head}.{name}")
        if kept and other is not None and other.shape[:-1] == value.shape[:-1]:
            value[..., rows] = other[..., sources].to(value)


def _describe_differences(tensors: list[str], before: dict[str, Any], now: dict[str, Any]) -> str:
    changed = [name for name in now if name != "pretrained" and before[name] != now[name]]
    more = f" and {len(tensors) - 3} more" * (len(tensors) > 3)
    left = f"; not copied: {', '.join(tensors[:3])}{more}" * bool(tensors)
    return left + f"; different settings: {', '.join(changed)}" * bool(changed)


def _in_encoder(name: str) -> bool:
    return not name.startswith(HEAD)


def is_frozen(name: str, freeze: Freeze) -> bool:
    """Whether a parameter or module does not learn: in the patch embeddings, or anywhere before the head."""
    return {"none": False, "stem": "patch_embed" in name, "encoder": _in_encoder(name)}[freeze]


SIDES = {".right_": ".left_", ".left_": ".right_"}


class Symmetry(L.Callback):
    """Keeps a network's weights such that a crop and its mirror image have the same logits.

    Channels and attention heads come in pairs, one in each half: one computes for a face the values of the other for
    its mirror image. So every weight equals another one, and half of them are free. Cohen & Welling, "Group Equivariant
    Convolutional Networks" (ICML 2016), for the group of mirror images. Prediction needs no special code.

    The weights are made symmetric when training starts, which ruins a trained model that is not symmetric.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Makes the weights symmetric; raises FerVitError if the network, or the resumed run, cannot be symmetric."""
        net: Any = pl_module.net
        if not (difference := asymmetry(net.config)) < 2e-5:  # rounding makes up to 3e-6
            raise FerVitError(
                f"This network cannot be symmetric: mirroring a crop changes its logits by {difference:.0e} of their "
                "deviation. It would be with region_source: stem, region_grid: 1, the regions of both sides, "
                "attention: dot, pos_embed: none or mirror, pool: avg, an even num_heads, an embed_dim that is a "
                "multiple of the patch size, and an img_size one above a multiple of it (with tokens: region, of half "
                "of it)."
            )
        state = net.state_dict()
        if trainer.ckpt_path and any(
            not torch.equal(state[name], mirror_image(name, state, net)) for name in state
        ):
            raise FerVitError(
                "A run without Symmetry cannot resume with it: leave it out, or start a new run."
            )
        make_symmetric(state, net)

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps AdamW's steps and the batch norms symmetric, also amid a group of batches: a run may end there."""
        net: Any = pl_module.net
        learned = net.named_parameters()
        gradients = {name: value.grad for name, value in learned if value.grad is not None}
        make_symmetric(gradients, net)
        statistics = {name: value for name, value in net.named_buffers() if ".running_" in name}
        make_symmetric(statistics, net)


@torch.no_grad()
def make_symmetric(tensors: Mapping[str, Tensor], net: RegionViT) -> None:
    """Replaces each tensor, named as in a RegionViT, by the mean of itself and its mirror image."""
    images = {
        name: mirror_image(name, tensors, net)
        for name, value in tensors.items()
        if value.is_floating_point()
    }
    for name, image in images.items():
        tensors[name].add_(image).div_(2)


def mirror_image(name: str, tensors: Mapping[str, Tensor], net: RegionViT) -> Tensor:
    """Returns a tensor of the mirrored network: kernels are flipped, pairs of channels and sides swapped."""
    side = next((side for side in SIDES if side in name), "")
    x = tensors.get(name.replace(side, SIDES.get(side, "")), tensors[name])
    if ".qkv." in name:
        return swap_halves(x.reshape(3, len(x) // 3, *x.shape[1:]), range(1, x.ndim + 1)).flatten(
            0, 1
        )
    if x.ndim == 4:
        return swap_halves(
            x.flip(3), range(1 + (x.shape[1] > 3))
        )  # an image has up to three channels
    if name.startswith("heads."):
        return mirror_head(name, x, net.settings.outputs)
    if name.endswith("pos_embed"):
        x = swap_columns(x, net.layout)
    if x.ndim == 3:
        return swap_halves(x, range(2, 3))  # of class, register and position tokens
    return swap_halves(x, range(name.startswith("vit.head."), x.ndim))  # not the classes


def mirror_head(name: str, x: Tensor, outputs: Mapping[str, Sequence[str]]) -> Tensor:
    """Returns a parameter of an `AdditiveHead` (..., D, K) or (K,) with its channels and outputs mirrored."""
    head = name.split(".")[1]
    source, sign = HEADS[head].mirror(outputs[head])
    if x.ndim > 1:
        x = swap_halves(x, range(x.ndim - 2, x.ndim - 1))
    return x[..., source] * x.new_tensor(sign)


def swap_columns(x: Tensor, layout: TokenLayout) -> Tensor:
    """Mirrors the grid of patches in their positions (1, N, D) or (1, prefix + N, D)."""
    if not layout.num_patches:
        return x
    prefix, patches = x.tensor_split([x.shape[1] - layout.num_patches], 1)
    rows = patches.view(1, *layout.grid, patches.shape[2])  # (1, rows, columns, D)
    mirrored = rows.flip(2).flatten(1, 2)  # (1, N, D)
    return torch.cat([prefix, mirrored], 1)


def swap_halves(x: Tensor, axes: range) -> Tensor:
    """Exchanges the first and second half of a tensor along axes; axes of size 1 stay."""
    for axis in axes:
        x = x.roll(x.shape[axis] // 2, axis)
    return x


@torch.no_grad()
def asymmetry(config: RegionViTConfig) -> float:
    """Returns the change of logits when a random crop is mirrored, in units of their deviation.

    Measured on one block with large random symmetric weights; near-uniform attention would mask an asymmetry.
    """
    rng, size = np.random.default_rng(0), config.img_size
    with torch.random.fork_rng(devices=[]):
        net = build_model(replace(config, depth=1, keep_rate=(), pretrained=False), "abc").eval()
    for value in (state := net.state_dict()).values():
        value.copy_(
            torch.from_numpy(
                rng.normal(0, 0.25, value.shape) if value.ndim > 1 else rng.random(value.shape)
            )
        )
    make_symmetric(state, net)
    crop = (
        rng.integers(256, size=(size, size, 3), dtype=np.uint8),
        rng.normal(TEMPLATE, 0.02) * size,
    )
    views = crop, mirror(*crop)
    images = torch.from_numpy(np.stack([image for image, _ in views])).permute(0, 3, 1, 2) / 255
    boxes = torch.from_numpy(
        np.stack([region_boxes(points, config.regions) for _, points in views])
    )
    logits = net.logits(images, boxes)
    return float((logits[0] - logits[1]).abs().max() / logits.std())
