"""Draws README's animation of a report: `fer-vit visualize` on variants of NASA's photo of an astronaut.

python -m benchmarks.report_animation docs/report.webp

The photo is in the public domain and comes with scikit-image. Chromium opens the report.
"""

import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import skimage.data
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.machine import PROGRAM, arguments

SIZE = {"width": 900, "height": 640}
SECONDS = 2.0
"""How long each picture is shown."""


def write_photos(folder: Path) -> None:
    """Writes the photo, and copies with a covered mouth, turned and dark, and with few pixels."""
    photo = skimage.data.astronaut()
    covered = photo.copy()
    covered[130:165, 195:250] = photo[130:165, 195:250].mean((0, 1))
    turn = cv2.getRotationMatrix2D((223, 115), -18, 1)
    turned = cv2.warpAffine(photo, turn, photo.shape[1::-1], borderMode=cv2.BORDER_REPLICATE) * 0.6
    few = cv2.resize(cv2.resize(photo, (140, 140), interpolation=cv2.INTER_AREA), photo.shape[1::-1])
    for name, image in {"1": photo, "2_mouth_covered": covered, "3_turned": turned, "4_blurred": few}.items():
        Image.fromarray(np.asarray(image, np.uint8)).save(folder / f"{name}.png")


def take_pictures(page: Path) -> Iterator[Image.Image]:
    """Yields pictures of the list of faces, of one face with and without heat map, and of the next faces."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        tab.goto(page.resolve().as_uri())
        heat_map = tab.get_by_label("heat map")
        for act in (
            tab.locator("body").hover,
            tab.locator("button.card").first.click,
            heat_map.uncheck,
            heat_map.check,
            tab.locator("button.after").click,
            tab.locator("button.after").click,
        ):
            act()
            tab.wait_for_timeout(400)
            yield Image.open(io.BytesIO(tab.screenshot()))
        browser.close()


def main() -> None:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("output", type=Path, help="a file that ends in .webp")
    output = parser.parse_args().output
    with TemporaryDirectory() as folder:
        photos, report = Path(folder, "photos"), Path(folder, "report")
        photos.mkdir()
        write_photos(photos)
        command = [PROGRAM, "visualize", "photos", "--detector", "builtin", "--output", report]
        subprocess.run(command, cwd=folder, check=True)
        first, *others = take_pictures(report / "index.html")
    first.save(output, save_all=True, append_images=others, duration=int(1000 * SECONDS), loop=0, quality=80, method=6)
    print(f"{output}: {output.stat().st_size / 1e3:.0f} kB, {1 + len(others)} pictures")


if __name__ == "__main__":
    main()
