"""The faces that the page of an evaluation shows: mistakes, and labels that are likely wrong."""

import numpy as np
from PIL import Image as Pil

from fer_vit.errors import FerVitError
from fer_vit.geometry import Array
from fer_vit.report.results_page import Card
from fer_vit.stats.scores import face_losses, suspect_labels
from fer_vit.tables.labelled import Labelled

MAX_CARDS = 500  # most faces on the page, so that the page opens quickly
PICTURE_SIDE = 96  # the longer side of a picture, in pixels


def choose_cards(faces: Labelled, targets: Array) -> tuple[list[Card], int]:
    """Returns the faces to look at, by descending loss, and the number left out.

    `targets` (N, C) are the fractions of the votes for the labels of the faces (N).
    """
    second_probabilities = faces.second_probabilities  # (N, C)
    if second_probabilities is None:
        second_probabilities = np.full_like(faces.probabilities, np.nan)
    truth = targets.argmax(1)  # (N,)
    guess = faces.probabilities.argmax(1)  # (N,)
    has_second = np.isfinite(second_probabilities[:, 0])  # (N,)
    second = np.where(has_second, np.nan_to_num(second_probabilities).argmax(1), guess)  # (N,)

    loss = face_losses(faces.probabilities, targets)  # (N,)
    second_loss = face_losses(second_probabilities, targets)
    # The loss of the other model counts where only the other model is wrong.
    loss = np.where(guess == truth, np.fmax(loss, second_loss), loss)

    better = dict(suspect_labels(faces.probabilities, targets).tolist())  # a class, by face
    suspect = np.isin(np.arange(len(guess)), [*better])
    shown = np.flatnonzero((guess != truth) | (guess != second) | suspect)
    shown = shown[np.argsort(-loss[shown], kind="stable")]

    cards = []
    for row in shown[:MAX_CARDS].tolist():
        kinds = []
        lines = []
        if guess[row] != truth[row]:
            kinds.append("mistake")
        if row in better:
            kinds.append("label")
            lines.append(f"perhaps {faces.labels[better[row]]}")
        if guess[row] != second[row]:
            kinds.append("differ")
            lines.append(f"the other: {faces.labels[second[row]]}")
        card = Card(
            picture=face_thumbnail(faces, row),
            name=str(faces.paths[row]),
            truth=int(truth[row]),
            guess=int(guess[row]),
            confidence=float(faces.probabilities[row].max()),
            kinds=kinds,
            lines=lines,
        )
        cards.append(card)
    return cards, max(0, len(shown) - MAX_CARDS)


def face_thumbnail(faces: Labelled, row: int) -> Pil.Image | None:
    """Returns a small picture of a face; None when its image cannot be read."""
    try:
        picture = Pil.fromarray(faces.picture(row))
    except FerVitError:
        return None
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    return picture
