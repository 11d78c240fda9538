"""The verb `distill`: mixes the predictions of trained models into the votes that the next one learns from."""

from pathlib import Path

import numpy as np
import torch

from fer_vit.data.folds import in_fold
from fer_vit.data.manifest import Manifest
from fer_vit.errors import FerVitError, check_number
from fer_vit.evaluate.labelled import check_same_labels, face_batches
from fer_vit.files import check_output
from fer_vit.geometry import Array
from fer_vit.model.precision import has_bf16
from fer_vit.predict.recognizer import Recognizer, load
from fer_vit.store.checkpoint import as_dict, load_checkpoint


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
    """Writes a manifest in which the votes of training faces are mixed with the predictions of trained models.

    The mean probabilities of the teachers, each looking at a face and at its mirror image, are mixed with the votes;
    `fer-vit fit` learns from both. The faces of val and test keep their votes. Hinton et al., "Distilling the Knowledge
    in a Neural Network" (2015), at temperature 1.

    A teacher is surest of the faces that it has learned from. One trained with `fit --data.fold 0/3` has left a third
    of them out, and judges only these; three such teachers judge all.

    `--unlabelled` adds faces that nobody has labelled, with the teachers' predictions as votes: the noisy student of
    Xie et al. (2020). Unlike there, `--per_class` keeps a random part of a common expression, not the surest faces,
    since soft votes teach doubt as well; and repeats no face of a rare one, which would be learned by heart.

    Examples:
        fer-vit distill large.ckpt data/ferplus.parquet data/distilled.parquet

        fer-vit distill a.ckpt b.ckpt c.ckpt data/ferplus.parquet data/distilled.parquet --weight 0.7

        fer-vit distill a.ckpt b.ckpt faces.parquet all.parquet --unlabelled photos.parquet --per_class 4000

    Args:
        teachers: Checkpoints of `fer-vit fit`, folders of `fer-vit export` or names from `fer-vit models`.
        manifest: What the teachers learned from: a table of `fer-vit prepare` with labels.
        output: The manifest to write.
        weight: Weight of the teachers in the new votes, from 0 to 1.
        unlabelled: A manifest, prepared for the same labels, whose training faces are added with the teachers' votes.
            Labels that it has are not read, and faces without landmarks are left out.
        per_class: How many unlabelled faces of one predicted expression to add at most. Left out: all.
        overwrite: Whether an existing manifest may be replaced; never the one that is read.
    """
    check_number("weight", weight, 0, 1)
    check_number("per_class", 1 if per_class is None else per_class, 1)
    check_output(output, overwrite)
    rows = Manifest.read(manifest)
    rows.check_copy(output)
    train, more = rows.split("train"), None
    votes = train.targets()
    if votes is None or not len(train):
        raise FerVitError(f"Expected training faces with labels in {manifest}. Prepare it with labels.")
    if unlabelled is not None:
        more = read_unlabelled(unlabelled, rows.names)
        more.check_copy(output)
    new = ask_teachers(teachers, train.append(more) if more else train, votes)
    rows = rows.with_votes("train", (1 - weight) * votes + weight * new[: len(train)])
    if more:
        rows = rows.append(add_votes(more, new[len(train) :], per_class))
    rows.write(output)
    print(f"{output}: {len(rows):,} rows")


def read_unlabelled(path: Path, names: tuple[str, ...]) -> Manifest:
    """Reads the training faces of a manifest that were found and have landmarks.

    Raises:
        FerVitError: There is none, or the manifest has other labels.
    """
    rows = Manifest.read(path, ["train"]).split("train")
    if rows.names != names:
        raise FerVitError(f"Expected labels {', '.join(names)} in {path}, but got {', '.join(rows.names)}.")
    known = np.isfinite(rows.landmarks()).all((1, 2))
    found = rows.select(known & (np.array(rows.column("score"), float) != 0))
    if not len(found):
        raise FerVitError(f"Expected training faces with landmarks in {path}, but there is none. Prepare it again.")
    print(f"{path}: {len(found):,} training faces; {len(rows) - len(found):,} more were not found and are left out")
    return found


def ask_teachers(teachers: list[Path], faces: Manifest, votes: Array) -> Array:
    """Returns the mean probabilities (M, C) of teachers for faces; prints how far they agree.

    Args:
        teachers: Those who have left a fold out judge, among the faces with votes, that fold alone.
        faces: Any number M of training faces.
        votes: The share of every class for the first N of them (N, C).

    Raises:
        FerVitError: A teacher has other labels, or there is none for some faces.
    """
    folds = [left_out(teacher) for teacher in teachers]
    judged = np.ones((len(teachers), len(faces)), bool)
    for mine, fold in zip(judged, folds, strict=True):
        if fold:
            mine[: len(votes)] = in_fold(faces.select(np.arange(len(faces)) < len(votes)), fold)
    if missing := (~judged.any(0)).sum():
        raise FerVitError(f"These teachers have learned {missing:,} of the faces. Name those of the other folds, too.")
    total = np.zeros((len(faces), len(faces.names)))
    for teacher, fold, mine in zip(teachers, folds, judged, strict=True):
        model = load(str(teacher))
        check_same_labels(model, faces)
        total[mine] += (said := judge(model, faces, np.flatnonzero(mine).tolist()))
        known = mine[: len(votes)]
        which = f"that it left out (fold {fold})" if fold else "that it may have learned"
        print(f"{teacher}: agrees with {agreement(said, votes[known])} faces {which}")
    mean: Array = total / judged.sum(0)[:, None]
    print(f"Together they agree with {agreement(mean, votes)} faces")
    return mean


def left_out(teacher: Path) -> str | None:
    """Returns the fold that a checkpoint has not learned; None for one that has left nothing out, and for a folder."""
    fold = as_dict(load_checkpoint(teacher).get("FaceDataModule")).get("fold") if teacher.is_file() else None
    return None if fold is None else str(fold)


@torch.inference_mode()
def judge(teacher: Recognizer, faces: Manifest, chosen: list[int]) -> Array:
    """Returns a teacher's probabilities (M, C) of M chosen faces, each the mean over the face and its mirror image.

    They are computed in bfloat16 where training is, which is about twice as fast.
    """
    views = []
    for mirrored in (False, True):
        batches = face_batches(teacher, faces, chosen, mirrored)
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=has_bf16("auto")):
            logits = [teacher.net(batch.image, batch.boxes, batch.valid).double().cpu() for batch in batches]
        views.append(torch.cat(logits).softmax(-1))
    return torch.stack(views).mean(0).numpy()


def agreement(probabilities: Array, votes: Array) -> str:
    """Describes how often the first probabilities (M, C) and the votes (N, C) of N faces name the same class."""
    same = probabilities[: len(votes)].argmax(1) == votes.argmax(1)
    return f"{same.mean():.1%} of {len(votes):,}"


def add_votes(faces: Manifest, votes: Array, per_class: int | None) -> Manifest:
    """Returns faces with these votes (M, C) and the class of most as label, at most `per_class` of each; says which."""
    labels, order = votes.argmax(1), np.random.default_rng(0).permutation(len(votes))
    kept = np.zeros(len(votes), bool)
    for label, name in enumerate(faces.names):
        mine = order[labels[order] == label]
        kept[mine[:per_class]] = True
        sure = f", mean confidence {votes[mine, label].mean():.2f}" if len(mine) else ""
        print(f"  {name}: {len(mine[:per_class]):,} of {len(mine):,} faces{sure}")
    return faces.with_votes("train", votes).with_labels([faces.names[label] for label in labels]).select(kept)
