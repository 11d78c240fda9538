"""The verb `finetune`: from a folder of photos to a model of one's own, and how good it is."""

import json
from collections import Counter
from hashlib import file_digest, sha256
from pathlib import Path

from fer_vit.commands.evaluate import evaluate
from fer_vit.commands.export import CALIBRATES, export
from fer_vit.commands.prepare import prepare
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError
from fer_vit.files import check_output
from fer_vit.predict.results import table_columns
from fer_vit.sources.archive import is_zip
from fer_vit.store.folder import read_model
from fer_vit.store.hub import DEFAULT
from fer_vit.train.checkpoints import newest_checkpoint
from fer_vit.train.cli import train

FEWEST = 8
"""Photos of each class to learn from, at least: what is left of ten when one is held out to choose, one to judge."""


def finetune(
    photos: Path, *, output: Path = Path("mine"), checkpoint: str | None = None, overwrite: bool = False
) -> None:
    """Makes a model that knows your classes out of your photos: prepare, fit, export and evaluate in one go.

    Each class has a folder of photos that is named after it (photos/calm/*.jpg, photos/bored/*.jpg), ten of each at
    least; in it, each person may have a folder of their own. Photos of some persons, else some photos, are held out: to
    choose the best epoch, and to judge the model. OUTPUT/model is the model, OUTPUT/evaluation/index.html says how good
    it is. The same command resumes what was interrupted. `fer-vit fit --config finetune` has every option.

    Examples:
        fer-vit finetune photos

        fer-vit finetune photos.zip --output moods

        fer-vit finetune faces.parquet --checkpoint best.ckpt

    Args:
        photos: A folder, or a zip of it, with a folder for each class; or a manifest.
        output: The folder to write: model, evaluation, faces.parquet (the faces that were found), training (the logs).
        checkpoint: The model to start from: a checkpoint of `fer-vit fit`, a folder of `fer-vit export`, a name from
            `fer-vit models` or "user/name" on the Hugging Face hub. Left out: the model that comes with fer-vit.
        overwrite: Whether existing results may be replaced.
    """
    model, page = output / "model", output / "evaluation"
    check_output(page, overwrite)  # what is made last: whatever else is there is of a run that was interrupted
    settings, _ = read_model(checkpoint or DEFAULT, pretraining=True)  # a wrong name is told before minutes of work
    manifest = find_faces(photos, output / "faces.parquet", settings.get("align"), overwrite)
    counts = check_enough(manifest)
    enough = counts["val"] >= CALIBRATES
    logs = f"training/{fingerprint(manifest, checkpoint or DEFAULT)}"
    last = newest_checkpoint(output.glob(f"{logs}/*/checkpoints"))
    if not last:
        check_output(model, overwrite)  # it has learned other faces
    if overwrite or not model.exists():
        best = fit(manifest, checkpoint or DEFAULT, output, logs, None if overwrite else last)
        export(model, checkpoint=[best], calibrate=manifest if enough else None, overwrite=overwrite)
    evaluate(
        manifest,
        checkpoint=str(model),
        split="test" if counts["test"] else "val",
        output=page,
        overwrite=overwrite,
    )
    if not counts["test"]:
        print("No photo is left to judge it by: the page is about those that chose the epoch, and flatters.")
    if not enough:
        print(f"Confidence is not calibrated: {counts['val']} photos chose the epoch, and that takes {CALIBRATES}.")
    print(f"Your model: {model}\nHow good it is: {page / 'index.html'}")


def find_faces(photos: Path, manifest: Path, align: str | None, overwrite: bool) -> Path:
    """Writes a manifest of the faces in a folder or zip, unless it is there or given; returns its path.

    Raises:
        FerVitError: There are no photos, or the model to start from (`align`) takes no faces that are cut out.
    """
    if photos.suffix.lower() == ".parquet":
        return photos
    if align == "crop":
        raise FerVitError(
            "`finetune` cuts faces out of photos, but this model takes crops as they are (align: crop). Start from "
            "another, or name a manifest of crops."
        )
    if manifest.exists() and not overwrite:
        print(f"The faces are those of {manifest}: `--overwrite` reads {photos} again.")
        return manifest
    if not (photos.is_dir() or is_zip(photos)):
        raise FerVitError(
            "Expected a folder with a folder of photos for each class, a zip of it, or a manifest (.parquet), but "
            f"there is none at {photos}."
        )
    prepare("folder", photos, manifest, cut=True, overwrite=overwrite)
    return manifest


def check_enough(manifest: Path) -> Counter[str]:
    """Counts the photos of each split.

    Raises:
        FerVitError: There are too few of a class to learn from, or none to choose the epoch by, or `predict` has
            another column of a class's name.
    """
    rows = Manifest.read(manifest)
    table_columns([*rows.names], videos=True)
    counts, learned = Counter(rows.column("split")), Counter(rows.split("train").column("label"))
    if few := [f"{learned[name]} of {name}" for name in rows.names if learned[name] < FEWEST]:
        raise FerVitError(
            f"Expected at least {FEWEST} photos of each class to learn from, besides some that are held out, but got "
            f"{', '.join(few)}. Add photos, or take these classes away, and add `--overwrite`."
        )
    if not counts["val"]:
        raise FerVitError("No photo with a face is left to choose the epoch by. Add photos, and `--overwrite`.")
    return counts


def fingerprint(manifest: Path, start: str) -> str:
    """Returns some letters that tell faces, and models to start from, apart."""
    with manifest.open("rb") as file:
        return sha256(file_digest(file, "sha256").digest() + start.encode()).hexdigest()[:8]


def fit(manifest: Path, start: str, output: Path, logs: str, last: Path | None) -> str:
    """Trains as configs/finetune.yaml says, or goes on from the `last` checkpoint; returns the best one."""
    if last:
        print(f"The training goes on from {last}: `--overwrite` starts over.")
    logger = "lightning.pytorch.loggers.TensorBoardLogger"
    options = {
        "data.manifest": manifest,
        "model.init": start,
        # JSON, because the name of a folder may look like YAML
        "trainer.logger": json.dumps({"class_path": logger, "init_args": {"save_dir": str(output), "name": logs}}),
        **({"ckpt_path": last} if last else {}),
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return str(train(["fit", "--config=finetune", *words])["checkpoint"])
