"""Expression names. Inside fer-vit an expression is a name; an index exists only next to the list that orders it."""

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
    """Returns the name that fer-vit uses for an expression.

    Known synonyms in any case become FERPlus' noun ("Happy" -> "happiness"); a name that is not known stays, in lower
    case, so that data sets with classes of their own work too.
    """
    name = name.strip().lower()
    return SYNONYMS.get(name, name)


def check_labels(names: Sequence[object], path: object) -> None:
    """Checks labels read from a file or folder: people must be able to read them and to tell them apart.

    Args:
        names: What the file has for labels.
        path: What to call the file in messages.

    Raises:
        FerVitError: They are none, too many, the same, or not text that can be shown.
    """
    odd = [name for name in names if not (isinstance(name, str) and len(name) <= 100 and name.isprintable() and name)]
    if odd:
        raise FerVitError(f"{path}: expected labels of 1 to 100 printable characters, but got {short(ascii(odd[0]))}.")
    if not 0 < len(set(names)) == len(names) <= 1000:
        came = short(", ".join(map(str, names)) or "none")
        raise FerVitError(f"{path}: expected 1 to 1,000 labels that differ from each other, but got {came}.")
