"""The command `distill`: mixes the predictions of trained models into the votes of a manifest."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fer_vit.data.dataset import FaceDataset, crop_mirrored, face_crops
from fer_vit.data.manifest import Manifest, in_fold
from fer_vit.data.schema import check_manifest_name
from fer_vit.errors import FerVitError, check_number, check_whole, short
from fer_vit.evaluation.logits import predict_logits
from fer_vit.files import check_output
from fer_vit.geometry import Array
from fer_vit.model.attention import has_bf16
from fer_vit.predict.recognizer import FACES_PER_PASS, Recognizer, load
from fer_vit.store.checkpoint import load_checkpoint
from fer_vit.store.folder import load_network
from fer_vit.texts import as_dict

LOGGER = logging.getLogger("fer_vit")


def distill(
    teachers: list[Path],
    manifest: Path,
    output: Path,
    *,
    weight: float = 0.5,
    unlabelled: Path | None = None,
    per_class: int | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a manifest whose votes are mixed with the predictions of trained models.

    The votes of a training face are mixed with the mean probabilities of the teachers for the face
    and its mirror image. The faces of val and test keep their votes. The method is Hinton et al.,
    "Distilling the Knowledge in a Neural Network" (2015), at temperature 1.

    A teacher is overconfident on its training faces. A teacher trained with `fit --data.fold 0/3`
    predicts only the held-out third; three such teachers predict all faces.

    `--unlabelled` adds faces without labels, with the teachers' predictions as votes (noisy
    student, Xie et al. 2020). Unlike in this paper, `--per_class` keeps random faces of a common
    expression, not the most confident faces, and repeats no faces of a rare expression.

    Examples:
        fer-vit distill large.ckpt ferplus.parquet distilled.parquet

        fer-vit distill a.ckpt b.ckpt c.ckpt ferplus.parquet distilled.parquet --weight 0.7

        fer-vit distill a.ckpt faces.parquet all.parquet --unlabelled new.parquet --per_class 4000

    Args:
        teachers: Checkpoints of `fer-vit fit`, folders of `fer-vit export` or names from `fer-vit
            models`.
        manifest: The teachers' training faces: a table of `fer-vit prepare` with labels.
        output: The manifest to write.
        weight: The weight of the teachers in the new votes, from 0 to 1.
        unlabelled: A manifest that was prepared for the same labels. The training faces in this
            manifest are added with the teachers' votes. Labels in this manifest are not read, and
            faces without landmarks are left out.
        per_class: The largest number of unlabelled faces to add for each predicted expression.
            Default: all.
        overwrite: Whether an existing manifest may be replaced. The input is never replaced.
    """
    check_number("weight", weight, 0, 1)
    check_whole("per_class", 1 if per_class is None else per_class, 1)
    if per_class is not None and unlabelled is None:
        raise FerVitError("`--per_class` counts faces of `--unlabelled`. Name it, or leave it out.")
    if unlabelled is not None and unlabelled.resolve() == manifest.resolve():
        raise FerVitError(
            f"`--unlabelled` adds other faces, but {unlabelled} is the manifest itself. "
            "Leave it out."
        )
    check_manifest_name(output)
    check_output(output, overwrite)
    labelled = Manifest.read(manifest)
    labelled.check_copy(output)
    train = labelled.split("train")
    votes = train.targets()  # (N, C)
    if not len(train):
        raise FerVitError(f"Expected training faces in {manifest}, but there is none.")
    if votes is None:
        num_without = train.table["label"].null_count
        raise FerVitError(
            f"Expected a label for each training face in {manifest}, but {num_without:,} of "
            f"{len(train):,} have none. Put these into another manifest, for `--unlabelled`."
        )

    faces = train
    added = None
    if unlabelled is not None:
        added = read_unlabelled(unlabelled, labelled.labels)
        added.check_copy(output)
        faces = train.with_faces(added)

    shares = average_teachers(teachers, faces, votes)  # (N + M, C)
    mixed = (1 - weight) * votes + weight * shares[: len(train)]  # (N, C)
    distilled = labelled.with_votes("train", mixed)
    if added:
        distilled = distilled.with_faces(add_votes(added, shares[len(train) :], per_class))
    distilled.write(output)
    LOGGER.info(f"{output}: {len(distilled):,} rows")
    if distilled.outputs:
        heads = ", ".join(distilled.outputs)
        LOGGER.info(f"Targets of {heads} are unaltered: only votes are mixed.")


def read_unlabelled(manifest_path: Path, labels: Sequence[str]) -> Manifest:
    """Returns the training faces with landmarks. The faces need no labels.

    Logs how many faces are left out.

    Raises:
        FerVitError: There is no such face, or the manifest was prepared for other labels.
    """
    pool = Manifest.read(manifest_path, ["train"]).split("train")
    pool.check_labels(labels)
    has_landmarks = np.isfinite(pool.landmarks()).all((1, 2))
    has_score = np.array(pool.column("score"), float) != 0
    detected = has_landmarks & has_score  # (N,)
    faces = pool.select(detected)
    if not len(faces):
        raise FerVitError(
            f"Expected training faces with landmarks in {manifest_path}, but there is none."
        )
    LOGGER.info(
        f"{manifest_path}: {len(faces):,} training faces; "
        f"{(~detected).sum():,} more were not detected and are left out"
    )
    return faces


