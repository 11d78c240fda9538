"""Photos as faces, and the options for them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image as Pil
from PIL.TiffImagePlugin import AppendingTiffWriter

from fer_vit.errors import FerVitError
from fer_vit.face.crop import CropSpec, crop_face
from fer_vit.face.detection import Detection
from fer_vit.face.detectors import Detector
from fer_vit.face.finder import FaceFinder, FaceMode
from fer_vit.face.image import UNREADABLE, encode_png, read_image
from fer_vit.faces import FIRST_FRAME, NO_FACE, OK, Faces, Source
from fer_vit.geometry import TEMPLATE, Align, Image
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import build_model
from fer_vit.predict.inputs import find_inputs
from fer_vit.predict.photos import PhotoOptions
from fer_vit.predict.recognizer import Recognizer, load
from tests.helpers.marks import slow
from tests.helpers.videos import write_numbered

SPEC = CropSpec(size=48)
squares = pytest.mark.usefixtures("usual_landmarks", "forked")


class Searching(Detector):
    """A detector by a function."""

    def __init__(self, function: Callable[[Image], list[Detection]]) -> None:
        self.function = function

    def detect(self, image: Image) -> list[Detection]:
        return self.function(image)


@cache
def recognizer(size: int, align: Align) -> Recognizer:
    """A model for crops of this size; its network is not used."""
    shape = {"img_size": size, "patch_size": size // 2, "embed_dim": 8, "depth": 1, "num_heads": 1}
    net = build_model(RegionViTConfig(**shape, regions=SPEC.regions), ["a", "b"])
    net.settings.crop = replace(net.settings.crop, align=align)
    return load(net, "cpu")


def read(
    sources: Sequence[Source],
    find: Callable[[Image], list[Detection]] | None,
    mode: FaceMode = "detect",
    spec: CropSpec = SPEC,
    **options: int,
) -> list[Faces]:
    """The photos with their crops, in batches of one unless an option differs."""
    detector = Searching(find) if find else "none"
    chosen = {"workers": 0, "batch_size": 1, "face": mode, "detector": detector, **options}
    model = recognizer(spec.size, spec.align)
    return list(model.find(sources, PhotoOptions(**chosen)))


def detect_squares(image: Image) -> list[Detection]:
    """Detects every bright square of 32 pixels."""
    corners = np.argwhere(image[::32, ::32, 0] > 200)[:, ::-1] * 32.0
    return [Detection(np.hstack([c, c + 32]), c + np.array(TEMPLATE) * 32, 0.9) for c in corners]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"face": "crops"}, "one of detect, crop"),
        (
            {"detector": "nothing"},
            "yunet, landmarks, none.*nothing.*yunet",
        ),
        ({"detector": "landmarks"}, "landmarks"),
        ({"min_score": 1.1}, "`min_score`.* 0 to 1"),
        ({"min_score": 0.5, "face": "crop"}, "`min_score`"),
        ({"batch_size": 1.5}, "`batch_size`.* whole number"),
        ({"fps": "five"}, "`fps`.* number"),
        ({"start": -1.0}, "`start`.* 0 or more"),
        ({"min_score": float("nan")}, "`min_score`.* a number"),
        ({"batch_size": 0}, "`batch_size`.* 1 or more"),
        ({"batch_size": 10**30}, "`batch_size`.* below"),
        ({"fps": 5.0, "every": 2}, "`fps` or `every`.* 5 and 2"),
        ({"fps": float("inf")}, "`fps` .* above 0,.* inf"),
        ({"fps": -5.0}, "`fps` .* above 0,.* -5.$"),
        ({"start": 5.0, "end": 4.0}, "`end`.* 5 or more"),
        ({"smooth": -1.0}, "smooth"),
    ],
)
def test_photo_options_refuse_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FerVitError, match=message):
        PhotoOptions(**options)


def test_options_of_videos_without_a_video_are_named() -> None:
    options = PhotoOptions(fps=5.0, smooth=1.0, batch_size=3)
    (line,) = options.unused_notes([Path("a.jpg"), b"bytes"])
    assert re.findall("`(.*?)`", line) == ["fps", "smooth"]
    assert options.unused_notes([Path("a.jpg"), Path("b.mp4")]) == []
    assert PhotoOptions(batch_size=3).unused_notes([Path("a.jpg")]) == []


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    image = np.zeros((96, 128, 3), np.uint8)
    (tmp_path / "none.png").write_bytes(encode_png(image))
    image[32:64, 64:96] = 255
    (tmp_path / "one.png").write_bytes(encode_png(image))
    image[64:96, :32] = 255
    (tmp_path / "two.png").write_bytes(encode_png(image))
    (tmp_path / "text.jpg").write_text("this is not an image")
    (tmp_path / "empty.png").touch()
    return tmp_path


@squares
@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (2, 0), (5, 2)])
def test_every_photo_comes_once_with_its_faces(photos: Path, batch_size: int, workers: int) -> None:
    sources = find_inputs([photos]).files
    batches = read(sources, detect_squares, batch_size=batch_size, workers=workers)
    seen = [
        (Path(photo.path).name, photo.status, len(photo.faces))
        for faces in batches
        for photo in faces.photos()
    ]
    assert seen == [
        ("empty.png", "the file is empty", 0),
        ("none.png", NO_FACE, 0),
        ("one.png", OK, 1),
        ("text.jpg", UNREADABLE, 0),
        ("two.png", OK, 2),
    ]
    named = [(Path(face.path).name, face.face) for faces in batches for face in faces]
    assert named == [("one.png", 0), ("two.png", 0), ("two.png", 1)]
    crops = [faces.crops for faces in batches if faces.crops is not None]
    assert sum(map(len, crops)) == len(named)
    for batch in crops:
        assert batch.image.mean() > 200  # the bright square fills the crop
        assert batch.valid.all()


@squares
@pytest.mark.parametrize(
    ("shape", "orientation"),
    [
        ((1983, 2643), 6),
        *slow(*(((1983, 2643), turn) for turn in (1, 3, 8))),
        *slow(((1984, 2640), 6)),
    ],
)
def test_reduced_decoding_keeps_rotated_photos_in_place(
    shape: tuple[int, int], orientation: int, tmp_path: Path
) -> None:
    """The detector finds the middle of a bright square, after rotation by EXIF."""
    image = np.zeros((*shape, 3), np.uint8)
    image[300:700, 1500:1900] = 255
    exif = Pil.Exif()
    exif[0x0112] = orientation
    Pil.fromarray(image).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    seen: list[tuple[int, ...]] = []

    def detector(image: Image) -> list[Detection]:
        seen.append(image.shape)
        weight = image[..., 0] / image[..., 0].sum(dtype=float)
        y, x = np.indices(weight.shape) + 0.5
        middle = np.array([(weight * x).sum(), (weight * y).sum()])
        side = 400 * max(image.shape) / max(shape)
        return [
            Detection(
                np.hstack([middle - side / 2, middle + side / 2]), np.tile(middle, (5, 1)), 0.9
            )
        ]

    finder = FaceFinder(SPEC, "detect", Searching(detector))
    search = finder.find_in_file((tmp_path / "photo.jpg").read_bytes())
    face = search.faces
    assert search.size == read_image(tmp_path / "photo.jpg").shape[1::-1]
    whole = finder.find(read_image(tmp_path / "photo.jpg"))
    assert max(seen[0]) == (2643 if shape[0] % 2 and orientation > 1 else (max(shape) + 1) // 2)
    assert np.abs(face.landmarks - whole.landmarks).max() < 0.1


@squares
@pytest.mark.parametrize(("size", "whole"), [(48, False), (250, False), (350, True), (500, True)])
def test_a_large_photo_is_decoded_as_far_as_needed(size: int, whole: bool, tmp_path: Path) -> None:
    smooth = cv2.GaussianBlur(
        np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8), (0, 0), 3
    )
    # odd: half of it is no whole number
    image = cv2.resize(smooth, (2643, 1983), interpolation=cv2.INTER_CUBIC)
    (tmp_path / "photo.jpg").write_bytes(cv2.imencode(".jpg", image[..., ::-1])[1].tobytes())
    spec = CropSpec(size)
    face = Detection(
        np.array([1200.0, 900.0, 1800.0, 1500.0]),
        np.array([1200, 900]) + np.array(TEMPLATE) * 600,
        0.9,
    )
    seen: list[tuple[int, ...]] = []

    def detector(image: Image) -> list[Detection]:
        seen.append(image.shape)
        part = image.shape[1] / 2643
        return [Detection(face.box * part, face.landmarks * part, face.score)]

    (faces,) = read([tmp_path / "photo.jpg"], detector, spec=spec)
    assert seen == [(992, 1322, 3)]  # half, rounded up
    assert faces.infos[0].size == (2643, 1983) or faces.infos[0].size == (2644, 1984)
    assert np.allclose(faces.box[0], face.box, rtol=1e-3)
    crop, _, to_crop, _ = crop_face(
        read_image(tmp_path / "photo.jpg"), faces.landmarks[0], spec, framed=False
    )
    assert np.allclose(faces.crops.to_crop[0], to_crop)
    difference = np.abs(faces.crops.image[0].astype(int) - crop)
    # there one of the two is averaged on its way
    assert difference.max() <= (3 if size == 250 else 2)
    assert (difference == 0).all() == whole


def detect_corner(image: Image) -> list[Detection]:
    """Detects a small face in the lower right corner of a bright image."""
    corner = np.array(image.shape[1::-1]) * 0.55
    side = image.shape[0] * 0.45
    face = Detection(np.hstack([corner, corner + side]), corner + np.array(TEMPLATE) * side, 0.9)
    return [face] if image.max() > 0 else []


@squares
def test_photos_of_crops_are_read_by_their_landmarks_or_whole(photos: Path) -> None:
    image = np.zeros((96, 96, 3), np.uint8)
    image[48:, 48:] = 255
    (photos / "one.png").write_bytes(encode_png(image))
    paths = [photos / "one.png", photos / "none.png"]
    faces, unseen = read(paths, detect_corner, "crop")
    assert faces.infos[0].status == unseen.infos[0].status == OK
    assert faces.crops.image.mean() > 240
    assert unseen.score.tolist() == [0]
    # Where no face is found the image is taken whole; without a detector it is taken to be framed
    # like the template.
    framed, _ = read(paths, None, "crop")
    assert np.isnan(framed.box).all()
    assert len(framed) == 1
    assert unseen.crops.valid.all()
    assert (unseen.crops.boxes == framed.crops.boxes).all()
    assert framed.crops.image.mean() < 100
    # With align="crop" the full image is used with the regions of the detected face.
    kept, _ = read(paths, detect_corner, "crop", CropSpec(48, align="crop"))
    assert (kept.crops.image == framed.crops.image).all()
    assert not np.allclose(kept.crops.boxes, framed.crops.boxes)


def test_animations_and_videos_named_as_images(tmp_path: Path) -> None:
    frames = [Pil.fromarray(np.full((64, 64, 3), shade, np.uint8)) for shade in (0, 100, 255)]
    for name in ("a.png", "a.webp", "a.avif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], duration=100)
        frames[0].save(tmp_path / f"still_{name}")
    write_numbered(tmp_path / "clip.mp4", [0.0, 0.1]).rename(tmp_path / "clip.jpg")
    found = read(find_inputs([tmp_path]).files, lambda _: [])
    status = {Path(faces.infos[0].path).name: faces.infos[0].status for faces in found}
    assert status.pop("clip.jpg").startswith("a video")
    assert status == {name: NO_FACE if name.startswith("still") else FIRST_FRAME for name in status}


def test_pages_of_a_tiff(tmp_path: Path) -> None:
    """Scans of several photos and stacks have pages; a pyramid is one picture in several sizes."""
    page = Pil.fromarray(np.zeros((64, 64, 3), np.uint8))
    page.save(tmp_path / "scans.tif", save_all=True, append_images=[page, page])
    page.save(tmp_path / "big.tif", save_all=True, append_images=[page], big_tiff=True)
    page.save(tmp_path / "single.tif")
    page.save(tmp_path / "burst.mpo", save_all=True, append_images=[page])
    with AppendingTiffWriter(tmp_path / "pyramid.tif", new=True) as file:
        for side in (64, 32, 16):
            kind = {254: int(side < 64)}  # a reduced copy of another page
            page.resize((side, side)).save(file, format="TIFF", tiffinfo=kind)
            file.newFrame()
    names = ["scans.tif", "big.tif", "single.tif", "burst.mpo", "pyramid.tif"]
    found = read([tmp_path / name for name in names], lambda _: [])
    status = [faces.infos[0].status for faces in found]
    assert status == [FIRST_FRAME, FIRST_FRAME, NO_FACE, NO_FACE, NO_FACE]


def test_a_crop_that_is_a_photo_is_found_by_the_chosen_detector(tmp_path: Path) -> None:
    """The network is opened once, however many large crops there are."""
    sizes = []

    def detector(image: Image) -> list[Detection]:
        sizes.append(image.shape[:2])
        small = np.array([0.4, 0.4, 0.5, 0.5]) * np.tile(image.shape[1::-1], 2)
        return [Detection(small, small[:2] + np.array(TEMPLATE) * (small[2:] - small[:2]), 0.9)]

    crops = [np.zeros((500, 500, 3), np.uint8), np.zeros((60, 60, 3), np.uint8)]
    found = read(crops, detector, "crop")
    assert [faces.infos[0].taken_whole for faces in found] == [True, False]
    assert (500, 500) in sizes
    found = read(crops, None, "crop")
    assert [faces.infos[0].taken_whole for faces in found] == [False, False]
