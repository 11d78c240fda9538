"""The command `finetune`: trains and evaluates a model on a folder of photos."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fer_vit.commands import accept_text
from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.evaluation.evaluated import predict_manifest
from fer_vit.evaluation.expression import evaluate_faces
from fer_vit.evaluation.join import align_probabilities
from fer_vit.evaluation.outputs import evaluate_heads
from fer_vit.evaluation.page import EVALUATION_FILES
from fer_vit.evaluation.results import Scores
from fer_vit.evaluation.writer import write_results
from fer_vit.exporting.calibration import MIN_CALIBRATION_FACES, calibrate_model
from fer_vit.exporting.formats import ExportOptions, find_format, write_model
from fer_vit.files import atomic_write, check_beside, check_output
from fer_vit.predict.recognizer import load
from fer_vit.report.estimate import estimate_text
from fer_vit.sources.duplicates import Duplicates
from fer_vit.store.folder import CARD, TO_FILL, read_model
from fer_vit.store.hub import CARD_FILE, DEFAULT_MODEL
from fer_vit.train.checkpoints import newest_checkpoint
from fer_vit.train.recipe import Recipe

LOGGER = logging.getLogger("fer_vit")

# Fewest training photos of each class: ten, less one for validation and one for the test.
MIN_PHOTOS = 8


@accept_text
def finetune(
    photos: Path,
    *,
    output: Path = Path("mine"),
    checkpoint: str | None = None,
    duplicates: Duplicates = "drop",
    overwrite: bool = False,
) -> Path:
    """Trains a model for your classes on your photos.

    It is prepare, fit, export and evaluate in one command. Each class has a folder of at least ten
    photos, named after the class (photos/calm/*.jpg, photos/bored/*.jpg). It may contain a folder
    for each person. Some persons, or photos if there are no such folders, are held out to choose
    the best epoch and to test the model. OUTPUT/model is the model; its card has the results.
    OUTPUT/evaluation has a page with the results, compared with the default model if it has all
    classes. The same command resumes an interrupted run. `fer-vit fit --config finetune` has every
    option.

    Examples:
        fer-vit finetune photos

        fer-vit finetune photos.zip --output moods

        fer-vit finetune faces.parquet --checkpoint best.ckpt

    Args:
        photos: A folder, or a zip or tar.gz of it, with a folder for each class; or a manifest.
        output: The folder to write: model, evaluation, faces.parquet (the detected faces), training
            (the logs).
        checkpoint: The model to start from: a checkpoint of `fer-vit fit`, a folder of `fer-vit
            export`, a name from `fer-vit models` or "user/name" on the Hugging Face hub. Default:
            the model that `fer-vit models` marks.
        duplicates: `drop` leaves out training photos that are near-duplicates of held-out ones,
            `keep` keeps them.
        overwrite: Whether existing results may be replaced.

    Returns:
        The folder of the model.
    """
    start = checkpoint or DEFAULT_MODEL
    model = output / "model"
    page = output / "evaluation"
    check_beside(output, [photos])
    # the page is written last; other results may be from an interrupted run
    check_output(page, overwrite, EVALUATION_FILES)
    model_files = find_format(model).files
    if overwrite:  # other files beside a model are an error now, not after the training
        check_output(model, overwrite, model_files)
    settings = read_model(start, pretraining=True).settings  # fails before minutes of work

    align = settings.align
    manifest = find_manifest(photos, output / "faces.parquet", align, duplicates, overwrite)
    rows = Manifest.read(manifest)
    warn_of_untrained(rows, start, settings.outputs)
    counts = count_photos(rows)
    can_calibrate = counts["val"] >= MIN_CALIBRATION_FACES

    # the same faces and start weights resume the same run
    recipe = Recipe("finetune")
    key = recipe.key(manifest, start)
    logs = f"training/{key}"
    exported = output / "training" / "model.txt"  # the key of the run whose model is exported
    is_resumed = newest_checkpoint(output.glob(f"{logs}/*/checkpoints")) is not None
    is_exported = not exported.exists() or exported.read_text("utf-8") == key
    if not (is_resumed and is_exported):
        # an existing model was trained on other faces
        check_output(model, overwrite, model_files)
    if overwrite or not model.exists():
        options = {"data.manifest": str(manifest), "model.init": start}
        best = recipe.fit(output, logs, options, resume=not overwrite)
        trained = load(best, "cpu")
        if can_calibrate:
            LOGGER.info(calibrate_model(trained, rows, strength=0.0))
        write_model(trained, ExportOptions(models=[best], output=model), overwrite)
        exported.write_text(key, "utf-8")

    split: Split = "test" if counts["test"] else "val"
    evaluate_model(model, rows.split(split), split, page)
    if not counts["test"]:
        LOGGER.warning(
            "Too few photos for a test split: the report uses the validation photos, "
            "so its scores are optimistic."
        )
    if not can_calibrate:
        LOGGER.warning(
            f"Confidence is not calibrated: {counts['val']} validation photos, "
            f"but {MIN_CALIBRATION_FACES} are needed."
        )
    LOGGER.info(f"Your model: {model}\nHow good it is: {page / 'index.html'}")
    return model


def find_manifest(
    photos: Path, manifest: Path, align: str | None, duplicates: Duplicates, overwrite: bool
) -> Path:
    """Returns the manifest of the faces in photos, written unless it exists, or the given one."""
    if photos.suffix.lower() == ".parquet":
        return photos
    if align == "crop":
        raise FerVitError(
            "`finetune` cuts faces out of photos, but this model takes unaligned crops "
            "(align: crop). Start from another, or name a manifest of crops."
        )
    if manifest.exists() and not overwrite:
        LOGGER.info(f"The faces are read from {manifest}: `--overwrite` reads {photos} again.")
        return manifest
    prepare("folder", photos, manifest, cut=True, duplicates=duplicates, overwrite=overwrite)
    return manifest


def warn_of_untrained(rows: Manifest, start: str, heads: Collection[str]) -> None:
    """Warns of those heads of the model `start` that the photos do not train."""
    kept = [head for head in heads if head not in rows.outputs]
    if kept:
        LOGGER.warning(
            f"The photos have no targets of {', '.join(kept)}: {start} as it was teaches these "
            "heads. Their values may be less exact than before."
        )


def count_photos(rows: Manifest) -> Counter[str]:
    """Returns the number of photos of each split, if they are enough.

    Raises:
        FerVitError: A class has too few training photos, or the val split none.
    """
    counts = Counter(rows.column("split"))
    learned = Counter(rows.split("train").column("label"))
    few = [f"{learned[name]} of {name}" for name in rows.labels if learned[name] < MIN_PHOTOS]
    if few:
        expected = f"at least {MIN_PHOTOS} training photos of each class, besides held-out ones"
        raise FerVitError(
            f"Expected {expected}, but got {', '.join(few)}. Add photos, and `--overwrite`."
        )
    if not counts["val"]:
        raise FerVitError(
            "No photo with a face is left to choose the epoch by. Add photos, and `--overwrite`."
        )
    return counts


def evaluate_model(model: Path, rows: Manifest, split: Split, page: Path) -> None:
    """Evaluates a model on the faces of a split, beside the included model if it has all classes.

    The results also complete the model card.
    """
    everything = predict_manifest(load(model), rows, split)
    faces = everything.with_label()
    if faces.notes:
        LOGGER.warning("\n".join(faces.notes))
    facts = {"data": str(rows.path), "model": str(model), "split": split}

    against = None
    if set(faces.labels) <= set(load().labels):
        included = predict_manifest(load(classes=faces.labels), rows, split)
        against = align_probabilities(faces, included, DEFAULT_MODEL)  # (N, C)
        facts["against"] = f"{DEFAULT_MODEL} with these classes"

    evaluation = evaluate_faces(faces, against=against)
    evaluation = replace(evaluation, heads=evaluate_heads(everything))
    # the card before the page, which marks the end of a run
    models = {"This model": evaluation.scores}
    if evaluation.comparison is not None:
        models[DEFAULT_MODEL] = evaluation.comparison.other_scores
    complete_card(model / CARD_FILE, faces.labels, models, len(rows))
    LOGGER.info(write_results(page, facts, evaluation, faces, against))


def complete_card(
    card: Path, labels: Sequence[str], models: Mapping[str, Scores], photos: int
) -> None:
    """Writes scores into a model card; an empty card of an earlier version is replaced.

    Args:
        card: The card.
        labels: The classes of the model.
        models: The scores of the model and of the one that it is compared with, by name.
        photos: Number of held-out photos.
    """
    lines = [
        f"Trained by `fer-vit finetune` on {', '.join(labels)}. "
        f"Results on {photos} held-out photos:",
        "",
    ]
    for name, scores in models.items():
        accuracy = estimate_text(scores["accuracy"], ".1%")
        recall = estimate_text(scores["UAR"], ".1%")
        lines.append(f"- {name}: accuracy {accuracy}, UAR {recall}")
    lines.append("")
    lines.append("To be filled in: who is in the photos, who labelled them, prohibited uses.")

    text = card.read_text("utf-8") or CARD
    with atomic_write(card) as new:
        new.write_text(text.replace(TO_FILL, "\n".join(lines)), "utf-8")
