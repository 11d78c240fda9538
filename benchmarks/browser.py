"""Measures the page that computes in the visitor's browser, in Chromium.

python -m benchmarks.browser build/web --photos photos

`build/web` is what `make web` builds. Prints frames a second and milliseconds a face with one
thread and with threads; with `--photos`, also how far the page's numbers are from those of
`fer-vit predict`, at both precisions.
"""

import csv
import subprocess
import tempfile
from pathlib import Path
from statistics import mean, median

import numpy as np
from playwright.sync_api import Browser, Page, expect

from benchmarks.machine import PROGRAM, machine, run_main, spread
from fer_vit.face.image import encode_png, read_image
from fer_vit.geometry import Image
from tests.helpers.browser import chromium
from tests.web.conftest import served
from tests.web.photos import SAMPLE

PRECISIONS = {"int8": "model.int8.onnx", "float32": "model.onnx"}
FACES = (1, 4)

# Asks the page's worker for the faces of a picture again and again; returns milliseconds.
MEASURE = """async ([network, picture, rounds]) => {
  const worker = new Worker('worker.js', {type: 'module'});
  const ask = (kind, request, moved = []) => new Promise((done, fail) => {
    worker.onmessage = ({data}) => {
      if ('answer' in data) done(data.answer);
      if ('error' in data) fail(new Error(data.error));
    };
    worker.postMessage({id: 1, kind, ...request}, moved);
  });
  await ask('load', {model: network});
  const image = new Image();
  image.src = picture;
  await image.decode();
  const times = [];
  let faces = 0;
  for (let round = -2; round < rounds; round += 1) {
    const bitmap = await createImageBitmap(image);
    const start = performance.now();
    faces = (await ask('frame', {bitmap}, [bitmap])).faces.length;
    if (round >= 0) times.push(performance.now() - start);
  }
  worker.terminate();
  return {times, faces};
}"""


def scene(faces: int) -> Image:
    """Draws faces of 57 pixels in a grey picture (480, 640, 3)."""
    picture = np.full((480, 640, 3), 120, np.uint8)
    portrait = read_image(SAMPLE)[:256:2, 100:356:2]  # (128, 128, 3)
    for number in range(faces):
        left = 10 + 158 * number
        picture[170:298, left : left + 128] = portrait
    return picture


def write_scenes(folder: Path) -> None:
    """Writes the pictures beside the page, which loads nothing from elsewhere."""
    for faces in FACES:
        (folder / f"scene{faces}.png").write_bytes(encode_png(scene(faces)))


def speed(browser: Browser, site: Path, rounds: int) -> None:
    """Prints the time of a frame with one face, and of each further face."""
    print("| precision | threads | frames a second, 640 x 480, one face | ms a further face |")
    print("| --- | ---: | ---: | ---: |")
    for isolated in (False, True):
        with served(site, isolated) as address:
            page = browser.new_page()
            page.goto(address)
            expect(page.get_by_text("Ready.")).to_be_visible()
            cores = page.evaluate("Math.min(4, navigator.hardwareConcurrency)")
            for precision, network in PRECISIONS.items():
                times: dict[int, list[float]] = {}
                for faces in FACES:
                    name = f"scene{faces}.png"
                    measured = page.evaluate(MEASURE, [network, name, rounds])
                    assert measured["faces"] == faces
                    times[faces] = measured["times"]
                rates = [1000 / time for time in times[1]]
                few, many = FACES
                further = (median(times[many]) - median(times[few])) / (many - few)
                threads = cores if isolated else 1
                print(
                    f"| {precision} | {threads} | {spread(rates, 1)} | {further:.0f} |", flush=True
                )
            page.close()


def rows_of_page(page: Page, photos: list[Path], network: str) -> list[dict[str, str]]:
    """Returns the rows of the page's table."""
    page.locator("details.options").evaluate("options => { options.open = true; }")
    page.get_by_label("Network").select_option(network)
    expect(page.locator(".state progress")).to_be_hidden()
    page.set_input_files(".drop input", [str(path) for path in photos])
    done = page.get_by_text(f"Done: {len(photos)} file")
    expect(done).to_be_visible(timeout=1000 * 60 * len(photos))
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the table").click()
    page.get_by_role("button", name="Remove all").click()
    return read_table(Path(download.value.path()))


def read_table(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table by column, with names of files instead of paths."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        row["path"] = Path(row["path"]).name
    return rows


def kind_of(column: str) -> str:
    """Returns the kind of numbers to which a column belongs."""
    if column.startswith("p_"):
        return "probabilities"
    if column.startswith("box_") or column.endswith(("_x", "_y")):
        return "boxes and landmarks, pixels"
    if column.startswith("move_"):
        return "movements"
    return {
        "yaw": "head pose, degrees",
        "pitch": "head pose, degrees",
        "roll": "head pose, degrees",
        "valence": "valence and arousal",
        "arousal": "valence and arousal",
    }.get(column, "")


def agreement(browser: Browser, site: Path, photos: Path) -> None:
    """Prints the differences between the page and `fer-vit predict`."""
    files = sorted(path for path in photos.iterdir() if path.is_file())
    print("\n| precision | numbers | mean difference | 99% are below | largest |")
    print("| --- | --- | ---: | ---: | ---: |")
    with served(site) as address, tempfile.TemporaryDirectory() as folder:
        page = browser.new_page()
        page.goto(address)
        expect(page.get_by_text("Ready.")).to_be_visible()
        for precision, network in PRECISIONS.items():
            ours = rows_of_page(page, files, network)
            table = Path(folder, f"{precision}.csv")
            words = [PROGRAM, "predict", photos, "--output", table, "--precision", precision]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            theirs = read_table(table)
            keys = [[(row["path"], row["face"]) for row in rows] for rows in (ours, theirs)]
            pairs = [pair for pair in zip(ours, theirs, strict=True) if pair[0]["face"]]
            labels = mean(row["label"] == other["label"] for row, other in pairs)
            print(
                f"| {precision} | {len(pairs)} faces in {len(files)} photos: "
                f"{'the same' if keys[0] == keys[1] else 'others'}; same label | {labels:.2%} | | |"
            )
            differences: dict[str, list[float]] = {}
            for row, other in pairs:
                for column, cell in row.items():
                    if kind_of(column) and cell and other[column]:
                        difference = abs(float(cell) - float(other[column]))
                        differences.setdefault(kind_of(column), []).append(difference)
            for kind, found in differences.items():
                high = np.quantile(found, 0.99)
                print(
                    f"| | {kind} | {mean(found):.5f} | {high:.5f} | {max(found):.5f} |", flush=True
                )
        page.close()


def main(site: Path, photos: Path | None = None, rounds: int = 30) -> None:
    """Runs the measurements."""
    with chromium() as browser:
        print(f"{machine()}, Chromium {browser.version}\n")
        write_scenes(site)
        speed(browser, site, rounds)
        if photos is not None:
            agreement(browser, site, photos)


if __name__ == "__main__":
    run_main(main)
