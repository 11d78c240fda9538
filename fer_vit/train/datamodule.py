"""The LightningDataModule of a manifest: loaders of the splits, and the position of a run."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from fer_vit.data.dataset import (
    Batch,
    Cropping,
    Draw,
    EvalSampler,
    FaceDataset,
    Position,
    Sample,
    TrainSampler,
    collate,
)
from fer_vit.data.manifest import Manifest, in_fold, no_label
from fer_vit.data.schema import Split
from fer_vit.data.transforms import Augment, AugmentConfig
from fer_vit.errors import FerVitError, check_number, check_whole, short
from fer_vit.face.crop import CropSpec
from fer_vit.heads import one_sided
from fer_vit.processes import cores, one_thread, run_seed, start_worker
from fer_vit.train.log import log_once, warn_once
from fer_vit.wording import join_names, list_names

MAX_WORKERS = 256  # most worker processes; each takes about 100 MB


class FaceDataModule(L.LightningDataModule):
    """Faces for training and evaluation.

    Args:
        manifest: A Parquet table made by `fer-vit prepare`.
        batch_size: Faces per batch and process.
        num_workers: Worker processes that decode and augment; 0: the training process does this.
            None: cores divided by devices, 8 at most.
        augment: How training crops are augmented.
        balanced: Draw every class equally often in training.
        fold: A fold of the training faces that is held out, for example 0/3 for the first of three
            folds.
        spec: How a face becomes a crop. None: as the task expects (`task.spec`); outside a Trainer,
            224 pixels.
        unlabelled: Allow rows without a label; the command line allows them for `task:
            pretraining`. If there is no val split, a fixed 2% of the training faces are used as it.
    """

    def __init__(
        self,
        manifest: str | Path,
        batch_size: int = 64,
        num_workers: int | None = None,
        augment: AugmentConfig = AugmentConfig(),  # noqa: B008 - frozen
        balanced: bool = False,
        fold: str | None = None,
        spec: CropSpec | None = None,
        unlabelled: bool = False,
    ) -> None:
        super().__init__()
        check_whole("data.batch_size", batch_size, 1)
        check_number("data.num_workers", num_workers or 0, 0, MAX_WORKERS)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.augment = augment
        self.balanced = balanced
        self.fold = fold
        self.unlabelled = unlabelled
        self.spec = spec or CropSpec(224)
        self._spec_is_given = spec is not None

        self.manifest = Manifest.read(manifest)
        if fold:
            self.manifest = self.manifest.select(~in_fold(self.manifest, fold))
        if unlabelled and not len(self.manifest.split("val")):
            self.manifest = self.manifest.hold_out(0.02)
        self.labels = list(self.manifest.labels)
        self.outputs = self.manifest.outputs.plain
        self.partial = False  # whether rows may lack a label, as the task allows
        self.position: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Takes the crop from the task; raises FerVitError if a task has other crops or labels."""
        task: Any = self.trainer.lightning_module if self.trainer else None
        wanted = getattr(task, "spec", self.spec)
        if self._spec_is_given and wanted != self.spec:
            raise FerVitError(
                f"The task expects {wanted}, but the data has {self.spec}. Remove `spec`."
            )
        self.spec = wanted
        self.partial = getattr(task, "accepts_unlabelled", False)
        labels = getattr(task, "labels", self.labels)
        if labels != self.labels:
            raise FerVitError(
                f"The task has the labels {', '.join(labels)}, but {self.manifest.path} has "
                f"{', '.join(self.labels)}. Give the task `labels=data.labels`."
            )
        if stage == "fit":
            self._report_unlearned(task)
            self._report_one_class()
        if stage == "fit" and self.augment.mirror > 0:
            self._report_one_sided()

    def _report_unlearned(self, task: Any) -> None:
        """Warns about heads of the data that a task in Python does not learn."""
        known = getattr(task, "heads_of_data", self.outputs)
        unknown = [head for head in self.outputs if head not in known]
        if unknown:
            warn_once(
                f"{self.manifest.path} has targets of {join_names(unknown, 'and')}, which the task "
                "does not learn. For these heads, give it `outputs=data.outputs`."
            )

    def _report_one_class(self) -> None:
        """Logs if all training faces have the same label."""
        if self.unlabelled or not self.manifest.split("train").has_labels:
            return
        (present,) = torch.nonzero(self.class_counts(), as_tuple=True)
        if len(present) == 1:
            log_once(
                f"All training faces have the label {self.labels[int(present)]}: the model learns "
                "to predict nothing else. Add faces of other classes."
            )

    def _report_one_sided(self) -> None:
        """Logs the outputs that have no target in mirrored faces."""
        alone = []
        for outputs in self.outputs.values():
            alone += one_sided(outputs)
        if alone:
            log_once(
                f"Without the other side, and so unknown in mirrored faces: {list_names(alone)}."
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the fold, the position in the epoch and the options that determine the order.

        Lightning also counts the batches, but it requests a loader before it restores the count.
        """
        if self.trainer is None:
            return {}
        loop: Any = self.trainer.fit_loop
        epoch = max(0, loop.epoch_progress.current.started - 1)
        batches = loop.epoch_loop.batch_progress.current.processed
        if batches >= loop.max_batches:
            epoch += 1
            batches = 0
        return {"epoch": epoch, "batches": batches, "fold": self.fold} | self._order()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Stores where the run resumes."""
        self.position = state_dict if isinstance(state_dict, dict) else {}

    def _order(self) -> dict[str, Any]:
        return {
            "seed_everything": run_seed(),
            "world_size": _processes(),
            "batch_size": self.batch_size,
            "balanced": self.balanced,
        }

    def cropping(self) -> Cropping:
        """Returns how training faces are cropped and changed; a subclass may replace it."""
        return Augment(self.augment)

    def dataset(self, split: Split) -> FaceDataset:
        """Returns a split, augmented for `train`; raises FerVitError without faces or labels."""
        manifest = self.manifest.split(split)
        if not len(manifest):
            raise FerVitError(
                f"{manifest.path} has no rows in the split {split}. Prepare the data set with that "
                "split."
            )
        augment = self.cropping() if split == "train" else None
        partial = self.partial and not self.balanced
        dataset = FaceDataset(manifest, self.spec, augment, partial)
        if dataset.targets is None and (self.balanced or not self.unlabelled):
            raise no_label(manifest.path, split)
        return dataset

    def class_counts(self) -> torch.Tensor:
        """Returns the number of training faces of each class (C,); votes count by their share."""
        targets = torch.from_numpy(self.dataset("train").targets)  # (M, C)
        return targets.nansum(0).float()

    def train_dataloader(self) -> DataLoader[Sample]:
        """Returns augmented batches from the resumed position on.

        A smaller last batch is left out unless it is the only batch.
        """
        processes = _processes()
        rank = dist.get_rank() if processes > 1 else 0

        dataset = self.dataset("train")
        weights = None  # (M,)
        if self.balanced:
            assert dataset.targets is not None  # checked by `dataset`
            labels = dataset.targets.argmax(1)
            weights = 1 / np.bincount(labels)[labels]
            weights /= weights.sum()
        start = self._take_position(len(dataset))
        sampler = TrainSampler(dataset, weights, processes, rank, start=start)
        return self._loader(dataset, sampler, drop_last=len(sampler) > self.batch_size)

    def val_dataloader(self) -> DataLoader[Sample]:
        """Returns batches of the val split."""
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader[Sample]:
        """Returns batches of the test split."""
        return self._eval_loader("test")

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Converts images from bytes to float in [0, 1], on the device."""
        return batch.ready(batch.image.device)

    def _take_position(self, num_rows: int) -> Position:
        """Returns the stored position and clears it, because a run resumes from it only once."""
        position = self.position
        self.position = {}
        if position and position.get("fold") != self.fold:
            raise FerVitError(
                f"The checkpoint was trained with `--data.fold` {short(position.get('fold'))}, but "
                f"now it is {self.fold}. Use the same fold: the model must not learn faces that "
                "are held out."
            )

        epoch = position.get("epoch", 0)
        batches = position.get("batches", 0)
        if batches:
            for name, value in self._order().items():
                if position.get(name) != value:
                    raise FerVitError(
                        f"The checkpoint is from the middle of an epoch with {name} "
                        f"{position.get(name)}, but now it is {value}. Use the same value, or "
                        "resume from the end of an epoch."
                    )

        impossible = FerVitError(
            f"The checkpoint is at an impossible batch {short(batches)} of epoch "
            f"{short(epoch)}. Resume from another checkpoint."
        )
        for number in (epoch, batches):
            if not isinstance(number, int) or number < 0:
                raise impossible
        done = batches * self.batch_size * _processes()
        if done > num_rows:
            raise impossible
        return Position(epoch, done)

    def _eval_loader(self, split: Split) -> DataLoader[Sample]:
        dataset = self.dataset(split)
        sampler = EvalSampler(dataset) if _processes() > 1 else None
        return self._loader(dataset, sampler)

    def _loader(
        self,
        dataset: Dataset[Sample],
        sampler: Sampler[Draw] | None,
        drop_last: bool = False,
    ) -> DataLoader[Sample]:
        one_thread()
        workers = self.num_workers
        if workers is None:
            devices = self.trainer.num_devices if self.trainer else 1
            workers = min(8, max(1, cores() // devices))
        return DataLoader(
            dataset,
            self.batch_size,
            sampler=sampler,
            drop_last=drop_last,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
            worker_init_fn=start_worker,
        )


def _processes() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1
