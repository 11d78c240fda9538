"""Draws README's picture: `python -m docs.picture` writes docs/images/explanation.webp.

A face, unaltered and with a covered mouth: its expression, and what pixels and
regions contribute to it. The photo of scikit-image is NASA's and in the public domain.
"""

from pathlib import Path

import cv2
import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from skimage.data import astronaut

from fer_vit import load

OUTPUT = Path(__file__).parent / "images" / "explanation.webp"
SIDE = 480  # of a drawn face in pixels
FOR, AGAINST = "#e0580c", "#1f77d0"
COLOURS = LinearSegmentedColormap.from_list("contribution", [AGAINST, "#ffffff", FOR])
SHOWN = 5  # regions with the largest contributions


def cover_mouth(photo):
    """Returns the photo with a rectangle of skin colour over the mouth."""
    covered = photo.copy()
    cv2.rectangle(covered, (196, 128), (250, 160), (205, 168, 148), -1)
    return covered


def draw(axes, bars, model, photo):
    """Draws the largest face of a photo with its heat map, and its regions as bars."""
    face = max(model.predict(photo), key=lambda face: face.size)
    explanation = model.explain(face)
    heat = explanation.heat[0].cpu().numpy()
    shares = explanation.shares[0].cpu().numpy()

    size = heat.shape[-1]
    matrix = np.asarray(face.to_crop) * SIDE / size
    crop = cv2.warpAffine(photo, matrix, (SIDE, SIDE), flags=cv2.INTER_CUBIC)
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)
    smooth = cv2.GaussianBlur(heat, (0, 0), sigmaX=1.0)
    large = cv2.resize(smooth, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    strength = np.abs(large) / np.quantile(np.abs(large), 0.995)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
    axes.imshow(np.sign(large), cmap=COLOURS, vmin=-1, vmax=1, alpha=np.clip(strength, 0, 0.85))
    axes.set_axis_off()
    axes.set_title(f"{face.label} {face.confidence:.0%}", loc="left", fontsize=15, weight="bold")

    names = [name.replace("_", " ") for name in model.crop_spec.regions]
    order = np.argsort(-np.abs(shares))[:SHOWN][::-1]
    colours = [FOR if share > 0 else AGAINST for share in shares[order]]
    bars.barh([names[index] for index in order], shares[order], color=colours, height=0.55)
    for row, share in enumerate(shares[order]):
        side = np.sign(share)
        bars.annotate(
            f"{share:+.0%}",
            (share, row),
            (4 * side, 0),
            textcoords="offset points",
            va="center",
            ha="left" if side > 0 else "right",
            fontsize=11,
        )
    bars.axvline(0, color="#888888", linewidth=0.8)
    bars.set_xlim(-0.5, 0.8)
    bars.set_xticks([])
    bars.tick_params(length=0, labelsize=12)
    bars.spines[:].set_visible(False)


def main() -> None:
    """Writes the picture."""
    mpl.rcParams["font.family"] = "DejaVu Sans"
    figure = Figure((12.0, 3.1), dpi=120, facecolor="white")
    model = load(device="cpu")
    photo = astronaut()
    for left, shown in ((0.0, photo), (0.5, cover_mouth(photo))):
        face = figure.add_axes((left + 0.005, 0.03, 0.22, 0.84))
        bars = figure.add_axes((left + 0.315, 0.03, 0.175, 0.84))
        draw(face, bars, model, shown)
    figure.savefig(OUTPUT, pil_kwargs={"quality": 82, "method": 6})


if __name__ == "__main__":
    main()
