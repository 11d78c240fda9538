"""What validation and test write: results, and a picture of the confusion matrix."""

import json
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image as Pil
from torch import Tensor
from torchvision.utils import make_grid

from fer_vit.evaluate.metrics import class_recall, metrics_table
from fer_vit.files import atomic_write
from fer_vit.report.charts import draw_confusion


class ResultWriter(Callback):
    """Logs the confusion matrix as a picture, and writes the results of `validate` and `test` beside the logs.

    Files: val.json or test.json, the same as a Markdown table, and the confusion matrix as PNG.
    """

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Logs the confusion matrix of the split; outside `fit` it writes the files as well."""
        if trainer.sanity_checking:
            return
        stage = pl_module.stage
        if isinstance(trainer.logger, TensorBoardLogger) and trainer.is_global_zero:
            picture = draw_confusion(pl_module.confusion.cpu().numpy(), pl_module.labels)
            trainer.logger.experiment.add_image(f"{stage}/confusion", picture, trainer.global_step, dataformats="HWC")
        if trainer.state.fn != "fit":
            write_results(trainer, pl_module, stage)

    on_test_end = on_validation_end


class ReconstructionWriter(Callback):
    """Logs a picture of masked pretraining after each validation: a face, what is seen of it, its reconstruction."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Logs the picture."""
        if isinstance(trainer.logger, TensorBoardLogger) and trainer.is_global_zero and not trainer.sanity_checking:
            grid = make_grid(pl_module.pictures.transpose(0, 1).flatten(0, 1), nrow=len(pl_module.pictures))
            trainer.logger.experiment.add_image("val/reconstruction", grid, trainer.global_step)


def write_results(trainer: L.Trainer, pl_module: Any, stage: str) -> None:
    """Writes the results of a stage into the log folder, each file atomically, in process 0 only."""
    log_dir = trainer.log_dir  # communicates, so all processes must ask
    if not trainer.is_global_zero or log_dir is None:
        return
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    confusion, labels, prefix = pl_module.confusion.cpu(), pl_module.labels, f"{stage}/"
    logged = trainer.callback_metrics.items()
    scalars = {name.removeprefix(prefix): float(value) for name, value in logged if name.startswith(prefix)}
    with atomic_write(folder / f"{stage}_confusion.png") as path:
        Pil.fromarray(draw_confusion(confusion.numpy(), labels)).save(path)
    with atomic_write(folder / f"{stage}.md") as path:
        path.write_text(metrics_table(scalars, confusion, labels), encoding="utf-8")
    with atomic_write(folder / f"{stage}.json") as path:  # last: whoever finds it finds the others
        data = trainer.datamodule  # type: ignore[attr-defined]
        of = {"checkpoint": trainer.ckpt_path and str(trainer.ckpt_path), "manifest": data and str(data.manifest.path)}
        path.write_text(json.dumps(of | summary(scalars, confusion, labels), indent=2) + "\n")
    print(f"Results: {folder / stage}.md, {stage}.json and {stage}_confusion.png in the same folder.")


def summary(scalars: dict[str, float], confusion: Tensor, labels: list[str]) -> dict[str, Any]:
    """Returns the results of a stage as JSON values: the recall of a class without images is null."""
    recall = dict(zip(labels, class_recall(confusion).tolist(), strict=True))
    return {
        **scalars,
        "images": int(confusion.sum()),
        "recall": {label: value if value == value else None for label, value in recall.items()},
        "labels": labels,
        "confusion": confusion.tolist(),
    }
