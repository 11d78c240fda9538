"""The page that computes in the browser: its numbers are Python's, and nothing leaves it."""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base
from playwright.sync_api import Browser, Page, expect

from fer_vit import load
from fer_vit.face.crop import warp
from fer_vit.face.detectors import MAX_SIDE
from fer_vit.face.image import encode_png, read_image
from fer_vit.faces import Crops
from fer_vit.geometry import Array
from fer_vit.heads import MEANS
from fer_vit.predict.recognizer import Recognizer
from fer_vit.report.table import csv_value
from tests.helpers.browser import PROGRAMS, Tab, assert_accessible
from tests.helpers.videos import Actor, scene, turned, write_video
from tests.web.conftest import served
from tests.web.photos import SAMPLE, crowd, write_photos

pytestmark = pytest.mark.slow

CROWD = {
    "name": "crowd.png",
    "mimeType": "image/png",
    "buffer": encode_png(crowd(5, [90, 140, 200, 120], (640, 300))),
}
CSP = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'"
)
# The decoders of browsers and OpenCV differ by a level here and there in a JPEG.
TOLERANCES = {
    r"p_|confidence": 1e-3,
    rf"move_|valence|arousal|({'|'.join(MEANS)})$": 1e-2,
    r"(yaw|pitch|roll)$": 0.2,
    r"box_|.*_[xy]$|size": 0.5,
    r"entropy|score|blur": 5e-3,
}


@pytest.fixture(scope="module")
def model() -> Recognizer:
    return load(device="cpu")


@pytest.fixture(scope="module")
def opened(tab: Tab, address: str) -> Iterator[tuple[Page, list[str]]]:
    """The page with its networks, and what goes wrong in it; most tests share it."""
    page, wrong = Tab(tab.browser).open(f"{address}/")
    expect(page.get_by_text("Ready.")).to_be_visible()
    page.evaluate("document.querySelector('details.options').open = true")
    yield page, wrong
    page.context.close()