def average_teachers(teachers: list[Path], faces: Manifest, votes: Array) -> Array:
    """Returns the mean probabilities (M, C) of teachers for M faces; logs their agreement.

    `votes` (N, C) are the votes for the first N faces, as fractions. A teacher with a held-out fold
    predicts only this fold of the first N faces.

    Raises:
        FerVitError: A teacher has other labels, or no teacher predicts some faces.
    """
    folds = [read_fold(teacher) for teacher in teachers]
    labelled = faces.select(np.arange(len(faces)) < len(votes))
    # which faces each teacher predicts (teachers, M)
    predicted = np.ones((len(teachers), len(faces)), bool)
    for index, fold in enumerate(folds):
        if fold:
            predicted[index, : len(votes)] = in_fold(labelled, fold)
    missing = (~predicted.any(0)).sum()
    if missing:
        raise FerVitError(
            f"{missing:,} faces were seen by every teacher in training. Add teachers of the other "
            "folds."
        )

    total = np.zeros((len(faces), len(faces.labels)))  # (M, C)
    for teacher, fold, mask in zip(teachers, folds, predicted, strict=True):
        model = load(load_network(str(teacher)), name=str(teacher))
        faces.check_labels(model.labels)
        probabilities = predict_with_flip(model, faces, np.flatnonzero(mask).tolist())
        total[mask] += probabilities
        agreed = agreement_text(probabilities, votes[mask[: len(votes)]])
        which = f"of its held-out fold {fold}" if fold else "that it may have learned"
        LOGGER.info(f"{teacher}: agrees with {agreed} faces {which}")
        if model.outputs:
            heads = ", ".join(model.settings.outputs)
            LOGGER.info(f"{teacher}: its {heads} are not distilled, only its expressions")
    total /= predicted.sum(0)[:, None]
    LOGGER.info(f"Together they agree with {agreement_text(total, votes)} faces")
    return total


def read_fold(teacher: Path) -> str | None:
    """Returns the held-out fold of a teacher; None without a held-out fold.

    Raises:
        FerVitError: The teacher started from a model that may have learned the held-out fold.
    """
    checkpoint = load_checkpoint(teacher) if teacher.is_file() else {}
    fold = as_dict(checkpoint.get("FaceDataModule")).get("fold")
    start = checkpoint.get("starts_from")
    if fold and start:
        reason = (
            f"started from {short(start)}, which may have learned the faces of the held-out fold"
        )
        raise FerVitError(
            f"{teacher} {reason}. Train it without `--model.init`, or from masked pretraining."
        )
    return None if fold is None else str(fold)


def predict_with_flip(teacher: Recognizer, faces: Manifest, rows: list[int]) -> Array:
    """Returns the probabilities (M, C) from a teacher for the faces in M rows.

    The probabilities are means over a face and its mirror image. They are without the logit
    adjustment, which would raise rare classes again in each generation.
    """
    logits = []
    with torch.autocast(
        torch.device(teacher.device).type, torch.bfloat16, enabled=has_bf16("auto")
    ):
        for augment in (None, crop_mirrored):
            dataset = FaceDataset(faces, teacher.crop_spec, augment)
            batches = face_crops(dataset, rows, FACES_PER_PASS)
            logits.append(predict_logits(teacher, batches))  # (M, C)
    return torch.stack(logits).double().softmax(-1).mean(0).numpy()


def agreement_text(probabilities: Array, votes: Array) -> str:
    """Formats how often probabilities (M, C) and votes (N, C) are largest for the same class.

    Only the first N faces count.
    """
    same = probabilities[: len(votes)].argmax(1) == votes.argmax(1)
    return f"{same.mean():.1%} of {len(votes):,}"


def add_votes(faces: Manifest, votes: Array, per_class: int | None) -> Manifest:
    """Returns faces with votes (M, C), and the class with the most votes as label.

    At most `per_class` random faces of each class are returned. Logs the counts by class.
    """
    labels = votes.argmax(1)  # (M,)
    order = np.random.default_rng(0).permutation(len(votes))
    keep = np.zeros(len(votes), bool)  # (M,)
    for label, name in enumerate(faces.labels):
        of_label = order[labels[order] == label]  # indices
        keep[of_label[:per_class]] = True
        line = f"  {name}: {len(of_label[:per_class]):,} of {len(of_label):,} faces"
        if len(of_label):
            line += f", mean confidence {votes[of_label, label].mean():.2f}"
        LOGGER.info(line)

    voted = faces.with_votes("train", votes)
    voted = voted.with_column("label", [faces.labels[label] for label in labels])
    return voted.select(keep)
