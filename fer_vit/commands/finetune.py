"""The command `finetune`: trains and evaluates a model on a folder of photos."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.data.schema import Split
from fer_vit.errors import FerVitError
from fer_vit.evaluation.evaluation_rows import ALL, OTHER
from fer_vit.evaluation.predicted_manifest import predict_manifest
from fer_vit.evaluation.score import score
from fer_vit.exporting.calibration import MIN_CALIBRATION_FACES, calibrate_model
from fer_vit.exporting.formats import ExportOptions, find_format, write_model
from fer_vit.files import atomic_write, check_beside, check_output
from fer_vit.heads import EXPRESSION, HeadOutputs
from fer_vit.options import Options, takes
from fer_vit.predict.recognizer import load
from fer_vit.report.results_page import RESULTS_FILES
from fer_vit.sources.duplicates import Duplicates
from fer_vit.stats.estimate import Estimate, estimate_text
from fer_vit.store.hub import CARD_FILE, CONFIG_FILE, DEFAULT_MODEL
from fer_vit.store.model_folder import TO_FILL, read_model
from fer_vit.train.checkpoints import newest_checkpoint
from fer_vit.train.recipe import Recipe

LOGGER = logging.getLogger("fer_vit")

# Fewest training photos of each class: ten, less one for validation and one for the test.
MIN_PHOTOS = 8

KEY_FILE = Path("training", "model.txt")  # in the output; has the key of the model's run


@dataclass(frozen=True)
class FinetuneOptions(Options):
    """Options of `finetune`."""

    photos: Path
    """A folder, zip or tar.gz with a folder for each class; or a manifest."""
    _: KW_ONLY
    output: Path = Path("mine")
    """The folder to write: model, evaluation, faces.parquet and training."""
    checkpoint: str | None = None
    """The model to start from, as for `predict`."""
    person: str | None = None
    """A regular expression that finds the person in a path, as for `prepare folder`."""
    duplicates: Duplicates = "drop"
    """`drop` or `keep` training photos that nearly repeat a held-out photo."""
    overwrite: bool = False
    """Replace existing results."""


@takes(FinetuneOptions)
def finetune(options: FinetuneOptions) -> Path:
    """Trains a model for your classes on your photos, and evaluates it.

    Put at least ten photos of each class into a folder with its name, such as photos/calm. Writes
    OUTPUT/model and OUTPUT/evaluation, the results on held-out photos. To resume, repeat the
    command. `fer-vit fit --config finetune` has every option.

    Examples:
        fer-vit finetune photos

        fer-vit finetune photos.zip --output moods

        fer-vit finetune faces.parquet --checkpoint best.ckpt

    Returns:
        The folder of the model.
    """
    start = options.checkpoint or DEFAULT_MODEL
    model = options.output / "model"
    evaluation = options.output / "evaluation"
    check_beside(options.output, [options.photos])
    # The evaluation is written last, so it marks a finished run.
    is_finished = (evaluation / "index.html").exists() and (model / CONFIG_FILE).exists()
    if is_finished and not options.overwrite:
        raise FerVitError(
            f"This training is finished: the model is {model}, its results are "
            f"{evaluation / 'index.html'}. `--overwrite` trains again, `--output` names another "
            "folder."
        )
    check_output(evaluation, options.overwrite, RESULTS_FILES)
    if options.overwrite:  # files of the user beside a model are an error now, not later
        check_output(model, options.overwrite, find_format(model).files)
    settings = read_model(start, pretraining=True).settings  # a wrong name fails now

    manifest_path = prepare_manifest(options, settings.crop.align)
    manifest = Manifest.read(manifest_path)
    warn_of_untrained(manifest, start, settings.outputs)
    counts = count_faces(manifest)
    can_calibrate = counts["val"] >= MIN_CALIBRATION_FACES

    # The same faces, config and start model resume the same run.
    recipe = Recipe("finetune")
    key = recipe.key(manifest_path, start)
    check_run(options.output, key, options.overwrite)
    if options.overwrite or not model.exists():
        run = {"data.manifest": str(manifest_path), "model.init": start}
        resume = not options.overwrite
        best = recipe.fit(options.output, f"training/{key}", run, resume=resume)
        trained = load(best, "cpu")
        if can_calibrate:
            report = calibrate_model(trained, manifest, strength=0.0)  # changes `trained`
            LOGGER.info(report)
        write_model(trained, ExportOptions(model, checkpoint=[best]), options.overwrite)
        with atomic_write(options.output / KEY_FILE) as file:
            file.write_text(key, "utf-8")

    split: Split = "test" if counts["test"] else "val"
    evaluate_model(model, manifest.split(split), split, evaluation)
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
    LOGGER.info(f"Your model: {model}\nHow good it is: {evaluation / 'index.html'}")
    return model


def prepare_manifest(options: FinetuneOptions, align: str | None) -> Path:
    """Returns the manifest of the faces in photos, for a model with a kind of alignment.

    The photos may be a manifest. Otherwise the faces are detected, which takes minutes, and written
    to OUTPUT/faces.parquet, unless this file exists.
    """
    photos = options.photos
    if photos.suffix.lower() == ".parquet":
        if options.person is not None:
            raise FerVitError(
                "`--person` is for a folder of photos, but a manifest has its splits. Remove it."
            )
        return photos
    if align == "crop":
        raise FerVitError(
            "`finetune` cuts faces out of photos, but this model takes unaligned crops "
            "(align: crop). Start from another, or name a manifest of crops."
        )
    manifest = options.output / "faces.parquet"
    if manifest.exists() and not options.overwrite:
        LOGGER.info(f"The faces are read from {manifest}: `--overwrite` reads {photos} again.")
        return manifest
    prepare(
        "folder",
        photos,
        manifest,
        cut=True,
        duplicates=options.duplicates,
        overwrite=options.overwrite,
        person=options.person,
    )
    return manifest


def warn_of_untrained(manifest: Manifest, start: str, outputs: HeadOutputs) -> None:
    """Warns of those heads of the model `start` that the photos do not train."""
    kept = [head for head in outputs.by_head if head not in manifest.outputs.by_head]
    if kept:
        LOGGER.warning(
            f"The photos have no targets for {', '.join(kept)}. These heads of {start} are kept, "
            "but their values may be less exact than before."
        )


def count_faces(manifest: Manifest) -> Counter[str]:
    """Returns the number of faces in each split.

    Raises:
        FerVitError: A class has too few training faces, or the val split has none.
    """
    counts = Counter(manifest.column("split"))
    by_class = Counter(manifest.split("train").column("label"))
    few = [f"{by_class[name]} of {name}" for name in manifest.labels if by_class[name] < MIN_PHOTOS]
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


def check_run(output: Path, key: str, overwrite: bool) -> None:
    """Raises FerVitError when OUTPUT/model is not of the run with a key, and may not be replaced.

    `KEY_FILE` has the key of the model's run. It is missing or empty if the program was killed, or
    the disk was full, after the model had been written.
    """
    has_run = newest_checkpoint(output.glob(f"training/{key}/*/checkpoints")) is not None
    key_file = output / KEY_FILE
    key_of_model = key_file.read_text("utf-8") if key_file.exists() else ""
    if not has_run or key_of_model not in ("", key):
        model = output / "model"
        check_output(model, overwrite, find_format(model).files)


def evaluate_model(model: Path, manifest: Manifest, split: Split, output: Path) -> None:
    """Evaluates a model on the faces of a split, beside the default model if it has all classes.

    The results also complete the model card.

    Args:
        model: The folder of the model.
        manifest: The faces of the split.
        split: The name of the split.
        output: The folder of the results.
    """
    faces = predict_manifest(load(model), manifest, split)
    facts = {"data": str(manifest.path), "model": str(model), "split": split}
    second = None
    against = ""
    if set(faces.labels) <= set(load().labels):
        second = predict_manifest(load(classes=faces.labels), manifest, split)
        against = DEFAULT_MODEL
        facts["against"] = f"{DEFAULT_MODEL} with these classes"

    results = replace(score(faces, second=second, against=against), facts=facts)
    if results.notes:
        LOGGER.warning("\n".join(results.notes))
    # The card is completed before the page is written, which marks a finished run.
    sets = {"This model": ALL} | ({DEFAULT_MODEL: OTHER} if second else {})
    models = {}
    for name, of_model in sets.items():
        rows = results.select(EXPRESSION, of_model)
        models[name] = {row.measure: row.estimate for row in rows}
    lines = result_lines(models)
    complete_card(model / CARD_FILE, faces.labels, lines, len(manifest))
    results.write(output)
    LOGGER.info("\n".join([f"Results on {len(manifest)} held-out photos ({split}):", *lines]))


def result_lines(models: Mapping[str, Mapping[str, Estimate]]) -> list[str]:
    """Returns a line with the scores of each model, by name."""
    lines = []
    for name, scores in models.items():
        accuracy = estimate_text(scores["accuracy"], ".1%")
        recall = estimate_text(scores["UAR"], ".1%")
        lines.append(f"- {name}: accuracy {accuracy}, UAR {recall}")
    return lines


def complete_card(card: Path, labels: Sequence[str], results: Sequence[str], photos: int) -> None:
    """Replaces the text to be filled in of a model card by scores.

    A card without this text stays unaltered.

    Args:
        card: The card.
        labels: The classes of the model.
        results: Lines with the scores of the model, and of the one that it is compared with.
        photos: Number of held-out photos.
    """
    lines = [
        f"Trained by `fer-vit finetune` on {', '.join(labels)}. "
        f"Results on {photos} held-out photos:",
        "",
        *results,
        "",
    ]
    lines.append("To be filled in: who is in the photos, who labelled them, prohibited uses.")

    text = card.read_text("utf-8")
    with atomic_write(card) as new:
        new.write_text(text.replace(TO_FILL, "\n".join(lines)), "utf-8")
