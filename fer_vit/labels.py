"""Expression names. Inside fer-vit an expression is a name; an index exists only next to the list that orders it."""

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
