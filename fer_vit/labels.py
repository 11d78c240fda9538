"""Labels: the names of expressions, their synonyms, merges and prior, and what a label may be."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from unicodedata import normalize

import numpy as np

from fer_vit.errors import FerVitError, printable, short
from fer_vit.geometry import Array, Mask
from fer_vit.texts import user_text

EXPRESSIONS = (  # the eight expressions in FERPlus' order
    "neutral",
    "happiness",
    "surprise",
    "sadness",
    "anger",
    "disgust",
    "fear",
    "contempt",
)

SYNONYMS = {
    "neutrality": "neutral",
    "happy": "happiness",
    "surprised": "surprise",
    "sad": "sadness",
    "angry": "anger",
    "disgusted": "disgust",
    "fearful": "fear",
    "afraid": "fear",
    "contemptuous": "contempt",
}


def canonical(name: str) -> str:
    """Returns FERPlus' noun for a synonym in any case ("Happy" -> "happiness").

    Other names are returned in lower case.
    """
    # some file systems write a letter with an accent as one character, others as two
    name = normalize("NFC", name.strip().lower())
    return SYNONYMS.get(name, name)


JOINERS = {0x200C: None, 0x200D: None}  # not printable, but part of Persian words

Merge: TypeAlias = dict[str, str | None]  # new labels by old labels; None drops faces with a label


def merge_names(labels: Sequence[str], merge: Merge) -> tuple[tuple[str, ...], Array]:
    """Returns the N labels after a merge, and the matrix (C, N) from old to new labels.

    The row of a dropped label contains zeros alone. A label that is already a new label is kept.
    The merge may name old labels that do not occur.

    Raises:
        FerVitError: The merge lacks a label, or contains an invalid label.
    """
    for old in merge:
        if not isinstance(old, str):
            why = "YAML reads yes, no, null and numbers as other types"
            raise FerVitError(
                f"The merge has {old} for a label: {why}. "
                "Put such names in quotes: '{\"yes\": good}'."
            )

    merged = [merge.get(label, label) for label in labels]  # (C,)
    kept = [label for label in merged if label is not None]
    new = tuple(label for label in dict.fromkeys(merge.values()) if label in kept)  # (N,)
    missing = [label for label in kept if label not in new]
    if missing:
        raise FerVitError(
            f"Expected {short(', '.join(missing))} in the merge. Give each a new label, or null."
        )
    check_labels(new, "merge")

    matrix = np.array(merged, object)[:, None] == np.array(new, object)  # (C, N)
    return new, matrix.astype(float)


def merge_probabilities(probabilities: Array, matrix: Array) -> Array:
    """Returns the probabilities of merged labels (B, N) from the probabilities of labels (B, C).

    Probabilities of merged labels are added and divided by their sum, so that they sum to 1 without
    the dropped labels. `matrix` (C, N) is from `merge_names`.
    """
    merged = probabilities @ matrix
    return np.asarray(merged / merged.sum(1, keepdims=True))


def have_ties(targets: Array) -> Mask:
    """Returns a mask (M,) of the faces for which several labels have the largest share (M, C)."""
    largest = targets.max(1, keepdims=True)
    # the shares of merged labels are sums, with rounding errors
    return np.asarray(np.isclose(targets, largest, rtol=1e-6, atol=0).sum(1) > 1)


def read_prior(prior: str | Path | Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Returns the prior of each class, with sum 1.

    Args:
        prior: "even", numbers, or a JSON file with numbers.
        classes: The names of the classes.

    Raises:
        FerVitError: The file cannot be read, a number is not positive, or the names differ from the
            classes.
    """
    if prior == "even":
        return dict.fromkeys(classes, 1 / len(classes))
    remedy = "Expected a prior that is `even` or a readable JSON file."
    name = short(prior) if isinstance(prior, Mapping) else printable(str(prior))
    try:
        shares = prior if isinstance(prior, Mapping) else json.loads(user_text(prior, remedy))
        fits = set(shares) == set(classes) and all(0 < shares[name] < math.inf for name in classes)
    except (ValueError, TypeError) as error:
        raise FerVitError(
            "Expected a prior that is `even` or a JSON file with a number for each expression, but "
            f"got {name} ({error})."
        ) from error
    if not fits:
        raise FerVitError(
            f"Expected a positive number for each of {', '.join(classes)} in the prior {name}."
        )
    total = sum(shares[name] for name in classes)
    return {name: shares[name] / total for name in classes}


def check_labels(labels: Sequence[object], path: object, what: str = "labels") -> None:
    """Raises FerVitError when labels from a file or folder are unreadable or not distinct.

    Names of outputs obey the same rule; `what` is the word for them in messages.
    """
    for label in labels:
        if not _is_readable(label):
            raise FerVitError(
                f"{path}: expected {what} of 1 to 100 printable characters, "
                f"but got {short(ascii(label))}."
            )
    if not 0 < len(set(labels)) == len(labels) <= 1000:
        actual = short(", ".join(map(str, labels)) or "none")
        raise FerVitError(
            f"{path}: expected 1 to 1,000 {what} that differ from each other, but got {actual}."
        )


def _is_readable(name: object) -> bool:
    """Returns whether a label is text of 1 to 100 printable characters."""
    if not isinstance(name, str) or len(name) > 100:
        return False
    letters = name.translate(JOINERS)
    return bool(letters) and letters.isprintable()


def find_label(label: str, labels: Sequence[str], path: object) -> int:
    """Returns the index of a label among a model's labels.

    Raises FerVitError, with the path of the label's file, if the model does not have the label.
    """
    if label not in labels:
        raise FerVitError(
            f"{path} has the label `{short(label)}`, but the model has "
            f"{short(', '.join(labels))}. Leave these faces out, or use another model."
        )
    return labels.index(label)
