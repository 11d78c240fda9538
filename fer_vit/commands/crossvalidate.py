"""The command `crossvalidate`: accuracy of a config on held-out faces."""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from fer_vit.commands import name_files
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.errors import FerVitError
from fer_vit.evaluation.evaluation_results import Evaluation
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.evaluation.score import score
from fer_vit.faces import as_objects
from fer_vit.files import check_output
from fer_vit.listing import check_resumable
from fer_vit.options import Interval, Options, takes
from fer_vit.report.results_page import RESULTS_FILES
from fer_vit.tables.groups import check_groups
from fer_vit.tables.labelled import join_labelled
from fer_vit.train.recipe import Recipe

LOGGER = logging.getLogger("fer_vit")


@dataclass(frozen=True)
class CrossvalidateOptions(Options):
    """Options of `crossvalidate`."""

    manifest: Path
    """A manifest of `fer-vit prepare` with labels and a val split."""
    _: KW_ONLY
    config: str = "finetune"
    """A config file, or a name from `fer-vit configs`. A model that it starts from must not have
    been trained on these faces."""
    folds: Annotated[int, Interval(ge=2, le=100)] = 5
    """Number of folds, and of models."""
    by: Sequence[str] = ()
    """Columns to group by."""
    output: Path = Path("crossvalidation")
    """The folder to write."""
    overwrite: bool = False
    """Replace existing results."""
    fit_options: Sequence[str] = ()
    """Options of `fit`, as words of the command line."""


@takes(CrossvalidateOptions)
def crossvalidate(options: CrossvalidateOptions) -> Evaluation:
    """Trains a model for each fold of the training faces, and evaluates it on the fold.

    Writes OUTPUT/evaluation, the files of `evaluate` with the scores of each fold. All faces of a
    person (column `person`) are in one fold. To resume, repeat the command. Options of `fit`
    (`--trainer.max_epochs 5`, `--model my_module.MyTask`) change every fold.

    Examples:
        fer-vit crossvalidate mine/faces.parquet

        fer-vit crossvalidate data/rafdb.parquet --config pretrained_vit --folds 10 --by gender

        fer-vit crossvalidate mine/faces.parquet --model.lr 1e-4 --trainer.max_epochs 5

    Returns:
        The results, as of `evaluate`.
    """
    check_resumable(options.output, "training/*/fold*", "evaluation/results.json")
    evaluation = options.output / "evaluation"
    check_output(evaluation, options.overwrite, RESULTS_FILES)
    manifest = options.manifest
    recipe = Recipe(options.config, tuple(options.fit_options), reserved=("data.fold",))
    train = Manifest.read(manifest).split("train")
    # wrong columns are reported before the training, which takes hours
    names = train.image_names()
    check_groups(train.describing_columns(), names, options.by, manifest, train.labels)
    folds = range(options.folds)
    held_out = [in_fold(train, f"{fold}/{len(folds)}") for fold in folds]  # (N,) each
    if not all(map(np.any, held_out)):
        raise FerVitError(
            f"Expected faces in each of {len(folds)} folds of {options.manifest}, but one is "
            "empty. Use fewer folds."
        )

    # A run is resumed if the faces, the config, the options and the number of folds are the same.
    logs = f"training/{recipe.key(options.manifest, str(len(folds)))}"
    fold_results = []
    for fold, faces in zip(folds, held_out, strict=True):
        LOGGER.info(f"Fold {fold + 1} of {len(folds)}")
        best = recipe.fit(
            options.output,
            f"{logs}/fold{fold}",
            {"data.manifest": str(options.manifest), "data.fold": f"{fold}/{len(folds)}"},
            resume=not options.overwrite,
        )
        result = predict_manifest(recipe.load(best), train.select(faces), "train")
        fold_column = as_objects([str(fold)] * len(result.paths))
        fold_results.append(
            replace(
                result,
                columns=result.columns | {"fold": fold_column},
                rows=np.flatnonzero(faces),
                manifest=train,
            )
        )

    results = score(join_labelled(fold_results), options.by, folds="fold")
    if results.notes:
        LOGGER.warning("\n".join(results.notes))
    facts = {"data": str(options.manifest), "config": recipe.text, "folds": str(len(folds))}
    results = replace(results, facts=facts)
    paths = results.write(evaluation, options.overwrite)
    LOGGER.info(f"{results.text}\n{name_files(evaluation, paths)}")
    return results
