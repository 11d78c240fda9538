"""fer-vit: a Lightning-based vision transformer toolkit for facial expression recognition."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Intel's library rounds resized and rotated images differently on each processor, which changed
# probabilities by up to 0.03. OpenCV's own code computes the same on all of them. OpenCV reads the
# variable at the first image, and prints a warning about it unless it prints errors alone.
os.environ["OPENCV_IPP"] = "disabled"
os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")

if TYPE_CHECKING:
    from fer_vit.commands.compare import compare as compare
    from fer_vit.commands.crossvalidate import crossvalidate as crossvalidate
    from fer_vit.commands.evaluate import evaluate as evaluate
    from fer_vit.commands.export import export as export
    from fer_vit.commands.finetune import finetune as finetune
    from fer_vit.commands.models import models as models
    from fer_vit.commands.repeat import repeat as repeat
    from fer_vit.commands.visualize import visualize as visualize
    from fer_vit.errors import (
        FerVitError as FerVitError,
        ImageError as ImageError,
        ModelError as ModelError,
        TableError as TableError,
    )
    from fer_vit.model.region_vit import RegionViT as RegionViT, build_model as build_model
    from fer_vit.predict.face_results import table as table
    from fer_vit.predict.recognizer import load as load
    from fer_vit.store.hub import push as push
    from fer_vit.train.datamodule import FaceDataModule as FaceDataModule
    from fer_vit.train.starting import create_model as create_model
    from fer_vit.train.task import FERTask as FERTask

from fer_vit.version import __version__ as __version__

HOMES = {  # the module of each public name
    "FERTask": "train.task",
    "FaceDataModule": "train.datamodule",
    "FerVitError": "errors",
    "ImageError": "errors",
    "ModelError": "errors",
    "RegionViT": "model.region_vit",
    "TableError": "errors",
    "build_model": "model.region_vit",
    "compare": "commands.compare",
    "create_model": "train.starting",
    "crossvalidate": "commands.crossvalidate",
    "evaluate": "commands.evaluate",
    "export": "commands.export",
    "finetune": "commands.finetune",
    "load": "predict.recognizer",
    "models": "commands.models",
    "push": "store.hub",
    "repeat": "commands.repeat",
    "table": "predict.face_results",
    "visualize": "commands.visualize",
}

__all__ = ["__version__", *HOMES]


def __getattr__(name: str) -> Any:
    """Imports lazily, so that `fer-vit --help` answers at once."""
    if name in HOMES:
        from fer_vit.extras import needed_by

        with needed_by(f"fer_vit.{name}"):
            return getattr(import_module(f"fer_vit.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
