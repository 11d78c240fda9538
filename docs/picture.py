"""Draws README's pictures: `python -m docs.picture` writes docs/images/*.webp.

explanation: a face, unaltered and with a covered mouth, as `model.explain(face).plot()` draws them.
report and comparison: pages of `visualize` and `compare`, as Chromium shows them; the comparison is
of drawn persons. The photo of data/sample is NASA's and in the public domain.
"""

import shutil
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from skimage.data import astronaut

import fer_vit
from fer_vit import load
from fer_vit.cli import main as run
from fer_vit.face.image import encode_png
from fer_vit.sources.cartoon import draw_face

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
SAMPLE = DOCS.parent / "data" / "sample"
GAP = 40  # between the two faces in pixels
WIDTH = 1000  # of a page in pixels
PERSONS = 8


def save(picture, name):
    """Writes a picture as docs/images/NAME.webp."""
    picture.save(IMAGES / f"{name}.webp", quality=85, method=6)


def cover_mouth(photo):
    """Returns the photo with a rectangle of skin colour over the mouth."""
    covered = photo.copy()
    cv2.rectangle(covered, (196, 128), (250, 160), (205, 168, 148), -1)
    return covered


def draw_explanation():
    """Draws the face with and without its mouth."""
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
    save(picture, "explanation")


def photograph(page: Page, file, name, top, bottom):
    """Takes a picture of a page between two heights in pixels."""
    page.goto(file.as_uri())
    page.wait_for_timeout(1000)  # the page draws its faces
    shot = file.with_suffix(".png")
    area = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    page.screenshot(path=shot, full_page=True, clip=area)
    save(Image.open(shot).convert("RGB"), name)


def draw_study(folder):
    """Draws two photos of each person at rest and after a joke, and the table of conditions."""
    labels = {"rest": "neutral", "joke": "happiness"}
    lines = ["path,condition,subject"]
    for person, condition, number in product(range(PERSONS), labels, range(2)):
        path = folder / f"p{person}_{condition}_{number}.png"
        face = draw_face(labels[condition], 2 * person + number, 192)[0]
        path.write_bytes(encode_png(face))
        lines.append(f"{path},{condition},p{person}")
    table = folder / "sessions.csv"
    table.write_text("\n".join(lines))
    return table


def main() -> None:
    """Writes the pictures."""
    draw_explanation()
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        work = Path(name)
        study = work / "study"
        study.mkdir()
        sessions = draw_study(study)
        faces = work / "faces.csv"
        run(["predict", str(study), "--output", str(faces)])
        run(
            [
                *("compare", str(faces), "--columns", str(sessions), "--by", "condition"),
                *("--person", "subject", "--baseline", "rest"),
                *("--output", str(work / "comparison")),
            ]
        )
        fer_vit.visualize([str(SAMPLE)], output=work / "report")

        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        photograph(page, work / "report" / "index.html", "report", 310, 930)
        photograph(page, work / "comparison" / "index.html", "comparison", 380, 960)
        browser.close()


if __name__ == "__main__":
    main()
