"""The task that trains a classifier of expressions, and further heads.

B images, C classes, K outputs of a head, M faces of a split.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torchmetrics import MeanMetric

from fer_vit.data.dataset import PADDING, Batch
from fer_vit.errors import FerVitError
from fer_vit.face.crop import crop_for
from fer_vit.geometry import Align, rotation
from fer_vit.heads import EXPRESSION, HEADS, NO_OUTPUTS, HeadOutputs, rotate_unchanged
from fer_vit.losses import decode, head_loss
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.model.tokens import drop_regions
from fer_vit.report.score_figures import draw_confusion
from fer_vit.store.model_folder import read_model
from fer_vit.train.head_tables import write_expression, write_outputs
from fer_vit.train.log import log_once
from fer_vit.train.metrics import (
    check_monitored,
    class_recall,
    expression_metrics,
    log_name,
    output_metrics,
)
from fer_vit.train.module import DEFAULT_NETWORK, RegionViTModule, check_loss
from fer_vit.train.starting import Freeze, is_frozen, take_weights
from fer_vit.train.teachers import StartTeacher, Teachers, create_start_teacher
from fer_vit.train.trained_heads import check_learnable, plan_heads


def expression_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the mean cross-entropy, in float32, of logits (B, C) and shares of votes (B, C)."""
    return F.cross_entropy(logits.float(), target.float(), label_smoothing=label_smoothing)


def log_prior(counts: Tensor) -> Tensor:
    """Returns the logarithms of shares (C,) by counts (C,) of classes; counts below 1 are 1."""
    counts = counts.clamp(min=1).float()
    return (counts / counts.sum()).log()


def add_missing_regions(network: RegionViTConfig) -> RegionViTConfig:
    """Returns a network with the default regions if its tokens need regions and it has none.

    A LightningCLI over FERTask fills single settings with the defaults of RegionViTConfig.
    """
    if network.tokens == "patch" or network.regions:
        return network
    network = replace(network, regions=DEFAULT_NETWORK.regions)
    log_once(f"The network has no regions: {', '.join(network.regions)} are used.")
    return network