@pytest.fixture
def page(opened: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page without results, as exact as Python; nothing may go wrong in it."""
    page, wrong = opened
    choose_network(page, "model.onnx")
    clear(page)
    wrong.clear()
    yield page
    assert wrong == []


def choose_network(page: Page, name: str) -> None:
    page.get_by_label("Network").select_option(name)
    expect(page.locator(".state progress")).to_be_hidden()


def clear(page: Page) -> None:
    if page.locator(".results").is_visible():
        page.get_by_role("button", name="Remove all").click()


def read(page: Page, *files: Path | dict[str, Any]) -> list[dict[str, str]]:
    """Gives files to the page; returns the rows of its table."""
    page.set_input_files(".drop input", list(files))  # type: ignore[arg-type]
    expect(page.get_by_text(re.compile(r"^Done: \d+ files?\.$"))).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the table").click()
    assert download.value.suggested_filename == "faces.csv"
    text = Path(download.value.path()).read_bytes().decode()
    return [*csv.DictReader(io.StringIO(text, newline=""))]


def python_rows(
    model: Recognizer, folder: Path, *files: Path, **options: Any
) -> list[dict[str, str]]:
    """The rows of `fer-vit predict` with the names of files instead of paths."""
    from fer_vit.fields import face_fields
    from fer_vit.report.table import write_fields

    faces = model.predict(list(files), workers=0, **options)
    videos = any(info.frame is not None for info in faces.infos)
    fields = face_fields(model.labels, model.outputs, videos)
    with write_fields(folder / "python.csv", fields) as table:
        table.write(faces.rows(fields))
    with (folder / "python.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        row["path"] = Path(row["path"]).name
    return rows


def assert_same(rows: list[dict[str, str]], expected: list[dict[str, str]]) -> None:
    """Checks that the page and Python have the same columns and rows."""
    assert [*rows[0]] == [*expected[0]]
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        for name, cell in row.items():
            tolerance = next((t for n, t in TOLERANCES.items() if re.match(n, name)), None)
            if tolerance is None or "" in (cell, other[name]):
                assert cell == other[name], (name, row["path"])
            else:
                difference = abs(float(cell) - float(other[name]))
                assert difference <= tolerance, (name, row["path"], cell, other[name])


def test_20_photos_have_the_rows_of_python(page: Page, model: Recognizer, tmp_path: Path) -> None:
    paths = write_photos(tmp_path)
    assert len(paths) == 20
    rows = read(page, *paths)
    assert sum(row["face"] != "" for row in rows) >= 22
    assert_same(rows, python_rows(model, tmp_path, *paths))

    # The small network rounds to whole numbers: a millionth more of a level may round differently.
    clear(page)
    choose_network(page, "model.int8.onnx")
    small = load(device="cpu", precision="int8")
    rows = read(page, *paths)
    expected = python_rows(small, tmp_path, *paths)
    assert [row["label"] for row in rows] == [row["label"] for row in expected]
    names = ["p_" + label for label in small.labels]
    faces = [(row, other) for row, other in zip(rows, expected, strict=True) if row["face"]]
    differences = np.abs([[float(r[n]) - float(o[n]) for n in names] for r, o in faces])
    assert differences.mean() < 1e-3
    assert differences.max() < 0.1
    sure = [float(other["confidence"]) > 0.99 for _, other in faces]
    assert sum(sure) >= 12
    assert differences[sure].max() < 1e-3


def film(folder: Path) -> Path:
    """A clip of 72 frames, filmed sideways, with a cut to another room after 48."""
    actors = [
        Actor(3, lambda t: (80 + 20 * t, 90, 110), lambda t: "happiness" if t > 1.5 else "neutral"),
        Actor(8, lambda t: (235, 90, 100) if 1 <= t < 2 else None),
    ]
    times = [n / 24 for n in range(72)]
    rng = np.random.default_rng(0)
    walls = [cv2.resize(rng.integers(40, 200, (6, 10, 3), np.uint8), (320, 180)) for _ in range(2)]
    images = []
    for number, (image, _) in enumerate(scene(actors, times, (320, 180))):
        is_stage = (image == 110).all(2, keepdims=True)
        images.append(np.where(is_stage, walls[number // 48], image).astype(np.uint8))
    sideways = [np.ascontiguousarray(np.rot90(image)) for image in images]
    return turned(write_video(folder / "sideways.mp4", sideways, times), folder / "clip.mp4", 90)


def test_a_clip_of_72_frames_has_the_rows_of_python(
    page: Page, model: Recognizer, tmp_path: Path
) -> None:
    clip = film(tmp_path)
    page.get_by_label("Frames a second").select_option("all")
    rows = read(page, clip)
    assert len({row["frame"] for row in rows}) == 72
    assert {row["track"] for row in rows} == {"1", "2", "3"}
    expect(page.get_by_text("72 frames, 3 people.")).to_be_visible()
    expect(page.get_by_text("1 cut: after a cut, each person has a new number.")).to_be_visible()
    expected = python_rows(model, tmp_path, clip, detect_every=1)
    # A canvas and FFmpeg turn the colours of a clip into RGB in their own ways.
    for row, other in zip(rows, expected, strict=True):
        for name in ("path", "frame", "track", "face", "status"):
            assert row[name] == other[name]
        assert abs(float(row["seconds"]) - float(other["seconds"])) < 1e-3
        for name in ("box_left", "box_bottom", "nose_x", "nose_y"):
            assert abs(float(row[name]) - float(other[name])) < 1
    for prefix in ("p_", "smoothed_"):
        names = [prefix + label for label in model.labels]
        ours, theirs = (
            [[float(row[n]) for n in names] for row in table] for table in (rows, expected)
        )
        assert np.abs(np.subtract(ours, theirs)).mean() < 0.02


HOSTILE = [
    "<img src=x onerror=alert(1)>.png",
    "=cmd|' /C calc'!A0.png",
    'a,b;"c".png',
    "\u202egnp.exe.png",
    "-2+3;=1+1.png",
]


def test_hostile_names_and_files(
    page: Page, opened: tuple[Page, list[str]], tmp_path: Path
) -> None:
    photo = SAMPLE.read_bytes()
    files = [{"name": name, "mimeType": "image/png", "buffer": photo} for name in HOSTILE]
    pictures, times = [read_image(SAMPLE)] * 3, [0, 0.1, 0.2]
    mpeg4 = write_video(tmp_path / "old.mp4", pictures, times, "mpeg4", Fraction(1, 1000))
    broken = {
        "empty.jpg": b"",
        "text.png": b"<svg onload=alert(1)>",
        "half.jpg": photo[:600],
        "huge.png": huge_png(),
        "old.mp4": mpeg4.read_bytes(),
        "noise.mp4": b"noise" * 99,
        "text.webm": b"noise" * 99,
    }
    for name, content in broken.items():
        kind = "video/mp4" if name.endswith(("mp4", "webm")) else "image/png"
        files.append({"name": name, "mimeType": kind, "buffer": content})
    rows = read(page, *files)
    assert [csv_value(row["path"]) for row in rows] == [*HOSTILE, *broken]
    statuses = {row["path"]: row["status"] for row in rows}
    for name in ("empty.jpg", "text.png"):
        assert statuses[name] == "not an image that this browser can decode"
    assert statuses["huge.png"] == (
        "too large: 20,000 x 10,000 pixels, the limit is 100 megapixels"
    )
    for name in ("old.mp4", "noise.mp4", "text.webm"):
        assert statuses[name].startswith("not a video that this browser can decode")
    assert page.locator(".messages li").count() == len(broken) - (statuses["half.jpg"] == "ok")
    assert page.locator(".files h2").first.inner_text() == HOSTILE[0]
    assert opened[1].pop() == "Unsupported video codec (sample entry type 'mp4v')."
    # The page goes on.
    clear(page)
    assert read(page, SAMPLE)[0]["label"] == "happiness"


def huge_png() -> bytes:
    file = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    return file.getvalue()


def test_a_photo_of_48_megapixels_has_the_rows_of_python(
    page: Page, model: Recognizer, tmp_path: Path
) -> None:
    upright = cv2.resize(read_image(SAMPLE), (6000, 8000))
    sideways = np.ascontiguousarray(np.rot90(upright))  # as phones store photos
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    path = tmp_path / "phone.jpg"
    Image.fromarray(sideways).save(path, quality=90, exif=exif)
    (row,) = read(page, path)
    (other,) = python_rows(model, tmp_path, path)
    assert row["label"] == "happiness"
    assert float(row["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-3)
    for name in ("box_left", "box_top", "box_right", "box_bottom", "nose_x", "nose_y"):
        # half a pixel where faces are searched
        assert float(row[name]) == pytest.approx(float(other[name]), abs=8000 / MAX_SIDE / 2), name


def hidden_shares(model: Recognizer, photo: Path) -> list[float]:
    """What the regions contribute to the label of the only face in a photo."""
    image = read_image(photo)
    faces = model.predict([image], workers=0)
    cut = warp(image, faces.to_crop[0], model.crop_spec.size)
    boxes = faces.boxes[0].astype(np.float32)

    def logit(pixels: Array, valid: Array) -> float:
        crops = Crops(pixels.astype(np.uint8)[None], boxes[None], valid[None], faces.to_crop)
        return float(model.engine.run(crops).logits[0, faces.probabilities[0].argmax()])

    whole = logit(cut, faces.visible[0])
    falls = []
    for region, (left, top, right, bottom) in enumerate(boxes):
        covered = cut.copy()
        for y, x in np.ndindex(cut.shape[:2]):
            if left <= x + 0.5 <= right and top <= y + 0.5 <= bottom:
                covered[y, x] = cut.mean((0, 1)).round()
        others = faces.visible[0] & (np.arange(len(boxes)) != region)
        falls.append(whole - logit(covered, others))
    return [fall / sum(map(abs, falls)) for fall in falls]


def test_what_regions_contribute(page: Page, model: Recognizer) -> None:
    read(page, SAMPLE)
    page.get_by_role("button", name="What does each region contribute?").click()
    expect(page.locator(".face .result")).to_have_text(re.compile(r"^For happiness: "))
    rows = page.locator(".side .numbers tbody tr").all_inner_texts()
    found = [float(text.split()[-1].rstrip("%").replace("\u2212", "-")) for text in rows]
    assert found == pytest.approx([100 * share for share in hidden_shares(model, SAMPLE)], abs=2)
    assert page.locator(".face .shown .region.strong").count() == 3
    assert_accessible(page, "html")


def test_the_page_is_accessible(page: Page) -> None:
    read(page, CROWD, {"name": "no.png", "mimeType": "image/png", "buffer": b""})
    for width, scheme in ((1280, "light"), (390, "dark"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert_accessible(page, "html")


def test_all_by_keyboard(page: Page) -> None:
    read(page, CROWD)
    boxes = page.locator(".whole button")
    assert boxes.count() == 4
    boxes.nth(2).focus()
    page.keyboard.press("Enter")
    expect(boxes.nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".face .number")).to_have_text("face 2")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".face .number")).to_have_text("face 3")
    for name in ("Choose photos or clips", "Use the camera", "Try a sample photo", "Download"):
        control = page.get_by_label(name).or_(page.get_by_role("button", name=name)).first
        control.focus()
        expect(control).to_be_focused()


def test_nothing_is_sent(tab: Tab, address: str) -> None:
    asked = list[tuple[str, str]]()
    tab.page.context.on("request", lambda request: asked.append((request.method, request.url)))
    page, wrong = tab.open(f"{address}/")
    expect(page.get_by_text("Ready.")).to_be_visible()
    read(page, SAMPLE)
    assert {method for method, _ in asked} == {"GET"}
    assert any(url.endswith(".onnx") for _, url in asked), "requests of the worker are missing"
    assert all(url.startswith((f"{address}/", "blob:", "data:")) for _, url in asked)
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert policy == CSP
    assert wrong == []
    for forbidden, directive in (
        ("document.head.append(element('script', {}, 'document.title = 1'))", "script-src-elem"),
        ("element('img', {src: 'https://example.com/x.png'})", "img-src"),
        ("fetch('https://example.com').catch(() => 0)", "connect-src"),
    ):
        violated = page.evaluate(
            f"""() => new Promise(done => {{
                const found = event => done(event.effectiveDirective);
                document.addEventListener('securitypolicyviolation', found, {{once: true}});
                {forbidden};
            }})"""
        )
        assert violated == directive


def test_offline_after_the_first_visit(tab: Tab, site: Path) -> None:
    context = tab.browser.new_context()
    page = context.new_page()
    with served(site) as address:
        page.goto(address)
        expect(page.get_by_text("Ready.")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Ready.")).to_be_visible()
    page.get_by_role("button", name="Try a sample photo").click()
    expect(page.get_by_role("heading", name="happiness")).to_be_visible()
    context.close()


@pytest.fixture(scope="module")
def filmed(tab: Tab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose camera shows the sample photo."""
    film = tmp_path_factory.mktemp("camera") / "film.mjpeg"
    film.write_bytes(SAMPLE.read_bytes())
    browser = tab.browser.browser_type.launch(
        executable_path=next(filter(None, map(shutil.which, PROGRAMS))),
        args=[
            "--no-sandbox",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-video-capture={film}",
        ],
    )
    yield browser
    browser.close()


def test_the_camera(filmed: Browser, address: str) -> None:
    page = filmed.new_page()
    page.goto(address)
    expect(page.get_by_text("Ready.")).to_be_visible()
    page.get_by_role("button", name="Use the camera").click()
    page.get_by_label("keep a row").check()
    expect(page.get_by_text(re.compile("^1 face, .* pictures a second"))).to_be_visible()
    expect(page.locator(".live aside table")).to_be_visible()
    expect(page.locator(".count")).to_have_text(re.compile(r"\d+ rows?, \d+ faces?"))
    page.get_by_role("button", name="Stop the camera").click()
    expect(page.locator(".live")).to_be_hidden()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the table").click()
    (row, *_) = csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8")))
    assert (row["path"], row["label"]) == ("camera", "happiness")
    page.close()


def test_a_blocked_camera_is_a_line(page: Page) -> None:
    page.get_by_role("button", name="Use the camera").click()
    line = page.locator(".messages li")
    expect(line).to_have_text(re.compile("^(The camera|No camera) "))
    assert read(page, SAMPLE)[0]["label"] == "happiness"


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("WebAssembly.validate = () => false", "This browser lacks WebAssembly SIMD"),
        ("self.createImageBitmap = () => { throw new RangeError('x') }", "not enough memory"),
    ],
)
def test_what_a_browser_lacks_is_a_line(tab: Tab, address: str, fault: str, line: str) -> None:
    context = tab.browser.new_context(service_workers="block")
    page = context.new_page()

    def answer(route: Any) -> None:
        route.fulfill(response=(response := route.fetch()), body=f"{fault};{response.text()}")

    page.route("**/worker.js", answer)
    page.goto(address)
    if "SIMD" not in line:
        expect(page.get_by_text("Ready.")).to_be_visible()
        page.get_by_role("button", name="Try a sample photo").click()
    expect(page.locator(".messages li")).to_contain_text(line)
    context.close()


