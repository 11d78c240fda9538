"""The command `crossvalidate`: accuracy of a config on held-out faces."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fer_vit.commands import accept_text, name_files
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluation.manifest import predict_manifest
from fer_vit.evaluation.results import Evaluation
from fer_vit.evaluation.score import score
from fer_vit.faces import as_objects
from fer_vit.files import check_output
from fer_vit.listing import check_resumable
from fer_vit.report.results_page import RESULTS_FILES
from fer_vit.tables.groups import check_groups
from fer_vit.tables.labelled import join_labelled
from fer_vit.train.recipe import Recipe

LOGGER = logging.getLogger("fer_vit")


@accept_text
def crossvalidate(
    manifest: Path,
    *,
    config: str = "finetune",
    folds: int = 5,
    by: Sequence[str] = (),
    output: Path = Path("crossvalidation"),
    overwrite: bool = False,
    fit_options: Sequence[str] = (),
) -> Evaluation:
    """Trains a model without each fold of the training faces, and evaluates the held-out faces.

    All faces of a person (column `person`), or without persons all identical files, are in one
    fold. Without persons, remove re-encoded copies of a picture first: they may be in different
    folds. Val chooses each model's best epoch. OUTPUT/evaluation has the files of `evaluate` and
    the scores of each fold, OUTPUT/training the logs and checkpoints. The intervals don't include
    the variation between training runs. To resume an interrupted run, repeat the command. Options
    of `fit` (`--trainer.max_epochs 5`, `--model my_module.MyTask`) change every fold.

    Examples:
        fer-vit crossvalidate mine/faces.parquet

        fer-vit crossvalidate data/rafdb.parquet --config pretrained_vit --folds 10 --by gender

        fer-vit crossvalidate mine/faces.parquet --model.lr 1e-4 --trainer.max_epochs 5

    Args:
        manifest: A manifest of `fer-vit prepare` with labels and a val split.
        config: A config file, or a name from `fer-vit configs`. A model that it starts from must
            not have been trained on these faces.
        folds: Number of folds and of models.
        by: Columns to group by.
        output: The folder to write.
        overwrite: Replace existing results.
        fit_options: Options of `fit`, as words of the command line.

    Returns:
        The results, as of `evaluate`.
    """
    check_number("folds", folds, 2, 100)
    check_resumable(output, "training/*/fold*", "evaluation/results.json")
    check_output(output / "evaluation", overwrite, RESULTS_FILES)
    recipe = Recipe(config, tuple(fit_options), reserved=("data.fold",))
    train = Manifest.read(manifest).split("train")
    # wrong columns are reported before the training, which takes hours
    check_groups(train.describing_columns(), train.image_names(), by, manifest, train.labels)
    held_out = [in_fold(train, f"{fold}/{folds}") for fold in range(folds)]  # (N,) each
    if not all(map(np.any, held_out)):
        raise FerVitError(
            f"Expected faces in each of {folds} folds of {manifest}, but one is empty. "
            "Use fewer folds."
        )

    # A run is resumed if the faces, the config, the options and the number of folds are the same.
    logs = f"training/{recipe.key(manifest, str(folds))}"
    fold_results = []
    for fold, faces in enumerate(held_out):
        LOGGER.info(f"Fold {fold + 1} of {folds}")
        best = recipe.fit(
            output,
            f"{logs}/fold{fold}",
            {"data.manifest": str(manifest), "data.fold": f"{fold}/{folds}"},
            resume=not overwrite,
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

    results = score(join_labelled(fold_results), by, folds="fold")
    if results.notes:
        LOGGER.warning("\n".join(results.notes))
    facts = {"data": str(manifest), "config": recipe.text, "folds": str(folds)}
    results = replace(results, facts=facts)
    paths = results.write(output / "evaluation", overwrite)
    LOGGER.info(f"{results.text}\n{name_files(output / 'evaluation', paths)}")
    return results