class FERTask(RegionViTModule):
    """Facial expression recognition with a RegionViT.

    Args:
        network: The network. Default: the network of `init`, or else `DEFAULT_NETWORK`. The command
            line always sets it. A network without regions gets the regions of `DEFAULT_NETWORK` if
            its tokens need regions.
        labels: Expressions in the order of the model's outputs (the command line takes them from
            the manifest).
        align: How faces are cropped: "landmarks" moves the landmarks onto the template, "crop"
            keeps the frame. Default: as for `init`, or else "landmarks".
        template: Positions (x, y) of the five landmarks as fractions of the crop's side. Default:
            as for `init`, or else `geometry.TEMPLATE`.
        label_smoothing: Share of the target that is distributed uniformly over the classes.
        logit_adjust: Adds this number times the logarithm of each class's share of the training
            faces to its logit in training, so that rare classes are predicted more often; 0 is off,
            1 is balanced softmax (Ren et al. 2020). Not with `data.balanced`.
        outputs: The outputs of further heads, by head, for which the data has targets; the command
            line takes these from the manifest. The model learns these outputs, and keeps the other
            heads and outputs of `init`.
        heads: The outputs of all further heads of the model, by head. Default: `outputs`, and the
            outputs of `init`.
        head_weights: The weight of each further head's loss, relative to the expression's loss; 0
            leaves a head out. Default: 5 for movements, else 1.
        teachers: Models that predict each augmented training face, for example shipped models. The
            target is the mean of the votes and the mean prediction; without a label, the prediction
            alone.
        region_dropout: Probability that a random share of a training face's regions is hidden.
        init: A model to copy fitting weights from: the name of a shipped model, a folder,
            "user/name" on the hub, or a checkpoint, also of masked pretraining. Positions and patch
            kernels are resampled.
        freeze: The part that isn't trained: "stem", which embeds patches and regions, or the whole
            "encoder".
        **optimization: Arguments of `RegionViTModule`: lr, weight_decay, layer_decay, warmup,
            min_lr and compile.
    """

    # An nn.ModuleDict of `OutputMetrics` by head; torch gives its entries the type Module.
    head_metrics: Any

    def __init__(
        self,
        network: RegionViTConfig | None = None,
        labels: list[str] | None = None,
        align: Align | None = None,
        template: tuple[tuple[float, float], ...] | None = None,
        label_smoothing: float = 0.0,
        logit_adjust: float = 0.0,
        outputs: dict[str, list[str]] | None = None,
        heads: dict[str, list[str]] | None = None,
        head_weights: dict[str, float] | None = None,
        teachers: list[str] | None = None,
        region_dropout: float = 0.0,
        init: str | None = None,
        freeze: Freeze = "none",
        **optimization: Any,
    ) -> None:
        super().__init__(**optimization)
        if not labels:
            raise FerVitError("Expected the labels in order, but got none.")

        # the model to start from
        start = read_model(init, pretraining=True) if init else None

        # the network, and how faces are cropped for it
        if isinstance(network, dict):  # the settings of a network, from a checkpoint
            network = RegionViTConfig(**network)
        elif network is None:
            network = start.config if start else DEFAULT_NETWORK
        network = add_missing_regions(network)
        if start:
            align = align or start.settings.crop.align
            template = template or start.settings.crop.template
        crop = crop_for(network.img_size, network.regions, align, template)

        # the further heads, and which of their outputs are trained
        of_data = HeadOutputs.of_names(outputs or {}, "The data")
        given = None if heads is None else HeadOutputs.of_names(heads, "The model")
        of_start = start.settings.outputs if start else NO_OUTPUTS
        of_model, self.trained_heads = plan_heads(given, of_data, of_start, head_weights or {})
        self.heads_of_data = [*of_data.by_head]

        # A checkpoint has the arguments as settings, some replaced by the chosen values. It has all
        # weights, so no `init` is loaded with it, and `outputs` has all heads.
        self.store_settings(
            network,
            align=crop.align,
            template=crop.template,
            init=None,
            outputs=of_model.plain,
            heads=None,
        )

        # the net, and the models that teach it
        self.net = build_model(network, labels, crop=crop, outputs=of_model.plain)
        self.teachers = Teachers(teachers or [], self.net)
        self.start_teacher: StartTeacher | None = None
        if start:
            log_once(take_weights(self.net, start))
            trained = of_model.shared(of_data.of_head(*self.trained_heads))
            self.start_teacher = create_start_teacher(self.net, start, trained)

        # the frozen parts: without gradients, and `train` keeps them in evaluation mode
        for name, parameter in self.net.named_parameters():
            if is_frozen(name, freeze):
                parameter.requires_grad = False
        self.train()

        # the measures
        num_classes = len(labels)
        self.labels = labels
        self.metrics = expression_metrics(num_classes)
        self.mean_loss = MeanMetric()
        self.head_metrics = output_metrics(self.trained_heads)
        self.accuracy_without_near_duplicates = MeanMetric()

        # what a run computes
        # confusion matrix of the last split, targets in rows
        self.confusion = torch.zeros(num_classes, num_classes)
        # (M,), whether a face of the split is a near-duplicate; None: no face is
        self.near_duplicate: Tensor | None = None
        self.adjustment: Tensor | float = 0.0  # added to the logits in training

    def train(self, mode: bool = True) -> "FERTask":
        """Sets the mode; frozen parts stay in evaluation mode, with unchanged batch norms."""
        super().train(mode)
        for name, module in self.net.named_modules():
            if is_frozen(name, self.hparams["freeze"]):
                module.training = False
        return self

    def on_fit_start(self) -> None:
        """Checks targets and monitored metrics; computes the logit adjustment."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        manifest = getattr(data, "manifest", None)
        if manifest is not None:
            check_learnable(manifest, self.trained_heads, has_teachers=bool(self.teachers.names))
            callbacks: list[ModelCheckpoint] = self.trainer.checkpoint_callbacks  # type: ignore[assignment]
            monitored = {callback.monitor for callback in callbacks if callback.monitor}
            check_monitored(manifest, monitored, [*self.trained_heads])
        strength = self.hparams["logit_adjust"]
        if strength:
            if not hasattr(data, "class_counts"):
                raise FerVitError(
                    "`--model.logit_adjust` needs data with a method `class_counts`, such as "
                    "FaceDataModule. Set it to 0, or add the method."
                )
            if getattr(data, "balanced", False):
                raise FerVitError(
                    "`--model.logit_adjust` and `--data.balanced` correct for the same shares of "
                    "the classes. Remove one of them."
                )
            self.adjustment = strength * log_prior(data.class_counts()).to(self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Embeds a batch, drops regions, encodes, and returns the loss of all heads."""
        tokens = self.net.tokenize(batch.image, batch.boxes, batch.valid)
        rate = self.hparams["region_dropout"]
        if rate:
            tokens = drop_regions(tokens, self.net.layout, rate)
        tokens = self.net.encode(tokens)
        outputs = self.net.outputs_by_head(tokens)

        logits = outputs[EXPRESSION]  # (B, C)
        votes = self.teachers.teach(batch)  # (B, C)
        loss = self._loss_of_labelled(logits + self.adjustment, votes)
        for head, trained in self.trained_heads.items():
            preds, target = self._shared_columns(head, outputs, batch)
            loss = loss + trained.weight * head_loss(head, preds, target)
        if self.start_teacher:
            # `head_weights` is for outputs that are trained with targets; these outputs are not.
            for head, taught in self.start_teacher.teach(batch).items():
                loss = loss + HEADS[head].weight * head_loss(head, outputs[head], taught)
        return self.check_and_log(loss, logits, batch.path)

    def _shared_columns(
        self, head: str, outputs: Mapping[str, Tensor], batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Returns predictions and targets (B, K) of the K outputs that model and data share."""
        trained = self.trained_heads[head]
        return outputs[head][:, trained.of_model], batch.targets[head][:, trained.of_data]

    def _in_photo(
        self, head: str, values: Tensor, target: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Converts values and targets (B, K) from the crop to the photo, as `predict` does."""
        if HEADS[head].rotate is rotate_unchanged:
            return values, target
        outputs = self.trained_heads[head].outputs
        degrees = np.array([rotation(matrix) for matrix in batch.to_crop.cpu().numpy()])
        truth = outputs.in_photo(target.cpu().numpy(), degrees)
        turned = outputs.in_photo(values.cpu().numpy(), degrees)
        near = HEADS[head].near(turned, truth)
        return torch.from_numpy(near).to(values), torch.from_numpy(truth).to(target)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Returns the loss in training of logits (B, C) and votes (B, C), for faces with a label.

        A subclass may replace this method. It is not called for a batch without any label.
        `val/loss` is always the cross-entropy.
        """
        return expression_loss(logits, target, self.hparams["label_smoothing"])

    def _loss_of_labelled(self, logits: Tensor, target: Tensor) -> Tensor:
        """Returns `loss` for the faces with a label, 0 if there are none.

        Logits and targets are (B, C); the target of a face without a label is NaN.
        """
        labelled = target.isfinite().all(1)
        if not labelled.any():
            return 0.0 * logits.sum()  # every parameter keeps a gradient
        return self.loss(logits[labelled], target[labelled])

    @property
    def accepts_unlabelled(self) -> bool:
        """Whether training faces may lack a label, because heads or teachers have targets."""
        return bool(self.trained_heads) or bool(self.teachers.names)

    @property
    def stage(self) -> Literal["val", "test"]:
        """The split that is evaluated."""
        return "test" if self.trainer.testing else "val"

    def on_validation_start(self) -> None:
        """Resets the metrics and loads the near-duplicate mask of this split."""
        self.metrics.reset()
        self.mean_loss.reset()
        self.accuracy_without_near_duplicates.reset()
        for metrics in self.head_metrics.values():
            metrics.reset()

        self.near_duplicate = None
        # A user's loader or data module has no manifest.
        manifest = getattr(self.trainer.datamodule, "manifest", None)  # type: ignore[attr-defined]
        if manifest:
            is_near_duplicate = manifest.near_duplicates(self.stage)  # (M,)
            if is_near_duplicate.any():
                self.near_duplicate = torch.from_numpy(is_near_duplicate).to(self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the metrics of the split."""
        assert batch.target is not None  # the data module checks it
        outputs = self.net(batch.image, batch.boxes, batch.valid)
        is_real = batch.row != PADDING  # (B,), False for repeats that fill a rank's share
        for head, metrics in self.head_metrics.items():
            preds, target = self._shared_columns(head, outputs, batch)
            values, truth = self._in_photo(head, decode(head, preds.float()), target, batch)
            metrics.update(values[is_real], truth[is_real])

        labelled = is_real & batch.target.isfinite().all(1)
        if not labelled.any():
            return
        logits = outputs[EXPRESSION].float()[labelled]
        target = batch.target[labelled]
        self.metrics.update(logits.softmax(-1), target.argmax(-1))
        self.mean_loss.update(expression_loss(logits, target), weight=len(target))
        if self.near_duplicate is not None:
            correct = logits.argmax(-1) == target.argmax(-1)
            is_new = ~self.near_duplicate[batch.row[labelled]]
            self.accuracy_without_near_duplicates.update(correct[is_new].float())

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics; `validate` and `test` also write a table and a picture of each head."""
        results = self._expression_results()
        for head, metrics in self.head_metrics.items():
            for figure, values in metrics.compute().items():
                if values.isfinite().any():
                    results[log_name(head, figure)] = values.nanmean().float()
        if "accuracy" in results:
            self.log(f"{self.stage}/accuracy", results.pop("accuracy"), prog_bar=True)
        self.log_dict({f"{self.stage}/{name}": value for name, value in results.items()})

        trainer = self.trainer
        if not trainer.logger or not trainer.is_global_zero or trainer.sanity_checking:
            return
        if isinstance(trainer.logger, TensorBoardLogger) and self.confusion.any():
            picture = draw_confusion(self.confusion.cpu().numpy(), self.labels)
            name = f"{self.stage}/confusion"
            writer = trainer.logger.experiment
            writer.add_image(name, picture, trainer.global_step, dataformats="HWC")
        if trainer.state.fn != "fit" and trainer.log_dir:
            self._write_tables(Path(trainer.log_dir))

    def _expression_results(self) -> dict[str, Tensor]:
        """Returns the metrics of `expression` over all processes; {} without a label."""
        with warnings.catch_warnings():
            # The metric is 0, with a warning, if no face had a label.
            warnings.filterwarnings("ignore", ".*compute.* method of metric", UserWarning)
            self.confusion = self.metrics["confusion"].compute()
        if not self.confusion.any():
            return {}
        results = self.metrics.compute()
        del results["confusion"]  # a matrix, which is not logged as a number
        loss = self.mean_loss.compute()
        check_loss(loss, self.stage)  # before a checkpoint is saved
        results["loss"] = loss
        results["uar"] = class_recall(self.confusion).nanmean()
        if self.near_duplicate is not None:
            accuracy = self.accuracy_without_near_duplicates.compute()
            results["accuracy_without_near_duplicates"] = accuracy
        return dict(results)

    def _write_tables(self, folder: Path) -> None:
        """Writes and prints a table of each trained head.

        The expression has a table only if a face has a label.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tables = []
        if self.confusion.any():
            recall = class_recall(self.confusion).cpu().numpy()
            counts = self.confusion.cpu().numpy()
            tables.append(write_expression(folder, self.stage, self.labels, counts, recall))
        for head, metrics in self.head_metrics.items():
            preds, target = metrics.collected()
            names = self.trained_heads[head].outputs.names
            tables.append(write_outputs(folder, self.stage, head, names, preds, target))
        log_once("\n\n".join(tables))
        log_once(f"Tables and pictures: {folder}")

    def on_test_start(self) -> None:
        """As for validation."""
        self.on_validation_start()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """As for validation."""
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        """As for validation."""
        self.on_validation_epoch_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Records whether the data was balanced."""
        super().on_save_checkpoint(checkpoint)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        checkpoint["balanced"] = bool(getattr(data, "balanced", False))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises FerVitError when a checkpoint has other labels or another architecture."""
        labels = checkpoint.get("hyper_parameters", {}).get("labels")
        if labels is not None and labels != self.labels:
            raise FerVitError(
                f"The checkpoint's classes are {', '.join(labels)}, but the manifest's are "
                f"{', '.join(self.labels)}. Use the manifest of the training, or one with the same "
                "classes in the same order."
            )
        super().on_load_checkpoint(checkpoint)
