"""The names of expressions."""

from collections.abc import Sequence

from fer_vit.errors import FerVitError, short

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

    Any other name is kept, in lower case, so that data sets with classes of their own work too.
    """
    name = name.strip().lower()
    return SYNONYMS.get(name, name)


def check_labels(names: Sequence[object], path: object) -> None:
    """Raises FerVitError when labels from a file or folder are unreadable or not distinct."""
    odd = [name for name in names if not (isinstance(name, str) and len(name) <= 100 and name.isprintable() and name)]
    if odd:
        raise FerVitError(f"{path}: expected labels of 1 to 100 printable characters, but got {short(ascii(odd[0]))}.")
    if not 0 < len(set(names)) == len(names) <= 1000:
        came = short(", ".join(map(str, names)) or "none")
        raise FerVitError(f"{path}: expected 1 to 1,000 labels that differ from each other, but got {came}.")
