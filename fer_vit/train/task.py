"""Training and evaluation of a RegionViT as a classifier: steps, loss and metrics.

B images, R regions, C classes.
"""

import math
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torchmetrics import MeanMetric

from fer_vit.data.sample import Batch
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluate.metrics import class_recall, expression_metrics
from fer_vit.face.regions import DEFAULT_REGIONS, check_regions
from fer_vit.geometry import TEMPLATE, Align
from fer_vit.model.config import RegionViTConfig, drop_retired
from fer_vit.model.mix import cutmix, drop_regions, mixup
from fer_vit.model.region_vit import RegionViT
from fer_vit.store.folder import read_model
from fer_vit.train.losses import balanced_weights, expression_loss, log_prior
from fer_vit.train.module import RegionViTModule, check_loss
from fer_vit.train.starting import Freeze, is_frozen, model_settings, take_weights
from fer_vit.train.teachers import Teachers

NOT_NEGATIVE = ("lr", "weight_decay", "mixup", "logit_adjust")
SHARES = ("layer_decay", "warmup", "min_lr", "label_smoothing", "region_dropout", "cutmix", "teacher_weight")
"""Settings from 0 to 1."""
NETWORK = RegionViTConfig(regions=DEFAULT_REGIONS)


class FERTask(RegionViTModule):
    """Facial expression recognition with a RegionViT.

    Args:
        network: The model. None given: that of `init`, whose `align` and `template` are then taken as well.
        labels: Expressions in the order of the model's outputs (the command line takes them from the manifest).
        align: How faces are cropped: "landmarks" onto the template, "crop" as the images are framed.
        template: Where the five landmarks belong in the crop, as fractions of its side.
        lr: Peak learning rate of AdamW.
        weight_decay: Decay of weight matrices; biases, norms, positions and learned tokens have none.
        layer_decay: Factor on the learning rate from block to block towards the input; 1 is off, 0.65 to 0.8 suits
            pretrained backbones.
        warmup: Share of all steps in which the learning rate rises; then it falls along a cosine.
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
        init: A model to start from: its weights where they fit, and, without a `network`, its own with its `align` and
            `template`. The name of a shipped model, a folder, "user/name" on the hub, or a checkpoint, also of masked
            pretraining.
        freeze: What does not learn: "stem", which embeds patches and regions, or the whole "encoder" before the head.

    Attributes:
        net: The model.
        confusion: Confusion matrix (C, C) of the last validation or test, targets in rows.
    """

    def __init__(
        self,
        network: RegionViTConfig = NETWORK,
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
        init: str | None = None,
        freeze: Freeze = "none",
    ) -> None:
        super().__init__()
        source = read_model(init, pretraining=True) if init else None
        if source and network is NETWORK:
            network, align, template = model_settings(source[0]).values()
        if isinstance(network, dict):  # as a checkpoint has it
            network = RegionViTConfig(**drop_retired(network))
        if not labels:
            raise FerVitError("Expected the labels in order, but got none.")
        check_regions(network.regions)
        # Plain values only, so that a checkpoint loads without unpickling; it has its own weights, and needs no others.
        self.save_hyperparameters()
        self.save_hyperparameters({"network": asdict(replace(network, pretrained=False)), "init": None})
        for name in (*NOT_NEGATIVE, *SHARES):
            check_number(f"model.{name}", self.hparams[name], 0, 1 if name in SHARES else math.inf)
        if cutmix and network.tokens == "region":
            raise FerVitError("CutMix cuts out a rectangle of patches: use tokens: patch or both, or cutmix: 0.")
        self.net = RegionViT(network, labels, align, template)
        self.starts_from = init if source and source[0]["labels"] else None  # what has learned labels
        if init and source:
            rank_zero_only(print)(take_weights(self.net, *source, init))
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad &= not is_frozen(name, freeze)
        self.train()
        self.labels = labels
        self.metrics, self.loss, self.without_twins = expression_metrics(len(labels)), MeanMetric(), MeanMetric()
        self.twins: Tensor | None = None  # (M,) of the split that is evaluated, if any of its images has one in train
        self.class_weight: Tensor | None = None
        self.adjustment: Tensor | float = 0.0  # of the logits in training
        self.teachers: Teachers | None = None

    def train(self, mode: bool = True) -> "FERTask":
        """Sets the mode, but frozen parts always evaluate: their batch norms keep their statistics."""
        super().train(mode)
        for name, module in self.net.named_modules():
            module.training &= not is_frozen(name, self.hparams["freeze"])
        return self

    def on_fit_start(self) -> None:
        """Loads the teachers, and computes what the loss needs to know of the training split."""
        h = self.hparams
        if self.starts_from and (data := self.trainer.datamodule) and data.fold:  # type: ignore[attr-defined]
            raise FerVitError(
                f"{self.starts_from} may have learned the faces that `data.fold` leaves out, of which this model is to "
                "know nothing. Start from nothing or from masked pretraining."
            )
        if h["teachers"]:
            self.teachers = Teachers(h["teachers"], self.net, self.device)
        if h["class_weight"] == "balanced" or h["logit_adjust"]:
            counts = self.trainer.datamodule.class_counts()  # type: ignore[attr-defined]
            self.adjustment = h["logit_adjust"] * log_prior(counts).to(self.device)
            if h["class_weight"] == "balanced":
                self.class_weight = balanced_weights(counts).to(self.device)

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
        return self.finished(loss, logits, batch.path)

    @property
    def stage(self) -> Literal["val", "test"]:
        """The split that is evaluated."""
        return "test" if self.trainer.testing else "val"

    def on_validation_start(self) -> None:
        """Looks up which images of the split had a twin in train, and forgets those of another, or of half a split."""
        for metric in (self.metrics, self.loss, self.without_twins):
            metric.reset()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        twins = data.manifest.twins(self.stage) if data else np.zeros(0, bool)  # none with a loader of your own
        self.twins = torch.from_numpy(twins).to(self.device) if twins.any() else None

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics of the split."""
        assert batch.target is not None  # the data module checks it
        logits = self.net(batch.image, batch.boxes, batch.valid).float()
        once = batch.row >= 0  # negative: a repeat that pads a rank's share
        if once.any():
            logits, target = logits[once], batch.target[once]
            self.metrics.update(logits.softmax(-1), target.argmax(-1))
            self.loss.update(expression_loss(logits, target), weight=len(target))
            if self.twins is not None:
                hit = logits.argmax(-1) == target.argmax(-1)
                self.without_twins.update(hit[~self.twins[batch.row[once]]].float())

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the split."""
        results: dict[str, Tensor] = {"loss": self.loss.compute(), **self.metrics.compute()}  # over all processes
        check_loss(results["loss"], self.stage)  # before a checkpoint is saved
        self.confusion = results.pop("confusion")
        results["uar"] = class_recall(self.confusion).nanmean()
        if self.twins is not None:
            results["accuracy_without_twins"] = self.without_twins.compute()
        self.log(f"{self.stage}/accuracy", results.pop("accuracy"), prog_bar=True)
        self.log_dict({f"{self.stage}/{name}": value for name, value in results.items()})

    on_test_start, test_step, on_test_epoch_end = on_validation_start, validation_step, on_validation_epoch_end

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises FerVitError when a checkpoint, not yet loaded, has other labels or another architecture."""
        labels = checkpoint.get("hyper_parameters", {}).get("labels")
        if labels is not None and labels != self.labels:
            raise FerVitError(
                f"The checkpoint's classes are {', '.join(labels)}, but the manifest's are {', '.join(self.labels)}. "
                "Use the manifest it was trained on, or one with the same classes in the same order."
            )
        super().on_load_checkpoint(checkpoint)
