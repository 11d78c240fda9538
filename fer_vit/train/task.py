"""Training and evaluation of a RegionViT: steps, loss, metrics and optimiser.

B images, R regions, C classes.
"""

import math
from dataclasses import asdict, replace
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import MeanMetric

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluate.metrics import class_recall, expression_metrics
from fer_vit.face.regions import DEFAULT_REGIONS, check_regions
from fer_vit.geometry import TEMPLATE, Align
from fer_vit.model.attention import fused_is_faster, use_fused_attention
from fer_vit.model.config import RegionViTConfig, drop_retired
from fer_vit.model.mix import cutmix, drop_regions, mixup
from fer_vit.model.region_vit import RegionViT
from fer_vit.processes import derived_seed, run_seed
from fer_vit.train.losses import balanced_weights, expression_loss, log_prior
from fer_vit.train.teachers import Teachers

NOT_NEGATIVE = ("lr", "weight_decay", "mixup", "logit_adjust")
SHARES = ("layer_decay", "warmup", "min_lr", "label_smoothing", "region_dropout", "cutmix", "teacher_weight")
"""Settings from 0 to 1."""


class FERTask(L.LightningModule):
    """Facial expression recognition with a RegionViT.

    Args:
        network: The model.
        labels: Expressions in the order of the model's outputs (the command line takes them from the manifest).
        align: How faces are cropped: "landmarks" onto the template, "crop" as the images are framed.
        template: Where the five landmarks belong in the crop, as fractions of its side.
        lr: Peak learning rate of AdamW.
        weight_decay: Decay of weight matrices; biases, norms, positions and learned tokens have none.
        layer_decay: Factor on the learning rate from block to block towards the input; 1 is off, 0.65 to 0.8 suits
            pretrained backbones.
        warmup: Share of all steps in which the learning rate rises from 0; then it falls along a cosine.
        min_lr: Learning rate at the end as a share of `lr`.
        label_smoothing: Share of the target that is spread evenly over the classes.
        class_weight: "balanced" weighs the loss by inverse class frequency.
        logit_adjust: The logarithm of each class's share of the training faces, times this, is added to its logit in
            training, so that rare classes are predicted more often; 0 is off, 1 is balanced softmax (Ren et al. 2020).
        region_dropout: Probability that a training face loses regions, a share drawn evenly from none to all.
        mixup: Beta parameter of mixup on tokens; 0 is off.
        cutmix: Probability that CutMix on tokens takes the place of mixup for a batch; 0 is off.
        teachers: Checkpoints, folders or names of trained models. What they say of the training faces, as augmented
            for this model, is mixed with the target, whether or not they have learned these faces.
        teacher_weight: Their weight in the target.
        compile: Compile the encoder with `torch.compile`.

    Attributes:
        net: The model.
        confusion: Confusion matrix (C, C) of the last validation or test, targets in rows.
    """

    def __init__(
        self,
        network: RegionViTConfig = RegionViTConfig(regions=DEFAULT_REGIONS),  # noqa: B008 - frozen
        labels: list[str] | None = None,
        align: Align = "landmarks",
        template: tuple[tuple[float, float], ...] = TEMPLATE,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        layer_decay: float = 1.0,
        warmup: float = 0.1,
        min_lr: float = 0.01,
        label_smoothing: float = 0.0,
        class_weight: Literal["none", "balanced"] = "none",
        logit_adjust: float = 0.0,
        region_dropout: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        teachers: tuple[str, ...] = (),
        teacher_weight: float = 0.5,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(network, dict):  # as a checkpoint has it
            network = RegionViTConfig(**drop_retired(network))
        if not labels:
            raise FerVitError("Expected the labels in order, but got none.")
        check_regions(network.regions)
        # Plain values only, so that a checkpoint loads without unpickling; it has its own weights, not pretrained.
        self.save_hyperparameters()
        self.save_hyperparameters({"network": asdict(replace(network, pretrained=False))})
        for name in (*NOT_NEGATIVE, *SHARES):
            check_number(f"model.{name}", self.hparams[name], 0, 1 if name in SHARES else math.inf)
        if cutmix and network.tokens == "region":
            raise FerVitError("CutMix cuts out a rectangle of patches: use tokens: patch or both, or cutmix: 0.")
        self.net = RegionViT(network, labels, align, template)
        self.labels = labels
        self.metrics: Any = nn.ModuleDict({s: expression_metrics(len(labels), f"{s}/") for s in ("val", "test")})
        self.losses: Any = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})
        self.without_twins: Any = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})
        self.twins: Tensor | None = None  # (M,) of the split that is evaluated, if any of its images has one in train
        self.class_weight: Tensor | None = None
        self.adjustment: Tensor | float = 0.0  # of the logits in training
        self.teachers: Teachers | None = None

    def setup(self, stage: str) -> None:
        """Chooses the attention kernel for the device; compiles the encoder if asked to."""
        device, in_bf16 = self.trainer.strategy.root_device, str(self.trainer.precision).startswith("bf16")
        use_fused_attention(self.net, fused_is_faster(device, self.net.layout.num_tokens, stage == "fit" and in_bf16))
        if self.hparams["compile"] and stage == "fit":
            self.net.forward_features = torch.compile(self.net.forward_features)  # type: ignore[method-assign]

    def on_fit_start(self) -> None:
        """Loads the teachers, and computes what the loss needs to know of the training split."""
        h = self.hparams
        if h["teachers"]:
            self.teachers = Teachers(h["teachers"], self.net, self.device)
        if h["class_weight"] == "balanced" or h["logit_adjust"]:
            counts = self.trainer.datamodule.class_counts()  # type: ignore[attr-defined]
            self.adjustment = h["logit_adjust"] * log_prior(counts).to(self.device)
            if h["class_weight"] == "balanced":
                self.class_weight = balanced_weights(counts).to(self.device)

    def on_train_start(self) -> None:
        """Makes the user's learning rate and weight decay override those of the checkpoint that is resumed."""
        wanted = self.configure_optimizers()["optimizer"].param_groups
        schedule: Any = self.lr_schedulers()
        for group, new, factor in zip(schedule.optimizer.param_groups, wanted, schedule.lr_lambdas, strict=True):
            group["weight_decay"], group["initial_lr"] = new["weight_decay"], new["initial_lr"]
            group["lr"] = new["initial_lr"] * factor(schedule.last_epoch)
        schedule.base_lrs = [new["initial_lr"] for new in wanted]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds each step of each process on its own, so that a resumed run draws the same numbers."""
        seed = derived_seed(run_seed(), self.current_epoch, batch_idx, self.global_rank)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes milliseconds
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch: ask the teachers, embed, drop regions, mix, encode, compare with the target."""
        assert batch.target is not None  # the data module checks it
        h, target = self.hparams, batch.target
        if self.teachers:
            target = torch.lerp(target, self.teachers(batch), h["teacher_weight"])
        tokens = self.net.tokenize(batch.image, batch.boxes, batch.valid)
        if h["region_dropout"]:
            tokens = drop_regions(tokens, self.net.layout, h["region_dropout"])
        if h["cutmix"] and torch.rand(()) < h["cutmix"]:
            tokens, target = cutmix(tokens, target, batch.boxes, self.net.layout, self.net.patch_size)
        elif h["mixup"]:
            tokens, target = mixup(tokens, target, h["mixup"])
        logits = self.net.forward_head(self.net.forward_features(tokens))
        loss = expression_loss(logits + self.adjustment, target, h["label_smoothing"], self.class_weight)
        if not loss.isfinite():
            raise not_finite(loss, logits, batch.path, f"epoch {self.current_epoch}, step {self.global_step}")
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def on_validation_start(self) -> None:
        """Looks up which images of the val split had a twin in train."""
        self._find_twins("val")

    def on_test_start(self) -> None:
        """Looks up which images of the test split had a twin in train."""
        self._find_twins("test")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics of the val split."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics of the test split."""
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the val split."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Logs the metrics of the test split."""
        self._log_metrics("test")

    def _find_twins(self, stage: Literal["val", "test"]) -> None:
        twins = self.trainer.datamodule.manifest.twins(stage)  # type: ignore[attr-defined]
        self.twins = torch.from_numpy(twins).to(self.device) if twins.any() else None

    def _evaluate(self, batch: Batch, stage: Literal["val", "test"]) -> None:
        assert batch.target is not None  # the data module checks it
        logits = self.net(batch.image, batch.boxes, batch.valid).float()
        once = batch.row >= 0  # negative: a repeat that pads a rank's share
        if once.any():
            logits, target = logits[once], batch.target[once]
            self.metrics[stage].update(logits.softmax(-1), target.argmax(-1))
            self.losses[stage].update(expression_loss(logits, target), weight=len(target))
            if self.twins is not None:
                hit = logits.argmax(-1) == target.argmax(-1)
                self.without_twins[stage].update(hit[~self.twins[batch.row[once]]].float())

    def _log_metrics(self, stage: Literal["val", "test"]) -> None:
        metrics, loss = self.metrics[stage], self.losses[stage]
        results = {f"{stage}/loss": loss.compute(), **metrics.compute()}  # over all processes
        if not results[f"{stage}/loss"].isfinite():  # before a checkpoint is saved
            raise FerVitError(
                f"The loss on the {stage} split is {results[f'{stage}/loss'].item()}: the weights are ruined. Lower "
                "model.lr or set trainer.gradient_clip_val; `--ckpt_path` resumes from a checkpoint."
            )
        self.confusion: Tensor = results.pop(f"{stage}/confusion")
        results[f"{stage}/uar"] = class_recall(self.confusion).nanmean()
        if self.twins is not None:
            results[f"{stage}/accuracy_without_twins"] = self.without_twins[stage].compute()
            self.without_twins[stage].reset()
        self.log(f"{stage}/accuracy", results.pop(f"{stage}/accuracy"), prog_bar=True)
        self.log_dict(results)
        metrics.reset()
        loss.reset()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a warm-up and a cosine over all steps."""
        h = self.hparams
        groups = param_groups_layer_decay(
            self.net, h["weight_decay"], tuple(self.net.no_weight_decay()), layer_decay=h["layer_decay"]
        )
        for group in groups:  # timm only stores the factor; torch's optimisers ignore it
            group["lr"] = h["lr"] * group["lr_scale"]
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise FerVitError("The learning rate falls over all steps: set trainer.max_epochs or max_steps.")
        schedule = warmup_cosine(AdamW(groups, lr=h["lr"]), int(steps), round(h["warmup"] * steps), h["min_lr"])
        return {"optimizer": schedule.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises FerVitError when a checkpoint, not yet loaded, has other labels or another architecture."""
        labels = checkpoint.get("hyper_parameters", {}).get("labels")
        if labels is not None and labels != self.labels:
            raise FerVitError(
                f"The checkpoint's classes are {', '.join(labels)}, but the manifest's are {', '.join(self.labels)}. "
                "Use the manifest it was trained on, or one with the same classes in the same order."
            )
        mine = self.state_dict()
        theirs = checkpoint["state_dict"]
        for name in sorted(mine.keys() | theirs.keys()):
            here, there = (tuple(state[name].shape) if name in state else "missing" for state in (mine, theirs))
            if here != there:
                raise FerVitError(
                    f"The checkpoint is of another architecture: `{name}` is {there} in it, but {here} in this model. "
                    "Leave out the config that changes the network, or choose another checkpoint."
                )


def not_finite(loss: Tensor, logits: Tensor, paths: list[str], when: str) -> FerVitError:
    """Returns the error for a loss that is not finite; `when` names the epoch and step."""
    bad = [path for path, finite in zip(paths, logits.isfinite().all(1).tolist(), strict=True) if not finite]
    advice = "Look at these images" if 0 < len(bad) < len(paths) else "Lower model.lr, or use float32"
    return FerVitError(
        f"The loss is {loss.item()} ({when}). {advice}, or set trainer.gradient_clip_val; `--ckpt_path` resumes from "
        f"a checkpoint. Images: {', '.join(bad or paths)}"
    )


def warmup_cosine(optimizer: Optimizer, steps: int, warmup_steps: int, floor: float) -> LambdaLR:
    """Learning rate by step: linear to its peak, then half a cosine to `floor` of it (Loshchilov & Hutter 2017)."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)
