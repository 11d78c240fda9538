"""Notes about the classes of a data set: few training images, and similar names."""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from fer_vit.data.schema import Reading
from fer_vit.labels import EXPRESSIONS
from fer_vit.wording import list_names

SIMILARITY = 0.84  # least similarity of names that differ by a letter or two: suprise, surprise
OPPOSITE = re.compile(r"(?:un|in|im|dis|non|a)[\W_]*")


def class_notes(reading: Reading) -> list[str]:
    """Returns notes about classes with few training images, and about similar names."""
    train = [row.label for row in reading.rows if row.split == "train"]
    counts = Counter(label for label in train if label is not None)
    notes = []
    # in FairFace, no row has a label
    if train and reading.has_labels:
        without_images = [name for name in reading.labels if counts[name] == 0]
        with_one_image = [name for name in reading.labels if counts[name] == 1]
        if without_images:
            notes.append(f"No training image of {list_names(without_images, limit=8)}.")
        if with_one_image:
            notes.append(f"Only one training image of {list_names(with_one_image, limit=8)}.")

    for first, second in similar_names(reading.labels):
        if second in reading.labels:
            note = (
                f"The classes {first} and {second} have similar names: if both are the same class, "
                "give both folders the same name."
            )
        else:
            note = (
                f"The class {first} has a name similar to {second}: if it is {second}, rename the "
                "folder."
            )
        notes.append(note)
    return notes


def similar_names(names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns pairs of names that may be misspelled: two classes, or a class and an expression."""
    pairs = []
    for number, first in enumerate(names):
        candidates = list(names[number + 1 :])
        if first not in EXPRESSIONS:
            candidates += [name for name in EXPRESSIONS if name not in names]
        for second in candidates:
            if _are_similar(first, second):
                pairs.append((first, second))
    return pairs


def _are_similar(first_name: str, second_name: str) -> bool:
    """Returns whether two names differ by few letters.

    Names that differ only by a number, or by a prefix such as `un`, are not similar.
    """
    first = _letters_and_digits(first_name)
    second = _letters_and_digits(second_name)
    if re.sub(r"\d", "", first) == re.sub(r"\d", "", second):
        return first == second
    shorter, longer = sorted((first, second), key=len)
    if longer.endswith(shorter) and OPPOSITE.fullmatch(longer.removesuffix(shorter)):
        return False
    return SequenceMatcher(None, first, second).ratio() >= SIMILARITY


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()
