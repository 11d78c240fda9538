"""The names of expressions."""

from collections.abc import Sequence
from typing import TypeAlias
from unicodedata import normalize

import numpy as np

from fer_vit.errors import FerVitError, short
from fer_vit.geometry import Array

EXPRESSIONS = ("neutral", "happiness", "surprise", "sadness", "anger", "disgust", "fear", "contempt")
"""The eight expressions in FERPlus' order."""

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
    """Returns fer-vit's name for an expression: FERPlus' noun for a synonym in any case ("Happy" -> "happiness").

    Any other name is kept, in lower case, so that data sets with classes of their own work too. File systems and
    keyboards write an accent as one character or as two; here it is one.
    """
    name = normalize("NFC", name.strip().lower())
    return SYNONYMS.get(name, name)


Merge: TypeAlias = dict[str, str | None]
"""New labels by old ones; None leaves the faces of an old one out."""


def merge_names(names: Sequence[str], merge: Merge) -> tuple[tuple[str, ...], Array]:
    """Returns the labels after a merge, in its order, and which of them each of C names becomes.

    Args:
        names: The old labels. Those that are new ones already stay.
        merge: The new ones; old labels that are not among the names do not matter.

    Returns:
        The N new labels, and (C, N): a row has one 1, or none if its label is left out.

    Raises:
        FerVitError: The merge says nothing of some names, or its labels, old or new, are not valid.
    """
    if odd := [old for old in merge if not isinstance(old, str)]:
        raise FerVitError(
            f"The merge has {odd[0]} for a label: YAML reads yes, no, null and numbers as other than text. Put such "
            'names in quotes, for example --merge \'{"yes": good, "0": bad}\'.'
        )
    goals = [merge.get(name, name) for name in names]
    new = tuple(dict.fromkeys(goal for goal in merge.values() if goal is not None and goal in goals))
    if missing := [goal for goal in goals if goal is not None and goal not in new]:
        raise FerVitError(
            f"The merge says nothing of {short(', '.join(missing))}. Give each a new label, or null to leave its faces "
            "out."
        )
    check_labels(new, "merge")
    return new, np.array([[goal == label for label in new] for goal in goals], float)


def check_labels(names: Sequence[object], path: object) -> None:
    """Raises FerVitError when labels from a file or folder are unreadable or not distinct."""
    odd = [name for name in names if not (isinstance(name, str) and len(name) <= 100 and _printable(name))]
    if odd:
        raise FerVitError(f"{path}: expected labels of 1 to 100 printable characters, but got {short(ascii(odd[0]))}.")
    if not 0 < len(set(names)) == len(names) <= 1000:
        came = short(", ".join(map(str, names)) or "none")
        raise FerVitError(f"{path}: expected 1 to 1,000 labels that differ from each other, but got {came}.")


def _printable(name: str) -> bool:
    seen = name.translate({0x200C: None, 0x200D: None})  # letters are joined or not by these in Persian, say
    return bool(seen) and seen.isprintable()