def study(tmp_path: Path, frame: str) -> Path:
    """A page around the page, which keeps what it gets."""
    (tmp_path / "study.html").write_text(
        f"""<!doctype html><title>study</title><script>
        got = []; addEventListener('message', event => got.push([event.origin, event.data]));
        </script><iframe src="{frame}" style="width:100%;height:700px"></iframe>""",
        encoding="utf-8",
    )
    return tmp_path


def test_a_study_gets_numbers_after_consent(tab: Tab, address: str, tmp_path: Path) -> None:
    with served(tmp_path) as origin, served(tmp_path) as other:
        study(tmp_path, f"{address}/?parent={origin}")
        for place in (origin, other):
            page, _ = tab.open(f"{place}/study.html")
            frame = page.frame_locator("iframe")
            expect(frame.get_by_text("Ready.")).to_be_visible()
            expect(frame.locator(".consent b")).to_have_text(origin)
            frame.get_by_role("button", name="Try a sample photo").click()
            expect(frame.get_by_text("Done: 1 file.")).to_be_visible()
            assert page.evaluate("got") == []
            frame.get_by_role("button", name="Send the numbers").click()
            if place == origin:
                page.wait_for_function("got.length === 1")
            frame.get_by_role("button", name="Try a sample photo").click()
            expect(frame.locator(".count")).to_have_text("2 rows, 2 faces")
            if place == other:
                assert page.evaluate("got") == []
                continue
            page.wait_for_function("got.length === 2")
            sender, data = page.evaluate("got[0]")
            assert sender == address
            assert data["type"] == "fer-vit"
            assert data["rows"][0]["label"] == "happiness"
            assert "bytes" not in json.dumps(data)


@pytest.mark.parametrize("parent", ["*", "null", "https://study.example/path", "study"])
def test_another_parent_than_an_origin_is_a_line(tab: Tab, address: str, parent: str) -> None:
    page, _ = tab.open(f"{address}/?parent={parent}")
    expect(page.locator(".messages li")).to_contain_text("Expected an origin such as")
    expect(page.locator(".consent")).to_be_hidden()
