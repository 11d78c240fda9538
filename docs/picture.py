"""Draws README's picture: `python -m docs.picture` writes docs/images/explanation.webp.

A face, unaltered and with a covered mouth, as `model.explain(face).plot()` draws them. The photo of
scikit-image is NASA's and in the public domain.
"""

from pathlib import Path

import cv2
from PIL import Image
from skimage.data import astronaut

from fer_vit import load

OUTPUT = Path(__file__).parent / "images" / "explanation.webp"
GAP = 40  # between the two faces in pixels


def cover_mouth(photo):
    """Returns the photo with a rectangle of skin colour over the mouth."""
    covered = photo.copy()
    cv2.rectangle(covered, (196, 128), (250, 160), (205, 168, 148), -1)
    return covered


def main() -> None:
    """Writes the picture."""
    model = load(device="cpu")
    photo = astronaut()
    plots = []
    for shown in (photo, cover_mouth(photo)):
        face = max(model.predict(shown), key=lambda face: face.size)
        plots.append(model.explain(face).plot())

    width, height = plots[0].size
    picture = Image.new("RGB", (2 * width + GAP, height), "white")
    for number, plot in enumerate(plots):
        picture.paste(plot, (number * (width + GAP), 0))
    picture.save(OUTPUT, quality=85, method=6)


if __name__ == "__main__":
    main()
